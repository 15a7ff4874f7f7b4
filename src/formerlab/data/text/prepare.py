"""A corpus: where the text comes from, how it is divided, cut and tokenised, and the stage that does so."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from formerlab.data.dataset import DataSpec
from formerlab.data.file_hashes import FILE_HASHES
from formerlab.data.manifest import prepared, streams_load
from formerlab.data.splitting import SPLITS, Split
from formerlab.data.text.deduplicator import Deduplicator, batches, training_sample, without_documents
from formerlab.data.text.embedded import Embedded
from formerlab.data.text.encoding import Encoding, encode, stream_type
from formerlab.data.text.files import Files
from formerlab.data.text.hub import Hub
from formerlab.data.text.questions import FOLDER, write_questions
from formerlab.data.text.released_tokenizer import ReleasedTokenizer
from formerlab.data.text.source import Corpus
from formerlab.data.text.streams import Stream, load_tokenizer, read_manifest, writing
from formerlab.data.text.tokenizer import BytePairs, Tokenizer, TokenizerFile, TokenizerOf, write_tokenizer
from formerlab.data.workers import Workers
from formerlab.errors import UserError
from formerlab.files import replacing, sha256
from formerlab.progress import Progress
from formerlab.spec import AnyCount, Bytes, fingerprint

Source = Annotated[Embedded | Files | Hub, Field(discriminator="kind")]

Share = Annotated[float, Field(gt=0, lt=0.5)]


class TextData(DataSpec):
    """A corpus as token streams for training, validation and test."""

    kind: Literal["text"] = "text"
    source: Source = Embedded()
    """Where the text comes from."""
    tokenizer: Tokenizer = BytePairs()
    """What turns it into tokens."""
    valid_share: Share = 0.05
    """Share of the documents that become validation text, where the source does not say which."""
    test_share: Share = 0.05
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

    def search(self) -> None:
        """Raise UserError for named files that are not there, and for splits that their names alone leave empty."""
        self.source.check_division(self.shares)

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


def prepare(name: str, data: TextData, out: Path, *, code_hash: str = "", processes: int | None = None) -> None:
    """Write streams, tokenizer, questions and manifest of a corpus below `out`; do nothing where they are current.

    A tokenizer of another data set is read from the folder of that name beside `out`. `processes` defaults to one per
    core available; the result does not depend on it. Raises UserError naming the file, column or setting that is wrong;
    what is half written is removed. Where the source is gone, data prepared before with the same settings stay valid.
    """
    write, current = partial(_written, name, data, out, processes), partial(_is_current, out, data)
    packages, cache = ("tokenizers", "regex", "numpy"), out / FILE_HASHES
    prepared(name, data, out, code_hash, write, is_current=current, packages=packages, cache=cache)


def _written(name: str, data: TextData, out: Path, processes: int | None) -> dict[str, Any]:
    """Write all files but the manifest; return what it says of them."""
    with Workers(processes) as workers:
        corpus, notes = _opened(name, data, workers)
        if isinstance(data.tokenizer, TokenizerFile | ReleasedTokenizer):
            data.tokenizer.load()
        if isinstance(data.tokenizer, TokenizerOf):
            load_tokenizer(out.parent / data.tokenizer.data)
        _clear(out)  # not before it is clear that source and tokenizer are there
        questions = write_questions(list(corpus.test_modules), data.questions, out) if data.questions else []
        tokenizer = _write_tokenizer(data, out, corpus)
        splits, deduplicator = _write_streams(data, out, corpus, tokenizer, workers)
    notes += [_cut(split, data, splits[split]) for split in SPLITS if split in deduplicator.limited]
    files = [tokenizer["sha256"], *(entry["sha256"] for entry in (*splits.values(), *questions))]
    return {
        "fingerprint": fingerprint(files),
        "tokenizer": tokenizer,
        "splits": splits,
        "duplicates_removed": deduplicator.duplicates,
        "notes": notes,
        "questions": questions,
    }


def _opened(name: str, data: TextData, workers: Workers) -> tuple[Corpus, list[str]]:
    """Open the source, whose documents must leave no split empty, and return it with what is to be said of it.

    Whole files that are too few to be divided are divided by their paragraphs.
    """
    try:
        data.search()
    except UserError as error:
        raise UserError(f"data: {name}: {error}") from None
    corpus = data.source.open(data.shares, workers)
    empty, documents = without_documents(corpus.shards, data)
    if not empty:
        return corpus, []
    if (finer := data.source.by_paragraph()) is not None:
        corpus = finer.open(data.shares, workers)
        if not without_documents(corpus.shards, data)[0]:
            what = "1 document" if documents == 1 else f"{documents} documents"
            return corpus, [f"{what} cannot be divided into train, valid and test, so paragraphs are the documents"]
    raise UserError(f"data: {name}: {_no_documents(empty[0], data, documents)}")


def _cut(split: Split, data: TextData, entry: dict[str, Any]) -> str:
    key = "max_bytes" if split == "train" else "max_held_out_bytes"
    size = f"{entry['bytes']} bytes in {entry['documents']} document{'s' * (entry['documents'] != 1)}"
    return f"{key}={getattr(data, key)} ends the {split} text at {size}; the rest is left out ({key}: null takes all)"


def _is_current(out: Path, data: TextData, manifest: dict[str, Any]) -> bool:
    if isinstance(data.tokenizer, TokenizerOf) and manifest["tokenizer"] != _borrowed(data.tokenizer, out):
        return False
    return streams_load(out) and all((out / entry["file"]).is_file() for entry in manifest["questions"])


def _clear(out: Path) -> None:
    """Remove the manifest, so that no old one vouches for new files, and what a killed process left."""
    (out / "manifest.json").unlink(missing_ok=True)
    for left in out.glob(".*.tmp"):
        left.unlink()
    shutil.rmtree(out / FOLDER, ignore_errors=True)


def _write_tokenizer(data: TextData, out: Path, corpus: Corpus) -> dict[str, Any]:
    spec, path = data.tokenizer, out / "tokenizer.json"
    if isinstance(spec, TokenizerOf):
        with replacing(path) as temporary:
            shutil.copyfile(out.parent / spec.data / path.name, temporary)
        return _borrowed(spec, out)

    def sample(size: int) -> Iterator[str]:
        return training_sample(corpus.shards, data, min(size, data.max_bytes or size))

    return write_tokenizer(spec, path, sample)


def _borrowed(spec: TokenizerOf, out: Path) -> dict[str, Any]:
    """Return what the manifest of the other data set says of its tokenizer. Raises UserError where it does not fit."""
    borrowed: dict[str, Any] = read_manifest(out.parent / spec.data)["tokenizer"]
    if borrowed["vocabulary"] != spec.vocabulary:
        raise UserError(
            f"tokenizer.vocabulary={spec.vocabulary}: data set {spec.data!r} was prepared with "
            f"{borrowed['vocabulary']} tokens; state the same"
        )
    return borrowed


def _write_streams(
    data: TextData, out: Path, corpus: Corpus, tokenizer: dict[str, Any], workers: Workers
) -> tuple[dict[str, dict[str, Any]], Deduplicator]:
    """Write the three streams; return what the manifest says of them, and what was met on the way."""
    dtype = stream_type(data.vocabulary)
    encoding = Encoding(out / "tokenizer.json", tokenizer["sha256"], tokenizer["end_of_text"], dtype)
    deduplicator = Deduplicator(data)
    with ExitStack() as stack:
        streams = {split: stack.enter_context(writing(out / f"{split}.npy", dtype)) for split in SPLITS}
        bar = stack.enter_context(Progress(None, f"tokenise {out.name}", unit="B", scale=True))
        documents = deduplicator.documents(corpus.shards)
        tasks = ((split, encoding, texts) for split, texts in batches(documents))
        for split, encoded in workers.map(encode, tasks):
            streams[split].append(encoded)
            bar.advance(encoded.bytes, shard=f"{deduplicator.shards_begun}/{len(corpus.shards)}")
        for split, stream in streams.items():
            if not stream.documents:
                raise UserError(_no_documents(split, data, sum(other.documents for other in streams.values())))
    return {split: _entry(out / f"{split}.npy", stream) for split, stream in streams.items()}, deduplicator


def _entry(path: Path, stream: Stream) -> dict[str, Any]:
    sizes = {"documents": stream.documents, "bytes": stream.bytes, "tokens": stream.tokens}
    return {"file": path.name, **sizes, "sha256": sha256(path)}


def _no_documents(split: Split, data: TextData, documents: int) -> str:
    if split == "train":
        return "no document is left for training: all are held out or repeat held-out ones; name more text"
    share = getattr(data, f"{split}_share")
    return f"none of {documents} documents is left for '{split}': raise {split}_share={share:g} or name source.{split}"
