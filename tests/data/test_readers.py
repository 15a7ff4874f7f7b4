"""Reading of documents from files, and error messages about unreadable files."""

import bz2
import csv
import gzip
import json
import lzma
import tracemalloc
from functools import partial
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from formerlab.data.text import readers
from formerlab.data.text.readers import format_of, read_jsonl, read_parquet, read_table, read_text
from formerlab.errors import UserError

TEXT = "First line, café.\nsecond line\n\n\nSecond paragraph.\n"


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("file", [TEXT]),
        ("paragraph", ["First line, café.\nsecond line", "Second paragraph."]),
        ("line", ["First line, café.", "second line", "", "", "Second paragraph."]),
    ],
)
def test_documents_of_a_text_file(tmp_path, documents, expected):
    path = tmp_path / "a.txt"
    path.write_text(TEXT, encoding="utf-8")
    assert list(read_text(path, "utf-8", documents)) == expected


@pytest.mark.parametrize(
    ("ending", "opener"), [(".gz", gzip.open), (".GZ", gzip.open), (".bz2", bz2.open), (".XZ", lzma.open)]
)
def test_compressed_files_are_decompressed(tmp_path, ending, opener):
    path = tmp_path / f"a.jsonl{ending}"
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(json.dumps({"text": TEXT}) + "\n")
    assert format_of(path) == "jsonl"
    assert list(read_jsonl(path, "utf-8", "text")) == [TEXT]


def test_zstandard_files_may_have_several_frames(tmp_path):
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard(TEXT) + zstandard(TEXT))
    assert list(read_text(path, "utf-8", "file")) == [TEXT + TEXT]


def zstandard(text):
    return pyarrow.Codec("zstd").compress(text if isinstance(text, bytes) else text.encode(), asbytes=True)


def test_byte_order_marks_windows_newlines_and_other_encodings(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert list(read_text(path, "utf-8", "line")) == ["one", "two"]
    path.write_bytes("Köln".encode("latin-1"))
    assert list(read_text(path, "latin-1", "file")) == ["Köln"]


def test_parquet_column(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"body": ["one", None, "two"], "size": [1, 2, 3]}), path)
    assert list(read_parquet(path, "body")) == ["one", "", "two"]
    with pytest.raises(UserError, match=r"a\.parquet: no column 'text' among body, size"):
        list(read_parquet(path, "text"))
    with pytest.raises(UserError, match=r"a\.parquet: field 'size' is int, not text"):
        list(read_parquet(path, "size"))


@pytest.mark.parametrize("format", ["csv", "tsv"])
def test_a_column_of_a_table(tmp_path, format):
    """The file has quotes, delimiters and line breaks within fields, a byte-order mark, and blank lines."""
    texts = ['He said "no", twice.', "two\r\nlines", "a\ttab", "", "café"]
    path = tmp_path / f"a.{format}.gz"
    with gzip.open(path, "wt", encoding="utf-8-sig", newline="") as file:
        rows = csv.writer(file, "excel" if format == "csv" else "excel-tab")
        rows.writerows([["id", "body"], *enumerate(texts), []])
    assert format_of(path) == format
    assert list(read_table(path, "utf-8", "body", format)) == texts


def test_a_field_of_a_table_may_be_a_long_document(tmp_path):
    (tmp_path / "a.csv").write_text("text\n" + "word " * 100_000 + "\n")
    assert [len(text) for text in read_table(tmp_path / "a.csv", "utf-8", "text", "csv")] == [500_000]


