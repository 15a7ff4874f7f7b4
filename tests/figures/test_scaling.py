"""Envelopes and budgets, on synthetic rows with known results."""

import numpy as np
import pandas as pd
import pytest
from fixtures.rows import NOVELS, draw_one, dwa, grown, make_run, model, tokenformer, transformer, write_csv

from formerlab.evaluation.exact.counts import TRANSFORMER_WIDTHS
from formerlab.report.catalogue import catalogue, load_declaration, load_rows
from formerlab.report.claims.registry import Arm, ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.tables.denseformer import gains
from formerlab.report.tables.tokenformer.growth import tokenformer_envelope
from formerlab.report.tables.tokenformer.models import _TABLE_8_WIDTHS
from formerlab.results.read import Results
from formerlab.results.stages import TABLES

pytestmark = pytest.mark.xdist_group("figures")


def write_run(root, study, run, seed, held_out, **settings):
    """Write a run with the loss `held_out` on every held-out window and at the last validation."""
    folder = make_run(root, study, run, seed, **settings)
    write_csv(folder / "test.csv", TABLES["test.csv"].required, [(0, 64, held_out)])
    write_csv(folder / "eval.csv", TABLES["eval.csv"].required, [(200, "valid", 0, 64, held_out)])
    return folder


def with_chain(root):
    """Write an envelope with loss = 4 (FLOPs / 1e12)^-0.1, a chain, and a control.

    The chain has half of the FLOPs of the envelope at the same loss. The loss of the control is below the envelope.
    """
    for size in (1, 2, 4):
        for length in (1, 2, 4):
            cost = size * length * 1e12
            sizes = {"parameters": size * 1000, "parameters_non_embedding": size * 900, "tokens": length * 1000}
            loss = 4 * (cost / 1e12) ** -0.1
            write_run(root, "tokenformer", f"envelope-{size}-{length}", 0, loss, flops=cost, **sizes, **transformer(1))
    for seed in (0, 1, 2):
        write_run(root, "tokenformer", "tokenformer-1", seed, 3.9, flops=1e12, tokens=500, **tokenformer(1))
        for run, how in (("grown-random-sqrt-2", grown("tokenformer-1")), ("trained-on-2", {"init": "tokenformer-1"})):
            sizes = tokenformer(2) | how | {"flops": 1e12, "inherited": 1e12, "tokens": 100}
            write_run(root, "tokenformer", run, seed, 4 * 4**-0.1 if how.get("growth") else 2.0, **sizes)


def test_the_cost_of_a_chain_includes_its_ancestors_and_is_compared_at_equal_loss(tmp_path):
    with_chain(tmp_path)
    results = Results(tmp_path)
    rows = tokenformer_envelope.rows(results, ("*",)).set_index("run")
    assert rows.loc["grown-random-sqrt-2", "flops_ratio"] == pytest.approx(0.5)
    assert rows.loc["grown-random-sqrt-2", "tokens_cumulative"] == 600
    assert rows.loc["trained-on-2", "variant"] == "Tokenformer, trained further"
    assert rows.loc["trained-on-2", "envelope"] == "beyond its ends"
    assert np.isnan(rows.loc["trained-on-2", "flops_ratio"])
    arm = Arm(run="grown-random-sqrt-2", envelope=("envelope-*",))
    claim_values = ClaimRows(results, "tokenformer", ClaimArms(arms={"grown": arm})).run_metric(
        arm, "flops_ratio_at_equal_loss"
    )
    assert list(claim_values.values) == pytest.approx([0.5] * 3), "equals the value in the evaluation of the claim"


def test_chains_exclude_runs_on_other_data(tmp_path):
    with_chain(tmp_path)
    other = {"data": {"name": "second", "fingerprint": "another"}, **tokenformer(1, init="tokenformer-1")}
    write_run(tmp_path, "tokenformer", "continued-tokenformer-ungrown", 0, 3.5, **other)
    novels = tokenformer(1, init="tokenformer-1", **NOVELS, flops=1e12, inherited=1e12, tokens=100)
    folder = write_run(tmp_path, "tokenformer", "annealed-trained-on-short", 0, 3.5, **novels)
    (folder / "lender_test.csv").write_text(f"window,tokens,loss_nats\n0,10,{4 * 4**-0.1!r}\n")
    rows = tokenformer_envelope.rows(Results(tmp_path), ("*",)).set_index("run")
    rows = rows[~rows.index.str.startswith("envelope-")]
    assert "continued-tokenformer-ungrown" not in rows.index
    # the run is compared by its loss on the data set of the envelope
    assert rows.loc["annealed-trained-on-short", "flops_ratio"] == pytest.approx(0.5)
    # runs whose learning rate decays to zero take precedence
    assert set(rows.index) == {"tokenformer-1", "annealed-trained-on-short"}


