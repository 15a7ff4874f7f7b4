"""Prepare a parallel corpus: write token streams and a tokenizer.

For every pair, the stream of a split contains the tokens of the source sentence and the tokens of its translation, each
followed by the end-of-text token of the tokenizer, which occurs only there.
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
from formerlab.data.text.streams import stream_writer
from formerlab.data.text.tokenizer import BytePairs, TokenizerFile, write_tokenizer
from formerlab.errors import UserError
from formerlab.progress import Progress
from formerlab.spec import Count, Size, fingerprint

Fraction = Annotated[float, Field(gt=0, lt=0.5)]

Pairs = Annotated[Phrases | LinePairs | HubPairs, Field(discriminator="kind")]

EXTRA_TOKENS = 50
"""Maximum number of tokens by which a translation may exceed its source (arXiv:1706.03762, section 6.1)."""

BATCH = 4096
"""Number of pairs that are encoded together."""


class ParallelData(DataSpec):
    """Pairs of a sentence and its translation, tokenised with one joint vocabulary."""

    packages: ClassVar[tuple[str, ...]] = ("tokenizers", "numpy")

    kind: Literal["parallel"] = "parallel"
    source: Pairs = Phrases()
    """Source of the pairs."""
    tokenizer: BytePairs | TokenizerFile = Field(default=BytePairs(vocabulary=512), discriminator="kind")
    """Tokenizer of both languages; bpe is learned from the training pairs of both languages."""
    valid_share: Fraction = 0.025
    """Fraction of the pairs that become validation pairs if the source has no validation pairs."""
    test_share: Fraction = 0.025
    """Fraction of the pairs that become test pairs if the source has no test pairs."""
    max_pairs: Count | None = None
    """Maximum number of training pairs; null takes all pairs."""
    max_tokens: Size = 256
    """Maximum length of a sentence in tokens, including its end token. Longer training and validation pairs are left
    out and counted; a longer test pair is an error."""
    max_ratio: float | None = Field(default=None, gt=0.0, le=1e6)
    """Maximum number of tokens of the longer sentence of a pair, divided by the number of tokens of the shorter
    sentence. Training pairs with a larger ratio are left out and counted."""

    @property
    def vocabulary(self) -> int:
        """Vocabulary size of the models."""
        return self.tokenizer.vocabulary

    def run_defaults(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return vocabulary and context as defaults of the model."""
        return {"model": {"vocabulary": self.vocabulary, "context": self.max_tokens + EXTRA_TOKENS}}

    def write(self, out: Path) -> dict[str, Any]:
        """Write streams and tokenizer. Raises UserError for a wrong source or tokenizer, or an empty split."""
        for split in SPLITS:
            next(self.source.pairs(split, self.fractions), None)
        if isinstance(self.tokenizer, TokenizerFile):
            self.tokenizer.load()
        (out / MANIFEST).unlink(missing_ok=True)  # source and tokenizer are available
        tokenizer = write_tokenizer(self.tokenizer, out / "tokenizer.json", self._sample)
        written = {split: self._write_split(split, out, tokenizer) for split in reversed(SPLITS)}  # small splits first
        splits = {split: written[split][0] for split in SPLITS}
        notes = [note for split in SPLITS for note in (*self._limit_notes(split, splits[split]), *written[split][1])]
        files = [tokenizer["sha256"], *(entry["sha256"] for entry in splits.values())]
        return {"fingerprint": fingerprint(files), "tokenizer": tokenizer, "splits": splits, "notes": notes}

    def _sample(self, size: int) -> Iterator[str]:
        """Yield the first training sentences of both languages, up to about `size` bytes."""
        for pair in islice(self.source.pairs("train", self.fractions), self.max_pairs):
            yield from pair
            size -= sum(len(sentence.encode()) for sentence in pair)
            if size <= 0:
                return

    def _write_split(self, split: Split, out: Path, tokenizer: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Write the stream of a split; return its manifest entry and notes on characters without a token."""
        name = getattr(self.tokenizer, "path", "tokenizer")
        encode = Encoder(out / "tokenizer.json", tokenizer["end_of_text"], name)
        lost, characters = [0, 0], [0, 0]
        dropped = {"empty": 0, "too_long": 0, "ratio": 0}
        source = self.source.pairs(split, self.fractions)
        pairs = islice(source, self.max_pairs if split == "train" else None)
        path, sizes = out / f"{split}.npy", {"pairs": 0, "source_tokens": 0, "target_tokens": 0}
        with (
            stream_writer(path, self.vocabulary) as stream,
            Progress(None, f"tokenise {out.name} {split}", unit="pair", scale=True) as bar,
        ):
            while batch := tuple(islice(pairs, BATCH)):
                sentences = [sentence for pair in batch for sentence in pair]
                ids, unrepresented = encode(sentences)
                for side in (0, 1):
                    lost[side] += sum(unrepresented[side::2])
                    characters[side] += sum(map(len, sentences[side::2]))
                tokens, size = [], 0
                for pair, source_ids, target_ids in zip(batch, ids[0::2], ids[1::2], strict=True):
                    if (reason := self._left_out(split, pair, len(source_ids), len(target_ids))) is not None:
                        dropped[reason] += 1
                        continue
                    tokens += [source_ids, target_ids]
                    size += sum(len(sentence.encode()) for sentence in pair)
                    sizes["pairs"] += 1
                    sizes["source_tokens"] += len(source_ids)
                    sizes["target_tokens"] += len(target_ids)
                if tokens:
                    stream.append(np.concatenate(tokens), len(tokens), size)
                bar.advance(len(batch))
            if not sizes["pairs"]:
                raise UserError(f"no pair is left for '{split}' ({dropped} left out); add more text")
            languages = f"{split} {self.source.source}", f"{split} {self.source.target}"
            notes = [
                note for numbers in zip(languages, lost, characters, strict=True) for note in encode.notes(*numbers)
            ]
        limited = next(source, None) is not None
        return stream.entry(path) | sizes | {"dropped": dropped, "limited": limited}, notes

    def _left_out(self, split: Split, pair: Pair, *lengths: int) -> str | None:
        """Return the reason to leave out a pair whose sentences have these lengths in tokens, or None."""
        if not all(sentence.strip() for sentence in pair):
            return "empty"
        shorter, longer = sorted(lengths)
        if longer > self.max_tokens:
            if split == "test":
                raise UserError(f"a test pair has {longer} tokens ({pair[0][:40]!r}...); raise max_tokens")
            return "too_long"
        too_uneven = self.max_ratio is not None and longer > self.max_ratio * shorter
        return "ratio" if split == "train" and too_uneven else None

    def _limit_notes(self, split: Split, entry: dict[str, Any]) -> Iterator[str]:
        """Yield notes on the number of pairs that each limit leaves out of a split."""
        reasons = "with an empty sentence", f"by max_tokens={self.max_tokens}", f"by max_ratio={self.max_ratio}"
        for reason, count in zip(reasons, entry["dropped"].values(), strict=True):
            if count:
                yield f"{count} {split} pairs are left out {reason}"
        if entry["limited"]:
            yield f"max_pairs={self.max_pairs} leaves out further {split} pairs (max_pairs: null takes all)"
