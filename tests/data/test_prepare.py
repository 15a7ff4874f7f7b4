"""The data stage from end to end."""

import gzip
import json
import shutil

import numpy as np
import pytest
from corpora import document, folder, folder_data

from formerlab.data import BytePairs, Files, TextData, TokenizerFile, TokenizerOf, load_stream, load_tokenizer, verify
from formerlab.data.splitting import SPLITS
from formerlab.data.text.prepare import prepare
from formerlab.data.text.streams import CHECKED
from formerlab.errors import UserError
from formerlab.files import sha256
from formerlab.spec import fingerprint


def texts(out, split):
    """Return the documents of a stream, decoded."""
    tokens, tokenizer = load_stream(out, split), load_tokenizer(out)
    ends = np.flatnonzero(tokens == 0)
    assert ends[-1] == len(tokens) - 1, "the last document ends too"
    return [tokenizer.decode(part[part != 0].tolist()) for part in np.split(np.asarray(tokens), ends[:-1] + 1)]


def files(out):
    return {path.relative_to(out).as_posix(): sha256(path) for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("source") / "texts")


@pytest.fixture(scope="module")
def out(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "text"
    prepare("text", folder_data(source), out, code_hash="c0de", processes=1)
    return out


def test_streams_hold_every_document_once_in_its_split(out, source):
    read = {split: texts(out, split) for split in SPLITS}
    assert sorted(text for split in SPLITS for text in read[split]) == sorted(document(n) for n in range(60))
    assert len(read["train"]) > len(read["valid"]) > 0 < len(read["test"])


def test_manifest_tells_what_is_there(out, source):
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["schema"] == 1
    assert manifest["name"] == "text"
    assert manifest["code_hash"] == "c0de"
    assert TextData.model_validate(manifest["spec"]) == folder_data(source)
    assert manifest["tokenizer"]["vocabulary"] == 300 == load_tokenizer(out).get_vocab_size()
    assert manifest["duplicates_removed"] == 0
    assert manifest["licence"] == "not stated"
    for split, entry in manifest["splits"].items():
        documents = texts(out, split)
        assert entry["documents"] == len(documents)
        assert entry["bytes"] == sum(len(text.encode()) for text in documents)
        assert entry["tokens"] == len(load_stream(out, split))
        assert entry["sha256"] == sha256(out / entry["file"])
    verify(out)


def test_several_processes_write_the_same_bytes(out, source, tmp_path):
    prepare("text", folder_data(source), tmp_path, code_hash="c0de", processes=2)
    same = files(out)
    other = files(tmp_path)
    assert same.pop("manifest.json")
    assert other.pop("manifest.json")
    same.pop(CHECKED, None)  # which `verify` leaves
    assert same == other
    fingerprints = [json.loads((folder / "manifest.json").read_text())["fingerprint"] for folder in (out, tmp_path)]
    assert fingerprints[0] == fingerprints[1]


def test_only_a_change_has_it_written_again(source, tmp_path, capsys):
    data = folder_data(source)
    out, manifest = tmp_path / "out", tmp_path / "out/manifest.json"

    def written(data, code_hash=""):
        before = manifest.stat().st_mtime_ns if manifest.exists() else 0
        prepare("text", data, out, code_hash=code_hash, processes=1)
        return manifest.stat().st_mtime_ns != before

    assert written(data)
    assert not written(data)
    moved = folder_data(folder(tmp_path / "same texts elsewhere"))
    assert not written(moved)
    assert written(data, "new code")
    assert written(folder_data(source, max_bytes=5000), "new code")
    (source_of := tmp_path / "same texts elsewhere/000.txt").write_text(document("another"))
    assert written(folder_data(source_of.parent), "new code")
    assert written(folder_data(source, max_bytes=5000), "new code")
    (out / "train.npy").write_bytes((out / "train.npy").read_bytes()[:-10])
    assert written(folder_data(source, max_bytes=5000), "new code")
    (out / "tokenizer.json").write_text("{}")
    assert written(folder_data(source, max_bytes=5000), "new code")
    assert capsys.readouterr().out == ""


def test_prepared_data_outlive_their_source(tmp_path):
    source, out = folder(tmp_path / "source"), tmp_path / "out"
    prepare("text", folder_data(source), out, processes=1)
    before = files(out)
    before.pop("file_hashes.json")
    shutil.rmtree(source)
    prepare("text", folder_data(source), out, processes=1)
    with pytest.raises(UserError, match=r"source\.paths: no file at"):
        prepare("text", folder_data(source, max_bytes=5000), out, processes=1)
    missing = {"kind": "file", "path": str(tmp_path / "none.json"), "vocabulary": 300}
    with pytest.raises(UserError, match=r"none\.json: no such tokenizer file"):
        prepare("text", folder_data(folder(source), tokenizer=missing), out, processes=1)
    assert before.items() <= files(out).items()


@pytest.mark.parametrize("limit", [500, 2_000, 10_000])
def test_training_text_is_cut_short_at_a_document(source, tmp_path, limit):
    prepare("text", folder_data(source, max_bytes=limit, tokenizer=BytePairs(vocabulary=270)), tmp_path, processes=1)
    sizes = [len(text.encode()) for text in texts(tmp_path, "train")]
    assert sum(sizes[:-1]) < limit <= sum(sizes)
    assert len(texts(tmp_path, "valid")) > 0 < len(texts(tmp_path, "test"))


def named(tmp_path, **splits):
    """Write files of lines for the splits and return the spec of a corpus of lines."""
    for split, lines in splits.items():
        (tmp_path / f"{split}.txt").write_text("\n".join(lines))
    return TextData(
        source=Files(**{split: (str(tmp_path / f"{split}.txt"),) for split in splits}, documents="line"),
        tokenizer={"kind": "bpe", "vocabulary": 260},
    )


def test_the_same_documents_give_the_same_streams_in_every_format(out, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    documents = [document(number) for number in range(60)]
    with gzip.open(tmp_path / "all.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"body": text}) + "\n" for text in documents)
    parquet.write_table(pyarrow.table({"body": documents}), tmp_path / "all.parquet")
    (tmp_path / "all.data").write_text("\n".join(json.dumps({"body": text}) for text in documents))
    for name, settings in {"all.jsonl.gz": {}, "all.parquet": {}, "all.data": {"format": "jsonl"}}.items():
        source = Files(paths=(str(tmp_path / name),), column="body", **settings)
        data = folder_data(
            tmp_path, source=source, tokenizer=TokenizerFile(path=str(out / "tokenizer.json"), vocabulary=300)
        )
        prepare("text", data, tmp_path / "out", processes=1)
        assert all(np.array_equal(load_stream(tmp_path / "out", split), load_stream(out, split)) for split in SPLITS)


def test_repeated_documents_stay_where_they_are_held_out(tmp_path):
    lines = [document(number, 4) for number in range(9)]
    data = named(
        tmp_path,
        train=[*lines[:6], lines[0], lines[6], "  " + lines[7].replace(" ", "  ")],
        valid=[lines[6], lines[8]],
        test=[lines[7], lines[8]],
    )
    prepare("lines", data, tmp_path / "out", processes=1)
    assert texts(tmp_path / "out", "test") == [lines[7], lines[8]]
    assert texts(tmp_path / "out", "valid") == [lines[6]]
    assert texts(tmp_path / "out", "train") == lines[:6]
    assert json.loads((tmp_path / "out/manifest.json").read_text())["duplicates_removed"] == 4


def test_the_tokenizer_learns_from_training_text_alone(tmp_path):
    held_out = [f"QXQX QXQX {number}" for number in range(90)]
    data = named(tmp_path, train=[f"abab abab {n}" for n in range(50)] + held_out[:50], valid=held_out, test=["QX QX"])
    prepare("lines", data, tmp_path / "out", processes=1)
    vocabulary = load_tokenizer(tmp_path / "out").get_vocab()
    assert "ab" in vocabulary
    assert "QX" not in vocabulary


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"valid_share": 1e-6}, "none of 60 documents is left for 'valid': raise valid_share=1e-06 or name"),
        (
            {"tokenizer": {"kind": "bpe", "vocabulary": 50_000}},
            r"tokenizer\.vocabulary=50000: the training text yields",
        ),
        ({"source": {"kind": "files", "paths": ["/nowhere/*.txt"]}}, r"no file at '/nowhere/\*\.txt'"),
        ({"tokenizer": {"kind": "file", "path": "/nowhere.json", "vocabulary": 300}}, r"/nowhere\.json: no such"),
    ],
)
def test_a_failure_leaves_nothing_half(source, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        prepare("text", folder_data(source, **changes), tmp_path, processes=1)
    assert not (tmp_path / "manifest.json").exists()
    assert set(files(tmp_path)) <= {"tokenizer.json", "file_hashes.json"}


def test_no_old_manifest_vouches_for_new_files(source, tmp_path, monkeypatch):
    prepare("text", folder_data(source), tmp_path, processes=1)

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("formerlab.data.text.streams.Stream.finish", stop)
    (tmp_path / ".train.npy.1.tmp").write_text("left by a killed process")
    with pytest.raises(KeyboardInterrupt):
        prepare("text", folder_data(source, max_bytes=5000), tmp_path, processes=1)
    assert not (tmp_path / "manifest.json").exists()
    assert not list(tmp_path.glob(".*"))


def test_damaged_results_are_named(out, tmp_path):
    with pytest.raises(UserError, match=r"manifest\.json: no such file, so the data are not prepared"):
        load_stream(tmp_path, "train")
    with pytest.raises(UserError, match="no split 'dev'; choose from train, valid, test"):
        load_stream(out, "dev")
    for path in out.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    stream = tmp_path / "valid.npy"
    whole = stream.read_bytes()
    stream.write_bytes(whole[:-2])
    with pytest.raises(UserError, match=r"valid\.npy: not a whole token stream"):
        load_stream(tmp_path, "valid")
    np.save(stream, np.zeros(3, np.uint16))
    with pytest.raises(UserError, match=r"valid\.npy: holds uint16 of shape \(3,\), the manifest says \d+ tokens"):
        load_stream(tmp_path, "valid")
    stream.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    load_stream(tmp_path, "valid")
    with pytest.raises(UserError, match=r"valid\.npy: damaged or changed"):
        verify(tmp_path)
    stream.unlink()
    with pytest.raises(UserError, match=r"valid\.npy: no such file"):
        load_stream(tmp_path, "valid")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: damaged or changed"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_file_is_taken_as_it_is(out, source, tmp_path):
    given = {"kind": "file", "path": str(out / "tokenizer.json"), "vocabulary": 70_000}
    prepare("text", folder_data(source, tokenizer=given), tmp_path, processes=1)
    assert sha256(tmp_path / "tokenizer.json") == sha256(out / "tokenizer.json")
    assert load_stream(tmp_path, "train").dtype == np.uint32
    assert texts(tmp_path, "train") == texts(out, "train")


def test_another_data_set_lends_its_tokenizer(out, tmp_path, capsys):
    shutil.copytree(out, tmp_path / "text")
    more = folder_data(folder(tmp_path / "more texts", 20), tokenizer=TokenizerOf(data="text", vocabulary=300))
    prepare("more", more, tmp_path / "more", processes=1)
    lent, borrowed = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("text", "more"))
    assert borrowed["tokenizer"] == lent["tokenizer"]
    assert (tmp_path / "more/tokenizer.json").read_bytes() == (tmp_path / "text/tokenizer.json").read_bytes()
    verify(tmp_path / "more")
    prepare("more", more, tmp_path / "more", processes=1)
    assert "already prepared" in capsys.readouterr().err
    lent["tokenizer"]["sha256"] = "0" * 64
    (tmp_path / "text/manifest.json").write_text(json.dumps(lent))
    with pytest.raises(UserError, match=r"tokenizer\.json: damaged or changed"):
        prepare("more", more, tmp_path / "more", processes=1)


