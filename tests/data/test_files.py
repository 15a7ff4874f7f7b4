"""Files as a source: which files are read, how they are split, and what changes the fingerprint."""

import json
import os
import shutil
from pathlib import Path

import pyarrow
import pytest
from corpora import document, folder_data, write_text_folder
from pyarrow import parquet
from pydantic import ValidationError

from formerlab.data import Files, TextData, source_fingerprint
from formerlab.data.splitting import SplitFractions
from formerlab.errors import UserError
from formerlab.file_search import files_below
from formerlab.files import read_json

FRACTIONS = SplitFractions(valid=0.2, test=0.2)


def read(source):
    return {Path(shard.name).name: (shard.splits, list(shard.documents())) for shard in source.open(FRACTIONS).shards}


def test_folders_globs_and_files_are_read_without_hidden_files(tmp_path, monkeypatch):
    names = "a/one.txt", "a/deep/two.md", "a/.hidden/x.txt", "a/.secret.txt", "b/three.txt", "b/four.csv", "c/[5].txt"
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list(read(Files(paths=("a",)))) == ["two.md", "one.txt"]
    assert list(read(Files(paths=("**/*.txt",)))) == ["one.txt", "three.txt", "[5].txt"]
    assert list(read(Files(paths=("c/[5].txt",)))) == ["[5].txt"]
    assert list(read(Files(paths=("~/b/t*", str(tmp_path / "b/three.txt"))))) == ["three.txt"]


@pytest.mark.parametrize("pattern", ["my", "my/**/*.txt", "$WHERE/my", "$WHERE/m*/**/*.txt", "{root}/my/**"])
def test_linked_folders_and_brackets_in_paths(tmp_path, monkeypatch, pattern):
    root = tmp_path / "proj [v2]"
    for path in (root / "my/a.txt", tmp_path / "else/b.txt"):
        path.parent.mkdir(parents=True)
        path.write_text(path.name)
    (root / "my/linked").symlink_to(tmp_path / "else")
    monkeypatch.chdir(root)
    monkeypatch.setenv("WHERE", str(root))
    assert list(read(Files(paths=(pattern.format(root=root),)))) == ["a.txt", "b.txt"]


def test_each_folder_is_read_once_despite_links(tmp_path):
    """Two links in each of 24 folders give 2^24 paths to the file in the last folder."""
    for number in range(24):
        (tmp_path / f"{number}").mkdir()
        for name in "ab":
            (tmp_path / f"{number}/{name}").symlink_to(tmp_path / f"{number + 1}")
    (tmp_path / "24").mkdir()
    (tmp_path / "24/words.txt").touch()
    assert [path for path, _ in files_below(str(tmp_path / "0"))] == [f"{tmp_path}/0/{'a/' * 24}words.txt"]
    (tmp_path / "24/again").symlink_to(tmp_path / "24/words.txt")
    (tmp_path / "24/above").symlink_to(tmp_path / "24")
    (tmp_path / "24/z").mkdir()
    (tmp_path / "24/z/more.txt").touch()
    # a folder that is reached twice is listed once, under its own path (`z`) and not under the link (`a`)
    (tmp_path / "24/a").symlink_to(tmp_path / "24/z")
    paths = [os.path.relpath(path, tmp_path / "24") for path, _ in files_below(str(tmp_path / "24"))]
    assert paths == ["words.txt", "z/more.txt", "again"]


def test_held_out_splits_are_read_before_training_text(tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(name)
    path = {name: (str(tmp_path / f"{name}.txt"),) for name in ("train", "valid", "test")}
    everything = [(name, splits) for name, (splits, _) in read(Files(**path)).items()]
    assert everything == [(f"{split}.txt", (split,)) for split in ("test", "valid", "train")]
    without_test = read(Files(train=path["train"], valid=path["valid"]))
    assert without_test["train.txt"][0] == ("train", "test")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "set paths, or train"),
        ({"paths": ("a",), "train": ("b",)}, "set paths, or train"),
        ({"valid": ("b",)}, "set paths, or train"),
        ({"paths": ("a",), "encoding": "utf-9"}, "'utf-9' is not an encoding"),
        ({"paths": ("a",), "encoding": "base64"}, "'base64' is not an encoding"),
    ],
)
def test_contradictory_settings_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        Files(**settings)


