"""The data stage from end to end."""

import gzip
import json
import os
import shutil

import numpy as np
import pyarrow
import pytest
from corpora import document, folder_data, write_letter_tokenizer, write_text_folder
from pyarrow import parquet

from formerlab.data import BytePairs, Files, TextData, load_stream, load_tokenizer, prepare, verify
from formerlab.data.manifest import CHECKED, read_manifest
from formerlab.data.splitting import SPLITS
from formerlab.errors import UserError
from formerlab.files import read_json, sha256, write_record

DOCUMENTS = [document(number) for number in range(60)]


def texts(out, split):
    """Return the documents of a stream, decoded."""
    tokens, tokenizer = load_stream(out, split), load_tokenizer(out)
    ends = np.flatnonzero(tokens == 0)
    assert ends[-1] == len(tokens) - 1, "the last document ends with the end-of-text token"
    documents = np.split(np.asarray(tokens), ends[:-1] + 1)
    return [tokenizer.decode(document[document != 0].tolist()) for document in documents]


def files(out):
    return {path.relative_to(out).as_posix(): sha256(path) for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_text_folder(tmp_path_factory.mktemp("source") / "texts")


@pytest.fixture(scope="module")
def out(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "text"
    prepare("text", folder_data(source), out, code_hash="c0de")
    return out


def test_streams_contain_every_document_once_as_in_the_manifest(out, source):
    manifest = read_manifest(out)
    assert (manifest["name"], manifest["code_hash"], manifest["notes"]) == ("text", "c0de", [])
    assert TextData.model_validate(manifest["spec"]) == folder_data(source)
    assert manifest["tokenizer"]["vocabulary"] == 300 == load_tokenizer(out).get_vocab_size()
    read = {split: texts(out, split) for split in SPLITS}
    assert sorted(text for split in SPLITS for text in read[split]) == sorted(DOCUMENTS)
    assert len(read["train"]) > len(read["valid"]) > 0 < len(read["test"])
    for split, entry in manifest["splits"].items():
        sizes = {"documents": len(read[split]), "bytes": sum(len(text.encode()) for text in read[split])}
        assert entry.items() >= (sizes | {"tokens": len(load_stream(out, split))}).items()
        assert entry["sha256"] == sha256(out / entry["file"])
    verify(out)


def test_files_do_not_depend_on_the_number_of_threads(out, source, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", "5")
    monkeypatch.setattr("formerlab.data.text.documents.BATCH_CHARACTERS", 1000)
    prepare("text", folder_data(source), tmp_path, code_hash="c0de")
    expected, actual = files(out), files(tmp_path)
    # `verify` writes CHECKED, and the manifest contains the time of preparation
    for name in (CHECKED, "manifest.json"):
        expected.pop(name, None), actual.pop(name, None)
    assert actual == expected
    assert read_manifest(out)["fingerprint"] == read_manifest(tmp_path)["fingerprint"]


def test_data_are_written_again_only_after_a_change(source, tmp_path, capsys):
    data = folder_data(source)
    out, manifest = tmp_path / "out", tmp_path / "out/manifest.json"

    def written(data, code_hash=""):
        modified = manifest.stat().st_mtime_ns if manifest.exists() else 0
        prepare("text", data, out, code_hash=code_hash)
        return manifest.stat().st_mtime_ns != modified

    assert written(data)
    assert not written(data)
    assert not written(folder_data(write_text_folder(tmp_path / "same texts elsewhere")))
    assert written(data, "new code")
    (source_of := tmp_path / "same texts elsewhere/000.txt").write_text(document("another"))
    assert written(folder_data(source_of.parent), "new code")
    assert written(folder_data(source, max_bytes=5000), "new code")
    for damaged in ("train.npy", "tokenizer.json"):
        (out / damaged).write_bytes((out / damaged).read_bytes()[:-10])
        assert written(folder_data(source, max_bytes=5000), "new code")
    assert capsys.readouterr().out == ""


def test_prepared_data_remain_valid_without_their_source(tmp_path):
    source, out = write_text_folder(tmp_path / "source"), tmp_path / "out"
    prepare("text", folder_data(source), out)
    hashes = files(out)
    hashes.pop("file_hashes.json")
    shutil.rmtree(source)
    prepare("text", folder_data(source), out)
    with pytest.raises(UserError, match=r"source\.paths: no file at"):
        prepare("text", folder_data(source, max_bytes=5000), out)
    missing = {"kind": "file", "path": str(tmp_path / "none.json"), "vocabulary": 300}
    with pytest.raises(UserError, match=r"none\.json: no such tokenizer file"):
        prepare("text", folder_data(write_text_folder(source), tokenizer=missing), out)
    assert hashes.items() <= files(out).items()


def write_split_files(tmp_path, **splits):
    """Write files of lines for the splits; return the spec of the corpus."""
    for split, lines in splits.items():
        (tmp_path / f"{split}.txt").write_text("\n".join(lines))
    named = {split: (str(tmp_path / f"{split}.txt"),) for split in splits}
    return TextData(source=Files(**named, documents="line"), tokenizer=BytePairs(vocabulary=260))


def test_the_same_documents_give_the_same_streams_in_every_format(out, tmp_path):
    rows = [json.dumps({"body": text}) for text in DOCUMENTS]
    with gzip.open(tmp_path / "all.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(rows))
    parquet.write_table(pyarrow.table({"body": DOCUMENTS}), tmp_path / "all.parquet")
    (tmp_path / "all.data").write_text("\n".join(rows))
    tokenizer = {"kind": "file", "path": str(out / "tokenizer.json"), "vocabulary": 300}
    for name, settings in {"all.jsonl.gz": {}, "all.parquet": {}, "all.data": {"format": "jsonl"}}.items():
        source = Files(paths=(str(tmp_path / name),), column="body", **settings)
        prepare("text", folder_data(tmp_path, source=source, tokenizer=tokenizer), tmp_path / "out")
        assert all(np.array_equal(load_stream(tmp_path / "out", split), load_stream(out, split)) for split in SPLITS)


def test_duplicates_of_held_out_documents_are_dropped_from_training(tmp_path):
    lines = [document(number, 4) for number in range(9)]
    train = [*lines[:6], lines[0], lines[6], "  " + lines[7].replace(" ", "  ")]
    data = write_split_files(tmp_path, train=train, valid=[lines[6], lines[8]], test=[lines[7], lines[8]])
    prepare("lines", data, tmp_path / "out")
    read = [texts(tmp_path / "out", split) for split in SPLITS]
    assert read == [lines[:6], [lines[6]], [lines[7], lines[8]]]
    assert read_manifest(tmp_path / "out")["duplicates_removed"] == 4


def test_the_tokenizer_is_trained_only_on_training_text(tmp_path):
    held_out = [f"QXQX QXQX {number}" for number in range(90)]
    data = write_split_files(
        tmp_path, train=[f"abab abab {n}" for n in range(50)] + held_out[:50], valid=held_out, test=["QX QX"]
    )
    prepare("lines", data, tmp_path / "out")
    vocabulary = load_tokenizer(tmp_path / "out").get_vocab()
    assert "ab" in vocabulary
    assert "QX" not in vocabulary


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"valid_share": 1e-6}, r"60 documents leave the split 'valid' empty: raise valid_share \(now 1e-06\)"),
        ({"tokenizer": {"kind": "bpe", "vocabulary": 50_000}}, r"tokenizer\.vocabulary=50000: the training text yie"),
        ({"tokenizer": {"kind": "file", "path": "/nowhere.json", "vocabulary": 300}}, r"/nowhere\.json: no such"),
        ({"tokenizer": {"kind": "of", "data": "none", "vocabulary": 300}}, "the data are not prepared"),
    ],
)
def test_a_failure_prints_the_data_set_and_removes_incomplete_files(source, tmp_path, changes, message):
    with pytest.raises(UserError, match=f"^data: mine: .*{message}"):
        prepare("mine", folder_data(source, **changes), tmp_path / "mine")
    assert set(files(tmp_path)) <= {"mine/tokenizer.json", "mine/file_hashes.json"}