def test_lone_surrogates_are_replaced(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a\\ud83d b \\ud83d\\ude00"}\n')
    assert list(read_jsonl(path, "utf-8", "text")) == ["a\ufffd b \U0001f600"]


BROKEN = {
    "encoding": ("a.txt", b"x" * 20_000 + b"caf\xe9 au lait", "not utf-8 at byte 20003"),
    "gzip": ("a.txt.gz", gzip.compress(b"text" * 5000)[:-20], "cannot be read"),
    "xz": ("a.txt.xz", b"no xz at all", "cannot be read"),
    "json": ("a.jsonl", b'{"text": "fine"}\n{"text": \n', "line 2: not JSON"),
    "long number": ("a.jsonl", b'{"text": "x"}\n{"n": ' + b"7" * 5000 + b"}\n", "line 2: not JSON"),
    "nesting": ("a.jsonl", b'{"text": "x"}\n' + b"[" * 100_000 + b"\n", "line 2: not JSON"),
    "field": ("a.jsonl", b'{"text": "fine"}\n{"body": "x", "id": 1}\n', "line 2: no field 'text' in fields body, id"),
    "row": ("a.jsonl", b"[1]\n", "line 1: a list instead of a JSON object"),
    "zst": ("a.txt.zst", b"hello", "cannot be read"),
    "bytes in zst": ("a.txt.zst", zstandard(b"caf\xe9"), "not utf-8 .*set source.encoding"),
    "value": ("a.jsonl", b'{"text": 7}\n', "line 1: field 'text' is int, not text"),
    "column": ("a.csv", b"id,body\n1,x\n", "no column 'text' among id, body; set source.column"),
    "comma": ("a.csv", b"id,text\n1,fine\n2,red, blue\n", "line 3: 3 fields, but 2 columns; quote"),
    "quote": ("a.tsv", b'id\ttext\n1\t"No," he said.\n', "line 2: not TSV .*write each of its quotes twice"),
    "open quote": ("a.csv", b'text\n"one\ntwo\n', "line 3: not CSV"),
    "bytes in a table": ("a.csv", b"text\ncaf\xe9\n", "not utf-8 .*set source.encoding"),
    "parquet": ("a.parquet", b"PAR1 but not really", "not a readable Parquet file"),
}


def test_parquet_with_invalid_utf8_is_refused(tmp_path):
    rows = pyarrow.array([b"caf\xe9 au lait"], pyarrow.binary())
    texts = pyarrow.StringArray.from_buffers(1, rows.buffers()[1], rows.buffers()[2])
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: not a readable Parquet file"):
        list(read_parquet(tmp_path / "a.parquet", "text"))


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_files_are_refused(tmp_path, kind):
    name, content, message = BROKEN[kind]
    path = tmp_path / name
    path.write_bytes(content)
    read = {"text": lambda: read_text(path, "utf-8", "line"), "jsonl": lambda: read_jsonl(path, "utf-8", "text")}
    read |= {format: partial(read_table, path, "utf-8", "text", format) for format in ("csv", "tsv")}
    with pytest.raises(UserError, match=message) as caught:
        list(read.get(format_of(path), lambda: read_parquet(path, "text"))())
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_utf_16_without_byte_order_mark_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes("text".encode("utf-16-le"))
    with pytest.raises(UserError, match=r"a\.txt: (cannot be read|not utf-16).*BOM"):
        list(read_text(tmp_path / "a.txt", "utf-16", "file"))


def test_an_unknown_ending_needs_a_format():
    with pytest.raises(UserError, match=r"table\.xlsx: the ending '\.xlsx' is not a known format; set source\.format"):
        format_of(Path("table.xlsx"))


@pytest.mark.parametrize("documents", ["file", "paragraph", "line"])
@pytest.mark.parametrize("filler", ["x", "word "])
def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch, documents, filler):
    monkeypatch.setattr(readers, "DOCUMENT_CHARACTERS", 10_000)
    path = tmp_path / "one-long-line.txt"
    path.write_text(filler * (2_000_000 // len(filler)))
    tracemalloc.start()
    size = sum(map(len, read_text(path, "utf-8", documents)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == pytest.approx(2_000_000, abs=200)  # white space at the end of a cut paragraph may be lost
    assert peak < 300_000
