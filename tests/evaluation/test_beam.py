"""Beam search matches greedy search (beam 1), brute force (a wide beam), and a search without cache and score bound."""

import functools
import itertools

import pytest
import torch

from formerlab.cache import KVCache
from formerlab.evaluation.translation.beam import beam_search, length_penalty
from formerlab.models import Translator

END = 0
SPEC = Translator(vocabulary=12, layers=2, width=16, heads=2, context=40, dropout=0.1, embedding_std=0.7)
TINY = Translator(vocabulary=4, layers=1, width=8, heads=1, context=10, embedding_std=1.0)


def sources(vocabulary, lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, vocabulary, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return tokens.masked_fill(~mask, END), mask


def log_probability(model, source, mask, target):
    """Return the log-probability of a complete target including its end, without a cache."""
    row = torch.tensor([[END, *target]])
    logits = model(source, mask, row)[0].double()
    outputs = torch.tensor([*target, END])
    return torch.log_softmax(logits, dim=-1).gather(1, outputs[:, None]).sum().item()


@torch.no_grad()
def greedy(model, source, mask, limit):
    """Return the tokens of a sentence by greedy decoding without a cache."""
    tokens = []
    while len(tokens) < limit:
        token = int(model(source, mask, torch.tensor([[END, *tokens]]))[0, -1].argmax())
        if token == END:
            break
        tokens.append(token)
    return tokens


@torch.no_grad()
@pytest.mark.parametrize("seed", range(2))
def test_single_tokens_give_the_logits_of_a_whole_pass(seed):
    model = SPEC.build(seed).eval()
    source, mask = sources(12, [6, 3], seed)
    target = torch.randint(0, 12, (2, 9), generator=torch.Generator().manual_seed(seed))
    encoded, cache = model.encode(source, mask), KVCache(9)
    steps = []
    for time in range(9):
        steps.append(model.decode(target[:, time : time + 1], encoded, time, cache.append))
    torch.testing.assert_close(torch.cat(steps, dim=1), model(source, mask, target), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(2))
def test_beam_one_is_greedy_for_any_batch_size(seed):
    model = SPEC.build(seed).eval()
    lengths = [5, 2, 7, 3, 3]
    source, mask = sources(12, lengths, seed)
    limits = [length + 6 for length in lengths]
    beam_1, beam_3 = (beam_search(model, source, mask, limits, END, beam=beam) for beam in (1, 3))
    for row, length in enumerate(lengths):
        sentence = source[row : row + 1, :length], mask[row : row + 1, :length]
        assert beam_1[row].tokens == greedy(model, *sentence, limits[row])
        (alone,) = beam_search(model, *sentence, limits[row : row + 1], END, beam=3)
        assert alone.tokens == beam_3[row].tokens
        assert alone.score == pytest.approx(beam_3[row].score, abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(2))
def test_a_wide_beam_equals_brute_force(seed):
    """Compare with the best of all targets of up to 4 tokens by normalised log-probability."""
    model, limit = TINY.build(seed).eval(), 4
    source, mask = sources(4, [3], seed)
    targets = [t for length in range(limit + 1) for t in itertools.product((1, 2, 3), repeat=length)]
    totals = {t: log_probability(model, source, mask, t) for t in targets}
    for alpha in (0.0, 0.6, 1.5):
        scores = {t: total / length_penalty(len(t) + 1, alpha) for t, total in totals.items()}
        best = max(scores, key=scores.__getitem__)
        (hypothesis,) = beam_search(model, source, mask, [limit], END, beam=4**limit, alpha=alpha)
        assert tuple(hypothesis.tokens) == best, alpha
        assert hypothesis.score == pytest.approx(scores[best], abs=1e-4), alpha


@torch.no_grad()
@pytest.mark.parametrize("seed", range(4))
def test_stopping_by_the_score_bound_gives_the_same_result(seed):
    """The reference searches one sentence in plain Python.

    It stops at the limit or after `beam` finished hypotheses.
    """
    model = SPEC.build(seed).eval()
    source, mask = sources(12, [6], seed)

    @functools.cache
    def next_tokens(*tokens):
        return torch.log_softmax(model(source, mask, torch.tensor([[END, *tokens]]))[0, -1], dim=-1).tolist()

    for alpha in (0.0, 0.6, 1.0):
        (hypothesis,) = beam_search(model, source, mask, [12], END, beam=3, alpha=alpha)
        expected = plain_search(next_tokens, 12, 3, alpha)
        assert hypothesis.tokens == expected[1], alpha
        assert hypothesis.score == pytest.approx(expected[0], abs=1e-4), alpha


def plain_search(next_tokens, limit, beam, alpha):
    live, finished = [(0.0, [])], []
    while live and len(finished) < beam:
        candidates = []
        for total, tokens in live:
            for token, log_prob in enumerate(next_tokens(*tokens)):
                if len(tokens) < limit or token == END:
                    candidates.append((total + log_prob, [*tokens, token]))
        candidates.sort(key=lambda candidate: -candidate[0])
        finished += [
            (total / length_penalty(len(tokens), alpha), tokens[:-1])
            for total, tokens in candidates[:beam]
            if tokens[-1] == END
        ]
        live = [candidate for candidate in candidates[: 2 * beam] if candidate[1][-1] != END][:beam]
    return max(finished)


def test_the_length_penalty_equals_gnmt():
    assert [length_penalty(1, 0.6), length_penalty(7, 1.0), length_penalty(19, 0.5)] == [1.0, 2.0, 2.0]
