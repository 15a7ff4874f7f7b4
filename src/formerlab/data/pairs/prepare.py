"""A parallel corpus, and the files that are written of it: token streams and tokenizer.

The stream of a split holds, for every pair, the tokens of the source sentence and those of its translation, each
followed by `<|endoftext|>`, which occurs nowhere else.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from formerlab.data.dataset import DataSpec
from formerlab.data.manifest import MANIFEST
from formerlab.data.pairs.sources import HubPairs, LinePairs, Pair, Phrases
from formerlab.data.splitting import SPLITS, Split
from formerlab.data.text.encoder import Encoder
from formerlab.data.text.streams import writing
from formerlab.data.text.tokenizer import BytePairs, TokenizerFile, write_tokenizer
from formerlab.errors import UserError
from formerlab.progress import Progress
from formerlab.spec import Count, Size, fingerprint

Fraction = Annotated[float, Field(gt=0, lt=0.5)]

Pairs = Annotated[Phrases | LinePairs | HubPairs, Field(discriminator="kind")]

ROOM = 50
"""Tokens by which a translation may be longer than its source (arXiv:1706.03762, section 6.1)."""

BATCH = 4096
"""Pairs that are encoded together."""


class ParallelData(DataSpec):
    """Pairs of a sentence and its translation, in tokens of one joint vocabulary."""

    packages: ClassVar[tuple[str, ...]] = ("tokenizers", "numpy")

    kind: Literal["parallel"] = "parallel"
    source: Pairs = Phrases()
    """Where the pairs come from."""
    tokenizer: BytePairs | TokenizerFile = Field(default=BytePairs(vocabulary=512), discriminator="kind")
    """What turns both languages into tokens; bpe is learned from the training pairs of both."""
    valid_share: Fraction = 0.025
    """Share of the pairs that become validation pairs, where the source does not say which."""
    test_share: Fraction = 0.025
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
        return {"model": {"vocabulary": self.vocabulary, "context": self.max_tokens + ROOM}}

    def write(self, out: Path) -> dict[str, Any]:
        """Write streams and tokenizer."""
        for split in SPLITS:
            next(self.source.pairs(split, self.shares), None)
        if isinstance(self.tokenizer, TokenizerFile):
            self.tokenizer.load()
        (out / MANIFEST).unlink(missing_ok=True)  # not before it is clear that source and tokenizer are there
        tokenizer = write_tokenizer(self.tokenizer, out / "tokenizer.json", self._sample)
        written = {split: self._write_split(split, out, tokenizer) for split in reversed(SPLITS)}  # small ones first
        splits = {split: written[split][0] for split in SPLITS}
        notes = [note for split in SPLITS for note in (*self._cuts(split, splits[split]), *written[split][1])]
        files = [tokenizer["sha256"], *(entry["sha256"] for entry in splits.values())]
        return {"fingerprint": fingerprint(files), "tokenizer": tokenizer, "splits": splits, "notes": notes}

    def _sample(self, size: int) -> Iterator[str]:
        """Yield training sentences of both languages from the beginning, up to `size` bytes."""
        for pair in islice(self.source.pairs("train", self.shares), self.max_pairs):
            yield from pair
            size -= sum(len(sentence.encode()) for sentence in pair)
            if size <= 0:
                return

    def _write_split(self, split: Split, out: Path, tokenizer: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Write the stream of a split; return its entry of the manifest, and notes on lost text."""
        name = getattr(self.tokenizer, "path", "tokenizer")
        encode = Encoder(out / "tokenizer.json", tokenizer["end_of_text"], name)
        lost, characters = [0, 0], [0, 0]
        dropped = {"empty": 0, "too_long": 0, "ratio": 0}
        source = self.source.pairs(split, self.shares)
        pairs = islice(source, self.max_pairs if split == "train" else None)
        path, sizes = out / f"{split}.npy", {"pairs": 0, "source_tokens": 0, "target_tokens": 0}
        with (
            writing(path, self.vocabulary) as stream,
            Progress(None, f"tokenise {out.name} {split}", unit="pair", scale=True) as bar,
        ):
            while some := tuple(islice(pairs, BATCH)):
                sentences = [sentence for pair in some for sentence in pair]
                ids, without = encode(sentences)
                for side in (0, 1):
                    lost[side] += sum(without[side::2])
                    characters[side] += sum(map(len, sentences[side::2]))
                taken, size = [], 0
                for pair, source_ids, target_ids in zip(some, ids[0::2], ids[1::2], strict=True):
                    if (reason := self._left_out(split, pair, len(source_ids), len(target_ids))) is not None:
                        dropped[reason] += 1
                        continue
                    taken += [source_ids, target_ids]
                    size += sum(len(sentence.encode()) for sentence in pair)
                    sizes["pairs"] += 1
                    sizes["source_tokens"] += len(source_ids)
                    sizes["target_tokens"] += len(target_ids)
                if taken:
                    stream.append(np.concatenate(taken), len(taken), size)
                bar.advance(len(some))
            if not sizes["pairs"]:
                raise UserError(f"no pair is left for '{split}' ({dropped} left out); name more text")
            languages = f"{split} {self.source.source}", f"{split} {self.source.target}"
            notes = [
                note for numbers in zip(languages, lost, characters, strict=True) for note in encode.notes(*numbers)
            ]
        limited = next(source, None) is not None
        return stream.entry(path) | sizes | {"dropped": dropped, "limited": limited}, notes

    def _left_out(self, split: Split, pair: Pair, *lengths: int) -> str | None:
        """Return the reason to leave out a pair of so many tokens, if there is one."""
        if not all(sentence.strip() for sentence in pair):
            return "empty"
        shorter, longer = sorted(lengths)
        if longer > self.max_tokens:
            if split == "test":  # to leave it out would flatter the test
                raise UserError(f"a test pair has {longer} tokens ({pair[0][:40]!r}...); raise max_tokens")
            return "too_long"
        too_uneven = self.max_ratio is not None and longer > self.max_ratio * shorter
        return "ratio" if split == "train" and too_uneven else None

    def _cuts(self, split: Split, entry: dict[str, Any]) -> Iterator[str]:
        """Return notes on what is left out of a split, and by which limit."""
        limits = "an empty side", f"max_tokens={self.max_tokens}", f"max_ratio={self.max_ratio}"
        for limit, count in zip(limits, entry["dropped"].values(), strict=True):
            if count:
                yield f"{limit} leaves out {count} {split} pairs"
        if entry["limited"]:
            yield f"max_pairs={self.max_pairs} ends the {split} pairs; the rest is left out (max_pairs: null takes all)"
