"""Which keys each query could see, row by row: the masks of Fig. 3 of the Decay article."""

from collections.abc import Iterator, Sequence

from formerlab.cache import H2O, Decay, Full, Ideal, Local, Simulation, simulate
from formerlab.cache.simulation import Seen
from formerlab.evaluation.pruning.configuration import Arm
from formerlab.models.decoder import DecoderModel
from formerlab.results.write import Cell
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.window_losses import Stream, window_batches

COLUMNS = ("policy", "alpha", "recent", "budget", "layer", "head", "query", "kept")
SHOWN = (Ideal(), Local(), H2O(), Decay(alpha=0.2), Decay(alpha=0.8))
"""The policies of the article's figure."""


def pictures(
    model: DecoderModel, stream: Stream, tokens: int, window: int, budgets: Sequence[int | float]
) -> Iterator[tuple[Cell, ...]]:
    """Yield the cells under COLUMNS, a row per policy and query: `kept` has a 1 for every key that the query sees.

    All policies choose from the attention of the same unpruned pass, in head 0 of the middle layer. Windows are
    `tokens` long, and their budgets are shares of that length.
    """
    seen_layers: list[Seen] = []
    ((_, batch),) = window_batches(stream, tokens, [window], 1)
    with evaluating(model):
        inputs = batch[:, :-1].to(model.embedding.device)
        model(inputs, attend=Simulation(Full(), 1.0, observe=lambda _, seen: seen_layers.append(seen)))
    layer = len(seen_layers) // 2
    seen = seen_layers[layer]
    groups = seen.logits.shape[1] // seen.keys.shape[1]
    for budget in budgets:
        for policy in SHOWN:
            _, visible = simulate(policy, seen.logits, budget, groups=groups, keys=seen.keys, values=seen.values)
            cells = Arm(policy, budget).cells()
            for query, row in enumerate(visible[0, 0].tolist()):
                yield *cells, layer, 0, query, "".join("1" if key else "0" for key in row)
