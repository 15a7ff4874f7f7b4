"""Tokenizers: byte-level BPE trained on the training text, a tokenizer file, that of another data set or of a released
model.
"""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from formerlab.data.text.released_tokenizer import ReleasedTokenizer, room_for
from formerlab.errors import UserError
from formerlab.file_search import expanded
from formerlab.files import replacing, sha256
from formerlab.spec import Bytes, Size, Spec

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HuggingFaceTokenizer

END_OF_TEXT = "<|endoftext|>"


class BytePairs(Spec):
    """Byte-level byte-pair encoding as in GPT-2 (Radford et al. 2019, section 2.2), trained on the training split.

    Token 0 is `<|endoftext|>`, tokens 1 to 256 are the bytes, the rest are merges.
    """

    kind: Literal["bpe"] = "bpe"
    vocabulary: Annotated[Size, Field(ge=257)] = 1024
    """Number of tokens, the end of a document and the 256 bytes included."""
    training_bytes: Bytes = 8_000_000
    """How much training text it is learned from, in bytes; taken evenly from up to 16 shards."""

    @property
    def end_of_text(self) -> str:
        """The token that ends a document."""
        return END_OF_TEXT

    def train(self, sample: Iterable[str]) -> "HuggingFaceTokenizer":
        """Learn the merges. Raises UserError where the text is too small for the vocabulary."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocabulary,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(sample, trainer)
        if (reached := tokenizer.get_vocab_size()) < self.vocabulary:
            raise UserError(
                f"tokenizer.vocabulary={self.vocabulary}: the training text yields only {reached} tokens; "
                "lower it, or give more text (training_bytes, max_bytes, source)"
            )
        return tokenizer


class TokenizerFile(Spec):
    """A `tokenizer.json` of the Hugging Face tokenizers library, such as GPT-2's or LLaMA's."""

    kind: Literal["file"] = "file"
    path: str
    """The file."""
    vocabulary: Size
    """Number of tokens a model makes room for; the file may have fewer (50 304 for GPT-2's 50 257), never more."""
    end_of_text: str = END_OF_TEXT
    """The token that ends a document."""

    @property
    def place(self) -> Path:
        """Where the file lies; `~` and `$NAME` are understood."""
        return expanded(self.path)

    def load(self) -> "HuggingFaceTokenizer":
        """Read the file and check it against the vocabulary. Raises UserError naming the file."""
        tokenizer = read_tokenizer(self.place)
        if (size := room_for(tokenizer)) > self.vocabulary:
            raise UserError(
                f"{self.path}: the tokenizer needs {size} tokens, more than tokenizer.vocabulary={self.vocabulary}: "
                f"its largest id is {size - 1}"
            )
        if tokenizer.token_to_id(self.end_of_text) is None:
            raise UserError(f"{self.path}: has no token '{self.end_of_text}'; set tokenizer.end_of_text")
        return tokenizer


class TokenizerOf(Spec):
    """The tokenizer of another data set of the same scale, so that a model can go on training on this one."""

    kind: Literal["of"] = "of"
    data: str
    """The other data set; it is prepared first."""
    vocabulary: Size | None = None
    """Number of tokens; the plan fills in what the other data set says, and refuses anything else."""


Tokenizer = Annotated[BytePairs | TokenizerFile | TokenizerOf | ReleasedTokenizer, Field(discriminator="kind")]


def write_tokenizer(
    spec: BytePairs | TokenizerFile | ReleasedTokenizer, path: Path, sample: Callable[[int], Iterable[str]]
) -> dict[str, Any]:
    """Write `tokenizer.json`, copied or learned from a sample of so many bytes; return what the manifest says of it."""
    end: int | None
    with replacing(path) as temporary:
        if isinstance(spec, ReleasedTokenizer):
            tokenizer, end = spec.load()
            tokenizer.save(str(temporary))
        elif isinstance(spec, TokenizerFile):
            end = spec.load().token_to_id(spec.end_of_text)
            shutil.copyfile(spec.place, temporary)
        else:
            tokenizer = spec.train(sample(spec.training_bytes))
            tokenizer.save(str(temporary))
            end = tokenizer.token_to_id(spec.end_of_text)
    return {"kind": spec.kind, "vocabulary": spec.vocabulary, "sha256": sha256(path), "end_of_text": end}


def read_tokenizer(path: Path) -> "HuggingFaceTokenizer":
    """Read a tokenizer file as documents are encoded: whole, unpadded, special tokens in the text being mere text."""
    from tokenizers import Tokenizer

    if not path.is_file():
        raise UserError(f"{path}: no such tokenizer file")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{path}: not a tokenizer.json ({error})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer
