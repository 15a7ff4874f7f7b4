"""The one judge of products; what `status` makes of it stands in test_status.py, what the DAG does in test_dag.py."""

import os
import time

import numpy as np
import pytest
from safetensors.numpy import save_file

from formerlab.files import read_json, write_json, write_record
from formerlab.plan.judge import OPTIMIZER, RECORDS, UNPLANNED, Judge

RUN = "small/plain/seed0"


@pytest.fixture
def plan(finished_plan):
    return finished_plan


def change(plan, stage, name, **keys):
    path = Judge(plan).record(stage, name)
    write_json(path, read_json(path) | keys)


def test_finished_products_are_current(plan):
    judge = Judge(plan)
    assert {judge.verdict(stage, name) for stage in RECORDS for name in plan[stage]} == {("finished", "")}
    assert judge.stale() == {}
    assert judge.write_stale(judge.folder("exact", "claims")) is None


def test_data_made_with_another_tokenizer_than_there_is_now_are_stale(plan):
    plan = plan | {"data": plan["data"] | {"more": plan["data"]["text"] | {"out": "more", "tokenizer": "text"}}}
    change(plan, "data", "text", tokenizer={"sha256": "one"})
    write_json(Judge(plan).record("data", "more"), read_json(Judge(plan).record("data", "text")))
    assert Judge(plan).verdict("data", "more").current
    change(plan, "data", "text", tokenizer={"sha256": "two"})
    assert Judge(plan).verdict("data", "more") == ("stale", "changed since: tokenizer")


def test_a_run_without_the_optimizer_that_another_goes_on_with_is_stale(plan):
    plan = plan | {"train": plan["train"] | {RUN: plan["train"][RUN] | {"keep_optimizer": True}}}
    assert Judge(plan).verdict("train", RUN) == ("stale", f"no {OPTIMIZER}, which another run goes on with")
    Judge(plan).record("train", RUN).with_name(OPTIMIZER).touch()
    assert Judge(plan).verdict("train", RUN).current


def test_a_product_whose_rows_were_deleted_is_stale_and_the_file_is_named(plan):
    for stage, file in (("train", "test.csv"), ("zeroshot", "zeroshot.csv")):
        change(plan, stage, RUN, rows_sha256={file: "0" * 64})
        path = Judge(plan).record(stage, RUN).with_name(file)
        path.unlink(missing_ok=True)
        assert Judge(plan).verdict(stage, RUN) == ("stale", f"{file} is missing")
        path.touch()
        assert Judge(plan).verdict(stage, RUN).current


def test_a_run_whose_weights_were_cut_short_is_stale_and_so_is_what_is_made_of_it(plan):
    path = Judge(plan).record("train", RUN).with_name("weights.safetensors")
    save_file({"weight": np.zeros((3, 5), np.float32)}, path)
    assert Judge(plan).verdict("train", RUN).current
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole + b"0", whole[:4], b"", b"\xff" * len(whole)):
        path.write_bytes(damaged)
        assert Judge(plan).verdict("train", RUN) == ("stale", "weights.safetensors is damaged")
        assert Judge(plan).verdict("prune", RUN) == ("stale", f"{RUN} is stale")
    path.unlink()


def test_a_record_whose_numbers_were_edited_is_made_again(plan):
    path = Judge(plan).record("train", RUN)
    write_record(path, read_json(path))
    assert Judge(plan).verdict("train", RUN).current
    change(plan, "train", RUN, flops_cumulative=1.0)
    judge = Judge(plan)
    assert "changed since its stage wrote it" in judge.verdict("train", RUN).detail
    assert ("train", RUN) in judge.stale()


def test_a_run_whose_spec_was_edited_is_stale(plan):
    spec = plan["train"][RUN]["spec"]
    change(plan, "train", RUN, spec=spec)
    assert Judge(plan).verdict("train", RUN).current
    change(plan, "train", RUN, spec=spec | {"steps": spec["steps"] + 1})
    assert Judge(plan).verdict("train", RUN) == ("stale", "changed since: configuration")


def test_given_weights_count_whichever_code_made_them_but_not_of_other_settings_or_data(plan):
    change(plan, "train", RUN, code_hash="old")
    assert Judge(plan).verdict("train", RUN) == ("stale", "changed since: code")
    plan = plan | {"train": plan["train"] | {RUN: plan["train"][RUN] | {"given": True}}}
    assert Judge(plan).verdict("train", RUN).current
    change(plan, "train", RUN, spec_hash="old")
    assert Judge(plan).verdict("train", RUN) == ("stale", "changed since: configuration")


def test_rows_are_objected_to_for_their_own_stage_and_where_nobody_planned_them(plan):
    change(plan, "zeroshot", RUN, code_hash="old")
    judge = Judge(plan)
    assert judge.objection("train", RUN) == ""
    assert judge.objection("zeroshot", RUN) == "changed since: code"
    assert judge.objection("zeroshot", "small/child/seed0") == UNPLANNED
    assert judge.objection("train", "other/run/seed0") == UNPLANNED


def test_the_list_of_what_is_stale_is_younger_than_all_of_it_and_written_once(plan, tmp_path):
    change(plan, "train", RUN, spec_hash="old")
    record = Judge(plan).record("train", RUN)
    ahead = time.time() + 3600
    os.utime(record, (ahead, ahead))
    path = Judge(plan).write_stale(tmp_path)
    assert path.read_text().splitlines()[0] == f"train {RUN}: changed since: configuration"
    assert record.stat().st_mtime_ns < path.stat().st_mtime_ns <= time.time_ns()
    written = path.stat().st_mtime_ns
    assert Judge(plan).write_stale(tmp_path) == path
    assert path.stat().st_mtime_ns == written
    os.utime(record, (1, 1))  # another file has come in its place
    assert Judge(plan).write_stale(tmp_path) != path


def test_a_record_that_cannot_be_read_is_named_and_made_again(plan):
    for text in ("{", "[]"):
        Judge(plan).record("train", RUN).write_text(text)
        judge = Judge(plan)
        assert judge.verdict("train", RUN).state == "failed"
        assert "run.json" in judge.verdict("train", RUN).detail
        assert ("train", RUN) in judge.stale()
        assert judge.verdict("zeroshot", RUN) == ("stale", f"{RUN} is failed")