def test_a_tokenizer_that_is_not_there_or_does_not_fit_is_refused(out, source, tmp_path):
    for name, vocabulary, message in (("none", 300, "the data are not prepared"), ("text", 299, "with 300 tokens")):
        data = folder_data(source, tokenizer=TokenizerOf(data=name, vocabulary=vocabulary))
        with pytest.raises(UserError, match=message):
            prepare("more", data, out.parent / "more", processes=1)


@pytest.mark.parametrize("files_of", [1, 3])
def test_files_too_few_to_be_divided_are_divided_by_paragraphs(files_of, tmp_path, capsys):
    texts_of = tmp_path / "texts"
    texts_of.mkdir()
    for number in range(files_of):
        lines = [document(f"{number} {paragraph}", 4) for paragraph in range(60 // files_of)]
        (texts_of / f"{number}.txt").write_text("\n\n".join(lines))
    data = folder_data(texts_of, valid_share=0.1, test_share=0.1)
    prepare("text", data, tmp_path / "out", processes=1)
    by_paragraph = data.model_copy(update={"source": data.source.model_copy(update={"documents": "paragraph"})})
    prepare("text", by_paragraph, tmp_path / "same", processes=1)
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("out", "same")]
    assert manifests[0]["fingerprint"] == manifests[1]["fingerprint"]
    assert manifests[0]["recipe"] == fingerprint(data.recipe())
    count = "1 document" if files_of == 1 else f"{files_of} documents"
    note = f"{count} cannot be divided into train, valid and test, so paragraphs are the documents"
    assert [one["notes"] for one in manifests] == [[note], []]
    assert f"text: {note}\n" in capsys.readouterr().err


def test_what_cannot_be_divided_is_refused_before_anything_is_tokenised(tmp_path):
    lines = tmp_path / "one.txt"
    lines.write_text(document(1, 4))
    (tmp_path / "blank.txt").write_text(" \n\n ")
    with pytest.raises(UserError, match=r"blank\.txt: holds no text"):
        prepare("text", folder_data(tmp_path), tmp_path / "out", processes=1)
    for source in (Files(paths=(str(lines),)), Files(train=(str(lines),), documents="line")):
        with pytest.raises(UserError, match=r"^data: text: (none of 1 documents is left|no document is left)"):
            prepare("text", folder_data(tmp_path, source=source), tmp_path / "out", processes=1)
        assert set(files(tmp_path / "out")) <= {"file_hashes.json"}


def test_every_limit_that_cuts_is_said_once(out, source, tmp_path, capsys):
    assert json.loads((out / "manifest.json").read_text())["notes"] == []
    prepare("text", folder_data(source, max_bytes=5000, max_held_out_bytes=1), tmp_path, processes=1)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    sizes = {split: (entry["bytes"], entry["documents"]) for split, entry in manifest["splits"].items()}
    assert [documents for _, documents in sizes.values()][1:] == [1, 1]
    limits = {"train": "max_bytes=5000", "valid": "max_held_out_bytes=1", "test": "max_held_out_bytes=1"}
    for note, (split, limit) in zip(manifest["notes"], limits.items(), strict=True):
        assert note.startswith(f"{limit} ends the {split} text at {sizes[split][0]} bytes in {sizes[split][1]} doc")
    said = capsys.readouterr().err
    assert all(said.count(f"text: {note}\n") == 1 for note in manifest["notes"])
