"""Runs on another data set or schedule are shown but not compared with the others."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from fixtures.rows import NOVELS, dwa, make_denseformer, make_run, make_tokenformer, model, tokenformer
from fixtures.rows import grown as grown_from

from formerlab.report.catalogue import catalogue, load_declaration, load_rows
from formerlab.report.families import regime
from formerlab.report.tables.denseformer import plains
from formerlab.results.read import Results

pytestmark = pytest.mark.xdist_group("figures")


def copy_runs(root, study, changes):
    """Copy four fifths of the runs of a study to another regime, with losses that are two nats lower."""
    runs = [path.name for path in sorted((root / study).glob("*")) if path.is_dir() and "annealed-" not in path.name]
    for path in (path for run in runs[: 4 * len(runs) // 5] for path in (root / study / run).glob("seed*")):
        name = f"annealed-{path.parent.name}"
        shutil.copytree(path, folder := root / study / name / path.name)
        record = json.loads((folder / "run.json").read_text())
        record |= {"id": f"{study}/{name}/{path.name}", "run": name} | changes
        spec = {"name": name, "data": record["data"]["name"], "schedule": NOVELS["schedule"]}
        record["spec"] |= spec
        if record["init"]:
            record["spec"]["init"] = f"annealed-{record['spec']['init']}"
            record["init"] |= {"id": f"{study}/{record['spec']['init']}/{path.name}"}
        (folder / "run.json").write_text(json.dumps(record))
        for file in ("test.csv", "eval.csv"):
            rows = pd.read_csv(folder / file)
            rows.assign(loss_nats=rows["loss_nats"] - 2).to_csv(folder / file, index=False)


@pytest.mark.parametrize(
    ("study", "make", "changes"),
    [
        ("denseformer", make_denseformer, {"data": NOVELS["data"]}),
        ("tokenformer", make_tokenformer, {"data": NOVELS["data"]}),
    ],
)
def test_runs_of_another_regime_change_no_numbers(tmp_path, study, make, changes):
    make(tmp_path, (0,))
    entries = [entry for entry in catalogue().values() if entry.study == study and not entry.varied]
    # skip figures that are declared for every study
    entries = [entry for entry in entries if entry.function == entry.name]
    results = Results(tmp_path)
    old_rows = {entry.name: load_rows(entry, results) for entry in entries}
    copy_runs(tmp_path, study, changes)
    results = Results(tmp_path)
    for entry in entries:
        rows, old = load_rows(entry, results), old_rows[entry.name]
        if (entry.kind == "table" or entry.within_regime) and "run" in old:
            common = rows["run"].isin(old["run"].dropna()) & ~rows["run"].str.startswith("annealed-", na=False)
            of_regime = rows["regime"].isin(old["regime"]) if "regime" in rows else True
            rows = rows[common | rows["run"].isna() & of_regime]
            old = old[~old["run"].str.startswith("annealed-", na=False)]
            rows, old = (
                frame.sort_values([*old.columns[:3]], kind="stable", ignore_index=True) for frame in (rows, old)
            )
        pd.testing.assert_frame_equal(
            rows.reset_index(drop=True)[old.columns], old.reset_index(drop=True), obj=entry.name
        )


def test_a_regime_is_data_set_and_end_of_the_schedule():
    spec = {"data": "text", "schedule": {"kind": "cosine", "warmup": 0.01, "floor": 0.1}}
    assert regime(spec) == "text, cosine to 0.1"
    assert regime(spec | {"schedule": {"kind": "onecycle", "end_division": 1000.0}}) == "text, onecycle to 0.001"
    assert regime(spec | {"schedule": {"kind": "noam"}}) == "text, noam"
    assert regime({"data": "text"}) == ""


def test_stages_are_compared_with_the_parent_trained_further_for_equal_flops(tmp_path):
    parent = "long-matched-chosen"
    make_run(tmp_path, "tokenformer", parent, **tokenformer(1, parameters_non_embedding=1000))
    grown = tokenformer(2, parameters_non_embedding=4000) | grown_from(parent)
    for length, gap in (("short", 0.1), ("long", -0.1)):
        shared = NOVELS | {"flops": 1e12 if length == "short" else 8e12, "inherited": 1e12}
        for seed in (0, 1):
            for run, loss, tokens, settings in (
                ("random-sqrt", 3.0 + gap, 60_000, grown),
                ("trained-on", 3.0, 140_000, tokenformer(1, init=parent)),
            ):
                settings |= shared | {"tokens": tokens * (1 if length == "short" else 8)}
                make_run(tmp_path, "tokenformer", f"annealed-{run}-{length}", seed, loss=loss, **settings)
    plot, entry = load_declaration("tokenformer_stage_length"), catalogue()["tokenformer_stage_length"]
    rows = plot.rows(Results(tmp_path), entry.run_names(Results(tmp_path)))
    means = rows[rows["part"] == "mean"].set_index("tokens_per_new_parameter")["difference_nats"]
    assert list(means.index) == [160.0, 20.0]
    assert means.to_numpy() == pytest.approx(np.array([-0.1, 0.1]), abs=0.05)
    assert set(rows["rival"]) == {"annealed-trained-on-short", "annealed-trained-on-long"}

    parent_trained_further = (
        tokenformer(1, init=parent) | NOVELS | {"flops": 8e12, "inherited": 1e12, "tokens": 1_120_000}
    )
    for run, seeds, loss in (("trained-on-long-1250", (0, 1), 2.8), ("trained-on-long-2500", (0,), 2.7)):
        for seed in seeds:
            make_run(tmp_path, "tokenformer", f"annealed-{run}", seed, loss=loss, **parent_trained_further)
    make_run(tmp_path, "tokenformer", "annealed-random-sqrt-all", loss=2.0, **grown | NOVELS | {"flops": 3e12})
    rows = plot.rows(Results(tmp_path), entry.run_names(Results(tmp_path)))
    means = rows[rows["part"] == "mean"].set_index("rival")["difference_nats"]
    # rates with a single seed are not chosen
    assert means["annealed-trained-on-long-1250"] == pytest.approx(0.1, abs=0.05)
    assert set(means.index) == {"annealed-trained-on-short", "annealed-trained-on-long-1250"}

    shutil.rmtree(tmp_path / "tokenformer/annealed-random-sqrt-all")
    for run, loss, settings in (("random-sqrt-all", 2.6, grown), ("scratch-all", 2.5, tokenformer(2))):
        for seed in (0, 1):
            settings |= NOVELS | {"flops": 8e12}
            make_run(tmp_path, "tokenformer", f"annealed-{run}", seed, loss=loss, **settings)
    rows = plot.rows(Results(tmp_path), entry.run_names(Results(tmp_path)))
    means = rows[rows["part"] == "mean"].set_index("run")
    assert set(means["rival"][["annealed-random-sqrt-all", "annealed-scratch-all"]]) == {
        "annealed-trained-on-long-1250"
    }
    differences = means["difference_nats"][["annealed-random-sqrt-all", "annealed-scratch-all"]]
    assert differences.to_numpy() == pytest.approx(np.array([-0.2, -0.3]), abs=0.05)


def test_runs_of_a_full_length_search_are_not_paired(tmp_path):
    """The plain model and the DenseFormer have different learning rates.

    A plain run at the rate of the DenseFormer belongs to the search and is not its control.
    """
    for run, depth, rate in (
        ("annealed-plain-4", None, 0.02),
        ("annealed-whole-plain-10000", None, 0.01),
        ("annealed-dwa-1x1-4", dwa(1, 1), 0.01),
    ):
        make_run(tmp_path, "denseformer", run, spec=model(depth=depth), optimizer={"lr": rate}, **NOVELS)
    partners = plains(Results(tmp_path).runs("denseformer").assign(regime="novels"))
    assert partners["annealed-dwa-1x1-4"] == "annealed-plain-4"
