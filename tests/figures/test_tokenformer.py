"""Figures and tables of the Tokenformer study, on synthetic rows with known results."""

import numpy as np
import pandas as pd
import pytest
from fixtures.checkout import ROOT
from fixtures.rows import draw_one, grown, make_run, tokenformer, write_csv

from formerlab.report.catalogue import catalogue, load_declaration, load_rows
from formerlab.report.claims.arms import read_arms
from formerlab.report.runs import by_seed, differences, held_out_losses, last_step_rows, subtract, validation_losses
from formerlab.report.studies.tokenformer import Shape, mean_curves, with_registered_rates
from formerlab.report.tables.cells import with_pooled
from formerlab.report.tables.tokenformer.models import tokenformer_formulas
from formerlab.results.read import Results
from formerlab.results.stages import TABLES

pytestmark = pytest.mark.xdist_group("figures")


def write_run(root, run, seed, held_out, curve, **settings):
    """Write a run with the loss `held_out` on every held-out window, and the losses `curve` on validation."""
    folder = make_run(root, "tokenformer", run, seed, **settings)
    write_csv(folder / "test.csv", TABLES["test.csv"].required, [(window, 64, held_out) for window in range(3)])
    rows = [(step, "valid", batch, 512, loss) for step, loss in curve.items() for batch in range(2)]
    write_csv(folder / "eval.csv", TABLES["eval.csv"].required, rows)


def test_curves_are_means_over_tokens_then_over_seeds(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, "tokenformer-1", seed, 3.0, {0: 5.0 + seed, 10: 4.0 + seed})
    folder = tmp_path / "tokenformer/tokenformer-1/seed0"
    unequal = [(0, "valid", 0, 30, 5.0), (0, "valid", 1, 10, 6.0), (0, "test", 0, 10, 9.0)]
    write_csv(folder / "eval.csv", TABLES["eval.csv"].required, unequal)
    curves = validation_losses(Results(tmp_path), "tokenformer")
    assert by_seed(curves.query("step == 0"), "tokenformer-1").to_dict() == {0: 5.25, 1: 6.0}
    assert by_seed(last_step_rows(curves), "tokenformer-1").to_dict() == {0: 5.25, 1: 5.0}
    first = mean_curves(curves).query("step == 0").iloc[0]
    assert first["loss_nats"] == pytest.approx(5.625)
    assert first["loss_nats_low"] < 5.25
    assert first["seeds"] == 2
    assert subtract(pd.Series({0: 3.0, 1: 2.0}), pd.Series({1: 0.5, 2: 1.0})).to_dict() == {1: 1.5}


def test_a_grown_model_is_compared_with_its_parent_trained_further(tmp_path):
    for seed, shift in enumerate((0.0, 0.5, 1.0)):
        write_run(tmp_path, "tokenformer-1", seed, 4.0 + shift, {0: 6.0, 10: 4.1 + shift})
        for run, growth, start, final in (
            ("grown-zero-keep-2", {"keys": "zero", "tau": "keep"}, 4.1, 3.9),
            ("grown-random-sqrt-2", {}, 5.1, 3.8),
        ):
            settings = tokenformer(2) | grown("tokenformer-1", **growth)
            write_run(tmp_path, run, seed, final + shift, {0: start + shift, 10: 3.0}, **settings)
        write_run(tmp_path, "trained-on-2", seed, 3.7 + shift, {10: 3.0}, **tokenformer(1, init="tokenformer-1"))
    table = load_rows(catalogue()["tokenformer_table"], Results(tmp_path)).set_index("run")
    zero_key_row = table.loc["grown-zero-keep-2"]
    assert (zero_key_row["question"], zero_key_row["compared_with"]) == ("the parent trained further", "trained-on-2")
    # paired by seed: equal differences give an interval of width zero, although the losses of the seeds differ by 0.5
    assert [zero_key_row[f"difference_nats{end}"] for end in ("_low", "", "_high")] == pytest.approx([0.2] * 3)
    assert zero_key_row["difference_nats_pooled_low"] <= zero_key_row["difference_nats_pooled_high"]
    assert zero_key_row["loss_nats_high"] - zero_key_row["loss_nats_low"] > 1
    draw_one("tokenformer_table", tmp_path, tmp_path / "out")
    text = (tmp_path / "out/tokenformer_table.md").read_text()
    assert "0.200 [" in text, "grown with zero keys"


