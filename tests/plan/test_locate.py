"""The name of a plan file depends on all inputs of the plan, so an existing file is valid."""

import os

import pytest

from formerlab.errors import UserError
from formerlab.plan import locate, source_hashes
from formerlab.plan.locate import ensure_plan, plan_path, read_plan, typed

MAKE = locate._make


@pytest.fixture(autouse=True)
def _another_process_makes_plans(monkeypatch):
    monkeypatch.setattr(locate, "_make", MAKE)


def test_a_plan_is_created_once(project):
    path = ensure_plan(project.root, {})
    assert path.parent == project.root / ".formerlab" / "plans"
    assert read_plan(path) == project.plan()
    creation_time = path.stat().st_mtime_ns
    assert ensure_plan(project.root, {}) == path
    assert path.stat().st_mtime_ns == creation_time


def test_the_environment_of_another_checkout_is_refused(project):
    project.write("src/formerlab/__init__.py", "")
    with pytest.raises(UserError, match=r"the active environment runs the code in .*; run `make setup` here"):
        ensure_plan(project.root, {})


def test_a_mistake_gives_one_line_and_no_plan(project):
    project.merge_into(project.config, "scal: smoke")
    with pytest.raises(UserError) as caught:
        ensure_plan(project.root, {})
    assert str(caught.value) == "config.yaml: scal: unknown key (value 'smoke'); did you mean scale?"
    assert not plan_path(project.root, {}).exists()


@pytest.mark.parametrize(
    "edit",
    [
        lambda project: project.merge_into(project.config, "threads: 2"),
        lambda project: project.merge_into(project.scale, "threads: 2"),
        lambda project: project.merge_into(project.study, "title: Another"),
        lambda project: project.write("overlay.yaml", "small.steps: 4"),
        lambda project: project.write("texts/more.txt", "words"),
        lambda project: project.write("texts/a.txt", "other words"),
        lambda project: (project.root / "texts/a.txt").unlink(),
        lambda project: os.utime(project.root / "texts/a.txt", (1, 1)),
    ],
    ids=["config", "scale", "study", "overlay", "new text", "edited text", "removed text", "touched text"],
)
def test_the_file_name_depends_on_all_inputs_of_the_plan(project, edit):
    project.write("overlay.yaml", "small.steps: 3")
    project.write("texts/a.txt", "words")
    project.merge_into(project.config, "{overlay: overlay.yaml, data: {text: {source: {kind: files, paths: [texts]}}}}")
    path_before = plan_path(project.root, {})
    assert plan_path(project.root, {}) == path_before
    edit(project)
    assert plan_path(project.root, {}) != path_before


@pytest.fixture
def texts(project):
    """Return the folder of the texts of a data set."""
    project.write("texts/deep/a.txt", "words")
    project.merge_into(project.config, "{data: {text: {source: {kind: files, paths: [texts]}}}}")
    return project.root / "texts"


@pytest.mark.parametrize("paths", ["texts", "texts/*.txt", "texts/**"])
def test_a_broken_link_gives_a_one_line_error(project, texts, paths):
    (texts / "gone.txt").symlink_to("/nowhere")
    project.merge_into(project.config, f"{{data: {{text: {{source: {{paths: ['{paths}']}}}}}}}}")
    with pytest.raises(UserError) as caught:
        ensure_plan(project.root, {})
    remedy = "a link to a missing file (named by a data set or suite); remove or restore it"
    assert str(caught.value) == f"{texts}/gone.txt: {remedy}"


def test_hidden_files_are_ignored_and_links_may_form_cycles(project, texts):
    path_before = plan_path(project.root, {})
    (texts / ".#a.txt").symlink_to("an editor's mark")
    assert plan_path(project.root, {}) == path_before
    (texts / "deep" / "circle").symlink_to(texts)
    assert plan_path(project.root, {}) == path_before
    (texts.parent / "others").mkdir()
    (texts.parent / "others" / "b.txt").write_text("words")
    (texts / "linked").symlink_to(texts.parent / "others")
    assert plan_path(project.root, {}) != path_before


def test_an_edit_during_planning_starts_planning_again(project, monkeypatch):
    plans = []

    def make(root, options, path):
        plans.append(path)
        if len(plans) < 3:
            project.merge_into(project.config, f"threads: {len(plans)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")

    monkeypatch.setattr(locate, "_make", make)
    assert ensure_plan(project.root, {}) == plans[-1] == plan_path(project.root, {})
    assert [path.exists() for path in plans] == [False, False, True]


@pytest.mark.parametrize(
    ("command_line", "file"),
    [
        ({"overlay": "other.yaml"}, "other.yaml"),
        ({"data": {"text": {"source": {"paths": ["text *.txt"]}}}}, "text [1].txt"),
        ({"set": {"scale.data.text.source.train": "text [1].txt"}}, "text [1].txt"),
        ({"data": {"text": {"source": {"kind": "hub", "name": "folder [1]"}}}}, "folder [1]/train.jsonl"),
    ],
)
def test_the_file_name_depends_on_files_of_the_command_line(project, command_line, file):
    project.write(file, "{}")
    path_before = plan_path(project.root, command_line)
    assert path_before != plan_path(project.root, {})
    project.write(file, "{small.steps: 4}")
    assert plan_path(project.root, command_line) != path_before


def test_the_file_name_depends_on_the_code(project, monkeypatch, tmp_path_factory):
    package = tmp_path_factory.mktemp("package")
    monkeypatch.setattr(source_hashes, "PACKAGE", package)
    names = set()
    for text in ("a = 1", "a = 2"):
        (package / "module.py").write_text(text)
        names.add(plan_path(project.root, {}))
    assert len(names) == 2


def test_text_of_snakemake_is_parsed_as_yaml():
    """Snakemake reads `set={a: 1.0e-3}` and `seeds=[0, 1]` with text instead of numbers."""
    text = {
        "seeds": ["0", "1"],
        "device": "null",
        "tracking_uri": "",
        "results": "a: b",
        "overlay": "[",
        "set": {"a.lr": "1.0e-3", "a.text": "1e-3", "a.compile": "true", "a.init": "null", "a.model": {"kind": "x"}},
    }
    assert typed(text) == {
        "seeds": [0, 1],
        "device": None,
        "tracking_uri": "",
        "results": "a: b",
        "overlay": "[",
        "set": {"a.lr": 0.001, "a.text": "1e-3", "a.compile": True, "a.init": None, "a.model": {"kind": "x"}},
    }
