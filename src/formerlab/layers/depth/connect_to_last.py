"""One average over the outputs of all blocks before the final norm."""

from typing import Literal

from pydantic import Field

from formerlab.layers.depth.dwa import Averages


class ConnectToLast(Averages):
    """Y_d = sum over j = 0 .. d of alpha_j X_j for the last block d, Y_i = X_i for all other blocks (arXiv:2402.02622,
    Table 4: Connect-to-Last).

    At initialisation, the model is close to the plain Transformer; with others = 0 it is equal.
    """

    kind: Literal["connect_to_last"] = "connect_to_last"
    others: float = Field(default=1e-4, ge=-10.0, le=10.0)
    """Initial weight of all outputs except the last (1e-4 in the official code). The last weight starts at 1."""

    def sources_by_block(self, layers: int) -> dict[int, list[int]]:
        return {layers: list(range(layers + 1))}

    @property
    def initial_weights(self) -> tuple[float, float]:
        return self.others, 1.0