def test_gains_on_new_text_use_the_validation_split(tmp_path):
    for seed in range(2):
        write_run(tmp_path, "tokenformer-1", seed, 4.0, {0: 6.0, 10: 4.1})
        for run, test, validation in (("-ungrown", 3.0, 3.5), ("", 2.5, 3.4)):
            settings = tokenformer(2) | grown("tokenformer-1", keys="zero", tau="keep")
            write_run(tmp_path, f"continued-tokenformer{run}", seed, test, {0: 4.0, 10: validation}, **settings)
    rows = load_rows(catalogue()["tokenformer_new_text"], Results(tmp_path)).set_index("run")
    assert rows.loc["continued-tokenformer", "validation_gain_nats"] == pytest.approx(0.1)
    assert rows["validation_perplexity"].loc["continued-tokenformer-ungrown"] == pytest.approx(np.exp(3.5))
    draw_one("tokenformer_new_text", tmp_path, tmp_path / "out")
    assert "Tokenformer, not grown" in (tmp_path / "out/tokenformer_new_text.md").read_text()


def test_figures_show_the_learning_rates_that_the_claims_use():
    claim = read_arms(ROOT, "overnight")["tokenformer"]["tokenformer-growth-beats-continuing"]
    grown, control = (claim.items["long"][arm].run for arm in ("grown", "continued"))
    runs = ["annealed-trained-on-long-9", control, "annealed-random-sqrt-long-9", grown]
    losses = pd.DataFrame({"run": runs})
    assert list(with_registered_rates(losses, "overnight")["run"]) == [control, grown]


def test_the_pooled_interval_of_a_difference_takes_the_spread_of_similar_runs(tmp_path):
    for run, losses in (("one", (4.0, 4.1, 4.3)), ("other", (4.0, 4.0, 4.0)), ("similar", (4.0, 4.0, 4.0))):
        for seed, loss in enumerate(losses):
            write_run(tmp_path, run, seed, loss, {10: loss})
    pair = pd.DataFrame([{"run": "one", "rival": "other"}])
    rows = differences(held_out_losses(Results(tmp_path), "tokenformer"), pair, "run", "rival")
    rows = with_pooled(rows, Results(tmp_path), "tokenformer", "run", "rival", "difference_nats")
    mean = rows[rows["part"] == "mean"].iloc[0]
    assert mean["difference_nats_low"] < mean["difference_nats_pooled_low"] < mean["difference_nats"]
    assert rows.loc[rows["part"] == "seed", "difference_nats_pooled_low"].isna().all()


def test_the_length_figure_has_a_transformer_of_the_size_of_the_largest_tokenformer(tmp_path):
    for run, tokens in (("tokenformer-1", 1), ("grown-random-sqrt-2", 2)):
        size = {"parameters_non_embedding": 10_000 * tokens}
        write_run(tmp_path, run, 0, 4.0, {10: 4.0}, **tokenformer(tokens) | size)
    rows = load_declaration("tokenformer_length").rows(Results(tmp_path), ("*",)).query("source == 'ours'")
    sizes = rows.groupby("family")["size"].unique().map(set)
    assert sizes["Transformer"] == sizes["Tokenformer"]
    assert rows.loc[rows["family"] == "Transformer", "flops_relative"].eq(1).all()


def test_a_chain_begins_with_its_first_model_and_includes_its_cost(tmp_path):
    for run, loss, settings in (
        ("long-matched-chosen", 4.0, tokenformer(1, flops=3e12)),
        ("grown-random-sqrt-2", 3.9, tokenformer(2, flops=1e12, inherited=3e12) | grown("long-matched-chosen")),
        ("grown-zero-keep-2", 3.8, tokenformer(2) | grown("long-matched-chosen", keys="zero", tau="keep")),
        ("trained-on-2", 3.8, tokenformer(1, init="long-matched-chosen", flops=1e12, inherited=3e12)),
    ):
        write_run(tmp_path, run, 0, loss, {0: 6.0, 10: loss}, **settings)
    draw_one("tokenformer_cost", tmp_path, tmp_path / "out")
    rows = pd.read_csv(tmp_path / "out/tokenformer_cost.csv").query("part == 'mean'")
    series = {name: list(group["run"]) for name, group in rows.groupby("series")}
    assert (series["parent"], series["grown as published"]) == (["long-matched-chosen"], ["grown-random-sqrt-2"])
    assert series["grown with zero keys"] == ["grown-zero-keep-2"]
    assert rows.set_index("run").loc["grown-random-sqrt-2", "flops_cumulative"] == 4e12
    parents = rows.set_index("run")["parent"].dropna()
    assert parents.to_dict() == dict.fromkeys(
        ("grown-random-sqrt-2", "grown-zero-keep-2", "trained-on-2"), "long-matched-chosen"
    )


