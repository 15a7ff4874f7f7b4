"""Read the documents of one file: text, JSON lines, CSV, TSV or Parquet, compressed or not."""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, TextIO, get_args

from formerlab.errors import UserError, reason
from formerlab.files import is_utf8

Format = Literal["text", "jsonl", "csv", "tsv", "parquet"]
Documents = Literal["file", "paragraph", "line"]

DOCUMENT_CHARACTERS = 4 << 20
"""Longer documents are split at white space into pieces of at most this size, so that memory stays constant."""

MAX_FIELD_CHARACTERS = 1 << 26
"""Maximum number of characters in a field of CSV or TSV. A longer field probably has an unclosed quote."""

OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": None}

FORMATS: dict[str, Format] = {
    **dict.fromkeys(("", ".txt", ".text", ".md", ".rst"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}


def format_of(path: Path) -> Format:
    """Return the format by the file ending, ignoring compression. Raises UserError for an unknown ending."""
    name = path.with_suffix("") if path.suffix.lower() in OPENERS else path
    if name.suffix.lower() not in FORMATS:
        remedy = f"set source.format to {', '.join(get_args(Format))}, or leave the file out"
        raise UserError(f"{path}: the ending '{name.suffix}' is not a known format; {remedy}")
    return FORMATS[name.suffix.lower()]


def read_text(path: Path, encoding: str, documents: Documents) -> Iterator[str]:
    """Yield the documents of a text file. Raises UserError with the name of the file."""
    with open_text(path, encoding) as handle:
        yield from {"file": _blocks, "line": _lines, "paragraph": _paragraphs}[documents](handle)


def read_jsonl(path: Path, encoding: str, column: str) -> Iterator[str]:
    """Yield the text in a field of each line. Raises UserError with file, line and field."""
    for number, row in json_lines(path, encoding):
        if column not in row:
            raise UserError(f"{path}, line {number}: no field '{column}' in fields {', '.join(row)}; set source.column")
        yield text_of(row[column], f"{path}, line {number}", column)


def json_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for each line of a JSON lines file. Raises UserError with file and line."""
    with open_text(path, encoding) as handle:
        for number, line in enumerate(handle, 1):
            try:
                row = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}, line {number}: not JSON ({error})") from None
            if isinstance(row, dict):
                yield number, row
            elif line.strip():
                raise UserError(f"{path}, line {number}: a {type(row).__name__} instead of a JSON object")


def read_table(path: Path, encoding: str, column: str, format: Literal["csv", "tsv"]) -> Iterator[str]:
    """Yield the texts of a column of a CSV or TSV file with a header row. Raises UserError with file and line.

    A field with a delimiter, a quote or a line break must be in double quotes.
    """
    csv.field_size_limit(MAX_FIELD_CHARACTERS)
    with open_text(path, encoding, newline="") as handle:
        rows = csv.reader(handle, "excel" if format == "csv" else "excel-tab", strict=True)
        try:
            names = next(rows, [])
            if column not in names:
                raise UserError(f"{path}: no column '{column}' among {', '.join(names)}; set source.column")
            index = names.index(column)
            for row in filter(None, rows):
                if len(row) != len(names):
                    remedy = f"quote fields that contain a {'comma' if format == 'csv' else 'tab'}"
                    fields = f"{len(row)} fields, but {len(names)} columns"
                    raise UserError(f"{path}, line {rows.line_num}: {fields}; {remedy}")
                yield row[index]
        except csv.Error as error:
            remedy = "put double quotes around a field with quotes, and write each of its quotes twice"
            raise UserError(f"{path}, line {rows.line_num}: not {format.upper()} ({error}); {remedy}") from None


def read_parquet(path: Path, column: str) -> Iterator[str]:
    """Yield the texts of a column of a Parquet file. Raises UserError with the file and the column."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if column not in names:
                raise UserError(f"{path}: no column '{column}' among {', '.join(names)}; set source.column")
            for batch in file.iter_batches(batch_size=1024, columns=[column]):
                for value in batch.column(0):
                    yield text_of(value.as_py(), str(path), column)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({reason(error)})") from None


def text_of(value: object, where: str, column: str) -> str:
    """Return the text of a cell, with lone surrogates replaced, or an empty text for None.

    Raises UserError for another type; `where` names the row in the message.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{where}: field '{column}' is {type(value).__name__}, not text; set source.column")
    return value if is_utf8(value) else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@contextmanager
def open_text(path: Path, encoding: str = "utf-8", newline: str | None = None) -> Iterator[TextIO]:
    """Open a text file, decompressed if its name ends in .gz, .bz2, .xz or .zst, without its byte-order mark.

    Raises UserError with the name of the file if opening it, or reading it in the block, fails.
    """
    encoding = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    try:
        with io.TextIOWrapper(_open_bytes(path), encoding, newline=newline) as handle:
            try:
                yield handle
            except UnicodeDecodeError as error:
                at = f" at byte {handle.buffer.tell() - len(error.object) + error.start}" if handle.seekable() else ""
                remedy = "set source.encoding or convert it"
                raise UserError(f"{path}: not {error.encoding}{at} ({error.reason}); {remedy}") from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeError) as error:  # UTF-16 without byte-order mark
        raise UserError(f"{path}: cannot be read ({reason(error)})") from None


def _open_bytes(path: Path) -> IO[bytes]:
    suffix = path.suffix.lower()
    if suffix == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"), 1 << 16)
    return OPENERS.get(suffix, open)(path, "rb")  # type: ignore[no-any-return]


def split_text(text: str, limit: int = DOCUMENT_CHARACTERS) -> Iterator[str]:
    """Split a text into pieces of at most `limit` characters, if possible before white space.

    Such a split does not change the tokens of byte-level BPE.
    """
    start = 0
    while len(text) - start > limit:
        cut = _last_break(text, start, start + limit)
        yield text[start:cut]
        start = cut
    yield text[start:]


def _last_break(text: str, start: int, stop: int) -> int:
    """Return the last position between `start` and `stop` of a space or line feed that follows a non-space character.

    Returns `stop` if there is no such position.
    """
    position = stop
    while (position := max(text.rfind(" ", start + 1, position), text.rfind("\n", start + 1, position))) > start:
        if not text[position - 1].isspace():
            return position
    return stop


def _blocks(handle: TextIO) -> Iterator[str]:
    """Yield the text of a file, in pieces if it is too long for one document."""
    incomplete = ""
    while block := handle.read(DOCUMENT_CHARACTERS):
        *complete, incomplete = split_text(incomplete + block, DOCUMENT_CHARACTERS)
        yield from complete
    yield incomplete


def _lines(handle: TextIO) -> Iterator[str]:
    while line := handle.readline(DOCUMENT_CHARACTERS):
        yield line.rstrip("\n")


def _paragraphs(handle: TextIO) -> Iterator[str]:
    lines: list[str] = []
    size = 0
    for line in _lines(handle):
        if (not line.strip() or size > DOCUMENT_CHARACTERS) and lines:
            yield "\n".join(lines)
            lines, size = [], 0
        if line.strip():
            lines.append(line)
            size += len(line)
    if lines:
        yield "\n".join(lines)
