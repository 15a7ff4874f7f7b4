"""The factorial contrasts recover planted effects, and the models of the combined study differ only in the factors."""

import pandas as pd
import pytest
from fixtures.checkout import ROOT
from fixtures.combined import make_combined

from formerlab.plan.resolve import resolve_study
from formerlab.plan.sources import read_sources
from formerlab.report.figures.combined import combined_caches, combined_effects
from formerlab.report.tables.combined import MODELS, cells, contrasts
from formerlab.results.read import Results

PLANTED = {
    "parameter tokens": 0.05,
    "averages": -0.03,
    "H2O": 0.01,
    "Decay": 0.02,
    "parameter tokens with averages, beyond the sum": 0.04,
    "averages with H2O, beyond the sum": -0.006,
    "parameter tokens and averages with Decay, beyond the sum": 0.008,
}


def test_contrasts_are_the_planted_effects(tmp_path):
    make_combined(tmp_path / "live/smoke", **PLANTED)
    contrast_rows = contrasts(cells(Results(tmp_path / "live/smoke"))).set_index("name")
    assert len(contrast_rows) == 11
    for name, row in contrast_rows.iterrows():
        assert row["effect_nats"] == pytest.approx(PLANTED.get(name, 0.0), abs=5e-4), name
        assert row["effect_nats_low"] < row["effect_nats"] < row["effect_nats_high"]
        if name in PLANTED:
            assert abs(row["effect_nats"]) > row["effect_nats_high"] - row["effect_nats"], name


def test_other_budgets_and_recent_fractions_are_excluded(tmp_path):
    make_combined(tmp_path / "live/smoke")
    cells_before = cells(Results(tmp_path / "live/smoke"))
    for path in (tmp_path / "live/smoke").glob("combined/*/*/prune.csv"):
        rows = pd.read_csv(path)
        pruned = rows[rows["policy"] != "full"].assign(loss_nats=9.0)
        half, quarter = pruned.assign(budget=0.2), pruned.assign(recent=0.25)
        pd.concat([rows, half, quarter]).to_csv(path, index=False, lineterminator="\n")
    pd.testing.assert_frame_equal(cells(Results(tmp_path / "live/smoke")), cells_before)


def test_seeds_without_all_cells_are_excluded(tmp_path):
    make_combined(tmp_path / "live/smoke")
    (tmp_path / "live/smoke/combined/linear-dwa/seed1/prune.csv").unlink()
    assert sorted(cells(Results(tmp_path / "live/smoke")).index) == [0, 2]


@pytest.mark.parametrize("scale", ["smoke", "laptop", "overnight", "workstation", "paper"])
def test_the_four_models_differ_only_in_the_two_factors(scale):
    sources = read_sources(ROOT, {"scale": scale, "studies": ["combined"], "seeds": [0]})
    runs = {run.name: run for run in resolve_study("combined", sources)}
    assert set(runs) == set(MODELS)
    plain = runs["linear-plain"]
    matrix_parameters = plain.model.layers * 12 * plain.model.width**2
    for run in runs.values():
        assert (run.tokens, run.optimizer, run.schedule, run.task, run.data) == (
            *(plain.tokens, plain.optimizer, plain.schedule, plain.task, plain.data),
        )
        inner = run.model.params(embedding=False)
        assert inner == pytest.approx(matrix_parameters, rel=0.01 if scale != "smoke" else 0.1)
        assert run.model.depth.kind == ("dwa" if run.name.endswith("dwa") else "identity")


def test_labels_of_a_single_seed_have_no_interval(tmp_path):
    make_combined(tmp_path / "live/smoke", seeds=(0,), **PLANTED)
    labels = combined_effects.rows(Results(tmp_path / "live/smoke"), [*MODELS])["_label"].dropna()
    assert len(labels)
    assert not labels.str.contains(r"nan|\[").any()


def test_the_first_row_of_a_figure_is_an_interaction(tmp_path):
    make_combined(tmp_path / "live/smoke", **PLANTED)
    for figure, panel, interactions in ((combined_effects, "models", 1), (combined_caches, "caches", 4)):
        rows = figure.rows(Results(tmp_path / "live/smoke"), [*MODELS])
        rows = rows[rows["_panel"].eq(panel)]
        labels = rows.sort_values("_order", kind="stable").drop_duplicates("_label")
        assert labels["_interaction"].tolist() == [True] * interactions + [False] * (len(labels) - interactions)
    assert set(rows["text"]) == {"windows of the pruning test"}
