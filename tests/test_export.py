"""An export copies live rows to the cached rows."""

import json
import math
import os
import shutil

import pytest
from fixtures.rows import make_denseformer, make_run, write, write_csv
from pandas.testing import assert_frame_equal

from formerlab.errors import UserError
from formerlab.files import locked, write_record
from formerlab.plan.staleness import UNPLANNED
from formerlab.report.run_table import run_table
from formerlab.report.runs import held_out_losses, means_by_run
from formerlab.report.write import draw
from formerlab.results import export as exporting
from formerlab.results.export import export
from formerlab.results.read import Results, has_runs
from formerlab.results.stages import TABLES
from formerlab.tracking.rows import seed_entry

DECODED = [("plain-4", "full", None, None, 1.0, 64, 1, repetition, 1, 1e-3, 512, 0) for repetition in range(5)]


@pytest.fixture
def live(tmp_path):
    root = tmp_path / "live" / "laptop"
    make_denseformer(root, (0, 1), depths=(4,))
    return root


@pytest.fixture
def cached(tmp_path):
    return tmp_path / "cached" / "laptop"


def files(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_an_export_has_few_files_and_no_weights(live, cached):
    (live / "denseformer" / "plain-4" / "seed0" / "optimizer.pt").write_bytes(b"state")
    write(live / "denseformer/decode.csv", DECODED)
    assert len(export(live, cached)["exported"]) == 6
    tables = {f"{name}.parquet" for name in ("train", "timing", "eval", "test", "depth", "decode")}
    assert {path.name for path in (cached / "denseformer").iterdir()} == {"records.jsonl", *tables}
    live_results, cached_results = Results(live), Results(cached)
    records = [{key: record[key] for key in record if key != "host"} for record in live_results.records()]
    assert cached_results.records() == records
    for name in ("train.csv", "timing.csv", "eval.csv", "test.csv", "depth.csv"):
        assert_frame_equal(cached_results.rows(name), live_results.rows(name), check_exact=True)
    timed = [results.rows_of("decode.csv", "denseformer") for results in (cached_results, live_results)]
    assert_frame_equal(*timed, check_exact=True)


def test_live_and_exported_results_have_the_same_interface(live, cached):
    export(live, cached)
    assert run_table(Results(cached)).drop(columns="host").equals(run_table(Results(live)).drop(columns="host"))
    entries = [seed_entry(results, results.records()[0]) for results in (Results(live), Results(cached))]
    assert entries[0].points.equals(entries[1].points)
    assert entries[0].params == entries[1].params
    files = [draw("denseformer_depth", Results(root), root / "figures", pdf=False)[-2] for root in (live, cached)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_exports_of_two_machines_are_merged(live, cached, tmp_path):
    """Two exports of the parts of a study from two machines give the same files as one export of the whole study."""
    write(live / "denseformer/decode.csv", DECODED)
    folder = live / "denseformer/plain-4/seed0"
    write_csv(folder / "zeroshot.csv", TABLES["zeroshot.csv"].required, [])
    (folder / "zeroshot.json").write_text('{"code_hash": "0123"}')
    complete_export = tmp_path / "whole" / "laptop"
    export(live, complete_export)
    second_machine = tmp_path / "elsewhere" / "laptop"
    shutil.copytree(live, second_machine)
    shutil.rmtree(live / "denseformer/plain-4")
    (live / "denseformer/decode.csv").unlink()
    shutil.rmtree(second_machine / "denseformer/dwa-1x1-4")
    export(second_machine, cached)
    assert len(export(live, cached)["exported"]) == len(Results(live).records())
    merged_files, complete_files = files(cached), files(complete_export)
    assert merged_files == complete_files
    assert Results(cached).stage_record("denseformer/plain-4/seed0", "zeroshot") == {"code_hash": "0123"}


def test_a_new_export_of_a_run_replaces_all_its_seeds(live, cached):
    export(live, cached)
    for seed in (0, 1):
        shutil.rmtree(live / f"denseformer/plain-4/seed{seed}")
    make_run(live, "denseformer", "plain-4", 5)
    for run in {record["run"] for record in Results(live).records()} - {"plain-4"}:
        shutil.rmtree(live / "denseformer" / run)
    export(live, cached)
    exported = Results(cached)
    assert exported.runs(runs=["plain-4"])["seed"].tolist() == [5]
    assert exported.runs(runs=["dwa-1x1-4"])["seed"].tolist() == [0, 1]


def test_files_of_a_killed_export_are_removed(live, cached):
    for ending in ("new", "old"):
        (cached / f".denseformer.{ending}").mkdir(parents=True)
    export(live, cached)
    assert [path.name for path in cached.iterdir()] == ["denseformer"]


def leave_killed_export(live, cached):
    """Leave the files of an export that was killed between its two renames, and delete the live rows of a run."""
    export(live, cached)
    exported_files = files(cached)
    shutil.copytree(cached / "denseformer", cached / ".denseformer.new")
    (cached / "denseformer").rename(cached / ".denseformer.old")
    shutil.rmtree(live / "denseformer/plain-4")
    return exported_files


def test_an_export_killed_between_its_renames_loses_no_run(live, cached):
    exported_files = leave_killed_export(live, cached)
    export(live, cached)
    assert files(cached) == exported_files


def test_an_export_of_another_study_restores_the_study_of_a_killed_export(live, cached):
    exported_files = leave_killed_export(live, cached)
    shutil.rmtree(live / "denseformer")
    make_run(live, "tokenformer", "tokenformer-1")
    export(live, cached)
    assert {
        name: content for name, content in files(cached).items() if name.startswith("denseformer/")
    } == exported_files
    assert {path.name for path in cached.iterdir()} == {"denseformer", "tokenformer"}


def test_an_exported_record_that_was_edited_is_refused(live, cached):
    record = live / "denseformer/plain-4/seed0/run.json"
    write_record(record, json.loads(record.read_text()))
    export(live, cached)
    assert all("host" not in record for record in Results(cached).records())
    lines = cached / "denseformer/records.jsonl"
    lines.write_text(lines.read_text().replace('"flops_cumulative": 1', '"flops_cumulative": 2'))
    with pytest.raises(UserError, match=r"records\.jsonl: cannot be read \(changed since its stage wrote it\)"):
        Results(cached).records()


def test_readers_refuse_a_study_that_a_killed_export_renamed(live, cached):
    leave_killed_export(live, cached)
    assert has_runs(cached)
    message = r"\.denseformer\.old: an interrupted export left study denseformer.*rename the folder"
    with pytest.raises(UserError, match=message):
        Results(cached)


def test_readers_ignore_the_temporary_folders_of_an_export(live, cached):
    export(live, cached)
    for ending in ("new", "old"):
        shutil.copytree(cached / "denseformer", cached / f".denseformer.{ending}")
    assert len(Results(cached).records()) == 6


def test_an_export_reads_the_previous_export_under_the_lock(live, cached):
    export(live, cached)
    (cached / "denseformer/records.jsonl").write_text("half written by the other one")
    with (
        locked(cached / ".denseformer.lock", str),
        pytest.raises(UserError, match="another export of this study is running"),
    ):
        export(live, cached)


@pytest.mark.parametrize("when", ["write_study", "os.replace"])
def test_an_interrupted_export_leaves_the_old_files(when, live, cached, monkeypatch):
    export(live, cached)
    files_before = files(cached)
    make_run(live, "denseformer", "more", 0)
    make_run(live, "denseformer", "more", 1)
    target = cached / "denseformer"
    real = {"write_study": exporting.write_study, "os.replace": os.replace}[when]

    def interrupted(*arguments):
        real(*arguments)
        if when == "write_study" or arguments[0] == target:
            raise KeyboardInterrupt

    monkeypatch.setattr(f"formerlab.results.export.{when}", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(live, cached)
    assert files(cached) == files_before


def test_runs_without_all_seeds_are_listed_and_left_out(live, cached):
    (live / "denseformer" / "plain-4" / "seed1" / "run.json").unlink()
    report = export(live, cached)
    assert report["unfinished"] == {
        "denseformer/plain-4/seed1": "not finished",
        "denseformer/plain-4/seed0": "its run is missing seed 1",
    }
    assert "plain-4" not in set(Results(cached).runs()["run"])
    assert len(report["exported"]) == 4


def test_other_studies_stay_and_diverged_runs_are_listed(live, cached):
    make_run(cached, "tokenformer", "tokenformer-1")
    for seed in (0, 1):
        make_run(live, "denseformer", "hot", seed, status="diverged", diverged_at_step=3)
    report = export(live, cached)
    assert set(Results(cached).runs()["study"]) == {"denseformer", "tokenformer"}
    assert report["diverged"] == ["denseformer/hot/seed0", "denseformer/hot/seed1"]
    assert set(report["diverged"]) <= set(report["exported"])


@pytest.mark.parametrize("content", ["[]", "{}", "{"])
def test_a_damaged_record_excludes_only_its_run(live, cached, content):
    (live / "denseformer/plain-4/seed1/run.json").write_text(content)
    report = export(live, cached, lambda stage, name: "no record" * (name == "denseformer/plain-4/seed1"))
    assert report["unfinished"]["denseformer/plain-4/seed1"] == "no record"
    assert len(report["exported"]) == 4


def stale_outputs(**reasons):
    """Return a staleness function.

    It returns the reason whose keyword occurs in "<stage> <name>", or "" if no keyword occurs.
    """
    return lambda stage, name: next((reason for word, reason in reasons.items() if word in f"{stage} {name}"), "")


def test_stale_results_are_listed_and_not_exported(live, cached):
    for name in ("zeroshot.csv", "zeroshot.json"):
        (live / "denseformer/plain-4/seed0" / name).write_text("task,task_version,example,metric,value\n")
    (live / "denseformer/speed.json").write_text("{}")
    (live / "exact.csv").write_text("claim,name,value\n")
    make_run(live, "denseformer", "plain-4", 7)
    reasons = {"1x1-4/seed1": "changed since: code", "seed7": UNPLANNED, "zeroshot": "changed since: suites"}
    report = export(live, cached, stale_outputs(**reasons, speed="changed since: code", exact="changed since: code"))
    assert report["unfinished"] == {
        "denseformer/dwa-1x1-4/seed0": "its run is missing seed 1",
        "denseformer/dwa-1x1-4/seed1": "changed since: code",
        "denseformer/plain-4/seed7": UNPLANNED,
    }
    assert report["left_out"] == [
        "speed denseformer: changed since: code",
        "zeroshot denseformer/plain-4/seed0: changed since: suites",
        "exact claims: changed since: code",
    ]
    assert len(report["exported"]) == 4
    assert set(Results(cached).runs()["id"]) == set(report["exported"])
    exported_text = json.dumps([(cached / "denseformer/records.jsonl").read_text(), sorted(files(cached))])
    assert not any(word in exported_text for word in ("zeroshot", "speed", "exact", "seed7", "1x1"))


def test_bits_per_byte_use_the_bytes_in_the_record(live, cached):
    for seed in (0, 1):
        path = live / f"denseformer/plain-4/seed{seed}/run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"bytes_per_token": 3.0}))
    export(live, cached)
    for root in (live, cached):
        points = means_by_run(held_out_losses(Results(root), "denseformer")).set_index("run")
        bits_per_byte = points["bits_per_byte"].dropna()
        assert bits_per_byte.to_dict() == {
            "plain-4": pytest.approx(points.loc["plain-4", "loss_nats"] / math.log(2) / 3)
        }


def seeds_have_different_data(live, cached):
    path = live / "denseformer/plain-4/seed1/run.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"data": record["data"] | {"fingerprint": "another"}}))
    return {}


def exported_run_has_other_data(live, cached):
    shutil.rmtree(live / "denseformer/plain-4")
    for path in live.glob("denseformer/*/*/run.json"):
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"data": record["data"] | {"fingerprint": "0" * 16}}))
    return {}


def damaged_rows(live, cached):
    (live / "denseformer/plain-4/seed1/test.csv").write_text("step,tok")
    return {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (seeds_have_different_data, "different versions of data 'text'"),
        (exported_run_has_other_data, "different versions of data 'text'"),
        (damaged_rows, "plain-4/seed1/test.csv"),
        (
            lambda *_: {"staleness_reason": stale_outputs(train="no code")},
            r"no complete run to export \(denseformer/.*: no code\)",
        ),
        (lambda live, cached: {"cached_root": cached.parent / "paper"}, "scale 'paper' differs from"),
    ],
)
def test_a_refused_export_changes_no_files(live, cached, change, message):
    export(live, cached)
    files_before = files(cached)
    with pytest.raises(UserError, match=message):
        export(live, **{"cached_root": cached} | change(live, cached))
    assert files(cached) == files_before
