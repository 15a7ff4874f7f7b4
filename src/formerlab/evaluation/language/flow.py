"""The stage `flow`: information flow over the depth of a trained model (arXiv:2402.02622, section 5 and Fig. 13)."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from formerlab.data import load_stream
from formerlab.evaluation.measurement import MeasuredRun, Measurement
from formerlab.layers.depth.dwa import DepthWeightedAverageLayer
from formerlab.layers.linear import LinearProjection
from formerlab.models.decoder import DecoderModel
from formerlab.results.schema import COSINE, PRUNED, SINGULAR
from formerlab.results.write import Cell
from formerlab.spec import Count
from formerlab.tasks.language import LanguageModeling
from formerlab.tasks.window_losses import Stream, mean_loss, spread_windows, window_losses
from formerlab.training.any_run import AnyRun

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class Flow(Measurement):
    """Settings of `flow`."""

    windows: Count = 256
    """Number of windows, evenly spaced over the held-out stream."""
    shares: tuple[Fraction, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
    """Fractions of the mixing weights that are set to zero, smallest magnitude first (Fig. 7: 0 to 50 %)."""

    def tokens_read(self, run: AnyRun, questions: int) -> int:
        return (1 + len(self.shares)) * self.windows * int(getattr(getattr(run, "task", None), "context", 0))


def measure(run: MeasuredRun, settings: Flow) -> None:
    """Write flow.csv."""
    task = run.spec.task  # type: ignore[attr-defined]  # the plan admits only decoders
    run.write("flow.csv", flow(run.model, task, load_stream(run.data, "test"), settings))


def flow(model: DecoderModel, task: LanguageModeling, stream: Stream, settings: Flow) -> Iterator[list[Cell]]:
    """Yield rows (measure, place, kept, value) of one model.

    - `cosine_with_embedding`: `value` is the mean cosine similarity of Y_i and the embedding X_0 over tokens, and
      `place` is i. Y_i is the input of block i + 1; the last Y_i is the input of the final norm.
    - `pruned_loss_nats`, for depth-weighted averages with unconstrained weights: `value` is the loss, `place` is the
      fraction of mixing weights that is set to zero, and `kept` is the number of remaining weights.
    - `singular values: <matrix>`: `place` is the relative rank.
    """
    windows = spread_windows(stream, task.context, settings.windows)

    def loss() -> float:
        return mean_loss(window_losses(model, stream, task.context, batch=task.batch, windows=windows))

    yield from ([COSINE, index, None, mean] for index, mean in cosines(model, loss))
    if type(model.mixer) is DepthWeightedAverageLayer:  # its alphas are weights; the alphas of a softmax are logits
        for fraction in settings.shares:
            with _pruned(model.mixer, fraction) as remaining:
                yield [PRUNED, fraction, remaining, loss()]
    yield from ([SINGULAR + matrix, rank, None, value] for matrix, rank, value in singular_values(model))


def cosines(model: DecoderModel, work: Callable[[], object]) -> Iterator[tuple[int, float]]:
    """Yield i and the mean cosine similarity of Y_i with X_0, over all forward passes that `work` runs."""
    similarities, embedding = defaultdict[int, list[Tensor]](list), list[Tensor]()

    def record(index: int, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if index == 0:
            embedding[:] = inputs[:1]
        else:
            similarities[index].append(F.cosine_similarity(inputs[0].float(), embedding[0].float(), dim=-1).flatten())

    with ExitStack() as hooks:
        for index, module in enumerate((*model.blocks, model.final_norm)):
            hooks.enter_context(module.register_forward_pre_hook(partial(record, index)))
        work()
    for index, values in similarities.items():
        yield index, torch.cat(values).double().mean().item()


@contextmanager
def _pruned(mixer: DepthWeightedAverageLayer, fraction: float) -> Iterator[int]:
    """Set a fraction of the mixing weights to zero, smallest magnitude first; yield the number of remaining weights."""
    alphas: list[nn.Parameter] = list(mixer.alphas.values())
    original = parameters_to_vector(alphas).detach()
    count = round(fraction * len(original))
    pruned = original.index_fill(0, original.abs().argsort(stable=True)[:count], 0.0)
    try:
        vector_to_parameters(pruned, alphas)
        yield len(original) - count
    finally:
        vector_to_parameters(original, alphas)


MATRICES = {
    "query-key-value": ("attention.query", "attention.key", "attention.value"),
    "attention output": ("attention.output",),
    "feed-forward up": ("feedforward.inner",),
    "feed-forward down": ("feedforward.outer",),
}
"""The modules of a block whose weights are stacked into each matrix."""


def singular_values(model: DecoderModel) -> Iterator[tuple[str, float, float]]:
    """Yield (matrix name, relative rank, singular value) for the embedding and the MATRICES of linear projections.

    The rank is 0 for the largest value and 1 for the smallest. Values are divided by the largest value of the matrix,
    then averaged over blocks.
    """
    matrices: dict[str, list[Tensor]] = {}
    for name, paths in MATRICES.items():
        modules = [[block.get_submodule(path) for path in paths] for block in model.blocks]
        weights = [[module.weight for module in group if isinstance(module, LinearProjection)] for group in modules]
        if all(len(group) == len(paths) for group in weights):
            matrices[name] = [torch.cat(group) for group in weights]
    matrices["embedding"] = [model.embedding]
    for name, block_matrices in matrices.items():
        singular = [torch.linalg.svdvals(matrix.detach().double().cpu()) for matrix in block_matrices]
        values = torch.stack([spectrum / spectrum[0] for spectrum in singular]).mean(0)
        for index, value in enumerate(values.tolist()):
            yield name, index / max(1, len(values) - 1), value
