"""Planning checks the data below $FORMERLAB_DATA against the manifest."""

import hashlib
import subprocess

import pytest
import yaml
from fixtures.checkout import ROOT
from pydantic import TypeAdapter

from formerlab.__main__ import main
from formerlab.data.any_data import Data
from formerlab.files import write_json
from formerlab.plan.locate import plan_path
from formerlab.plan.public_data import DATA_VARIABLE, PUBLIC_MANIFEST, listing_hash, read_manifest
from formerlab.plan.show import table

TEXT = b"One word after another. " * 40
BOOKS = {
    "title": "Books", "source": "https://example.org/books", "licence": "public domain",
    "files": {f"books/{name}.txt": hashlib.sha256(TEXT).hexdigest() for name in ("one", "two")},
}  # fmt: skip
SCALE = """
data:
  text:
    source: {kind: files, paths: [$FORMERLAB_DATA/books]}
    tokenizer: {kind: bpe, vocabulary: 300}
    questions: 0
"""


@pytest.fixture
def project(project, tmp_path, monkeypatch):
    """Return a project whose text is below $FORMERLAB_DATA and listed in the manifest."""
    for name in ("one", "two"):
        path = tmp_path / "public/books" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(TEXT)
    tree = yaml.safe_load((project.root / project.scale).read_text())
    tree["data"] = yaml.safe_load(SCALE)["data"]
    project.write(project.scale, yaml.safe_dump(tree))
    project.write(PUBLIC_MANIFEST, yaml.safe_dump({"books": BOOKS}))
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "public"))
    return project


def test_an_unset_data_variable_gives_one_line_with_its_name_and_the_source(project, monkeypatch, capsys):
    monkeypatch.delenv(DATA_VARIABLE)
    plan = project.plan()
    # the plan must not contain a path of this machine
    assert plan["data"]["text"]["spec"]["source"]["paths"] == [f"${DATA_VARIABLE}/books"]
    line = plan["data"]["text"]["data_problem"]
    assert table(plan).endswith(line)
    start = (
        f"data.text: ${DATA_VARIABLE} is not set; set it to the folder that contains books as {PUBLIC_MANIFEST} lists"
    )
    assert line.startswith(start)
    assert BOOKS["source"] in line
    write_json(project.root / "plan.json", plan)
    assert main(["data", "text", "--plan", str(project.root / "plan.json")]) == 2
    assert f"error: {start}" in capsys.readouterr().err


def test_missing_changed_and_unlisted_files_are_refused(project, tmp_path):
    two, three = (tmp_path / f"public/books/{name}.txt" for name in ("two", "three"))
    project.plan()
    path_before = plan_path(project.root, {})
    two.write_bytes(TEXT + b"!")
    assert f"books/two.txt: SHA-256 differs from {PUBLIC_MANIFEST}" in project.mistake()
    assert plan_path(project.root, {}) != path_before
    two.unlink()
    assert "books/two.txt: missing; get it from https://example.org/books" in project.mistake()
    two.write_bytes(TEXT)
    three.write_bytes(TEXT)
    assert f"books/three.txt: not in {PUBLIC_MANIFEST}" in project.mistake()


def test_files_are_read_once(project, monkeypatch):
    project.plan()
    monkeypatch.setattr("formerlab.data.manifest.sha256", lambda path: pytest.fail(f"{path} is read again"))
    project.plan()


def test_a_folder_of_many_files_has_one_hash(project, tmp_path):
    folder = tmp_path / "public/books"
    command = "find * -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum"
    printed = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, check=True).stdout
    sha = hashlib.sha256(printed).hexdigest()
    assert sha == listing_hash(BOOKS["files"], "books")
    many = {key: BOOKS[key] for key in ("title", "source", "licence")} | {
        "folders": {"books": {"files": 2, "sha256": sha}}
    }
    project.write(PUBLIC_MANIFEST, yaml.safe_dump({"books": many}))
    project.plan()
    (folder / "one.txt").write_bytes(TEXT.replace(b"word", b"text"))
    assert "its content (2 files) differs from workflow/data.yaml (2 files)" in project.mistake()
    (folder / "one.txt").unlink()
    assert "its content (1 files) differs from workflow/data.yaml (2 files)" in project.mistake()


@pytest.mark.parametrize("scale", ["pilot", "overnight"])
def test_all_files_of_the_scales_are_in_the_manifest(scale):
    manifest = read_manifest(ROOT)
    listed = [file for data_set in manifest.values() for file in (*data_set.files, *data_set.folders)]
    data = yaml.safe_load((ROOT / "workflow/scales" / f"{scale}.yaml").read_text())["data"]
    for name, tree in data.items():
        source = TypeAdapter(Data).validate_python({"kind": "text"} | tree).source.to_dict()
        if source["kind"] == "embedded":  # installed packages contain these files
            continue
        paths = [value for key in ("train", "valid", "test") for value in _values(source.get(key))]
        assert paths, name
        for path in paths:
            path = path.removeprefix(f"${DATA_VARIABLE}/")
            assert any(file == path or file.startswith(f"{path}/") for file in listed), path


def _values(value):
    return [] if value is None else [value] if isinstance(value, str) else value
