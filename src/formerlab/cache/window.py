"""Windows: policies that look at positions alone."""

from typing import Literal

from pydantic import NonNegativeInt

from formerlab.cache.eviction import Eviction, Scores


class Window(Eviction):
    """Keep `sink` first positions and give the rest of the budget to the most recent; whatever falls out is gone."""

    sink: NonNegativeInt = 0
    """First positions kept for ever, in entries; a smaller budget keeps only as many as fit."""

    def score(self, past: Scores, attention: Scores) -> Scores:
        """Attention plays no part: there is never more than one candidate."""
        return past

    def protected(self, entries: int) -> tuple[int, int]:
        """Protect all but the one key that leaves the window."""
        sink = min(self.sink, entries)
        return sink, entries - sink


class Local(Window):
    """Query q sees q - budget, ..., q: the band mask, the baseline of H2O (arXiv:2306.14048, section 5) and Decay.

    It includes no sink: once token 0 falls out of the window, attention collapses.
    """

    kind: Literal["local"] = "local"
    sink: Literal[0] = 0
    """None."""


class StreamingLLM(Window):
    """Query q sees the first `sink` tokens and the last budget - sink besides itself (arXiv:2309.17453, section 3.2).

    Keys keep their original positions, as in a mask; the paper numbers the kept keys anew, which no mask can express
    and learned positions cannot follow.
    """

    kind: Literal["streaming_llm"] = "streaming_llm"
    sink: NonNegativeInt = 4
    """First positions kept for ever, in entries; a smaller budget keeps only as many as fit."""
