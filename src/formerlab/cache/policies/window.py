"""Windows: policies that depend only on positions."""

from typing import Literal

from formerlab.cache.eviction import Eviction
from formerlab.spec import AnyCount


class Window(Eviction):
    """Retain the first `sink` tokens, and the most recent tokens with the remaining budget."""

    sink: AnyCount = 0
    """Number of first tokens that are never evicted."""

    def protected(self, budget: int) -> tuple[int, int]:
        sink, _ = super().protected(budget)
        return sink, budget - sink


class Local(Window):
    """Query q sees q - budget, ..., q: the band mask, the baseline of H2O (arXiv:2306.14048, section 5) and Decay.

    Without an attention sink, quality collapses as soon as token 0 leaves the window.
    """

    kind: Literal["local"] = "local"
    sink: Literal[0] = 0


class StreamingLLM(Window):
    """Query q sees the first `sink` and the last (budget - sink) tokens, and itself (arXiv:2309.17453, section 3.2)."""

    kind: Literal["streaming_llm"] = "streaming_llm"
    sink: AnyCount = 4
    """Number of first tokens that are never evicted."""
    positions: Literal["kept", "reindexed"] = "kept"
    """kept: positions in the text, as in a masked forward pass. reindexed: positions in the cache, as in the paper, so
    that the sink directly precedes the window; only for rotary positions."""

    @property
    def reindexes_positions(self) -> bool:
        return self.positions == "reindexed"
