"""Windows: policies that look at positions alone."""

from typing import Literal

from formerlab.cache.eviction import Eviction
from formerlab.spec import AnyCount


class Window(Eviction):
    """Keep `sink` first positions and give the rest of the budget to the most recent; whatever falls out is gone."""

    sink: AnyCount = 0
    """First positions kept for ever, in tokens; a smaller budget keeps only as many as fit."""

    def protected(self, budget: int) -> tuple[int, int]:
        """Protect all but the one key that leaves the window."""
        sink = min(self.sink, budget)
        return sink, budget - sink


class Local(Window):
    """Query q sees q - budget, ..., q: the band mask, the baseline of H2O (arXiv:2306.14048, section 5) and Decay.

    It includes no sink: once token 0 falls out of the window, attention collapses.
    """

    kind: Literal["local"] = "local"
    sink: Literal[0] = 0
    """None."""


class StreamingLLM(Window):
    """Query q sees the first `sink` tokens, the last budget - sink, and itself (arXiv:2309.17453, section 3.2)."""

    kind: Literal["streaming_llm"] = "streaming_llm"
    sink: AnyCount = 4
    """First positions kept for ever, in tokens; a smaller budget keeps only as many as fit."""
    positions: Literal["kept", "reindexed"] = "kept"
    """kept: where the tokens stand in the text, as a mask has it. reindexed: where the keys stand in the cache, so
    that the sink follows the window (the paper's way, for positions that are rotations; learned ones cannot follow)."""

    @property
    def reindexes_positions(self) -> bool:
        return self.positions == "reindexed"
