"""Live rows to cached rows."""

import json
import os

import pytest
from fixtures.rows import make_denseformer, make_run, make_tokenformer

from formerlab.errors import UserError
from formerlab.files import beside, read_json
from formerlab.plan.judge import UNPLANNED
from formerlab.results.export import export, verify
from formerlab.results.read import Results


@pytest.fixture
def live(tmp_path):
    root = tmp_path / "live" / "laptop"
    make_denseformer(root, (0, 1), depths=(4,))
    return root


@pytest.fixture
def cached(tmp_path):
    return tmp_path / "cached" / "laptop"


def test_rows_are_copied_and_weights_are_not(live, cached):
    (live / "denseformer" / "plain-4" / "seed0" / "optimizer.pt").write_bytes(b"state")
    report = export(live, cached)
    assert len(report["exported"]) == 6
    names = {path.name for path in (cached / "denseformer" / "dwa-1x1-4" / "seed0").iterdir()}
    assert names == {"run.json", "run.yaml", "train.csv", "timing.csv", "eval.csv", "test.csv", "depth.csv"}
    assert {path.name for path in (cached / "denseformer" / "plain-4" / "seed0").iterdir()} == names - {"depth.csv"}
    assert Results(cached).rows("test.csv").equals(Results(live).rows("test.csv"))


def test_new_rows_are_not_withdrawn_for_what_was_wrong_with_the_old(live, cached):
    export(live, cached)
    withdrawn = cached / "denseformer/withdrawn.yaml"
    withdrawn.write_text("denseformer-better-at-equal-depth: taken at full moon\n")
    verify(cached)
    export(live, cached)
    assert not withdrawn.exists()


def test_what_a_killed_export_left_is_removed(live, cached):
    for ending in ("new", "old"):
        left = beside(cached / "denseformer", ending)
        left.with_name(left.name.replace(str(os.getpid()), "999999999")).mkdir(parents=True)
    export(live, cached)
    assert [path.name for path in cached.iterdir()] == ["denseformer"]


def test_provenance_tells_where_rows_come_from(live, cached):
    export(live, cached)
    provenance = read_json(cached / "denseformer" / "provenance.json")
    run = provenance["runs"]["denseformer/plain-4/seed0"]
    assert provenance["scale"] == "laptop"
    assert run["git"]["commit"] == "a" * 40
    assert set(run["files_sha256"]) == {"run.json", "run.yaml", "train.csv", "timing.csv", "eval.csv", "test.csv"}
    verify(cached)
    (cached / "denseformer" / "plain-4" / "seed0" / "test.csv").write_text("changed\n")
    with pytest.raises(UserError, match=r"test\.csv: not the exported file"):
        verify(cached)


def test_exporting_again_changes_no_rows(live, cached):
    export(live, cached)
    files = {path: path.read_bytes() for path in cached.rglob("*.csv")}
    export(live, cached)
    assert {path: path.read_bytes() for path in cached.rglob("*.csv")} == files
    assert not [path for path in cached.iterdir() if path.name.startswith(".")]


def test_runs_without_all_seeds_are_listed_and_left_out(live, cached):
    (live / "denseformer" / "plain-4" / "seed1" / "run.json").unlink()
    report = export(live, cached)
    assert report["unfinished"] == {
        "denseformer/plain-4/seed1": "not finished",
        "denseformer/plain-4/seed0": "its run lacks seed 1",
    }
    assert not (cached / "denseformer" / "plain-4").exists()
    assert len(report["exported"]) == 4


def test_diverged_runs_are_exported_and_listed(live, cached):
    for seed in (0, 1):
        make_run(live, "denseformer", "hot", seed, status="diverged", diverged_at_step=3)
    report = export(live, cached)
    assert report["diverged"] == ["denseformer/hot/seed0", "denseformer/hot/seed1"]
    assert set(report["diverged"]) <= set(report["exported"])


def test_other_studies_stay_and_old_runs_go(live, cached):
    make_tokenformer(cached, (0,))
    make_run(cached, "denseformer", "old", 0)
    export(live, cached)
    studies = set(Results(cached).runs()["study"])
    assert studies == {"denseformer", "tokenformer"}
    assert "old" not in set(Results(cached).runs("denseformer")["run"])


def test_scales_do_not_mix(live, tmp_path):
    with pytest.raises(UserError, match="scale 'paper' is not that of"):
        export(live, tmp_path / "cached" / "paper")


def test_states_of_the_data_do_not_mix(live, cached):
    path = live / "denseformer" / "plain-4" / "seed1" / "run.json"
    record = json.loads(path.read_text())
    record["data"]["fingerprint"] = "another"
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match="different states of data 'text'"):
        export(live, cached)
    assert not cached.exists()


@pytest.mark.parametrize("name", ["train.csv", "test.csv"])
def test_damage_stops_the_export_before_anything_changes(live, cached, name):
    export(live, cached)
    before = {path: path.read_bytes() for path in cached.rglob("*") if path.is_file()}
    (live / "denseformer" / "plain-4" / "seed1" / name).write_text("step,tok")
    with pytest.raises(UserError, match=f"plain-4/seed1/{name}"):
        export(live, cached)
    assert {path: path.read_bytes() for path in cached.rglob("*") if path.is_file()} == before


def objecting(**wrong):
    """Return what objects to products whose stage and name hold the words given."""
    return lambda stage, name: next((why for word, why in wrong.items() if word in f"{stage} {name}"), "")


def test_what_is_not_as_planned_stays_behind_and_is_listed(live, cached):
    for name in ("zeroshot.csv", "zeroshot.json"):
        (live / "denseformer/plain-4/seed0" / name).write_text("task,task_version,example,metric,value\n")
    (live / "denseformer/speed.json").write_text("{}")
    (live / "exact.csv").write_text("claim,name,value\n")
    make_run(live, "denseformer", "plain-4", 7)
    wrong = {"1x1-4/seed1": "changed since: code", "seed7": UNPLANNED, "zeroshot": "changed since: suites"}
    report = export(live, cached, objecting(**wrong, speed="changed since: code", exact="changed since: code"))
    assert report["unfinished"] == {
        "denseformer/dwa-1x1-4/seed0": "its run lacks seed 1",
        "denseformer/dwa-1x1-4/seed1": "changed since: code",
        "denseformer/plain-4/seed7": UNPLANNED,
    }
    assert report["left_out"] == [
        "zeroshot denseformer/plain-4/seed0: changed since: suites",
        "speed denseformer: changed since: code",
        "exact claims: changed since: code",
    ]
    found = {path.relative_to(cached).as_posix() for path in cached.rglob("*") if path.is_file()}
    assert len(report["exported"]) == 4
    assert not any(word in path for path in found for word in ("zeroshot", "speed", "exact", "seed7", "1x1"))
    assert not any(word in path for path in map(str, cached.rglob("*")) for word in ("seed7", "1x1"))


def test_where_nothing_is_as_planned_the_cache_stays_as_it_is(live, cached):
    export(live, cached)
    before = {path: path.read_bytes() for path in cached.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"no complete run to export \(denseformer/.*: changed since: configuration\)"):
        export(live, cached, objecting(train="changed since: configuration"))
    assert {path: path.read_bytes() for path in cached.rglob("*") if path.is_file()} == before


def test_nothing_to_export_is_said(tmp_path):
    (tmp_path / "live" / "laptop" / "denseformer" / "plain" / "seed0").mkdir(parents=True)
    with pytest.raises(UserError, match="no complete run"):
        export(tmp_path / "live" / "laptop", tmp_path / "cached" / "laptop")
