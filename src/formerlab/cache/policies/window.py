"""Windows: policies that look at positions alone."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch

from formerlab.cache.eviction import Eviction
from formerlab.cache.policies.policy import Logits, Queries, on_device
from formerlab.layers.attention import KeyHeads
from formerlab.layers.position import PositionEncoding
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

    label: ClassVar[str] = "Local"
    look: ClassVar[tuple[str, str]] = ("#7f7f7f", "X")
    kind: Literal["local"] = "local"
    sink: Literal[0] = 0
    """None."""


class StreamingLLM(Window):
    """Query q sees the first `sink` tokens, the last budget - sink, and itself (arXiv:2309.17453, section 3.2)."""

    label: ClassVar[str] = "StreamingLLM"
    look: ClassVar[tuple[str, str]] = ("#009E73", "P")
    kind: Literal["streaming_llm"] = "streaming_llm"
    sink: AnyCount = 4
    """First positions kept for ever, in tokens; a smaller budget keeps only as many as fit."""
    positions: Literal["kept", "reindexed"] = "kept"
    """kept: where the tokens stand in the text, as a mask has it. reindexed: where the keys stand in the cache, so
    that the sink follows the window (the paper's way, for positions that are rotations; learned ones cannot follow)."""

    @property
    def reindexes_positions(self) -> bool:
        """Whether the kept keys are numbered anew."""
        return self.positions == "reindexed"

    def reindexed_logits(
        self,
        logits: Logits,
        queries: Queries,
        keys: KeyHeads,
        budgets: Sequence[int],
        position: PositionEncoding,
    ) -> Logits:
        """Return the logits where each sequence's first `sink` keys stand right in front of a window that slides.

        Query q of a cache of b = `budgets` keys finds e = max(0, q - b) positions missing between the sink and the
        window. Only distances matter, so the sink's keys are turned e positions further and all others stay; `queries`
        are scaled.
        """
        if not self.reindexes_positions:
            return logits
        sink = [self.protected(count)[0] for count in budgets]
        time = logits.shape[-1]
        first, held = on_device(sink, logits.device), on_device(budgets, logits.device)
        missing = (torch.arange(time, device=logits.device) - held[:, None]).clamp(min=0)
        steps = max(time - min(budgets), 1)
        logits = logits.clone()
        for key in range(max(sink)):
            places = position.rotate(keys[:, :, key : key + 1].expand(-1, -1, steps, -1), 0)
            index = missing[:, None, :, None].expand(-1, keys.shape[1], -1, keys.shape[3])
            column = (queries * places.gather(2, index).unsqueeze(2)).sum(-1)
            logits[..., key] = torch.where((key < first)[:, None, None, None], column, logits[..., key])
        return logits
