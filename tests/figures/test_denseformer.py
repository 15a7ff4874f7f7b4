"""The figures of averages over depth compare the runs that the scale file registers for the claims."""

import shutil
from pathlib import Path

import pytest
from fixtures.rows import NOVELS, add_weights, dwa, make_run, model, write

from formerlab.report.catalogue import catalogue, load_rows
from formerlab.results.read import Results

ROOT = Path(__file__).parents[2]
ARMS = {"plain": None, "dwa-1x1": dwa(1, 1), "dwa-4x5": dwa(4, 5)}
SEARCHED = {"plain": "whole-plain-10000", "dwa-1x1": "whole-dwa-5000", "dwa-4x5": "whole-sparse-5000"}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return the results of a project at scale overnight with two runs of each model of 24 blocks."""
    shutil.copytree(ROOT / "workflow", tmp_path / "workflow")
    root = tmp_path / "results" / "overnight"
    for arm, depth in ARMS.items():
        for run in (f"annealed-{arm}-24", f"annealed-{SEARCHED[arm]}"):
            for seed in (0, 1):
                folder = make_run(root, "denseformer", run, seed, spec=model(24, depth=depth), **NOVELS)
                if depth:
                    add_weights(folder / "depth.csv", 24, depth["dilation"], depth["period"], seed)
    # denseformer_sparsity is rendered only if this run is finished
    make_run(root, "denseformer", "dwa-4x1-16", spec=model(16, depth=dwa(4, 1)))
    times = [(f"annealed-{arm}-24", "forward", n, 1, 8, 512, 0.1 + 0.01 * len(arm), 9) for arm in ARMS for n in (1, 2)]
    write(root / "denseformer/speed.csv", times)
    monkeypatch.chdir(tmp_path)
    return Results(root)


def our_runs(results, name):
    rows = load_rows(catalogue()[name], results)
    return set(rows.loc[rows["source"] == "ours", "run"].dropna()) - {"dwa-4x1-16"}


@pytest.mark.parametrize("changed", [set(), {"plain"}, {"dwa-1x1", "dwa-4x5"}])
def test_figures_take_their_runs_from_the_registered_arms(results, changed):
    registered, path = {arm: f"annealed-{arm}-24" for arm in ARMS}, Path("workflow/scales/overnight.yaml")
    path.write_text(path.read_text().replace("run: annealed-whole-plain-10000", "run: annealed-plain-24"))
    for arm in changed:
        old, registered[arm] = registered[arm], f"annealed-{SEARCHED[arm]}"
        path.write_text(path.read_text().replace(f"run: {old}", f"run: {registered[arm]}"))
    dense = {registered["dwa-1x1"]}
    sparse = {registered["dwa-4x5"]}
    plain = {registered["plain"]}
    assert our_runs(results, "denseformer_gain") == dense
    assert our_runs(results, "denseformer_weights") == dense | sparse
    assert our_runs(results, "denseformer_sparsity") == dense | sparse
    for name in ("denseformer_depth", "denseformer_tradeoff"):
        assert our_runs(results, name) == dense | sparse | plain, name
    gain = load_rows(catalogue()["denseformer_gain"], results)
    claimed = gain[gain["verdict"].notna()]
    assert set(claimed["plain"]) == plain
    assert set(claimed["run"]) == dense
