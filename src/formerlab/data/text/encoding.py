"""Text to token numbers, fast: every different word is encoded once.

Byte-level BPE cuts a text into words with a fixed pattern and then encodes each word for itself, so the tokens of a
word never depend on its neighbours and can be kept in a table. That is three times as fast as having the library
merge every word anew, with the same result.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import regex  # type: ignore[import-untyped]

from formerlab.data.splitting import Split
from formerlab.data.text.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WORD = regex.compile(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
"""GPT-2's pattern, which the library's `ByteLevel` pre-tokenizer applies."""

TABLE_WORDS = 1 << 18
TABLE_CHARACTERS = 100
"""Longer words hardly recur."""


class Encoding(NamedTuple):
    """How documents become tokens."""

    tokenizer: Path
    sha256: str
    end_of_text: int
    dtype: str


class Encoded(NamedTuple):
    """Documents as one array of token numbers, each document ended."""

    tokens: np.ndarray
    documents: int
    bytes: int


class Words(dict[str, bytes]):
    """A word's tokens as bytes of the stream; a word not met before is encoded when asked for."""

    def __init__(self, tokenizer: "Tokenizer", dtype: str) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._dtype = dtype

    def __missing__(self, word: str) -> bytes:
        tokens = np.array(self._tokenizer.encode(word, add_special_tokens=False).ids, self._dtype).tobytes()
        if len(word) <= TABLE_CHARACTERS:
            if len(self) >= TABLE_WORDS:
                self.clear()
            self[word] = tokens
        return tokens


class Encoder:
    """Encodes documents; use one per process."""

    def __init__(self, tokenizer: "Tokenizer", end_of_text: int, dtype: str) -> None:
        self._tokenizer = tokenizer
        self._end = np.array([end_of_text], dtype).tobytes()
        self._dtype = dtype
        self._words = Words(tokenizer, dtype) if is_plain_byte_level(tokenizer) else None

    def __call__(self, texts: list[str]) -> Encoded:
        """Return the tokens of the texts, each followed by the end of text."""
        pieces: list[bytes] = []
        if self._words is not None:
            for text in texts:
                pieces.extend(map(self._words.__getitem__, WORD.findall(text)))
                pieces.append(self._end)
        else:
            for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False):
                pieces += (np.array(encoding.ids, self._dtype).tobytes(), self._end)
        tokens = np.frombuffer(b"".join(pieces), self._dtype)
        return Encoded(tokens, len(texts), sum(len(text.encode()) for text in texts))


def is_plain_byte_level(tokenizer: "Tokenizer") -> bool:
    """Whether the tokenizer does what GPT-2's does: cut into words by the pattern, then merge bytes word by word."""
    description = json.loads(tokenizer.to_str())
    cut, model = description["pre_tokenizer"] or {}, description["model"]
    return (
        description["normalizer"] is None
        and (cut.get("type"), cut.get("add_prefix_space"), cut.get("use_regex")) == ("ByteLevel", False, True)
        and model["type"] == "BPE"
        and not (model["dropout"] or model["continuing_subword_prefix"] or model["end_of_word_suffix"])
        and all(token["special"] for token in description["added_tokens"])
    )


def stream_type(vocabulary: int) -> str:
    """Return the smaller of `uint16` and `uint32` that holds every token number."""
    return "uint16" if vocabulary <= 1 << 16 else "uint32"


def encode(task: tuple[Split, Encoding, list[str]]) -> tuple[Split, Encoded]:
    """Encode documents of a split in whichever process this is called."""
    split, encoding, texts = task
    return split, _encoder(encoding)(texts)


@lru_cache(maxsize=1)
def _encoder(encoding: Encoding) -> Encoder:
    return Encoder(read_tokenizer(encoding.tokenizer), encoding.end_of_text, encoding.dtype)
