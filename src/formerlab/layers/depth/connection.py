"""A sub-layer with its norm and residual connection, before or after."""

from collections.abc import Callable
from typing import Literal

from torch import nn

from formerlab.layers.depth.identity import Stream

Order = Literal["post", "pre"]
"""post: LN(x + sublayer(x)) (arXiv:1706.03762, section 3.1). pre: x + sublayer(LN(x)) (arXiv:2002.04745, Figure 1b)."""


class Connection(nn.Module):
    """post: LN(x + dropout(f(x))); pre: x + dropout(f(LN(x))) (arXiv:1706.03762, 3.1; arXiv:2002.04745, Fig 1)."""

    def __init__(self, norm: nn.Module, dropout: float, order: Order) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = nn.Dropout(dropout)
        self.order = order

    def forward(
        self, x: Stream, sublayer: Callable[[Stream], Stream], add: Callable[[Stream, Stream], Stream]
    ) -> Stream:
        """Return the stream after the sub-layer; `add` stands for x + update."""
        if self.order == "pre":
            return add(x, self.dropout(sublayer(self.norm(x))))
        after: Stream = self.norm(add(x, self.dropout(sublayer(x))))
        return after
