"""Tokenizers: learned byte-level BPE, a file, or the tokenizer of another data set or a released model."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from formerlab.data.manifest import files_state
from formerlab.errors import UserError, reason
from formerlab.file_search import expanded
from formerlab.files import replacing, sha256
from formerlab.released import ReleasedModel, source_path
from formerlab.spec import Bytes, Size, Spec

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as HuggingFaceTokenizer

END_OF_TEXT = "<|endoftext|>"


TokenizerAndEnd = tuple["HuggingFaceTokenizer", int]
"""A tokenizer, and the id of the token at the start of a context and at the end of each document."""


class BytePairs(Spec):
    """Byte-level byte-pair encoding as in GPT-2 (Radford et al. 2019, section 2.2), trained on the training split.

    Token 0 is `<|endoftext|>`, tokens 1 to 256 are the bytes, and all further tokens are merges.
    """

    kind: Literal["bpe"] = "bpe"
    vocabulary: Annotated[Size, Field(ge=257)] = 1024
    """Number of tokens, including the end of a document and the 256 bytes."""
    training_bytes: Bytes = 8_000_000
    """Bytes of text from which the merges are learned (see `training_sample`)."""

    def train(self, sample: Iterable[str]) -> "HuggingFaceTokenizer":
        """Learn the merges. Raises UserError if the text is too small for the vocabulary."""
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
    """A `tokenizer.json` of the Hugging Face tokenizers library, for example of GPT-2 or LLaMA."""

    kind: Literal["file"] = "file"
    path: str
    """Path of the file; `~` and `$NAME` are expanded."""
    vocabulary: Size
    """Number of embeddings of a model, at least the number of tokens in the file (50 304 for GPT-2's 50 257)."""
    end_of_text: str = END_OF_TEXT
    """Token at the end of a document."""

    def state(self, cache: Path | None = None) -> str | None:
        """Return the SHA-256 of the file, or None if there is no such file."""
        path = expanded(self.path)
        return sha256(path) if path.is_file() else None

    def load(self) -> TokenizerAndEnd:
        """Read the file. Raises UserError with its name if its tokens do not fit the settings."""
        tokenizer = read_tokenizer(expanded(self.path))
        check_vocabulary(tokenizer, self.path, self.vocabulary)
        if (end := tokenizer.token_to_id(self.end_of_text)) is None:
            raise UserError(f"{self.path}: no token '{self.end_of_text}'; set tokenizer.end_of_text")
        return tokenizer, end


class TokenizerOf(Spec):
    """The tokenizer of another data set of the same scale, so that a model can be trained on both data sets."""

    kind: Literal["of"] = "of"
    data: str
    """Name of the other data set, which is prepared first."""
    vocabulary: Size | None = None
    """The plan sets it to the vocabulary size of the other data set; any other value is an error."""


class ReleasedTokenizer(Spec):
    """The tokenizer of a released model of the scale."""

    kind: Literal["released"] = "released"
    model: str
    """Name of the model below `released`."""
    vocabulary: Size | None = None
    """Vocabulary size; the plan sets it to the vocabulary size of the model."""
    source: ReleasedModel | None = None
    """Files of the model; the plan sets them."""

    def state(self, cache: Path | None = None) -> str | None:
        """Return a hash of the model's files without weights, or None if they are not available."""
        assert self.source is not None, "the plan fills in tokenizer.source"
        return files_state(self.source, cache and cache.with_name(f".{self.model}.json"), weights=False)

    def load(self) -> TokenizerAndEnd:
        """Read the tokenizer. Raises UserError if it cannot be used."""
        assert self.source is not None, "the plan fills in tokenizer.source"
        tokenizer, end = load_fast_tokenizer(self.source.arguments())
        check_vocabulary(tokenizer, f"tokenizer of {self.model}", self.vocabulary)
        return tokenizer, end


Tokenizer = Annotated[BytePairs | TokenizerFile | TokenizerOf | ReleasedTokenizer, Field(discriminator="kind")]


def write_tokenizer(
    spec: BytePairs | TokenizerFile | ReleasedTokenizer, path: Path, sample: Callable[[int], Iterable[str]]
) -> dict[str, Any]:
    """Write a copied or learned tokenizer to `path`; return its manifest entry.

    `sample` takes a size in bytes and returns training text of about this size.
    """
    with replacing(path) as temporary:
        if isinstance(spec, BytePairs):
            tokenizer, end = spec.train(sample(spec.training_bytes)), 0
        else:
            tokenizer, end = spec.load()
        if isinstance(spec, TokenizerFile):
            shutil.copyfile(expanded(spec.path), temporary)
        else:
            tokenizer.save(str(temporary))
    return {"kind": spec.kind, "vocabulary": spec.vocabulary, "sha256": sha256(path), "end_of_text": end}


def read_tokenizer(path: Path) -> "HuggingFaceTokenizer":
    """Read a tokenizer file, without truncation or padding; special tokens in a text are encoded as plain text.

    Raises UserError if the file is missing or damaged.
    """
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


def load_transformers_tokenizer(arguments: dict[str, Any]) -> Any:
    """Return the tokenizer of a transformers model. Raises UserError if `from_pretrained` fails with the arguments."""
    from formerlab.torchvision_shim import ensure_torchvision_imports

    ensure_torchvision_imports()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(**arguments, trust_remote_code=False)
    except Exception as error:  # the library raises bare Exception for a damaged file
        raise UserError(f"{source_path(arguments)}: no tokenizer of transformers ({reason(error)})") from None


def load_fast_tokenizer(arguments: dict[str, Any]) -> TokenizerAndEnd:
    """Return the fast tokenizer of a transformers model and its begin-of-text (otherwise end-of-text) token.

    `arguments` are the arguments of `from_pretrained`. Raises UserError if the model has no fast tokenizer or if both
    tokens are missing.
    """
    name, tokenizer = source_path(arguments), load_transformers_tokenizer(arguments)
    backend: HuggingFaceTokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"{name}: the tokenizer has no fast form; save it once as tokenizer.json")
    backend.no_truncation()
    backend.no_padding()
    end = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if end is None:
        raise UserError(f"{name}: the tokenizer has no bos_token and no eos_token")
    return backend, end


def check_vocabulary(tokenizer: "HuggingFaceTokenizer", name: str, vocabulary: int | None) -> None:
    """Raise UserError if the largest token id is not below `vocabulary`, the number of embeddings."""
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if vocabulary is not None and size > vocabulary:
        excess = f"more than tokenizer.vocabulary={vocabulary}: its largest id is {size - 1}"
        raise UserError(f"{name}: needs {size} tokens, {excess}")


def encode(tokenizer: "HuggingFaceTokenizer", texts: list[str], end: int) -> list[np.ndarray]:
    """Return the tokens of each text, followed by the token `end`."""
    return token_arrays(tokenizer.encode_batch_fast(texts, add_special_tokens=False), end)


def token_arrays(encodings: "Iterable[Encoding]", end: int) -> list[np.ndarray]:
    """Return the tokens of each encoded text, followed by the token `end`."""
    return [np.array([*encoding.ids, end], dtype=np.uint32) for encoding in encodings]
