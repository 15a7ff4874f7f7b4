"""Contexts and their continuations, scored by a decoder in batches of rows of true length."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from formerlab.evaluation.kept import Journal
from formerlab.models.decoder import DecoderModel
from formerlab.tasks.scoring import AttendFor, evaluating, score

Told = Callable[[Sequence[int], bool], None]
"""Is told which requests are answered, and whether they were before."""


class Answer(NamedTuple):
    """What the model says about one request."""

    log_prob: float
    """Sum over the continuation's tokens, nats."""
    greedy: bool
    """Whether each of them is the most probable one."""
    realised_budget: float
    """Share of keys and values still held at the end."""


class Input(NamedTuple):
    """One sequence to score."""

    request: int
    tokens: list[int]
    """Context and continuation; all but the last are fed to the model."""
    scored: int
    """Number of tokens at the end whose log-probabilities are summed."""


def answers(
    model: DecoderModel,
    requests: Sequence[tuple[Any, list[int], list[int]]],
    *,
    batch: int = 16,
    batch_tokens: int | None = None,
    attend_for: AttendFor | None = None,
    journal: Journal | None = None,
    told: Told = lambda requests, known: None,
) -> list[Answer]:
    """Return what the model says about each request: its text, and the tokens of context and continuation.

    `batch` sequences are scored at a time, of `batch_tokens` tokens at most where given, padding counted. What exceeds
    the model's context is cut from the left, as the harness does for Hugging Face models; of a continuation longer than
    the context its last tokens alone are scored. A batch that the `journal` knows is not asked again.
    """
    journal = journal or Journal()
    longest = model.spec.context
    inputs = [_input(number, context, ending, longest) for number, (_, context, ending) in enumerate(requests)]
    inputs.sort(key=lambda item: -len(item.tokens))  # rows of a batch are of similar length, the longest come first
    with evaluating(model):
        for group in batches(inputs, batch, batch_tokens):
            known = all(item.request in journal.known for item in group)
            if not known:
                journal.add(_scored(model, group, attend_for))
            told([item.request for item in group], known)
    return [Answer(*journal.known[request]) for request in range(len(requests))]


def _scored(model: DecoderModel, group: Sequence[Input], attend_for: AttendFor | None) -> dict[int, Answer]:
    """Return the answers to the requests of a batch."""
    tokens, lengths = padded(group)
    first = min(len(item.tokens) - 1 - item.scored for item in group)  # column from which on one is scored
    scores = score(model, tokens, lengths, attend_for, last=max(1, tokens.shape[1] - 1 - first))
    found = {}
    for row, item in enumerate(group):
        scored = slice(len(item.tokens) - 1 - item.scored - first, len(item.tokens) - 1 - first)
        log_prob = scores.log_probs[row, scored].double().sum().item()
        greedy = bool(scores.greedy[row, scored].all())
        found[item.request] = Answer(log_prob, greedy, scores.realised_budget[row].item())
    return found


def _input(request: int, context: list[int], continuation: list[int], longest: int) -> Input:
    tokens = (context + continuation)[-(longest + 1) :]
    return Input(request, tokens, min(len(continuation), len(tokens) - 1))


def batches(inputs: Sequence[Input], size: int, tokens: int | None = None) -> Iterator[Sequence[Input]]:
    """Yield consecutive groups of at most `size` inputs; with `tokens` of at most so many, but for a single input.

    Inputs come longest first, so the first of a group says how wide it is.
    """
    first = 0
    while first < len(inputs):
        fit = size if tokens is None else min(size, max(1, tokens // len(inputs[first].tokens)))
        yield inputs[first : first + fit]
        first += fit


def padded(group: Sequence[Input]) -> tuple[Int[Tensor, "batch time_plus_1"], Int[Tensor, " batch"]]:
    """Return the tokens of a batch, padded with 0 on the right, and the true lengths of its inputs."""
    longest = max(len(item.tokens) for item in group)
    tokens = torch.zeros(len(group), longest, dtype=torch.int64)
    for row, item in enumerate(group):
        tokens[row, : len(item.tokens)] = torch.tensor(item.tokens)
    return tokens, torch.tensor([len(item.tokens) - 1 for item in group])
