"""The staleness check. test_status.py tests the output of `status`, and test_dag.py tests the DAG."""

import os
import time

import numpy as np
import pytest
from fixtures.project import change
from safetensors.numpy import save_file

from formerlab.files import read_json, write_json, write_record
from formerlab.plan.staleness import OPTIMIZER, RECORDS, UNPLANNED, Staleness

RUN = "small/plain/seed0"


@pytest.fixture
def plan(finished_plan):
    return finished_plan


def test_finished_outputs_are_up_to_date(plan):
    staleness = Staleness(plan)
    assert {staleness.check(stage, name) for stage in RECORDS for name in plan[stage]} == {("finished", "")}
    assert staleness.stale() == {}
    assert staleness.write_stale(staleness.folder("exact", "claims")) is None


def test_data_of_an_earlier_tokenizer_are_stale(plan):
    plan = plan | {"data": plan["data"] | {"more": plan["data"]["text"] | {"out": "more", "tokenizer": "text"}}}
    change(plan, "data", "text", tokenizer={"sha256": "one"})
    write_json(Staleness(plan).record("data", "more"), read_json(Staleness(plan).record("data", "text")))
    assert Staleness(plan).check("data", "more").current
    change(plan, "data", "text", tokenizer={"sha256": "two"})
    assert Staleness(plan).check("data", "more") == ("stale", "changed since: tokenizer")


def test_a_run_without_the_optimizer_that_another_run_needs_is_stale(plan):
    plan = plan | {"train": plan["train"] | {RUN: plan["train"][RUN] | {"keep_optimizer": True}}}
    assert Staleness(plan).check("train", RUN) == ("stale", f"no {OPTIMIZER}, which another run needs")
    Staleness(plan).record("train", RUN).with_name(OPTIMIZER).touch()
    assert Staleness(plan).check("train", RUN).current


def test_an_output_without_its_rows_is_stale(plan):
    for stage, file in (("train", "test.csv"), ("zeroshot", "zeroshot.csv")):
        change(plan, stage, RUN, rows_sha256={file: "0" * 64})
        path = Staleness(plan).record(stage, RUN).with_name(file)
        path.unlink(missing_ok=True)
        assert Staleness(plan).check(stage, RUN) == ("stale", f"{file} is missing")
        path.touch()
        assert Staleness(plan).check(stage, RUN).current


def test_a_run_with_damaged_weights_is_stale_with_its_measurements(plan):
    path = Staleness(plan).record("train", RUN).with_name("weights.safetensors")
    save_file({"weight": np.zeros((3, 5), np.float32)}, path)
    assert Staleness(plan).check("train", RUN).current
    content = path.read_bytes()
    for damaged in (content[:-1], content + b"0", content[:4], b"", b"\xff" * len(content)):
        path.write_bytes(damaged)
        assert Staleness(plan).check("train", RUN) == ("stale", "weights.safetensors is damaged")
        assert Staleness(plan).check("prune", RUN) == ("stale", f"{RUN} is stale")
    path.unlink()


def test_an_edited_record_is_stale(plan):
    path = Staleness(plan).record("train", RUN)
    write_record(path, read_json(path))
    assert Staleness(plan).check("train", RUN).current
    change(plan, "train", RUN, flops_cumulative=1.0)
    staleness = Staleness(plan)
    assert "changed since its stage wrote it" in staleness.check("train", RUN).detail
    assert ("train", RUN) in staleness.stale()


def test_a_run_with_an_edited_spec_is_stale(plan):
    spec = plan["train"][RUN]["spec"]
    change(plan, "train", RUN, spec=spec)
    assert Staleness(plan).check("train", RUN).current
    change(plan, "train", RUN, spec=spec | {"steps": spec["steps"] + 1})
    assert Staleness(plan).check("train", RUN) == ("stale", "changed since: configuration")


def test_given_weights_are_up_to_date_for_any_code_but_not_for_other_settings(plan):
    change(plan, "train", RUN, code_hash="old")
    assert Staleness(plan).check("train", RUN) == ("stale", "changed since: code")
    plan = plan | {"train": plan["train"] | {RUN: plan["train"][RUN] | {"given": True}}}
    assert Staleness(plan).check("train", RUN).current
    change(plan, "train", RUN, spec_hash="old")
    assert Staleness(plan).check("train", RUN) == ("stale", "changed since: configuration")


def test_rows_are_stale_by_stage_or_because_they_are_not_planned(plan):
    change(plan, "zeroshot", RUN, code_hash="old")
    staleness = Staleness(plan)
    assert staleness.staleness_reason("train", RUN) == ""
    assert staleness.staleness_reason("zeroshot", RUN) == "changed since: code"
    assert staleness.staleness_reason("zeroshot", "small/child/seed0") == UNPLANNED
    assert staleness.staleness_reason("train", "other/run/seed0") == UNPLANNED


def test_the_list_of_stale_outputs_is_newer_than_the_outputs_and_written_once(plan, tmp_path):
    change(plan, "train", RUN, spec_hash="old")
    record = Staleness(plan).record("train", RUN)
    ahead = time.time() + 3600
    os.utime(record, (ahead, ahead))
    path = Staleness(plan).write_stale(tmp_path)
    assert path.read_text().splitlines()[0] == f"train {RUN}: changed since: configuration"
    assert record.stat().st_mtime_ns < path.stat().st_mtime_ns <= time.time_ns()
    written = path.stat().st_mtime_ns
    assert Staleness(plan).write_stale(tmp_path) == path
    assert path.stat().st_mtime_ns == written
    os.utime(record, (1, 1))  # another file has replaced it
    assert Staleness(plan).write_stale(tmp_path) != path


def test_an_unreadable_record_is_failed(plan):
    for text in ("{", "[]"):
        Staleness(plan).record("train", RUN).write_text(text)
        staleness = Staleness(plan)
        assert staleness.check("train", RUN).state == "failed"
        assert "run.json" in staleness.check("train", RUN).detail
        assert ("train", RUN) in staleness.stale()
        assert staleness.check("zeroshot", RUN) == ("stale", f"{RUN} is failed")
