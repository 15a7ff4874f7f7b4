"""Where text comes from: files (text, JSON lines, CSV, TSV, Parquet; folders, globs, compressed or not), or the hub."""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import field_validator, model_validator

from formerlab.data.hub import HubSource
from formerlab.data.manifest import file_hashes
from formerlab.data.splitting import SPLITS, Shares, Split
from formerlab.data.text.documents import Corpus, Shard, TextSource
from formerlab.data.text.readers import (
    Documents,
    Format,
    format_of,
    read_jsonl,
    read_parquet,
    read_table,
    read_text,
    rows_of,
    text_of,
)
from formerlab.errors import UserError, some
from formerlab.file_search import expanded, files_named

BESIDE = re.compile(
    r"_(SUCCESS|(common_)?metadata|(started|committed)_\d+)|.*\.(crc|md5|sha\d+)|(md5|sha\d+|checksum)s?(sums?)?(\.txt)?",
    re.IGNORECASE,
)
"""Names of the files that Spark and checksum tools write beside data."""
BESIDE_FOLDERS = {"_temporary", "_delta_log"}


class Files(TextSource):
    """Files, folders or globs (`**` for any depth); `~`, `$NAME` and paths relative to the working directory are
    understood. Name `paths` to have all documents divided by a hash, or `train` and `valid`, `test` or both.
    """

    outside_recipe: ClassVar[set[str]] = {"paths", "train", "valid", "test", "licence"}

    kind: Literal["files"] = "files"
    paths: tuple[str, ...] = ()
    """Everything, to be divided."""
    train: tuple[str, ...] = ()
    """Training text."""
    valid: tuple[str, ...] = ()
    """Validation text."""
    test: tuple[str, ...] = ()
    """Test text."""
    format: Literal["auto"] | Format = "auto"
    """What the files hold; `auto` tells it by the ending: .txt .text .md .rst, .jsonl .ndjson, .csv, .tsv,
    .parquet."""
    column: str = "text"
    """The field or column that holds the text, in JSON lines, CSV, TSV and Parquet."""
    documents: Documents = "file"
    """What one document of a plain text file is: the file, a paragraph (between blank lines) or a line."""
    encoding: str = "utf-8"
    """Character encoding of text, JSON lines, CSV and TSV; a byte that does not fit is an error."""
    licence: str = "not stated"
    """The licence of the text, for the manifest."""

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str) -> str:
        try:
            "".encode(value)
        except (LookupError, UnicodeError):
            raise ValueError(f"'{value}' is no encoding Python knows; for example utf-8, latin-1, cp1252") from None
        return value

    @model_validator(mode="after")
    def _one_way(self) -> "Files":
        if bool(self.paths) == bool(self.train) or (self.paths and (self.valid or self.test)):
            raise ValueError("name either paths, or train together with valid, test or both")
        return self

    def contents(self, cache: Path | None = None) -> list[list[str]]:
        """Return names and hashes, folders above them aside."""
        files = [(label, name, path) for label, of in self.named().items() for name, path in of.items()]
        known = file_hashes((path for *_, path in files), cache)
        return [[label, name, known[path]] for label, name, path in files]

    def open(self, shares: Shares) -> Corpus:
        # Held-out files come first, then by name.
        shards = [
            Shard(
                str(path),
                (label,) if label in ("valid", "test") else self.divided(),  # type: ignore[arg-type]
                partial(self._documents, path),
                may_be_empty=_is_part(path) or (path.suffix.lower() == ".parquet" and rows_of(path) == 0),
            )
            for label, files in self.named().items()
            for path in files.values()
        ]
        return Corpus(sorted(shards, key=lambda shard: ("train" in shard.splits, shard.splits)))

    def by_paragraph(self) -> "Files | None":
        """Return the same files with paragraphs as documents; nothing where no document is a text file."""
        formats = {self._format(path) for files in self.named().values() for path in files.values()}
        finer = self.documents == "file" and "text" in formats
        return self.model_copy(update={"documents": "paragraph"}) if finer else None

    def named(self) -> dict[str, dict[str, Path]]:
        """Return the files by label (paths, train, valid, test) and by name below their common folder, sorted."""
        owners: dict[Path, str] = {}
        found: dict[str, list[Path]] = {}
        for label in ("paths", *SPLITS):
            if getattr(self, label):
                found[label] = self._found(label)[0]
            for path in found.get(label, ()):
                if path.stat().st_size == 0 and not _is_part(path):
                    raise UserError(f"{path}: empty file")
                if (owner := owners.setdefault(path.resolve(), label)) != label:
                    raise UserError(f"{path}: named by both source.{owner} and source.{label}; keep it in one")
        common = Path(os.path.commonpath([path.parent for paths in found.values() for path in paths]))
        return {label: {path.relative_to(common).as_posix(): path for path in paths} for label, paths in found.items()}

    def notes(self) -> list[str]:
        """Return a note on the files beside the data that are not read."""
        left = [path.name for label in ("paths", *SPLITS) if getattr(self, label) for path in self._found(label)[1]]
        return [f"not read beside the data: {some(left)}; name a file itself to read it"] if left else []

    def _found(self, label: str) -> tuple[list[Path], list[Path]]:
        """Return the files that the patterns of a label name, and those that lie beside data and are none.

        A file that is named itself is read. Text beside Parquet tells of it: pages, licences, lists of files.
        """
        patterns = getattr(self, label)
        files, itself = files_named(patterns, f"source.{label}"), {expanded(pattern).absolute() for pattern in patterns}
        parquet = self.format == "auto" and any(path.suffix.lower() == ".parquet" for path in files)

        def beside(path: Path) -> bool:
            about = BESIDE.fullmatch(path.name) or BESIDE_FOLDERS.intersection(path.parts)
            return path not in itself and bool(about or (parquet and format_of(path) == "text"))

        kept, left = [path for path in files if not beside(path)], [path for path in files if beside(path)]
        if not kept:
            raise UserError(f"source.{label}: {some([path.name for path in left])} and no data; name other files")
        return kept, left

    def _format(self, path: Path) -> Format:
        return format_of(path) if self.format == "auto" else self.format

    def _documents(self, path: Path) -> Iterator[str]:
        format = self._format(path)
        if format == "parquet":
            return read_parquet(path, self.column)
        if format == "jsonl":
            return read_jsonl(path, self.encoding, self.column)
        if format == "csv" or format == "tsv":
            return read_table(path, self.encoding, self.column, format)
        return read_text(path, self.encoding, self.documents)


def _is_part(path: Path) -> bool:
    """Say whether Spark named a file, whose tasks without rows write empty ones."""
    return path.name.startswith("part-")


class Hub(HubSource, TextSource):
    """Text of a data set of the hub."""

    kind: Literal["hub"] = "hub"
    column: str = "text"
    """The column that holds the text."""
    streaming: bool = False
    """Whether to read over the network without a copy on disk."""

    def open(self, shares: Shares) -> Corpus:
        held: list[Split] = [split for split in ("test", "valid") if getattr(self, split) is not None]
        named = [(getattr(self, split), (split,)) for split in held] + [(self.train, self.divided())]
        return Corpus([Shard(f"{self.name} ({theirs})", ours, partial(self._texts, theirs)) for theirs, ours in named])

    def _texts(self, split: str) -> Iterator[str]:
        for value in self.values(split, self.column, streaming=self.streaming):
            yield text_of(value, f"hub {self.name}", self.column)
