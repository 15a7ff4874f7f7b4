"""One average over all outputs, in front of the final norm."""

from typing import Literal

from pydantic import Field

from formerlab.layers.depth.dwa import Averages


class ConnectToLast(Averages):
    """Y_d = sum over j = 0 .. d of alpha_j X_j after the last block d, Y_i = X_i elsewhere (arXiv:2402.02622, Table 4:
    Connect-to-Last).

    The official code starts the weights of all but the last output at 1e-4, so a fresh model is nearly, but not to the
    bit, the plain Transformer; others = 0 starts at the identity, as the averages of DenseFormer do.
    """

    kind: Literal["connect_to_last"] = "connect_to_last"
    others: float = Field(default=1e-4, ge=-10.0, le=10.0)
    """Initial weight of all outputs but the last, whose weight starts at 1."""

    def table(self, layers: int) -> dict[int, list[int]]:
        return {layers: list(range(layers + 1))}

    @property
    def start(self) -> tuple[float, float]:
        """Those of the official code."""
        return self.others, 1.0