def test_missing_empty_and_duplicate_files_are_refused(tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "full.txt").write_text("x")
    (tmp_path / "link.txt").symlink_to(tmp_path / "full.txt")
    full = (str(tmp_path / "full.txt"),)
    for source, message in [
        (Files(paths=(str(tmp_path / "none*"),)), r"source\.paths: no file at '.*none\*'"),
        (Files(train=full, valid=(str(tmp_path / "no"),)), r"source\.valid: no file at '.*no'"),
        (Files(paths=(str(tmp_path),)), r"empty\.txt: empty file"),
        (Files(train=full, test=(str(tmp_path / "link.txt"),)), "in both source.train and source.test"),
    ]:
        with pytest.raises(UserError, match=message):
            source.open(FRACTIONS)


def test_the_fingerprint_depends_only_on_contents(tmp_path):
    texts, tokenizer = write_text_folder(tmp_path / "texts", 5), tmp_path / "t.json"

    def fingerprint(path=texts):
        file = {"kind": "file", "path": str(tokenizer), "vocabulary": 300}
        return source_fingerprint(folder_data(path, tokenizer=file))

    assert fingerprint() is None, "no fingerprint while the tokenizer file is missing"
    tokenizer.write_text("one")
    assert fingerprint(tmp_path / "none") is None
    first = fingerprint()
    os.utime(texts / "000.txt", (1, 1))
    shutil.copytree(texts, tmp_path / "copy")
    # touching or moving the files does not change the fingerprint
    assert fingerprint() == fingerprint(tmp_path / "copy") == first
    (texts / "000.txt").write_text("Z" + (texts / "000.txt").read_text()[1:])
    changed = fingerprint()
    (texts / "new.txt").write_text(document("new"))
    longer = fingerprint()
    tokenizer.write_text("two")
    assert len({None, first, changed, longer, fingerprint()}) == 5


def test_a_file_name_may_be_invalid_utf8(tmp_path):
    odd = os.fsdecode(os.fsencode(str(tmp_path)) + b"/in/caf\xe9.txt")
    data = folder_data(write_text_folder(tmp_path / "in", 2))
    Path(odd).write_text("words")
    cache = tmp_path / "cache.json"
    assert source_fingerprint(data, cache) == source_fingerprint(data, cache) is not None
    assert odd in read_json(cache)


def test_unchanged_files_are_not_read_again(tmp_path, monkeypatch):
    data: TextData = folder_data(write_text_folder(tmp_path / "here", 3))
    cache = tmp_path / "cache.json"
    first = source_fingerprint(data, cache)
    read: list[Path] = []
    monkeypatch.setattr("formerlab.data.manifest.sha256", lambda path: read.append(path) or "changed")
    assert source_fingerprint(data, cache) == first
    assert read == []
    path = tmp_path / "here/001.txt"
    path.write_text("another text")
    assert source_fingerprint(data, cache) != first
    assert [path.name for path in read] == ["001.txt"]
    cache.write_text(json.dumps(["no", "cache"]))
    assert source_fingerprint(data, cache) is not None
    assert len(read) == 4


def test_files_beside_the_data_are_refused(tmp_path):
    parquet.write_table(pyarrow.table({"text": ["some words"]}), tmp_path / "0.parquet")
    (tmp_path / "README.md").write_text("about the data")
    with pytest.raises(UserError, match=r"source\.paths: .*README\.md is text beside Parquet"):
        Files(paths=(str(tmp_path),)).files_by_label()
    assert list(Files(paths=(str(tmp_path / "*.parquet"),)).files_by_label()["paths"]) == ["0.parquet"]
    (tmp_path / "0.parquet.crc").write_text("0123abcd")
    with pytest.raises(UserError, match=r"0\.parquet\.crc: the ending '\.crc' is not a known format"):
        Files(paths=(str(tmp_path),)).files_by_label()
