"""The spec of a parallel corpus."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from formerlab.data.dataset import DataSpec
from formerlab.data.pairs.phrases import Phrases
from formerlab.data.pairs.sources import HubPairs, LinePairs
from formerlab.data.text.tokenizer import BytePairs, TokenizerFile
from formerlab.spec import Count, Size

Share = Annotated[float, Field(gt=0, lt=0.5)]

Pairs = Annotated[Phrases | LinePairs | HubPairs, Field(discriminator="kind")]

ROOM = 50
"""Tokens by which a translation may be longer than its source (arXiv:1706.03762, section 6.1)."""


class ParallelData(DataSpec):
    """Pairs of a sentence and its translation, in tokens of one joint vocabulary."""

    stage: ClassVar[str] = "formerlab.data.pairs.prepare"

    kind: Literal["parallel"] = "parallel"
    source: Pairs = Phrases()
    """Where the pairs come from."""
    tokenizer: BytePairs | TokenizerFile = Field(default=BytePairs(vocabulary=512), discriminator="kind")
    """What turns both languages into tokens; bpe is learned from the training pairs of both."""
    valid_share: Share = 0.025
    """Share of the pairs that become validation pairs, where the source does not say which."""
    test_share: Share = 0.025
    """Share of the pairs that become test pairs, where the source does not say which."""
    max_pairs: Count | None = None
    """Training pairs at most; None keeps all."""
    max_tokens: Size = 256
    """Longest sentence of either language in tokens, its end included; longer training and validation pairs are left
    out and counted, a longer test pair is an error."""
    max_ratio: float | None = Field(default=None, gt=0.0, le=1e6)
    """Training pairs with more than this times as many tokens on one side as on the other are left out and counted."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens a model needs, known before anything is read."""
        return self.tokenizer.vocabulary

    def known(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the vocabulary, and room for the longest translation."""
        del task
        return {"model": {"vocabulary": self.vocabulary, "context": self.max_tokens + ROOM}}
