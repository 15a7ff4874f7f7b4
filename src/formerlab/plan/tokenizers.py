"""Which data sets of a scale share a tokenizer."""

from collections.abc import Mapping

from formerlab.data import TextData, TokenizerFile, TokenizerOf
from formerlab.data.dataset import DataSpec
from formerlab.data.text.tokenizer import ReleasedTokenizer
from formerlab.errors import UserError, near_misses
from formerlab.released import ReleasedModel, Sizes

DataSets = Mapping[str, DataSpec]


def with_vocabularies(data: DataSets, file: str, released: Mapping[str, ReleasedModel]) -> DataSets:
    """Return the data sets, each after the one whose tokenizer it takes and with the vocabulary of that one.

    One that takes the tokenizer of a released model has that model's files and vocabulary. Raises UserError where what
    gives the tokenizer does not exist, has another vocabulary, or takes its tokenizer from the first.
    """
    filled: dict[str, DataSpec] = {}

    def fill(name: str, borrowers: tuple[str, ...]) -> DataSpec:
        spec, key = data[name], f"{file}: data.{name}.tokenizer"
        if name in filled or not isinstance(spec, TextData):
            return filled.setdefault(name, spec)
        tokenizer, more = spec.tokenizer, dict[str, object]()
        if isinstance(tokenizer, ReleasedTokenizer):
            if (owner := tokenizer.model) not in released:
                near = near_misses(owner, list(released))
                raise UserError(f"{key}.model: no released model {owner!r} at this scale{near}")
            more = {"vocabulary": sizes_of(owner, released[owner], file).vocabulary, "source": released[owner]}
        elif isinstance(tokenizer, TokenizerOf):
            lender = fill(_lender(tokenizer.data, data, borrowers, key), (*borrowers, tokenizer.data))
            more = {"vocabulary": getattr(lender, "vocabulary", None)}
        if more and tokenizer.vocabulary not in (None, more["vocabulary"]):
            stated = f"{tokenizer.vocabulary}, but the tokenizer has {more['vocabulary']}"
            raise UserError(f"{key}.vocabulary: {stated}; leave it out")
        return filled.setdefault(
            name, spec.model_copy(update={"tokenizer": tokenizer.model_copy(update=more)}) if more else spec
        )

    for name in data:
        fill(name, (name,))
    return filled


def _lender(name: str, data: DataSets, borrowers: tuple[str, ...], key: str) -> str:
    texts = [other for other, spec in data.items() if isinstance(spec, TextData)]
    if name not in texts:
        raise UserError(f"{key}.data: no data set {name!r} of text at this scale{near_misses(name, texts)}")
    if name in borrowers:
        circle = " -> ".join([*borrowers, name])
        raise UserError(f"{key}.data: {name!r} closes a cycle ({circle}); name another")
    return name


def sizes_of(model: str, source: ReleasedModel, file: str) -> Sizes:
    """Return the sizes of a released model; where they cannot be seen, the configuration has to state them."""
    try:
        return source.known_sizes()
    except UserError as error:
        raise UserError(f"{file}: released.{model}: {error}; or state its sizes") from None


def chain(name: str, data: DataSets) -> list[str]:
    """Return the data set, the one whose tokenizer it takes, and so on."""
    tokenizer = getattr(data[name], "tokenizer", None)
    return [name, *(chain(tokenizer.data, data) if isinstance(tokenizer, TokenizerOf) else ())]


def same_tokenizer(one: str, other: str, data: DataSets) -> bool:
    """Say whether two data sets have the same tokenizer; learned on different text, two are never the same."""
    first, second = (chain(name, data)[-1] for name in (one, other))
    given = getattr(data[first], "tokenizer", None)
    fixed = isinstance(given, TokenizerFile | ReleasedTokenizer)
    return first == second or (fixed and given == getattr(data[second], "tokenizer", None))
