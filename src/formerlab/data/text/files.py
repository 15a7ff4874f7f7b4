"""Sources of text: files (text, JSON lines, CSV, TSV, Parquet, compressed or not), folders, globs, and the hub."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from formerlab.data.hub import HubSource
from formerlab.data.manifest import file_hashes
from formerlab.data.splitting import SPLITS, Split, SplitFractions
from formerlab.data.text.documents import Corpus, Shard, TextSource
from formerlab.data.text.readers import (
    Documents,
    Format,
    format_of,
    read_jsonl,
    read_parquet,
    read_table,
    read_text,
    text_of,
)
from formerlab.errors import UserError
from formerlab.file_search import files_named


class Files(TextSource):
    """Files, folders or globs (`**` for any depth).

    `~` and `$NAME` are expanded, and relative paths start at the working directory. Set `paths`, or `train` with
    optional `valid` and `test`.
    """

    outside_recipe: ClassVar[set[str]] = {"paths", "train", "valid", "test", "licence"}

    kind: Literal["files"] = "files"
    paths: tuple[str, ...] = ()
    """Files whose documents a hash assigns to splits."""
    train: tuple[str, ...] = ()
    """Files of the training text."""
    valid: tuple[str, ...] = ()
    """Files of the validation text."""
    test: tuple[str, ...] = ()
    """Files of the test text."""
    format: Literal["auto"] | Format = "auto"
    """Format of the files; `auto` uses the file ending: .txt .text .md .rst or no ending (text), .jsonl .ndjson, .csv,
    .tsv, .parquet."""
    column: str = "text"
    """Field or column of the text in JSON lines, CSV, TSV and Parquet."""
    documents: Documents = "file"
    """Unit of a document in plain text files: the file, a paragraph (between blank lines) or a line."""
    encoding: str = "utf-8"
    """Character encoding of text, JSON lines, CSV and TSV; an invalid byte is an error."""
    licence: str = "not stated"
    """The licence of the text, for the manifest."""

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, value: str) -> str:
        try:
            "".encode(value)
        except (LookupError, UnicodeError):
            raise ValueError(f"'{value}' is not an encoding of Python; for example utf-8, latin-1, cp1252") from None
        return value

    @model_validator(mode="after")
    def _check_paths(self) -> "Files":
        if bool(self.paths) == bool(self.train) or (self.paths and (self.valid or self.test)):
            raise ValueError("set paths, or train with optional valid and test")
        return self

    def contents(self, cache: Path | None = None) -> list[list[str]]:
        """Return (label, name below the common folder, hash) of each file."""
        files = [(label, name, path) for label, paths in self.files_by_label().items() for name, path in paths.items()]
        hashes = file_hashes((path for *_, path in files), cache)
        return [[label, name, hashes[path]] for label, name, path in files]

    def open(self, fractions: SplitFractions) -> Corpus:
        # Held-out files come first; files of a split are in the order of their names.
        shards = list[Shard]()
        for label, files in self.files_by_label().items():
            splits: Any = (label,) if label in ("valid", "test") else self.hashed_splits()
            shards += [Shard(str(path), splits, partial(self._documents, path)) for path in files.values()]
        return Corpus(sorted(shards, key=lambda shard: ("train" in shard.splits, shard.splits)))

    def by_paragraph(self) -> "Files | None":
        """Return the same files with paragraphs as documents, or None if no text file is a single document."""
        formats = {self._format(path) for files in self.files_by_label().values() for path in files.values()}
        finer = self.documents == "file" and "text" in formats
        return self.model_copy(update={"documents": "paragraph"}) if finer else None

    def files_by_label(self) -> dict[str, dict[str, Path]]:
        """Return the files by label (paths, train, valid, test) and by name below their common folder, sorted."""
        owners: dict[Path, str] = {}
        files: dict[str, list[Path]] = {}
        for label in ("paths", *SPLITS):
            if getattr(self, label):
                files[label] = self._named_files(label)
            for path in files.get(label, ()):
                if path.stat().st_size == 0:
                    raise UserError(f"{path}: empty file")
                if (owner := owners.setdefault(path.resolve(), label)) != label:
                    raise UserError(f"{path}: in both source.{owner} and source.{label}; keep it in one")
        common = Path(os.path.commonpath([path.parent for paths in files.values() for path in paths]))
        return {label: {path.relative_to(common).as_posix(): path for path in paths} for label, paths in files.items()}

    def _named_files(self, label: str) -> list[Path]:
        """Return the files of a label. Raises UserError for text beside Parquet, usually a README or a licence."""
        files = files_named(getattr(self, label), f"source.{label}")
        by_format = {self._format(path): path for path in files}
        if {"text", "parquet"} <= by_format.keys():
            path = by_format["text"]
            raise UserError(f"source.{label}: {path} is text beside Parquet; name the data by a pattern (*.parquet)")
        return files

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


class Hub(HubSource, TextSource):
    """Text of a data set of the hub."""

    kind: Literal["hub"] = "hub"
    column: str = "text"
    """Column of the text."""
    streaming: bool = False
    """Whether to read over the network without a copy on disk."""

    def open(self, fractions: SplitFractions) -> Corpus:
        held_out: list[Split] = [split for split in ("test", "valid") if getattr(self, split) is not None]
        names = [(getattr(self, split), (split,)) for split in held_out] + [(self.train, self.hashed_splits())]
        return Corpus([Shard(f"{self.name} ({name})", splits, partial(self._texts, name)) for name, splits in names])

    def _texts(self, split: str) -> Iterator[str]:
        for value in self.values(split, self.column, streaming=self.streaming):
            yield text_of(value, f"hub {self.name}", self.column)
