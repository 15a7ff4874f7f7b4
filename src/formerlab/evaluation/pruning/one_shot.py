"""One-shot compression: a prompt is read whole, a part of it is kept once, and what follows is predicted from that."""

from collections.abc import Iterator, Sequence

from torch.nn import functional as F

from formerlab.cache import CompressedCache, KVCache
from formerlab.evaluation.pruning.configuration import Configuration
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.results.write import Cell
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.window_losses import Stream, window_batches


def one_shot_losses(
    model: DecoderModel,
    stream: Stream,
    context: int,
    windows: Sequence[int],
    configurations: Sequence[Configuration],
    *,
    batch: int = 16,
    progress: Progress | None = None,
) -> Iterator[tuple[Cell, ...]]:
    """Yield the cells of prune_one_shot.csv: the loss on the second half of windows, given the compressed first half.

    The first half is the prompt; budgets are shares of it. A full cache, for comparison, comes first.
    """
    half = context // 2
    for indices, tokens in window_batches(stream, context, windows, batch):
        if tokens.shape[1] <= context:
            continue  # a partial window has no second half of the same length
        inputs = tokens.to(model.embedding.device)
        for configuration in (None, *configurations):
            cache = KVCache() if configuration is None else CompressedCache(*configuration, position=model.position)
            with evaluating(model):
                model(inputs[:, :half], attend=cache, last=1)
                logits = model(inputs[:, half:-1], attend=cache, start=half)
            targets = inputs[:, half + 1 :]
            losses = F.cross_entropy(logits.transpose(1, 2).float(), targets, reduction="none").double().mean(1)
            held = 1.0 if isinstance(cache, KVCache) else cache.kept(0).shape[-1] / half
            cells = ("full", None, None, 1.0) if configuration is None else configuration.cells()
            for window, loss in zip(indices, losses.tolist(), strict=True):
                yield *cells, held, half, window, targets.shape[1], loss
            if progress is not None:
                progress.advance(len(indices))
