"""An independent reference of eviction in plain Python, and the worked examples."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

VECTORS = json.loads((Path(__file__).parent / "kv_test_vectors.json").read_text())


def softmax(row: dict[int, float]) -> dict[int, float]:
    top = max(row.values())
    weights = {key: math.exp(value - top) for key, value in row.items()}
    total = sum(weights.values())
    return {key: weight / total for key, weight in weights.items()}


class Oracle:
    """Eviction rules in plain Python with dictionaries, without code of the package."""

    @staticmethod
    def evict(heads: list[list[list[float]]], *, alpha: float, budget: int, recent: int, sink: int) -> list[set[int]]:
        """Return the keys that each query sees; `heads` are the logits [head][q][k] of one group."""
        scores: dict[int, float] = {}
        visible = []
        for q in range(len(heads[0])):
            scores[q] = 0.0
            visible.append(set(scores))
            attention = [softmax({k: head[q][k] for k in scores}) for head in heads]
            scores = {k: alpha * score + sum(row[k] for row in attention) for k, score in scores.items()}
            if len(scores) > budget:
                candidates = [k for k in scores if sink <= k <= q - recent]
                del scores[min(candidates, key=lambda k: (scores[k], k))]
        return visible

    @staticmethod
    def official_local(logits: list[list[float]], *, heavy: int, recent: int) -> list[set[int]]:
        """Return H2O's mask with local statistics for one head."""
        time = len(logits)
        rows = [softmax({k: logits[q][k] for k in range(q + 1)}) for q in range(time)]
        total = dict.fromkeys(range(time), 0.0)
        visible = []
        for q in range(time):
            if q < heavy:
                hitters = set(range(q + 1))
            else:
                ranked = sorted(range(q), key=lambda k: (-total[k], -k))
                hitters = {*ranked[: max(heavy - 1, 0)], q}
            total = {k: total[k] + rows[q].get(k, 0.0) if k in hitters else 0.0 for k in range(time)}
            visible.append(hitters | set(range(max(0, q - recent), q + 1)))
        return visible

    @staticmethod
    def official_global(logits: list[list[float]], *, heavy: int, recent: int) -> list[set[int]]:
        """Return H2O's mask with global statistics for one head."""
        time = len(logits)
        rows = [softmax({k: logits[q][k] for k in range(q + 1)}) for q in range(time)]
        sums = [sum(row.get(k, 0.0) for row in rows) for k in range(time)]
        hitters = set(sorted(range(time), key=lambda k: (-sums[k], -k))[:heavy])
        return [{k for k in range(q + 1) if k in hitters or k >= q - recent} for q in range(time)]

    @staticmethod
    def cascade(layers: list[list[list[list[float]]]], *, budget: list[int]) -> list[list[set[int]]]:
        """Return the keys that each query sees under SpAtten, per layer.

        `layers` are logits [layer][head][query][key]; `budget` has one number per layer.
        """
        time = len(layers[0][0])
        alive, total = set(range(time)), dict.fromkeys(range(time), 0.0)
        result = []
        for heads, retained_count in zip(layers, budget, strict=True):
            visible = [{k for k in range(q) if k in alive} | {q} for q in range(time)]
            for head in heads:
                for q in range(time):
                    for k, attention in softmax({k: head[q][k] for k in visible[q]}).items():
                        total[k] += attention
            alive = set(sorted(alive, key=lambda k: (-total[k], -k))[:retained_count])
            result.append(visible)
        return result


@pytest.fixture(scope="session")
def oracle() -> type[Oracle]:
    return Oracle


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    return VECTORS


@pytest.fixture(scope="session")
def hand_logits() -> Tensor:
    """The five-token example: logit = ln weight, one head, float64."""
    logits = torch.full((1, 1, 5, 5), -torch.inf, dtype=torch.float64)
    for q, row in enumerate(VECTORS["hand"]["weights"]):
        logits[0, 0, q, : q + 1] = torch.tensor(row, dtype=torch.float64).log()
    return logits
