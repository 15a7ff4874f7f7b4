"""The stage `flow`: how information moves over the depth of a trained model (arXiv:2402.02622, section 5).

Three questions to a finished run: how close to the embedding is what each block reads, how many of the smallest mixing
weights may be dropped after training, and how the singular values of the weights fall (Fig 13).
"""

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
from formerlab.evaluation.measurement import Measured, Measurement
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
    """Settings of `flow`, for Transformers and static averages."""

    windows: Count = 256
    """Windows of the held-out stream, evenly spread."""
    shares: tuple[Fraction, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
    """Shares of the mixing weights that are dropped, the smallest first (Fig 7: 0 to 50 %)."""

    def reading(self, run: AnyRun, questions: int) -> int:
        return (1 + len(self.shares)) * self.windows * int(getattr(getattr(run, "task", None), "context", 0))


def measure(run: Measured, settings: Flow) -> None:
    """Write flow.csv."""
    task = run.run.task  # type: ignore[attr-defined]  # the plan lets decoders in alone
    run.write("flow.csv", flow(run.model, task, load_stream(run.data, "test"), settings))


def flow(model: DecoderModel, task: LanguageModeling, stream: Stream, settings: Flow) -> Iterator[list[Cell]]:
    """Yield the rows of one model.

    `cosine_with_embedding` at place i is the mean over tokens of the cosine of Y_i, which block i + 1 reads (after the
    last block, the final norm), with X_0. For averages with free weights `pruned_loss_nats` at place s is the loss
    without the share s of the mixing weights, those smallest in size; `kept` counts the others.
    """
    windows = spread_windows(stream, task.context, settings.windows)

    def loss() -> float:
        return mean_loss(window_losses(model, stream, task.context, batch=task.batch, windows=windows))

    yield from ([COSINE, index, None, mean] for index, mean in cosines(model, loss))
    if type(model.mixer) is DepthWeightedAverageLayer:  # whose alphas are the weights; those of softmax are logits
        for share in settings.shares:
            with _pruned(model.mixer, share) as kept:
                yield [PRUNED, share, kept, loss()]
    yield from ([SINGULAR + matrix, rank, None, value] for matrix, rank, value in singular_values(model))


def cosines(model: DecoderModel, work: Callable[[], object]) -> Iterator[tuple[int, float]]:
    """Yield i and the mean cosine of Y_i with X_0, which the first block reads, over the passes of some work."""
    found, origin = defaultdict[int, list[Tensor]](list), list[Tensor]()

    def listen(index: int, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if index == 0:
            origin[:] = inputs[:1]
        else:
            found[index].append(F.cosine_similarity(inputs[0].float(), origin[0].float(), dim=-1).flatten())

    readers = enumerate((*model.blocks, model.final_norm))
    with ExitStack() as hooks:
        for index, module in readers:
            hooks.enter_context(module.register_forward_pre_hook(partial(listen, index)))
        work()
    for index, values in found.items():
        yield index, torch.cat(values).double().mean().item()


@contextmanager
def _pruned(mixer: DepthWeightedAverageLayer, share: float) -> Iterator[int]:
    """Set the smallest mixing weights to zero for a while; give how many are left."""
    alphas: list[nn.Parameter] = list(mixer.alphas.values())
    before = parameters_to_vector(alphas).detach()
    dropped = round(share * len(before))
    left = before.index_fill(0, before.abs().argsort(stable=True)[:dropped], 0.0)
    try:
        vector_to_parameters(left, alphas)
        yield len(before) - dropped
    finally:
        vector_to_parameters(before, alphas)


MATRICES = {
    "query-key-value": ("attention.query", "attention.key", "attention.value"),
    "attention output": ("attention.output",),
    "feed-forward up": ("feedforward.inner",),
    "feed-forward down": ("feedforward.outer",),
}
"""Matrices of a block: the modules whose weights, stacked, make up each of them."""


def singular_values(model: DecoderModel) -> Iterator[tuple[str, float, float]]:
    """Yield matrix, rank (0 is the largest, 1 the smallest) and singular value by the largest, mean over the blocks, of
    the blocks' matrices and of the embedding. A projection such as Pattention has no weight matrix.
    """
    matrices: dict[str, list[Tensor]] = {}
    for name, parts in MATRICES.items():
        modules = [[block.get_submodule(part) for part in parts] for block in model.blocks]
        weights = [[module.weight for module in own if isinstance(module, LinearProjection)] for own in modules]
        if all(len(own) == len(parts) for own in weights):
            matrices[name] = [torch.cat(own) for own in weights]
    matrices["embedding"] = [model.embedding]
    for name, found in matrices.items():
        singular = [torch.linalg.svdvals(matrix.detach().double().cpu()) for matrix in found]
        values = torch.stack([each / each[0] for each in singular]).mean(0)
        for place, value in enumerate(values.tolist()):
            yield name, place / max(1, len(values) - 1), value
