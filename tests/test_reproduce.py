"""The command `reproduce` trains a committed run again.

It reports identical bits or differences, and refuses changed code and data.
"""

import json
import shutil

import pytest
from fixtures.project import Project
from fixtures.rows import make_run

from formerlab import errors
from formerlab.__main__ import main
from formerlab.commands.context import PLAN_VARIABLE
from formerlab.commands.reproduce import compare_runs
from formerlab.files import write_record
from formerlab.results.read import Results

LINES = "\n".join(
    f"the {n} cats sat on {n * 7 % 11} mats and the {n * 3 % 5} dogs ran to an old house" for n in range(300)
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return a small project with trained and exported runs."""
    root = tmp_path_factory.mktemp("exported")
    (root / "lines.txt").write_text(LINES)
    project = Project(root)
    source = f"{{kind: files, paths: ['{root / 'lines.txt'}'], documents: line, packages: null}}"
    split = "valid_share: 0.1, test_share: 0.1, questions: 0"
    project.merge_into(project.scale, f"seeds: [0]\ndata: {{text: {{source: {source}, {split}}}}}")
    project.merge_into(project.scale, "studies: {small: {only: [parent, child], measure: {prune: {runs: []}}}}")
    project.merge_into(project.study, "measure: {prune: {runs: []}, zeroshot: {runs: []}}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.delenv(PLAN_VARIABLE, raising=False)
        for words in (["data", "text"], ["train", "small/parent/seed0"], ["train", "small/child/seed0"]):
            assert main(words) == 0
        assert main(["export"]) == 0
    return root


@pytest.fixture
def project(exported, tmp_path, monkeypatch):
    """Return a copy of the project without live results."""
    shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "results/live/smoke/small")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(PLAN_VARIABLE, raising=False)
    return tmp_path


def error_of(capsys, *words):
    capsys.readouterr()
    assert main(["reproduce", *words]) == errors.EXIT_USER_ERROR
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("error: ").rstrip("\n")


def test_a_grown_run_and_its_parent_are_reproduced_bit_identically(project, capsys):
    assert main(["reproduce", "small/child/seed0"]) == 0
    captured = capsys.readouterr()
    assert "training small/parent/seed0 first, because small/child/seed0 starts from it" in captured.err
    assert captured.out.startswith("small/child/seed0: bit-identical: train.csv (3 rows), eval.csv (")
    assert captured.out.rstrip().endswith(", the weights")
    record = project / "results/reproduced/smoke/small/child/seed0/run.json"
    modified = record.stat().st_mtime_ns
    assert main(["reproduce", "small/child/seed0"]) == 0
    assert record.stat().st_mtime_ns == modified, "a run that was already reproduced is only compared"
    assert not (project / "results/live/smoke/small").exists()


def test_equal_weights_of_a_live_parent_are_used(project, exported, capsys):
    shutil.copytree(exported / "results/live/smoke/small/parent", project / "results/live/smoke/small/parent")
    assert main(["reproduce", "small/child/seed0", "--out", "again"]) == 0
    assert not (project / "again/small/parent").exists()


def test_an_interrupted_reproduction_continues(project, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("formerlab.training.stage.finish", interrupted)
        assert main(["reproduce", "small/parent/seed0"]) == errors.EXIT_STOPPED_EARLY
    assert "run the same command again" in capsys.readouterr().err
    assert main(["reproduce", "small/parent/seed0"]) == 0


def test_changed_code_is_refused_without_an_option(project, capsys, monkeypatch):
    monkeypatch.setattr("formerlab.plan.code.code_hash", lambda *_, **__: "0" * 16)
    line = error_of(capsys, "small/parent/seed0")
    assert line.startswith("small/parent/seed0: the training code has changed (")
    assert "now); compare anyway with --other code, or restore the code with `git checkout " in line
    assert main(["reproduce", "small/parent/seed0", "--other", "code"]) == 0


def test_changed_data_are_refused_without_an_option(project, capsys):
    manifest = project / "results/live/smoke/data/text/manifest.json"
    content = json.loads(manifest.read_text())
    write_record(manifest, content | {"fingerprint": "0123456789abcdef"})
    line = error_of(capsys, "small/parent/seed0")
    assert line.startswith(
        f"small/parent/seed0: was trained on other data (text {content['fingerprint']}, now 0123456789abcdef)"
    )
    # only the fingerprint differs; the text is the same
    assert main(["reproduce", "small/parent/seed0", "--other", "data"]) == 0
    manifest.unlink()
    assert error_of(capsys, "small/parent/seed0").endswith("run python -m formerlab data text --scale smoke first")


def test_runs_that_are_not_committed_are_refused(project, capsys):
    assert "no run 'small/parnt/seed0'; did you mean small/parent/seed0" in error_of(capsys, "small/parnt/seed0")
    shutil.rmtree(project / "results/cached")
    assert error_of(capsys, "small/parent/seed0").endswith("choose another with --scale")


def test_differences_of_rows_are_listed_by_column(tmp_path):
    for name, device in (("a", "one"), ("b", "another")):
        make_run(tmp_path / name, "tokenformer", "transformer-1", device=device)
    test = tmp_path / "b/tokenformer/transformer-1/seed0/test.csv"
    header, first, *other_lines = test.read_text().splitlines()
    window, tokens, loss = first.split(",")
    test.write_text("\n".join([header, f"{window},{tokens},{float(loss) + 0.25!r}", *other_lines]) + "\n")
    committed, again = (Results(tmp_path / name) for name in "ab")
    text, equal = compare_runs(committed, again, committed.records()[0])
    assert not equal
    assert "test.csv: loss_nats in 1 of 40 rows, by 0.25 at most" in text
    assert "bit-identical: train.csv (20 rows), eval.csv (" in text
    assert text.endswith("differences (committed, here):\n  device: one, another")
    test.write_text("\n".join([header, *other_lines]) + "\n")
    text, _ = compare_runs(committed, Results(tmp_path / "b"), committed.records()[0])
    assert "test.csv: 40 rows committed, 39 here" in text
    assert compare_runs(committed, committed, committed.records()[0])[1]
