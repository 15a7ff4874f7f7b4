"""The tokenizer of a released model, so that a text is read in the tokens that the model knows."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from formerlab.errors import UserError, reason
from formerlab.released import ReleasedModel, shown_place
from formerlab.spec import Size, Spec

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HuggingFaceTokenizer


class Loaded(NamedTuple):
    """A tokenizer, and the token that stands for no context and ends documents."""

    tokenizer: "HuggingFaceTokenizer"
    end_of_text: int
    """Id of the begin-of-text token where the tokenizer has one, else of the end-of-text token."""


class ReleasedTokenizer(Spec):
    """The tokenizer that a released model of the scale comes with."""

    kind: Literal["released"] = "released"
    model: str
    """The model, by its name below `released`."""
    vocabulary: Size | None = None
    """Number of tokens; the plan fills in what the model has."""
    source: ReleasedModel | None = None
    """Where the model lies; the plan fills it in."""

    def load(self) -> Loaded:
        """Read the tokenizer and check it against the vocabulary. Raises UserError in one line."""
        if self.source is None:
            raise ValueError("the plan has not filled in tokenizer.source yet")
        loaded = load_fast_tokenizer(self.source.arguments())
        if self.vocabulary is not None and (size := room_for(loaded.tokenizer)) > self.vocabulary:
            raise UserError(
                f"tokenizer of {self.model}: needs {size} tokens, more than the {self.vocabulary} that the model embeds"
            )
        return loaded


def room_for(tokenizer: "HuggingFaceTokenizer") -> int:
    """Return how many tokens a model must embed: one more than the largest id, since ids may have holes."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def load_fast_tokenizer(arguments: dict[str, Any]) -> Loaded:
    """Return the tokenizer of a model of transformers, given what its `from_pretrained` takes.

    Raises UserError where there is none, where it has no fast form, and where it names no token for an empty context.
    """
    from formerlab.torchvision_shim import ensure_torchvision_imports

    ensure_torchvision_imports()
    from transformers import AutoTokenizer

    name = shown_place(arguments)
    try:
        tokenizer = AutoTokenizer.from_pretrained(**arguments, trust_remote_code=False)
    except Exception as error:  # the library raises bare Exception for a damaged file
        raise UserError(f"{name}: no tokenizer of transformers ({reason(error)})") from None
    backend: HuggingFaceTokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"{name}: the tokenizer has no fast form; save it once as tokenizer.json")
    backend.no_truncation()
    backend.no_padding()
    end = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if end is None:
        raise UserError(f"{name}: the tokenizer names neither a bos_token nor an eos_token")
    return Loaded(backend, end)