def test_runs_without_their_parent_are_shown_alone(tmp_path):
    write_run(tmp_path, "grown-random-sqrt-2", 0, 4.0, {10: 4.0}, **tokenformer(2) | grown("tokenformer-1"))
    rows = load_rows(catalogue()["tokenformer_cost"], Results(tmp_path))
    assert set(rows.loc[rows["source"] == "ours", "run"]) == {"grown-random-sqrt-2"}


def test_continued_training_is_relative_to_the_ungrown_model_at_equal_steps(tmp_path):
    for run, start, end, settings in (
        ("continued-tokenformer-ungrown", 5.0, 4.5, tokenformer(1, init="tokenformer-1")),
        ("continued-tokenformer", 5.0, 4.3, tokenformer(2) | grown("tokenformer-1", keys="zero", tau="keep")),
    ):
        write_run(tmp_path, run, 0, 4.0, {0: start, 10: end}, **settings)
    draw_one("tokenformer_continued", tmp_path, tmp_path / "out")
    rows = pd.read_csv(tmp_path / "out/tokenformer_continued.csv").query("part == 'relative'")
    curve = rows[rows["run"] == "continued-tokenformer"].set_index("step")["loss_nats"]
    assert curve.to_dict() == pytest.approx({0: 0.0, 10: -0.2})
    assert set(rows["run"]) == {"continued-tokenformer"}


def test_each_arm_has_the_rate_with_the_lowest_validation_loss(tmp_path):
    for run, test, valid, settings in (
        ("matched-low", 3.0, 3.9, {}),  # the lowest test loss, which must not be used to choose the rate
        ("matched-high", 3.2, 3.8, {}),
        ("matched-gone", 3.1, 3.5, {"status": "diverged"}),
        ("modern-low", 2.9, 3.6, {}),
        ("modern-high", 2.8, 3.7, {}),
        ("long-matched-low", 2.5, 3.0, {"tokens": 800}),  # another training length; run names are not used
        ("whole-modern-low", 2.6, 3.0, {"tokens": 800}),
    ):
        for seed in (0, 1):
            write_run(tmp_path, run, seed, test + 0.1 * seed, {0: 6.0, 10: valid}, **settings)
    table = load_rows(catalogue()["tokenformer_modern"], Results(tmp_path)).set_index("run")
    ours = table[table["source"] == "ours"]
    # the last value is the change between the two lengths
    assert ours["difference_nats"].tolist() == pytest.approx([-0.1, 0.3, 0.4])
    chosen = {"modern-low": "matched-high", "whole-modern-low": "long-matched-low"}
    assert ours["tokenformer"].dropna().to_dict() == chosen


def test_published_sizes_follow_from_the_formula():
    rows = tokenformer_formulas.published().set_index("run")
    assert rows.loc["Scale-354M", "parameters_formula"] == 2 * 12 * 768 * 8 * 2140
    deviation_percent = rows["nearer_count_minus_printed_percent"].abs()
    assert set(deviation_percent[deviation_percent > 2].index) == {"Scale-1.4B"}
    assert set(rows["flops_token_token_coefficient"][-4:]) == {36_864}


def test_formulas_match_the_specs():
    from formerlab.layers import LayerNorm, Linear, Mlp, Pattention
    from formerlab.models import Decoder

    bare = LayerNorm(gain=False, bias=False)
    common = {"layers": 3, "width": 48, "heads": 3, "vocabulary": 100, "norm": bare, "final_norm": bare}
    wide = Decoder(**common, projection=Linear(), feedforward=Mlp())
    tokens = Decoder(**common, projection=Pattention(tokens=20), feedforward=Pattention(tokens=80))
    for spec, shape in ((wide, Shape(3, 48, 24, 192)), (tokens, Shape(3, 48, 20, 80))):
        assert shape.parameters == spec.params(embedding=False)
        for time in (1, 64, 1000):
            assert shape.flops(time, vocabulary=100) == spec.flops(time)
            assert shape.token_token_flops(time) == spec.attention_flops(time)
