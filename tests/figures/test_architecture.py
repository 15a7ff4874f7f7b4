"""Diagrams of architectures match the code."""

import numpy as np
import pytest
import torch
from fixtures.rows import make_run, model, pattention

from formerlab.cache import H2O, Decay
from formerlab.cache.simulation import simulate
from formerlab.layers import DepthWeightedAverage
from formerlab.report.catalogue import catalogue
from formerlab.report.figures.decay.rule import (
    ARMS,
    BUDGET,
    FOLLOWED,
    LENGTH,
    attention,
    decay_rule,
    example,
    pruned,
)
from formerlab.report.figures.denseformer.inside import averages
from formerlab.report.figures.tokenformer.layer import tokenformer_layer
from formerlab.results.read import Results


@pytest.mark.parametrize(("dilation", "period"), [(1, 1), (4, 1), (1, 5), (4, 5), (2, 3)])
def test_arcs_match_the_mixer(dilation, period):
    mixer = DepthWeightedAverage(dilation=dilation, period=period)
    assert averages(16, dilation, period) == mixer.sources_by_block(16)


def test_a_stage_shows_the_tokens_that_it_adds_to_its_parent(tmp_path):
    def sized(tokens):
        return model(projection=pattention(tokens)) | {"feedforward": pattention(4 * tokens)}

    growth = {"keys": "random", "tau": "sqrt", "optimizer": "fresh"}
    make_run(tmp_path, "tokenformer", "tokenformer-1", spec=sized(8))
    name = "grown-random-sqrt-2"
    make_run(tmp_path, "tokenformer", name, spec=sized(24), init="tokenformer-1", growth=growth)
    rows = tokenformer_layer.rows(Results(tmp_path), catalogue()["tokenformer_layer"].runs)
    added = {(row.stage, row.part): (row.tokens, row.added) for row in rows.itertuples()}
    assert added[1, "query"] == (8, 8)
    assert added[2, "output"] == (24, 16)
    assert added[2, "feed-forward"] == (96, 64)


@pytest.mark.parametrize(("alpha", "recent"), [*(arm[:2] for arm in ARMS), (0.8, 0), (0.0, 0)])
def test_example_cache_is_pruned_like_the_policy(alpha, recent):
    logits = torch.tensor(example())[None, None]
    policy = H2O(recent=recent / BUDGET) if recent else Decay(alpha=alpha)
    weights, visible = simulate(policy, logits, BUDGET)
    example_mask, scores = pruned(example(), alpha, BUDGET, recent)
    assert (example_mask == visible[0, 0].numpy()).all()
    for query in range(LENGTH):
        assert weights[0, 0, query].numpy() == pytest.approx(attention(example(), example_mask)[query])
    assert (np.isfinite(scores) == example_mask).all()  # a token has a score only while it is in the cache


def test_example_scores_match_the_policy(tmp_path):
    make_run(tmp_path, "decay", "decoder")
    rows = decay_rule.rows(Results(tmp_path), catalogue()["decay_rule"].runs)
    assert rows["score"].notna().equals(rows["seen"].eq(1))  # a curve ends when its token is evicted
    for (alpha, _), block in rows.groupby(["alpha", "recent"]):
        scores = torch.zeros(1, 1, LENGTH, dtype=torch.float64)
        for query, query_rows in block.groupby("query"):
            new = torch.zeros(1, 1, LENGTH, dtype=torch.float64)
            new[0, 0, : query + 1] = torch.tensor(query_rows["attention"].to_numpy())
            scores = Decay(alpha=alpha).score(scores, new)
            seen = query_rows["seen"].to_numpy() == 1
            assert scores[0, 0, : query + 1].numpy()[seen] == pytest.approx(query_rows["score"].to_numpy()[seen])


def test_curves_of_the_example_end_when_their_token_is_evicted(tmp_path):
    make_run(tmp_path, "decay", "decoder")
    rows = decay_rule.rows(Results(tmp_path), catalogue()["decay_rule"].runs)
    curves = decay_rule.draw(rows).axes[::2]
    for axes, (alpha, recent, _) in zip(curves, ARMS, strict=True):
        drawn = {line.get_label(): line.get_xdata() for line in axes.get_lines()}
        for key, name, *_ in FOLLOWED:
            seen, _ = pruned(example(), alpha, BUDGET, recent)
            assert list(drawn[name]) == list(np.flatnonzero(seen[:, key]))
