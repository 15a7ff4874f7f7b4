"""Prepare a corpus: split, limit and tokenise the text of a source."""

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from formerlab.data.dataset import DataSpec
from formerlab.data.manifest import MANIFEST, read_manifest
from formerlab.data.splitting import SPLITS, Split
from formerlab.data.text.documents import Corpus, Deduplicator, batches, empty_splits, training_sample
from formerlab.data.text.embedded import Embedded
from formerlab.data.text.encoder import Encoder
from formerlab.data.text.files import Files, Hub
from formerlab.data.text.questions import FOLDER, write_questions
from formerlab.data.text.streams import load_tokenizer, stream_writer
from formerlab.data.text.tokenizer import BytePairs, Tokenizer, TokenizerOf, write_tokenizer
from formerlab.data.threads import in_threads
from formerlab.errors import UserError
from formerlab.files import replacing
from formerlab.progress import Progress
from formerlab.spec import AnyCount, Bytes, fingerprint

Source = Annotated[Embedded | Files | Hub, Field(discriminator="kind")]

Fraction = Annotated[float, Field(gt=0, lt=0.5)]


class TextData(DataSpec):
    """A corpus as token streams for training, validation and test."""

    packages: ClassVar[tuple[str, ...]] = ("tokenizers", "numpy")

    kind: Literal["text"] = "text"
    source: Source = Embedded()
    """Source of the text."""
    tokenizer: Tokenizer = BytePairs()
    """Tokenizer of the text."""
    valid_share: Fraction = 0.05
    """Fraction of the documents that become validation text if the source has no validation text."""
    test_share: Fraction = 0.05
    """Fraction of the documents that become test text if the source has no test text."""
    max_bytes: Bytes | None = None
    """Training text ends with the document that reaches this size; null takes all text."""
    max_held_out_bytes: Bytes | None = 8_000_000
    """Validation and test text each end with the document that reaches this size; null takes all text."""
    questions: AnyCount = 0
    """Maximum number of multiple-choice questions per task, made from the test documents; 0 makes no questions."""

    @model_validator(mode="after")
    def _questions_need_structure(self) -> "TextData":
        if self.questions and not (isinstance(self.source, Embedded) and self.source.content == "docstrings"):
            raise ValueError("questions are made from the docstrings of source 'embedded' only; set questions: 0")
        return self

    @property
    def vocabulary(self) -> int:
        """Vocabulary size of the models. Raises ValueError if the plan has not set it."""
        if self.tokenizer.vocabulary is None:
            raise ValueError("the plan has not set tokenizer.vocabulary")
        return self.tokenizer.vocabulary

    def run_defaults(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the vocabulary and the context length of the task as defaults of the model."""
        context = {"context": task["context"]} if "context" in task else {}
        return {"model": {"vocabulary": self.vocabulary} | context}

    def write(self, out: Path) -> dict[str, Any]:
        """Write streams, tokenizer and questions; the folder of a borrowed tokenizer is next to `out`."""
        corpus, notes = self._open_source()
        if isinstance(self.tokenizer, TokenizerOf):
            load_tokenizer(out.parent / self.tokenizer.data)
        elif not isinstance(self.tokenizer, BytePairs):
            self.tokenizer.load()
        # Source and tokenizer are available. The old manifest must not describe new files.
        (out / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(out / FOLDER, ignore_errors=True)
        questions = write_questions(list(corpus.test_modules), self.questions, out) if self.questions else []
        tokenizer = self._write_tokenizer(out, corpus)
        splits, deduplicator, losses = self._write_streams(out, corpus, tokenizer)
        notes += losses
        notes += [self._limit_note(split, splits[split]) for split in SPLITS if split in deduplicator.limited]
        files = [tokenizer["sha256"], *(entry["sha256"] for entry in (*splits.values(), *questions))]
        return {
            "fingerprint": fingerprint(files),
            "tokenizer": tokenizer,
            "splits": splits,
            "duplicates_removed": deduplicator.duplicates,
            "notes": notes,
            "questions": questions,
        }

    def borrowed_entries(self, out: Path) -> dict[str, Any]:
        """Return the tokenizer entry of the owner's manifest. Raises UserError if the vocabulary sizes differ."""
        if not isinstance(self.tokenizer, TokenizerOf):
            return {}
        owner, spec = out.parent / self.tokenizer.data, self.tokenizer
        tokenizer: dict[str, Any] = read_manifest(owner)["tokenizer"]
        if (vocabulary := tokenizer["vocabulary"]) != spec.vocabulary:
            problem = f"data set {spec.data!r} was prepared with {vocabulary} tokens"
            raise UserError(f"tokenizer.vocabulary={spec.vocabulary}: {problem}; set the same number")
        return {"tokenizer": tokenizer}

    def _open_source(self) -> tuple[Corpus, list[str]]:
        """Open the source; return it with notes for the manifest. Raises UserError if a split is empty.

        If there are too few files for three splits, paragraphs are the documents.
        """
        corpus = self.source.open(self.fractions)
        empty, documents, repeats = empty_splits(corpus.shards, self)
        if not empty:
            return corpus, []
        if (finer := self.source.by_paragraph()) is not None:
            corpus = finer.open(self.fractions)
            if not empty_splits(corpus.shards, self)[0]:
                count = "1 document" if documents == 1 else f"{documents} documents"
                note = f"{count} cannot be divided into train, valid and test, so paragraphs are the documents"
                return corpus, [note]
        raise self._no_documents(empty[0], documents, repeats)

    def _no_documents(self, split: str, documents: int, repeats: int) -> UserError:
        dropped = f" (dropped duplicates: {repeats})" if repeats else ""
        if split == "train":
            problem = f"all {documents} documents are held out, and no document is left for training{dropped}"
            return UserError(f"{problem}: add more text")
        remedy = f"raise {split}_share (now {getattr(self, f'{split}_share'):g})"
        remedy += f" or set source.{split}" if hasattr(self.source, split) else ""
        remedy = f"add more text, {remedy}" if repeats else remedy
        return UserError(f"{documents} documents leave the split '{split}' empty{dropped}: {remedy}")

    def _write_tokenizer(self, out: Path, corpus: Corpus) -> dict[str, Any]:
        spec, path = self.tokenizer, out / "tokenizer.json"
        if isinstance(spec, TokenizerOf):
            with replacing(path) as temporary:
                shutil.copyfile(out.parent / spec.data / path.name, temporary)
            entry: dict[str, Any] = self.borrowed_entries(out)["tokenizer"]
            return entry
        return write_tokenizer(
            spec, path, lambda size: training_sample(corpus.shards, self, min(size, self.max_bytes or size))
        )

    def _write_streams(
        self, out: Path, corpus: Corpus, tokenizer: dict[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], Deduplicator, list[str]]:
        """Write the streams; return their manifest entries, the deduplicator, and notes on lost characters."""
        paths = {split: out / f"{split}.npy" for split in SPLITS}
        name = getattr(self.tokenizer, "path", "tokenizer")
        encode = Encoder(out / "tokenizer.json", tokenizer["end_of_text"], name)
        deduplicator, lost, characters = Deduplicator(self), dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)

        def encode_batch(batch: tuple[Split, list[str]]) -> tuple[Split, list[str], np.ndarray, int]:
            tokens, unrepresented = encode(batch[1])
            return *batch, np.concatenate(tokens), sum(unrepresented)

        with ExitStack() as stack:
            streams = {split: stack.enter_context(stream_writer(paths[split], self.vocabulary)) for split in SPLITS}
            bar = stack.enter_context(Progress(None, f"tokenise {out.name}", unit="B", scale=True))
            documents = batches(deduplicator.documents(corpus.shards))
            for split, texts, tokens, unrepresented in in_threads(encode_batch, documents):
                size = sum(len(text.encode()) for text in texts)
                streams[split].append(tokens, len(texts), size)
                lost[split] += unrepresented
                characters[split] += sum(map(len, texts))
                bar.advance(size)
            for split, stream in streams.items():
                if not stream.documents:
                    count = sum(written.documents for written in streams.values())
                    raise self._no_documents(split, count, deduplicator.duplicates)
            notes = [note for split in SPLITS for note in encode.notes(split, lost[split], characters[split])]
        return {split: stream.entry(paths[split]) for split, stream in streams.items()}, deduplicator, notes

    def _limit_note(self, split: str, entry: dict[str, Any]) -> str:
        key = "max_bytes" if split == "train" else "max_held_out_bytes"
        size = f"{entry['bytes']} bytes in {entry['documents']} document{'s' * (entry['documents'] != 1)}"
        limit = getattr(self, key)
        return f"{key}={limit} ends the {split} text at {size}; further text is left out ({key}: null takes all)"
