"""A corpus: its source, how text is divided, cut and tokenised, and its files."""

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from formerlab.data.dataset import DataSpec
from formerlab.data.manifest import MANIFEST, read_manifest
from formerlab.data.splitting import SPLITS, Split
from formerlab.data.text.documents import Corpus, Deduplicator, batches, training_sample, without_documents
from formerlab.data.text.embedded import Embedded
from formerlab.data.text.encoder import Encoder
from formerlab.data.text.files import Files, Hub
from formerlab.data.text.questions import FOLDER, write_questions
from formerlab.data.text.streams import load_tokenizer, writing
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
    """Where the text comes from."""
    tokenizer: Tokenizer = BytePairs()
    """What turns it into tokens."""
    valid_share: Fraction = 0.05
    """Share of the documents that become validation text, where the source does not say which."""
    test_share: Fraction = 0.05
    """Share of the documents that become test text, where the source does not say which."""
    max_bytes: Bytes | None = None
    """Training text ends with the document that reaches this size; None keeps all."""
    max_held_out_bytes: Bytes | None = 8_000_000
    """Validation and test text each end with the document that reaches this size; None keeps all."""
    questions: AnyCount = 0
    """At most so many multiple-choice questions for each embedded task, from the test documents; 0 makes none."""

    @model_validator(mode="after")
    def _questions_need_structure(self) -> "TextData":
        if self.questions and not (isinstance(self.source, Embedded) and self.source.content == "docstrings"):
            raise ValueError("questions are made from the docstrings of source 'embedded' only; set questions: 0")
        return self

    @property
    def vocabulary(self) -> int:
        """Number of tokens a model needs, known before anything is read."""
        if self.tokenizer.vocabulary is None:
            raise ValueError("the plan has not filled in tokenizer.vocabulary yet")
        return self.tokenizer.vocabulary

    def known(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the vocabulary, and the longest sequence that the task asks for."""
        context = {"context": task["context"]} if "context" in task else {}
        return {"model": {"vocabulary": self.vocabulary} | context}

    def write(self, out: Path) -> dict[str, Any]:
        """Write streams, tokenizer and questions; a tokenizer of another data set is read from the folder beside."""
        corpus, notes = self._opened()
        if isinstance(self.tokenizer, TokenizerOf):
            load_tokenizer(out.parent / self.tokenizer.data)
        elif not isinstance(self.tokenizer, BytePairs):
            self.tokenizer.load()
        # Not before it is clear that source and tokenizer are there. No old manifest may vouch for new files.
        (out / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(out / FOLDER, ignore_errors=True)
        questions = write_questions(list(corpus.test_modules), self.questions, out) if self.questions else []
        tokenizer = self._write_tokenizer(out, corpus)
        splits, deduplicator, losses = self._write_streams(out, corpus, tokenizer)
        notes += self.source.notes() + losses
        notes += [self._cut(split, splits[split]) for split in SPLITS if split in deduplicator.limited]
        files = [tokenizer["sha256"], *(entry["sha256"] for entry in (*splits.values(), *questions))]
        return {
            "fingerprint": fingerprint(files),
            "tokenizer": tokenizer,
            "splits": splits,
            "duplicates_removed": deduplicator.duplicates,
            "notes": notes,
            "questions": questions,
        }

    def lent(self, out: Path) -> dict[str, Any]:
        """Return the tokenizer of another data set. Raises UserError where it does not fit."""
        if not isinstance(self.tokenizer, TokenizerOf):
            return {}
        lender, spec = out.parent / self.tokenizer.data, self.tokenizer
        tokenizer: dict[str, Any] = read_manifest(lender)["tokenizer"]
        if (theirs := tokenizer["vocabulary"]) != spec.vocabulary:
            which = f"data set {spec.data!r} was prepared with {theirs} tokens"
            raise UserError(f"tokenizer.vocabulary={spec.vocabulary}: {which}; state the same")
        return {"tokenizer": tokenizer}

    def _opened(self) -> tuple[Corpus, list[str]]:
        """Open the source, whose documents must leave no split empty, and return it with notes for the manifest.

        Whole files that are too few to be divided are divided by their paragraphs.
        """
        corpus = self.source.open(self.shares)
        empty, documents, repeats = without_documents(corpus.shards, self)
        if not empty:
            return corpus, []
        if (finer := self.source.by_paragraph()) is not None:
            corpus = finer.open(self.shares)
            if not without_documents(corpus.shards, self)[0]:
                what = "1 document" if documents == 1 else f"{documents} documents"
                return corpus, [f"{what} cannot be divided into train, valid and test, so paragraphs are the documents"]
        raise self._no_documents(empty[0], documents, repeats)

    def _no_documents(self, split: str, documents: int, repeats: int) -> UserError:
        repeated = f"{repeats} more repeat them and are dropped; name more text" if repeats else ""
        if split == "train":
            return UserError(
                f"all {documents} documents are held out, none is left to train on: {repeated or 'name more text'}"
            )
        remedy = f"raise {split}_share={getattr(self, f'{split}_share'):g} or name source.{split}"
        remedy = f"{repeated}, {remedy}" if repeated else remedy
        return UserError(f"none of {documents} documents is left for '{split}': {remedy}")

    def _write_tokenizer(self, out: Path, corpus: Corpus) -> dict[str, Any]:
        spec, path = self.tokenizer, out / "tokenizer.json"
        if isinstance(spec, TokenizerOf):
            with replacing(path) as temporary:
                shutil.copyfile(out.parent / spec.data / path.name, temporary)
            lent: dict[str, Any] = self.lent(out)["tokenizer"]
            return lent
        return write_tokenizer(
            spec, path, lambda size: training_sample(corpus.shards, self, min(size, self.max_bytes or size))
        )

    def _write_streams(
        self, out: Path, corpus: Corpus, tokenizer: dict[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], Deduplicator, list[str]]:
        """Write the three streams; return their entries of the manifest, what was left out, and notes on lost text."""
        paths = {split: out / f"{split}.npy" for split in SPLITS}
        name = getattr(self.tokenizer, "path", "tokenizer")
        encode = Encoder(out / "tokenizer.json", tokenizer["end_of_text"], name)
        deduplicator, lost, characters = Deduplicator(self), dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)

        def encoded(batch: tuple[Split, list[str]]) -> tuple[Split, list[str], np.ndarray, int]:
            tokens, without = encode(batch[1])
            return *batch, np.concatenate(tokens), sum(without)

        with ExitStack() as stack:
            streams = {split: stack.enter_context(writing(paths[split], self.vocabulary)) for split in SPLITS}
            bar = stack.enter_context(Progress(None, f"tokenise {out.name}", unit="B", scale=True))
            for split, texts, tokens, without in in_threads(encoded, batches(deduplicator.documents(corpus.shards))):
                size = sum(len(text.encode()) for text in texts)
                streams[split].append(tokens, len(texts), size)
                lost[split] += without
                characters[split] += sum(map(len, texts))
                bar.advance(size)
            for split, stream in streams.items():
                if not stream.documents:
                    documents = sum(other.documents for other in streams.values())
                    raise self._no_documents(split, documents, deduplicator.duplicates)
            notes = [note for split in SPLITS for note in encode.notes(split, lost[split], characters[split])]
        return {split: stream.entry(paths[split]) for split, stream in streams.items()}, deduplicator, notes

    def _cut(self, split: str, entry: dict[str, Any]) -> str:
        key = "max_bytes" if split == "train" else "max_held_out_bytes"
        size = f"{entry['bytes']} bytes in {entry['documents']} document{'s' * (entry['documents'] != 1)}"
        limit = getattr(self, key)
        return f"{key}={limit} ends the {split} text at {size}; the rest is left out ({key}: null takes all)"
