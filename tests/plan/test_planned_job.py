"""A stage runs only with the code, data and parents of its plan, so that its record is correct."""

import sys
from types import ModuleType

import pytest
from fixtures.project import change

from formerlab.commands.context import planned_job
from formerlab.errors import UserError
from formerlab.plan import source_hashes
from formerlab.plan.staleness import Staleness

RUN, CHILD = "small/plain/seed0", "small/child/seed0"
LOOP, OTHER = "training/loop.py", "evaluation/language/flow.py"
"""One file that training uses, and one file that it does not use."""


@pytest.fixture
def plan(finished_plan):
    return finished_plan


def work(plan, stage="train", name=RUN, do=lambda: None):
    """Run a stage; return the error message if it is refused, otherwise None."""
    try:
        with planned_job(plan, stage, name):
            do()
    except UserError as refused:
        return str(refused)
    return None


def edited(digests, *files):
    return digests | dict.fromkeys(files, "edited")


def with_other_code(plan):
    """Return a plan in which training has another code hash."""
    job = plan["train"][RUN]
    code = plan["code"] | {"other": plan["code"][job["code"]]}
    train = plan["train"] | {RUN: job | {"code": "other"}}
    return plan | {"train": train, "code": code, "sources": edited(plan["sources"], LOOP, OTHER)}


def test_a_stage_that_matches_the_plan_runs_and_prints_its_output_folder(plan, capsys):
    for stage in ("data", "train", "zeroshot", "exact"):
        for name in plan[stage]:
            assert work(plan, stage, name) is None
            line = f"{stage} {name}: results in {Staleness(plan).record(stage, name).parent}"
            assert capsys.readouterr().err.splitlines()[-1] == line


def test_code_that_differs_from_the_plan_is_refused_with_its_files(plan):
    refused = f"train {RUN}: its code has changed since it was planned ({LOOP}); start snakemake again"
    assert work(with_other_code(plan)).startswith(refused)
    for file in (LOOP, OTHER):  # the files differ, but the hash of their syntax is the same
        assert work(plan | {"sources": edited(plan["sources"], file)}) is None


def test_a_removed_module_is_refused(plan):
    code = {hash: [*modules, "formerlab.nothing"] for hash, modules in plan["code"].items()}
    sources = edited(plan["sources"], "nothing.py")
    assert "its code has changed since it was planned (nothing.py)" in work(plan | {"code": code, "sources": sources})


def test_code_edited_during_its_import_is_refused(plan, monkeypatch):
    monkeypatch.setattr(source_hashes, "AT_START", edited(source_hashes.AT_START, LOOP))
    assert work(plan) == f"train {RUN}: {LOOP} was edited while the job started; start the job again"


@pytest.fixture
def edit_later(monkeypatch):
    """Return a function that makes a file of the package appear edited."""
    hashes = source_hashes.current_hashes()
    return lambda file: monkeypatch.setattr(source_hashes, "current_hashes", lambda: edited(hashes, file))


def test_an_edit_after_the_import_has_no_effect(plan, edit_later):
    assert work(plan, do=lambda: edit_later(LOOP)) is None
    assert work(plan, "zeroshot") is None


def test_results_of_code_edited_before_its_import_are_discarded(plan, edit_later, monkeypatch):
    name = "formerlab.training.loop"
    monkeypatch.delitem(sys.modules, name, raising=False)

    def edit_and_import():
        edit_later(LOOP)
        monkeypatch.setitem(sys.modules, name, ModuleType(name))

    refused = work(plan, do=edit_and_import)
    assert refused.startswith(f"train {RUN}: {LOOP} was edited while it ran, so its results were discarded; start")
    assert Staleness(plan).check("train", RUN) == ("missing", "")


@pytest.mark.parametrize(
    ("changed", "keys", "job", "why"),
    [
        (("data", "text"), {"source_fingerprint": "old"}, ("train", RUN), "source files"),
        (("train", "small/parent/seed0"), {"spec_hash": "old"}, ("train", CHILD), "configuration"),
        (("train", RUN), {"code_hash": "old"}, ("zeroshot", RUN), "code"),
    ],
)
def test_stale_inputs_are_refused(plan, changed, keys, job, why):
    change(plan, *changed, **keys)
    name, input_name = (" ".join(pair) for pair in (job, changed))
    remedy = f"start snakemake again, which makes a new plan, or run python -m formerlab {input_name} first"
    assert work(plan, *job) == f"{name}: {input_name} is stale (changed since: {why}); {remedy}"


def test_prepared_data_stay_if_their_preparation_fails(plan):
    """The job fails after its code has changed."""
    change(plan, "data", "text", code_hash="old")
    manifest = Staleness(plan).record("data", "text")
    content_before = manifest.read_bytes()
    with pytest.raises(ZeroDivisionError):
        work(plan, "data", "text", lambda: 1 / 0)
    assert manifest.read_bytes() == content_before


def test_an_output_that_is_stale_when_it_is_written_is_refused(plan):
    """The text is edited between the plan and the job."""
    refused = work(plan, "data", "text", lambda: change(plan, "data", "text", source_fingerprint="newer"))
    state = "its inputs changed after it was planned, so its result is stale (changed since: source files)"
    assert refused.startswith(f"data text: {state}; start snakemake again")
