"""Rate searches: the runs of a search, the chosen rate, and the note on a rate at the edge of the grid."""

import json

import pandas as pd
import pytest
from fixtures.rows import grown, make_run, model, pattention, write_csv

from formerlab.report.catalogue import catalogue
from formerlab.report.families import families
from formerlab.report.figures.training import at_the_edge
from formerlab.report.figures.training import rates as figure
from formerlab.report.write import draw_all
from formerlab.results.read import Results
from formerlab.results.stages import TABLES

pytestmark = pytest.mark.xdist_group("figures")


def write_run(root, run, rate, loss, seed=0, **settings):
    """Write a run whose validation loss falls from 9 to `loss`."""
    folder = make_run(root, "tokenformer", run, seed, optimizer={"lr": rate}, **settings)
    rows = [(step, "valid", batch, 512, value) for step, value in ((0, 9.0), (200, loss)) for batch in range(2)]
    write_csv(folder / "eval.csv", TABLES["eval.csv"].required, rows)
    return folder


@pytest.fixture
def results(tmp_path):
    """Results of three models.

    The best rate of the Tokenformer is inside its grid, the best rate of the Transformer is the highest of its grid,
    and the third model has a single run.
    """
    root = tmp_path / "live" / "pilot"
    for seed, shift in ((100, 0.0), (101, 0.1)):
        for run, rate, loss in (("a", 1e-3, 4.2), ("b", 2e-3, 4.0), ("c", 4e-3, 4.1)):
            write_run(root, run, rate, loss + shift, seed, spec=model(projection=pattention(16)))
            write_run(root, f"linear-{run}", rate, 4.5 - 50 * rate + shift, seed)
    write_run(root, "alone", 1e-3, 3.0, 100, spec=model(layers=6))
    return Results(root)


def rates(results):
    return figure.rows(results, ("*",), study="tokenformer")


def test_a_search_is_recognised_by_its_specs():
    spec = {"name": "a", "seed": 0, "optimizer": {"lr": 1.0}, "model": {"depth": {"kind": "identity"}}}
    other = json.loads(json.dumps(spec)) | {"name": "b", "seed": 1}
    assert families([spec, other], "optimizer.lr") == [-1, -1], "both runs have the same rate"
    other["optimizer"]["lr"] = 2.0
    assert families([spec, other, {"model": {}}], "optimizer.lr") == [0, 0, -1]
    # compile only changes rounding, so both runs are in one search
    assert families([spec, other | {"compile": True}], "optimizer.lr") == [0, 0]
    other["model"]["depth"] = {"kind": "dwa", "period": 1}
    assert families([spec, other], "optimizer.lr") == [-1, -1], "runs with another mixer are not in the search"
    assert families([spec, other | {"optimizer": {"lr": 1.0}}], "model.depth") == [0, 0]
    assert families([], "optimizer.lr") == []


def test_the_lowest_mean_over_seeds_is_chosen(results):
    rows = rates(results)
    assert set(rows["family"]) == {"Tokenformer", "Transformer"}
    means = rows[rows["part"] == "mean"].set_index(["family", "lr"])
    assert means.loc[("Tokenformer", 2e-3), "loss_nats"] == pytest.approx(4.05)
    assert list(means.index[means["chosen"]]) == [("Tokenformer", 2e-3), ("Transformer", 4e-3)]
    assert (rows[rows["part"] == "seed"].groupby(["family", "lr"])["seed"].nunique() == 2).all()


def test_a_best_rate_at_the_edge_of_its_grid_is_noted(results, tmp_path):
    assert at_the_edge(rates(results)) == ["Transformer (books, 4 blocks, 200 steps): 0.004, of 0.001 to 0.004"]
    write_run(results.root, "linear-d", 8e-3, 4.6, 100)
    assert at_the_edge(rates(Results(results.root))) == []


def test_a_rate_at_which_runs_diverge_bounds_the_grid_and_is_never_chosen(results):
    write_run(results.root, "linear-d", 8e-3, 1.0, 100, status="diverged", diverged_at_step=3)
    rows = rates(Results(results.root))
    assert at_the_edge(rows) == []
    top = rows[(rows["lr"] == 8e-3) & (rows["part"] == "mean")].iloc[0]
    assert (top["diverged"], top["chosen"], pd.isna(top["loss_nats"])) == (1, False, True)


def test_duplicate_runs_count_once(results):
    write_run(results.root, "the-same", 4e-3, 4.1, 100, spec=model(projection=pattention(16)))
    rows = rates(Results(results.root))
    assert len(rows[(rows["part"] == "seed") & (rows["family"] == "Tokenformer") & (rows["lr"] == 4e-3)]) == 2


def test_models_with_equal_labels_are_distinguished_by_their_specs(tmp_path):
    for run, rate, norm in (("a", 1e-3, "rmsnorm"), ("b", 2e-3, "rmsnorm"), ("c", 1e-3, "none"), ("d", 2e-3, "none")):
        write_run(tmp_path, run, rate, 4.0, spec=model(projection=pattention(8)) | {"norm": {"kind": norm}})
        stage = grown("a") if norm == "rmsnorm" else {"init": "a"}
        write_run(tmp_path, f"stage-{run}", rate, 3.9, spec=model(projection=pattention(8)), **stage)
    rows = rates(Results(tmp_path))
    assert set(rows["family"]) == {
        *("Tokenformer, RMSNorm", "Tokenformer, none"),
        *("grown as published", "Tokenformer, trained further"),
    }
    assert (
        rows.groupby("family")["panel"].first().to_dict()["Tokenformer, trained further"]
        == "text, 4 blocks, from a parent, 200 steps"
    )


def test_losses_of_a_second_domain_have_a_separate_panel(tmp_path):
    second = {"name": "second", "fingerprint": "f" * 32}
    for run, rate in (("a", 1e-3), ("b", 2e-3)):
        write_run(tmp_path, run, rate, 4.0)
        write_run(tmp_path, f"on-{run}", rate, 3.9, init="a")
        write_run(tmp_path, f"elsewhere-{run}", rate, 2.9, init="a", data=second, spec=model(projection=pattention(8)))
    panels = rates(Results(tmp_path)).groupby("run")["panel"].first().to_dict()
    starts = {"b": "text, 4 blocks, 200 steps", "on-b": "text, 4 blocks, from a parent, 200 steps"}
    starts["elsewhere-b"] = "second, 4 blocks, from a parent, 200 steps"
    assert {run: panels[run] for run in starts} == starts


@pytest.mark.usefixtures("unsaved")
def test_there_is_no_figure_without_a_search(tmp_path, capsys):
    make_run(tmp_path / "live" / "one", "tokenformer", "tokenformer-1")
    written = draw_all(tmp_path / "live", tmp_path / "figures")
    assert "tokenformer_rates" not in {path.stem for path in written}
    assert "have no rows of finished runs" in capsys.readouterr().err
    specs = [("tokenformer", run, {"name": run, "optimizer": {"lr": rate}}) for run, rate in (("a", 1.0), ("b", 2.0))]
    assert catalogue()["tokenformer_rates"].shown_indices([*specs, ("decay", "a", {})]) == [0, 1]
    assert catalogue()["tokenformer_rates"].shown_indices(specs[:1]) == []
