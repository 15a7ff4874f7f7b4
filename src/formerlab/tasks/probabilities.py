"""What a model says of single images."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

PREDICTIONS = ("label", "prediction", "rank", "confidence")
"""Columns of test.csv beside the loss."""


class Prediction(NamedTuple):
    """What a model says of an image."""

    loss_nats: float
    """Negative log-probability of its class."""
    label: int
    prediction: int
    """The most probable class."""
    rank: int
    """Classes that are more probable than the right one: 0 is right at first, below 5 right in five."""
    confidence: float
    """Probability of the prediction."""


def predictions(logits: Float[Tensor, "batch classes"], labels: Int[Tensor, "batch"]) -> list[Prediction]:
    """Return a row per image."""
    return [
        Prediction(loss, int(label), int(best), int(rank), sure)
        for loss, label, best, rank, sure in said_of(logits, labels).tolist()  # read at once
    ]


def said_of(logits: Float[Tensor, "batch classes"], labels: Int[Tensor, "batch"]) -> Float[Tensor, "batch columns"]:
    """Return the fields of `Prediction` per image; softmax in float64, ties count against the model."""
    log_probabilities = torch.log_softmax(logits.double(), dim=-1)
    right = log_probabilities.gather(1, labels[:, None])
    ranks = (log_probabilities >= right).sum(dim=1) - 1
    top = log_probabilities.max(dim=1)
    return torch.stack((-right[:, 0], labels, top.indices, ranks, top.values.exp()), dim=1)