def test_the_cost_figure_has_the_flops_ratio_of_the_claimed_chain(tmp_path, monkeypatch):
    with_chain(tmp_path)
    arms = ClaimArms(arms={"grown": Arm(run="grown-random-sqrt-2", envelope=("envelope-*",))})
    monkeypatch.setattr("formerlab.report.figures.tokenformer.cost.registered_arms", lambda *_: arms)
    rows = load_rows(catalogue()["tokenformer_cost"], Results(tmp_path))
    ratios = rows[rows["flops_ratio"].notna()].set_index("run")["flops_ratio"]
    assert ratios["grown-random-sqrt-2"] == pytest.approx(0.5)
    assert ratios["TokenFormer 1.4B"] == pytest.approx(0.403, abs=1e-3)
    assert list(ratios.index) == ["tokenformer-1", "grown-random-sqrt-2", "TokenFormer 1.4B"]
    draw_one("tokenformer_cost", tmp_path, tmp_path / "out")


def test_each_budget_compares_the_best_rates_by_validation(tmp_path):
    for seed in (0, 1):
        for budget, gap in (("", 0.3), ("long-", 0.1)):
            tokens = 800 if budget else 100
            write_run(tmp_path, "tokenformer", f"{budget}modern-low", seed, 3.0, tokens=tokens)
            write_run(tmp_path, "tokenformer", f"{budget}modern-high", seed, 3.5, tokens=tokens)
            write_run(tmp_path, "tokenformer", f"{budget}matched-low", seed, 3.0 + gap, **tokenformer(2, tokens=tokens))
            diverged = write_run(
                tmp_path, "tokenformer", f"{budget}matched-high", seed, 1.0, tokens=tokens, status="diverged"
            )
            assert diverged.exists()
    draw_one("tokenformer_gap", tmp_path, tmp_path / "out")
    rows = pd.read_csv(tmp_path / "out/tokenformer_gap.csv").query("part == 'mean'")
    assert dict(zip(rows["tokens"], rows["difference_nats"], strict=True)) == pytest.approx({100: 0.3, 800: 0.1})
    published = pd.read_csv(tmp_path / "out/tokenformer_gap.csv").query("source == 'published'")
    expected = [np.log(16.41 / 17.06), np.log(15.86 / 15.49)]  # the paper and the course report
    assert published["difference_nats"].tolist() == pytest.approx(expected)
    arm = Arm(best_of="matched-*")
    claim_values = ClaimRows(Results(tmp_path), "tokenformer", ClaimArms(arms={"ours": arm})).run_metric(
        arm, "loss_nats"
    )
    assert list(claim_values.values) == [3.3, 3.3], "claims also ignore learning rates at which a run diverged"


def test_a_longer_run_is_compared_with_a_plain_run_of_equal_length(tmp_path):
    for name, loss, spec in (
        *(("plain-8", 4.0, model(8)), ("dwa-1x1-8", 3.9, model(8, depth=dwa(1, 1)))),
        *(("long-plain-8", 3.0, model(8)), ("long-dwa-1x1-8", 2.95, model(8, depth=dwa(1, 1)))),
    ):
        rate = {"lr": 0.002 if name == "long-dwa-1x1-8" else 0.005}
        tokens = 800 if name.startswith("long") else 100
        for seed in (0, 1):
            write_run(tmp_path, "denseformer", name, seed, loss, spec=spec, optimizer=rate, tokens=tokens)
    gain_rows = gains(Results(tmp_path), ("*",)).set_index("run")
    assert gain_rows.loc["dwa-1x1-8", ["plain", "gain_nats"]].tolist() == ["plain-8", pytest.approx(0.1)]
    assert gain_rows.loc["long-dwa-1x1-8", ["plain", "gain_nats"]].tolist() == ["long-plain-8", pytest.approx(0.05)]
    plotted_rows = load_declaration("denseformer_gain").rows(Results(tmp_path), ("*",))
    means = plotted_rows[plotted_rows["part"] == "mean"]
    assert list(means["tokens"]) == [100, 800]
    assert list(means["difference_nats"]) == pytest.approx([0.1, 0.05])


def test_the_table_of_formulas_and_the_exact_counts_have_the_same_widths():
    """Tables must not import torch, so the widths of Table 8 exist twice."""
    assert _TABLE_8_WIDTHS == TRANSFORMER_WIDTHS
