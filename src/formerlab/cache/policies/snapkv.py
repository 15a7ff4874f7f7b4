"""SnapKV: retains keys that the end of the prompt attends to."""

from typing import Literal

from pydantic import model_validator
from torch.nn import functional as F

from formerlab.cache.one_shot import attention_rows
from formerlab.cache.policies.policy import Importance, OneShot, Prompt
from formerlab.layers.position import PositionEncoding
from formerlab.spec import Size


class SnapKV(OneShot):
    """S[k] = mean over the last `window` queries of p[q, k], pooled over neighbours of k (arXiv:2404.14469, section 4).

    The keys of the window are retained. Scores are averaged over the query heads of a key-value head. The policy is
    one-shot, because the window is the end of a complete prompt. The window is at most half of the budget, and at least
    one query.
    """

    kind: Literal["snapkv"] = "snapkv"
    window: Size = 64
    """Number of queries at the end of the prompt whose attention gives the scores."""
    kernel: Size = 5
    """Number of neighbouring positions in the pooling; odd."""

    @model_validator(mode="after")
    def _check(self) -> "SnapKV":
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel}: give an odd number, such as {self.kernel + 1}")
        return self

    def importance(self, prompt: Prompt, position: PositionEncoding | None) -> Importance:
        """Return the pooled attention of the window; keys inside the window have score 0."""
        time = prompt.k.shape[2]
        window = self._window(min(prompt.budgets[0], time))
        if window == time:  # a prompt of one token
            return prompt.k.new_zeros(prompt.k.shape[:3])
        observed = attention_rows(prompt, time - window, time)[..., : time - window].mean(3)
        smooth = F.avg_pool1d(observed.flatten(1, 2), self.kernel, stride=1, padding=self.kernel // 2)
        return F.pad(smooth.view_as(observed).mean(2), (0, window))

    def protected(self, budget: int) -> tuple[int, int]:
        sink, recent = super().protected(budget)
        return sink, max(recent, min(self._window(budget), budget - sink))

    def _window(self, budget: int) -> int:
        return min(budget, max(1, min(self.window, budget // 2)))
