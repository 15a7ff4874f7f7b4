"""Tokenise texts and count the characters that the tokenizer cannot represent."""

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from formerlab.data.text.tokenizer import encode, read_tokenizer, token_arrays
from formerlab.errors import UserError, reason

if TYPE_CHECKING:
    from tokenizers import Encoding


class Encoder:
    """Tokenises texts and counts the characters without a token. Several threads may share an encoder.

    A character has no token if the tokenizer drops it or one of its bytes, or replaces it by the unknown token. White
    space is not counted.
    """

    def __init__(self, path: Path, end: int, name: str = "tokenizer") -> None:
        """Read the tokenizer at `path`; `name` is its name in messages, and `end` is the token after each text."""
        from tokenizers.pre_tokenizers import ByteLevel

        self._tokenizer, self._end, self._name = read_tokenizer(path), end, name
        self._vocabulary = self._tokenizer.get_vocab()
        settings = json.loads(self._tokenizer.to_str())
        model, preprocessing = settings["model"], json.dumps([settings["normalizer"], settings["pre_tokenizer"]])
        self._byte_level = model["type"] == "BPE" and '"ByteLevel"' in preprocessing
        letters = {f"<0x{byte:02X}>" for byte in range(256)} if model.get("byte_fallback") else set[str]()
        letters |= set(ByteLevel.alphabet()) if self._byte_level else set()
        self._complete = bool(letters) and letters <= self._vocabulary.keys()
        unknown = model.get("unk_token")
        if model["type"] == "Unigram" and model["unk_id"] is not None:
            unknown = model["vocab"][model["unk_id"]][0]
        self._unknown: str | None = unknown if unknown in self._vocabulary else None

    def __call__(self, texts: list[str]) -> tuple[list[np.ndarray], list[int]]:
        """Return the tokens of each text with the end token, and its number of characters without a token.

        Raises UserError if the tokenizer cannot encode a character and has no unknown token.
        """
        try:
            if self._complete or self._byte_level:
                return encode(self._tokenizer, texts, self._end), list(map(self._without_bytes, texts))
            encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        except Exception as error:  # the library raises bare Exception
            remedy = "add the token to its vocabulary, or choose another tokenizer"
            raise UserError(f"{self._name}: {reason(error)}; {remedy}") from None
        return token_arrays(encodings, self._end), list(map(self._without_token, texts, encodings))

    def notes(self, text_name: str, lost: int, characters: int) -> list[str]:
        """Return a note that `lost` of `characters` characters have no token, or [] if `lost` is 0.

        Raises UserError if more than half have no token.
        """
        if not lost:
            return []
        effect = "are dropped" if self._unknown is None else f"become the unknown token {self._unknown!r}"
        fraction = f"{lost} of {characters} characters ({lost / characters:.2%})"
        note = f"{fraction} of the {text_name} text have no token and {effect}"
        if 2 * lost > characters:
            raise UserError(f"{self._name}: {note}; choose a tokenizer that was made for such text")
        return [note]

    @functools.lru_cache(maxsize=1 << 17)  # noqa: B019 an encoder lives as long as the preparation
    def _loses_byte_of(self, letter: str) -> bool:
        from tokenizers.pre_tokenizers import ByteLevel

        pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(letter)
        return not letter.isspace() and any(byte not in self._vocabulary for piece, _ in pieces for byte in piece)

    def _without_bytes(self, text: str) -> int:
        return 0 if self._complete else sum(text.count(letter) for letter in set(text) if self._loses_byte_of(letter))

    def _without_token(self, text: str, encoding: "Encoding") -> int:
        tokens, unknown = zip(encoding.ids, encoding.offsets, strict=True), self._vocabulary.get(self._unknown or "")
        starts, ends = np.array([span for token, span in tokens if token != unknown], int).reshape(-1, 2).T
        size = len(text) + 1
        depth = (np.bincount(starts, minlength=size) - np.bincount(ends, minlength=size)).cumsum()
        return sum(not text[index].isspace() for index in np.flatnonzero(depth[:-1] == 0))
