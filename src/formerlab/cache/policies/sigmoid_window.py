"""SigmoidWindow: accumulated attention of a prompt, in which a sigmoid of the age weights each query."""

from typing import Literal

import torch
from pydantic import Field

from formerlab.cache.one_shot import QUERY_CHUNK, attention_rows
from formerlab.cache.policies.policy import Importance, OneShot, Prompt
from formerlab.layers.position import PositionEncoding


class SigmoidWindow(OneShot):
    """S[k] = sum over q of w[q] p[q, k], w[q] = sigmoid(slope (q - (T - width - 1/2))), for a prompt of T tokens (the
    code of A2SF, arXiv:2407.20485, since 2026).

    The last `width` queries have weights above 1/2. Slope 0 is the plain sum of H2O, and a large slope is the plain sum
    over the window. Scores are summed over the query heads of a key-value head. The code of A2SF always
    retains the last 16 keys; here, `recent` is the fraction of the budget for the most recent keys.

    Until spring 2026 that code computed exp(slope (q - (T - width - 1))) under the name sigmoid. This exponential ranks
    keys like `Decay(alpha=exp(-slope))`, whatever the width. The policy is one-shot, because the weight of a query
    depends on the length of the prompt.
    """

    kind: Literal["sigmoid_window"] = "sigmoid_window"
    slope: float = Field(default=0.1, ge=0.0, le=1e3)
    """Slope of the sigmoid per token, `a` in the code, which chooses from 0, 0.01, 0.1 and 10 for each prompt."""
    width: float = Field(default=32.0, ge=0.0, le=1e7)
    """Number of last queries with weights above 1/2, `b` in the code, which chooses from 1, 16, 32 and 128."""

    def importance(self, prompt: Prompt, position: PositionEncoding | None) -> Importance:
        time = prompt.k.shape[2]
        queries = torch.arange(time, device=prompt.k.device, dtype=torch.float32)
        weights = torch.sigmoid(self.slope * (queries - (time - self.width - 0.5)))
        total: Importance = weights.new_zeros(prompt.k.shape[:3])
        for start in range(0, time, QUERY_CHUNK):
            rows = attention_rows(prompt, start, min(start + QUERY_CHUNK, time))
            total = total + (rows * weights[start : start + QUERY_CHUNK, None].to(rows.dtype)).sum((2, 3))
        return total
