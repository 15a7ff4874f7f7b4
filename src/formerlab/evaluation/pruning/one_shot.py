"""One-shot compression: a prompt read without pruning, then a part of it kept once. Another mode, for another table."""

from collections.abc import Iterator, Sequence

from torch.nn import functional as F

from formerlab.cache import CompressedCache, KVCache
from formerlab.evaluation.pruning.configuration import Arm
from formerlab.models.decoder import DecoderModel
from formerlab.results.write import Cell
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.window_losses import Stream, window_batches

COLUMNS = ("policy", "alpha", "recent", "budget", "realised_budget", "prompt", "window", "tokens", "loss_nats")


def once_losses(
    model: DecoderModel, stream: Stream, context: int, windows: Sequence[int], arms: Sequence[Arm], *, batch: int = 16
) -> Iterator[tuple[Cell, ...]]:
    """Yield the cells under COLUMNS: the loss on the second half of each window, given its compressed first half.

    The first half is the prompt; budgets are shares of it. A full cache, for comparison, comes first.
    """
    half = context // 2
    for indices, tokens in window_batches(stream, context, windows, batch):
        if tokens.shape[1] <= context:
            continue  # a partial window has no second half of the same length
        inputs = tokens.to(model.embedding.device)
        for arm in (None, *arms):
            cache = KVCache() if arm is None else CompressedCache(arm.policy, arm.budget, position=model.position)
            with evaluating(model):
                model(inputs[:, :half], attend=cache, last=1)
                logits = model(inputs[:, half:-1], attend=cache, start=half)
            targets = inputs[:, half + 1 :]
            losses = F.cross_entropy(logits.transpose(1, 2).float(), targets, reduction="none").double().mean(1)
            held = 1.0 if isinstance(cache, KVCache) else cache.kept(0).shape[-1] / half
            cells = ("full", None, None, 1.0) if arm is None else arm.cells()
            for window, loss in zip(indices, losses.tolist(), strict=True):
                yield *cells, held, half, window, targets.shape[1], loss
