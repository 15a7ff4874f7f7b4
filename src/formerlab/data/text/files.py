"""Text in files: plain, JSON lines or Parquet, in folders, by globs, compressed or not."""

import codecs
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import field_validator, model_validator

from formerlab.data.file_hashes import file_hashes
from formerlab.data.splitting import SPLITS, Shard, Shares, Split, digest
from formerlab.data.text.readers import Documents, Format, format_of, read_jsonl, read_parquet, read_text
from formerlab.data.text.source import Corpus, TextSource
from formerlab.data.workers import Workers
from formerlab.errors import UserError
from formerlab.file_search import files_named
from formerlab.spec import fingerprint


class Files(TextSource):
    """Files, folders or globs (`**` for any depth); `~`, `$NAME` and paths relative to the working
    directory are understood.

    Name `paths` to have the documents divided by a hash, or `train`, and `valid`, `test` or both, to say which is
    which; what is not named is then taken from `train`.
    """

    outside_recipe: ClassVar[set[str]] = {"paths", "train", "valid", "test", "licence"}

    kind: Literal["files"] = "files"
    paths: tuple[str, ...] = ()
    """Everything, to be divided by `split_by`."""
    train: tuple[str, ...] = ()
    """Training text."""
    valid: tuple[str, ...] = ()
    """Validation text."""
    test: tuple[str, ...] = ()
    """Test text."""
    format: Literal["auto"] | Format = "auto"
    """What the files hold; `auto` tells it by the ending: .txt .text .md .rst, .jsonl .ndjson, .parquet."""
    column: str = "text"
    """The field or column that holds the text, in JSON lines and Parquet."""
    documents: Documents = "file"
    """What one document of a plain text file is: the file, a paragraph (between blank lines) or a line."""
    encoding: str = "utf-8"
    """Character encoding of text and JSON lines; a byte that does not fit is an error."""
    split_by: Literal["document", "file"] = "document"
    """What is divided where the source does not say: documents by their content, or files by their names."""
    licence: str = "not stated"
    """The licence of the text, for the manifest."""

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str) -> str:
        try:
            codecs.lookup(value)
        except LookupError:
            raise ValueError(f"'{value}' is no encoding Python knows; for example utf-8, latin-1, cp1252") from None
        return value

    @model_validator(mode="after")
    def _one_way(self) -> "Files":
        if bool(self.paths) == bool(self.train) or (self.paths and (self.valid or self.test)):
            raise ValueError("name either paths, or train together with valid, test or both")
        return self

    def state(self, cache: Path | None = None) -> str | None:
        """Return the fingerprint of names and contents, folders above them aside; None where a file is missing."""
        try:
            named = self.named()
            known = file_hashes((path for files in named.values() for path in files.values()), cache)
        except (UserError, OSError):
            return None
        return fingerprint(
            [[label, name, known[path]] for label, files in named.items() for name, path in files.items()]
        )

    def search(self) -> None:
        """Raise UserError for a pattern that matches nothing, an empty file or a file in two splits."""
        self.named()

    def check_division(self, shares: Shares) -> None:
        """Raise UserError as `search` does, and where the names of the files leave a split empty."""
        named = self.named()
        found = {split for label in named for name in named[label] for split in self._candidates(label, name, shares)}
        for split in (split for split in SPLITS if split not in found):
            share = "" if split == "train" else f"raise {split}_share={getattr(shares, split):g}, "
            raise UserError(
                f"source.split_by: file: none of {sum(map(len, named.values()))} files goes to '{split}', for their "
                f"names alone decide; {share}name source.{split}, or set split_by: document"
            )

    def open(self, shares: Shares, workers: Workers) -> Corpus:
        """Return one shard per file, held-out files first, then by name."""
        shards = [
            Shard(str(path), self._candidates(label, name, shares), partial(self._documents, path))
            for label, files in self.named().items()
            for name, path in files.items()
        ]
        return Corpus(sorted(shards, key=lambda shard: ("train" in shard.splits, shard.splits)))

    def by_paragraph(self) -> "Files | None":
        """Return the same files with paragraphs as documents; nothing where they are not text divided by documents."""
        if self.documents != "file" or self.split_by != "document":
            return None
        formats = {self._format(path) for files in self.named().values() for path in files.values()}
        return self.model_copy(update={"documents": "paragraph"}) if "text" in formats else None

    def named(self) -> dict[str, dict[str, Path]]:
        """Return the files by label (paths, train, valid, test) and by name below their common folder, sorted.

        Raises UserError for a pattern that matches nothing, an empty file or a file in two splits.
        """
        found = {label: _found(label, patterns) for label in ("paths", *SPLITS) if (patterns := getattr(self, label))}
        owners: dict[Path, str] = {}
        for label, paths in found.items():
            for path in paths:
                if (owner := owners.setdefault(path.resolve(), label)) != label:
                    raise UserError(f"{path}: named by both source.{owner} and source.{label}; keep it in one")
        common = Path(os.path.commonpath([path.parent for paths in found.values() for path in paths]))
        return {label: {path.relative_to(common).as_posix(): path for path in paths} for label, paths in found.items()}

    def _candidates(self, label: str, name: str, shares: Shares) -> tuple[Split, ...]:
        if label in ("valid", "test"):
            return (label,)  # type: ignore[return-value]
        candidates = self.divided()
        if self.split_by == "file" or len(candidates) == 1:
            return (shares.split(digest(name), candidates),)
        return candidates

    def _format(self, path: Path) -> Format:
        return format_of(path) if self.format == "auto" else self.format

    def _documents(self, path: Path) -> Iterator[str]:
        format = self._format(path)
        if format == "parquet":
            return read_parquet(path, self.column)
        if format == "jsonl":
            return read_jsonl(path, self.encoding, self.column)
        return read_text(path, self.encoding, self.documents)


def _found(label: str, patterns: tuple[str, ...]) -> list[Path]:
    found = files_named(patterns, f"source.{label}")
    for path in found:
        if path.stat().st_size == 0:
            raise UserError(f"{path}: empty file")
    return found
