"""Parameters and FLOPs by the formulas of Tokenformer's Table 3 (arXiv:2410.23168), without torch.

They are written down here a second time, beside the specs' own, so that tables can hold the two against each other.
"""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from pandas import DataFrame

from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published


class Shape(NamedTuple):
    """A forward pass over T tokens: 2 N T + 4 L d T^2 FLOPs, N without embedding (arXiv:2410.23168, Table 3).

    What the formulas need of a decoder; tokens of attention and feed-forward are parameter tokens, 0 for a Transformer.
    """

    layers: int
    width: int
    vocabulary: int
    attention_tokens: int = 0
    feedforward_tokens: int = 0
    hidden: int = 0
    """Hidden units of the feed-forward of a Transformer."""

    def attention(self) -> int:
        """Parameters of query, key, value and output: 4 L d^2, or 2 L d (n_q + n_k + n_v + n_o)."""
        each = 2 * self.width * self.attention_tokens if self.attention_tokens else self.width**2
        return 4 * self.layers * each

    def feedforward(self) -> int:
        """Parameters of the feed-forward: 8 L d^2, or 2 L d n_ff."""
        return 2 * self.layers * self.width * (self.feedforward_tokens or self.hidden)

    def parameters(self) -> int:
        """N, without embedding and norms."""
        return self.attention() + self.feedforward()

    def projection_flops(self, time: int) -> int:
        """2 N T."""
        return 2 * self.parameters() * time

    def token_token_flops(self, time: int) -> int:
        """4 L d T^2."""
        return 4 * self.layers * self.width * time**2

    def flops(self, time: int, *, head: bool = False) -> int:
        """2 N T + 4 L d T^2, and 2 V d T for the logits where `head` asks for them."""
        logits = 2 * self.vocabulary * self.width * time if head else 0
        return self.projection_flops(time) + self.token_token_flops(time) + logits


def shape_of(record: Mapping[Hashable, Any]) -> Shape:
    """Return the shape of a run's model from the flat columns of its record; GeLU feed-forwards only."""
    layers, width, vocabulary = (int(record[f"spec.model.{key}"]) for key in ("layers", "width", "vocabulary"))
    if record["spec.model.projection.kind"] == "pattention":
        counts = (int(record[f"spec.model.{key}.tokens"]) for key in ("projection", "feedforward"))
        return Shape(layers, width, vocabulary, *counts)
    hidden = record.get("spec.model.feedforward.hidden")
    return Shape(layers, width, vocabulary, hidden=4 * width if not hidden or hidden != hidden else int(hidden))


def published_shapes() -> DataFrame:
    """Return the configurations of Table 9 for language, with the printed millions of parameters."""
    rows = published(PAPER, "Table 9")
    rows = rows[rows["model"].str.startswith(("LM", "Scale"))]
    wide = rows.assign(value=rows["value"].astype(float)).pivot(index="model", columns="metric", values="value")
    return wide.loc[rows["model"].unique()].reset_index()
