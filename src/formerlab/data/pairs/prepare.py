"""A parallel corpus, and the stage that makes it: token streams, tokenizer and, last, the manifest.

The stream of a split holds, for every pair, the tokens of the source sentence and those of its translation, each
followed by `<|endoftext|>`, which occurs nowhere else.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from formerlab.data.dataset import DataSpec
from formerlab.data.file_hashes import FILE_HASHES
from formerlab.data.manifest import prepared, streams_load
from formerlab.data.pairs.phrases import Phrases
from formerlab.data.pairs.sources import HubPairs, LinePairs, Pair
from formerlab.data.splitting import SPLITS, Split
from formerlab.data.text.encoding import Encoded, stream_type
from formerlab.data.text.streams import writing
from formerlab.data.text.tokenizer import BytePairs, TokenizerFile, read_tokenizer, write_tokenizer
from formerlab.errors import UserError
from formerlab.files import sha256
from formerlab.progress import Progress
from formerlab.spec import Count, Size, fingerprint

if TYPE_CHECKING:
    from tokenizers import Tokenizer


Share = Annotated[float, Field(gt=0, lt=0.5)]

Pairs = Annotated[Phrases | LinePairs | HubPairs, Field(discriminator="kind")]

ROOM = 50
"""Tokens by which a translation may be longer than its source (arXiv:1706.03762, section 6.1)."""


class ParallelData(DataSpec):
    """Pairs of a sentence and its translation, in tokens of one joint vocabulary."""

    kind: Literal["parallel"] = "parallel"
    source: Pairs = Phrases()
    """Where the pairs come from."""
    tokenizer: BytePairs | TokenizerFile = Field(default=BytePairs(vocabulary=512), discriminator="kind")
    """What turns both languages into tokens; bpe is learned from the training pairs of both."""
    valid_share: Share = 0.025
    """Share of the pairs that become validation pairs, where the source does not say which."""
    test_share: Share = 0.025
    """Share of the pairs that become test pairs, where the source does not say which."""
    max_pairs: Count | None = None
    """Training pairs at most; None keeps all."""
    max_tokens: Size = 256
    """Longest sentence of either language in tokens, its end included; longer training and validation pairs are left
    out and counted, a longer test pair is an error."""
    max_ratio: float | None = Field(default=None, gt=0.0, le=1e6)
    """Training pairs with more than this times as many tokens on one side as on the other are left out and counted."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens a model needs, known before anything is read."""
        return self.tokenizer.vocabulary

    def known(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the vocabulary, and room for the longest translation."""
        del task
        return {"model": {"vocabulary": self.vocabulary, "context": self.max_tokens + ROOM}}


BATCH = 4096
"""Pairs that are encoded together."""


def prepare(name: str, data: ParallelData, out: Path, *, code_hash: str = "", processes: int | None = None) -> None:
    """Write streams, tokenizer and manifest below `out`; do nothing where they are current.

    Raises UserError naming a file that is missing or whose lines do not correspond, a test pair that is too long, or a
    split without pairs.
    """
    del processes  # the tokenizers library has threads of its own
    write, current = partial(_written, data, out), lambda _: streams_load(out)
    packages, cache = ("tokenizers", "numpy"), out / FILE_HASHES
    prepared(name, data, out, code_hash, write, is_current=current, packages=packages, cache=cache)


def _written(data: ParallelData, out: Path) -> dict[str, Any]:
    """Write all files but the manifest; return what it says of them."""
    (out / "manifest.json").unlink(missing_ok=True)  # no old one vouches for new files
    tokenizer = write_tokenizer(data.tokenizer, out / "tokenizer.json", lambda size: _sample(data, size))
    written = {split: _write_split(split, data, out, tokenizer) for split in reversed(SPLITS)}  # the small ones first
    splits = {split: written[split] for split in SPLITS}
    notes = [note for split, entry in splits.items() for note in _cuts(split, data, entry)]
    files = [tokenizer["sha256"], *(entry["sha256"] for entry in splits.values())]
    return {"fingerprint": fingerprint(files), "tokenizer": tokenizer, "splits": splits, "notes": notes}


def _sample(data: ParallelData, size: int) -> Iterator[str]:
    """Yield training sentences of both languages from the beginning, up to `size` bytes."""
    for pair in islice(data.source.pairs("train", data.shares), data.max_pairs):
        for sentence in pair:
            yield sentence
            size -= len(sentence.encode())
        if size <= 0:
            return


def _write_split(split: Split, data: ParallelData, out: Path, tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Write the stream of a split; return what the manifest says of it."""
    encoder, end = read_tokenizer(out / "tokenizer.json"), tokenizer["end_of_text"]
    dropped: Counter[str] = Counter({"empty": 0, "too_long": 0, "ratio": 0})
    source = data.source.pairs(split, data.shares)
    pairs = islice(source, data.max_pairs if split == "train" else None)
    path, sizes = out / f"{split}.npy", {"pairs": 0, "source_tokens": 0, "target_tokens": 0}
    with (
        writing(path, stream_type(data.vocabulary)) as stream,
        Progress(None, f"tokenise {out.name} {split}", unit="pair", scale=True) as bar,
    ):
        while some := tuple(islice(pairs, BATCH)):
            kept = []
            for pair, ids in zip(some, _encoded(encoder, some, end), strict=True):
                if (reason := _reason(split, pair, ids, data)) is not None:
                    dropped[reason] += 1
                    continue
                kept += [*ids]
                sizes["pairs"] += 1
                sizes["source_tokens"] += len(ids[0])
                sizes["target_tokens"] += len(ids[1])
            if kept:
                written = sum(len(sentence.encode()) for pair in some for sentence in pair)
                stream.append(Encoded(np.concatenate(kept), len(kept), written))
            bar.advance(len(some))
        if not sizes["pairs"]:
            raise UserError(f"no pair is left for '{split}' ({dict(dropped)} left out); name more text")
    entry = {"file": path.name, "documents": stream.documents, "bytes": stream.bytes, "tokens": stream.tokens}
    limited = next(source, None) is not None
    return entry | {"sha256": sha256(path)} | sizes | {"dropped": dict(dropped), "limited": limited}


def _cuts(split: Split, data: ParallelData, entry: dict[str, Any]) -> Iterator[str]:
    """Say what is left out of a split, and by which limit."""
    limits = {
        "empty": "an empty side",
        "too_long": f"max_tokens={data.max_tokens}",
        "ratio": f"max_ratio={data.max_ratio}",
    }
    for reason, count in entry["dropped"].items():
        if count:
            yield f"{limits[reason]} leaves out {count} {split} pairs"
    if entry["limited"]:
        yield f"max_pairs={data.max_pairs} ends the {split} pairs; the rest is left out (max_pairs: null takes all)"


def _encoded(tokenizer: "Tokenizer", pairs: tuple[Pair, ...], end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    sentences = [sentence for pair in pairs for sentence in pair]
    ids = [np.array([*found.ids, end]) for found in tokenizer.encode_batch(sentences, add_special_tokens=False)]
    return zip(ids[0::2], ids[1::2], strict=True)


def _reason(split: Split, pair: Pair, ids: tuple[np.ndarray, np.ndarray], data: ParallelData) -> str | None:
    """Return why a pair is left out, if it is."""
    if not all(sentence.strip() for sentence in pair):
        return "empty"
    lengths = sorted(map(len, ids))
    if lengths[1] > data.max_tokens:
        if split == "test":  # to leave it out would flatter the test
            raise UserError(f"a test pair has {lengths[1]} tokens ({pair[0][:40]!r}...); raise max_tokens")
        return "too_long"
    too_uneven = data.max_ratio is not None and lengths[1] > data.max_ratio * lengths[0]
    return "ratio" if split == "train" and too_uneven else None
