"""The hub as a source, tested on a folder that `datasets` reads like a data set of the hub."""

import json
from pathlib import Path

import pytest
from corpora import document, folder_data

from formerlab.data import Hub, source_fingerprint
from formerlab.data.images.source import ImageHub
from formerlab.data.splitting import SplitFractions
from formerlab.errors import UserError

datasets = pytest.importorskip("datasets")

TEXTS = {"train": [document(number) for number in range(20)], "validation": [document("v")], "test": [document("t")]}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    path = tmp_path / "corpus"
    path.mkdir()
    for split, texts in TEXTS.items():
        rows = [json.dumps({"text": text, "id": number}) for number, text in enumerate(texts)]
        (path / f"{split}.jsonl").write_text("\n".join(rows))
    return path


def read(source):
    return [
        (shard.splits, list(shard.documents())) for shard in source.open(SplitFractions(valid=0.1, test=0.1)).shards
    ]


@pytest.mark.parametrize("streaming", [False, True])
def test_named_splits_are_read_held_out_first(hub, streaming):
    source = Hub(name=str(hub), valid="validation", test="test", streaming=streaming)
    assert read(source) == [(("test",), TEXTS["test"]), (("valid",), TEXTS["validation"]), (("train",), TEXTS["train"])]


def test_missing_splits_are_taken_from_training_text(hub):
    assert [splits for splits, _ in read(Hub(name=str(hub), valid="validation"))] == [("valid",), ("train", "test")]


def test_a_wrong_column_split_or_name_is_refused(hub, tmp_path):
    name = str(hub)
    for source, message in [
        (Hub(name=name, column="body"), "no column 'body' among text, id"),
        (Hub(name=name, column="id"), "field 'id' is int, not text"),
        (Hub(name=name, train="dev"), "split 'dev'"),
        (Hub(name=str(tmp_path / "none")), "none"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            read(source)
        assert "\n" not in str(caught.value)


def test_offline_mode_is_in_the_message(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(UserError, match=r"hub nobody/nothing, split 'train': .*offline mode is on"):
        read(Hub(name="nobody/nothing"))


def test_the_fingerprint_uses_name_and_revision_without_network():
    first = source_fingerprint(folder_data(Path("x"), source=Hub(name="a/b")))
    assert first == source_fingerprint(folder_data(Path("x"), source=Hub(name="a/b", column="body")))
    assert first != source_fingerprint(folder_data(Path("x"), source=Hub(name="a/b", revision="1")))


def test_a_changed_folder_changes_the_fingerprint(hub):
    data = folder_data(Path("x"), source=Hub(name=str(hub)))
    fingerprint = source_fingerprint(data)
    assert source_fingerprint(data) == fingerprint
    (hub / "train.jsonl").write_text(json.dumps({"text": "other"}))
    assert source_fingerprint(data) != fingerprint


def test_a_folder_of_images_is_identified_by_file_sizes_and_times(hub, monkeypatch):
    """The images are not read, because there may be millions of them."""
    monkeypatch.setattr("formerlab.data.hub.file_hashes", lambda *_: pytest.fail("read"))
    source = ImageHub(name=str(hub))
    contents = source.contents()
    (hub / "train.jsonl").write_text("{}")
    assert source.contents() != contents
    assert ImageHub(name="owner/name").contents() == ["owner/name", None, None, []]