def test_the_error_counts_duplicate_documents(tmp_path):
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text("alpha beta gamma delta")
    with pytest.raises(UserError, match=r"1 documents .* \(dropped duplicates: 9\): add more text"):
        prepare("text", folder_data(tmp_path, source=Files(paths=(str(tmp_path / "?.txt"),))), tmp_path / "out")


def test_a_split_of_duplicates_is_refused_with_their_number(tmp_path):
    data = write_split_files(tmp_path, train=[document(n, 4) for n in range(9)], valid=["held out"], test=["held out"])
    with pytest.raises(
        UserError, match=r"10 documents leave the split '(valid|test)' empty \(dropped duplicates: 1\): add"
    ):
        prepare("lines", data, tmp_path / "out")


def test_an_interrupted_preparation_leaves_no_manifest(source, tmp_path, monkeypatch):
    prepare("text", folder_data(source), tmp_path)

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("formerlab.data.text.streams.StreamWriter.write_header", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare("text", folder_data(source, max_bytes=5000), tmp_path)
    assert not (tmp_path / "manifest.json").exists()
    assert not list(tmp_path.glob(".*"))


def test_damaged_results_are_refused(out, tmp_path):
    with pytest.raises(UserError, match=r"manifest\.json: no such file, so the data are not prepared"):
        load_stream(tmp_path, "train")
    with pytest.raises(UserError, match="no split 'dev'; choose from train, valid, test"):
        load_stream(out, "dev")
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    stream = tmp_path / "valid.npy"
    original = stream.read_bytes()
    stream.write_bytes(original[:-2])
    with pytest.raises(UserError, match=r"valid\.npy: not a complete token stream"):
        load_stream(tmp_path, "valid")
    np.save(stream, np.zeros(3, np.uint16))
    with pytest.raises(UserError, match=r"valid\.npy: uint16 of shape \(3,\), but the manifest says \d+ tokens"):
        load_stream(tmp_path, "valid")
    stream.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    load_stream(tmp_path, "valid")
    with pytest.raises(UserError, match=r"valid\.npy: damaged or changed"):
        verify(tmp_path)
    stream.unlink()
    with pytest.raises(UserError, match=r"valid\.npy: no such file"):
        load_stream(tmp_path, "valid")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: damaged or changed"):
        load_tokenizer(tmp_path)


def test_a_changed_stream_with_its_old_time_is_detected(out, tmp_path):
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    verify(tmp_path)
    stream = tmp_path / "valid.npy"
    original, status = stream.read_bytes(), stream.stat()

    def change(content):
        stream.write_bytes(content)
        os.utime(stream, ns=(status.st_atime_ns, status.st_mtime_ns))

    change(original[:-1] + bytes([original[-1] ^ 1]))
    for _ in range(2):
        with pytest.raises(UserError, match=r"valid\.npy: damaged or changed"):
            verify(tmp_path)
    assert not any("valid.npy" in path for path in read_json(tmp_path / CHECKED))
    change(original)
    verify(tmp_path)


def test_verify_without_the_cache_reads_all_files(out, tmp_path, monkeypatch):
    """File times are ignored (`stamp` is constant), as if a disk fault had changed the file."""
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr("formerlab.data.manifest.stamp", lambda status: [0])
    verify(tmp_path)
    (tmp_path / "valid.npy").write_bytes(b"something else")
    verify(tmp_path)
    with pytest.raises(UserError, match=r"valid\.npy: damaged or changed"):
        verify(tmp_path, ignore_cache=True)


def test_a_tokenizer_file_is_copied(out, source, tmp_path):
    tokenizer = {"kind": "file", "path": str(out / "tokenizer.json"), "vocabulary": 70_000}
    prepare("text", folder_data(source, tokenizer=tokenizer), tmp_path)
    assert sha256(tmp_path / "tokenizer.json") == sha256(out / "tokenizer.json")
    assert load_stream(tmp_path, "train").dtype == np.uint32
    assert texts(tmp_path, "train") == texts(out, "train")


def test_text_without_tokens_is_noted_or_refused(source, tmp_path):
    characters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .!?_'"
    prepare(
        "text", folder_data(source, tokenizer=write_letter_tokenizer(tmp_path / "t.json", characters)), tmp_path / "out"
    )
    notes = read_manifest(tmp_path / "out")["notes"]
    assert [note.partition("characters")[2].split()[3] for note in notes] == list(SPLITS)
    assert all(note.endswith("text have no token and are dropped") for note in notes)
    with pytest.raises(UserError, match=r"data: text: .*t\.json: .* choose a tokenizer that was made for such text"):
        prepare(
            "text", folder_data(source, tokenizer=write_letter_tokenizer(tmp_path / "t.json", "abc")), tmp_path / "out"
        )


def test_the_tokenizer_of_another_data_set_is_used(out, tmp_path, capsys):
    shutil.copytree(out, tmp_path / "text")
    borrowed = {"kind": "of", "data": "text", "vocabulary": 300}
    more = folder_data(write_text_folder(tmp_path / "more texts", 20), tokenizer=borrowed)
    prepare("more", more, tmp_path / "more")
    owner = read_manifest(tmp_path / "text")
    assert read_manifest(tmp_path / "more")["tokenizer"] == owner["tokenizer"]
    assert (tmp_path / "more/tokenizer.json").read_bytes() == (tmp_path / "text/tokenizer.json").read_bytes()
    verify(tmp_path / "more")
    prepare("more", more, tmp_path / "more")
    assert "already prepared" in capsys.readouterr().err
    with pytest.raises(UserError, match="was prepared with 300 tokens"):
        prepare("more", folder_data(tmp_path / "more texts", tokenizer=borrowed | {"vocabulary": 299}), tmp_path / "m")
    owner["tokenizer"]["sha256"] = "0" * 64
    write_record(tmp_path / "text/manifest.json", owner)
    with pytest.raises(UserError, match=r"tokenizer\.json: damaged or changed"):
        prepare("more", more, tmp_path / "more")


@pytest.mark.parametrize("file_count", [1, 3])
def test_few_files_are_divided_by_paragraphs(file_count, tmp_path, capsys):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(file_count):
        lines = [document(f"{number} {paragraph}", 4) for paragraph in range(60 // file_count)]
        (folder / f"{number}.txt").write_text("\n\n".join(lines))
    data = folder_data(folder, valid_share=0.1, test_share=0.1)
    by_paragraph = data.model_copy(update={"source": data.source.model_copy(update={"documents": "paragraph"})})
    for name, spec in (("out", data), ("same", by_paragraph)):
        prepare("text", spec, tmp_path / name)
    manifests = [read_manifest(tmp_path / name) for name in ("out", "same")]
    assert manifests[0]["fingerprint"] == manifests[1]["fingerprint"]
    note = f"document{'s' * (file_count > 1)} cannot be divided into train, valid and test, so paragraphs are the doc"
    assert note in capsys.readouterr().err
    assert [len(manifest["notes"]) for manifest in manifests] == [1, 0]


def test_empty_splits_are_refused_before_tokenisation(tmp_path):
    texts, lines = tmp_path / "texts", tmp_path / "texts/one.txt"
    texts.mkdir()
    lines.write_text(document(1, 4))
    (texts / "blank.txt").write_text(" \n\n ")
    with pytest.raises(UserError, match=r"blank\.txt: contains no text"):
        prepare("text", folder_data(texts), tmp_path / "out")
    for source in (Files(paths=(str(lines),)), Files(train=(str(lines),), documents="line")):
        with pytest.raises(UserError, match=r"^data: text: (no document of 1 is left|all 1 documents are held out)"):
            prepare("text", folder_data(tmp_path, source=source), tmp_path / "out")
        assert set(files(tmp_path / "out")) <= {"file_hashes.json"}


@pytest.mark.parametrize("max_bytes", [500, 10_000])
def test_text_ends_with_the_document_that_reaches_a_limit(source, tmp_path, capsys, max_bytes):
    data = folder_data(source, max_bytes=max_bytes, max_held_out_bytes=1, tokenizer=BytePairs(vocabulary=270))
    prepare("text", data, tmp_path)
    manifest, printed = read_manifest(tmp_path), capsys.readouterr().err
    limits = {"train": ("max_bytes", max_bytes), "valid": ("max_held_out_bytes", 1), "test": ("max_held_out_bytes", 1)}
    for note, (split, (key, limit)) in zip(manifest["notes"], limits.items(), strict=True):
        sizes = [len(text.encode()) for text in texts(tmp_path, split)]
        assert sum(sizes[:-1]) < limit <= sum(sizes)
        assert note.startswith(f"{key}={limit} ends the {split} text at {sum(sizes)} bytes in {len(sizes)} document")
        assert printed.count(f"text: {note}\n") == 1
