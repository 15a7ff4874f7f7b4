"""Which data sets of a scale share a tokenizer."""

from collections.abc import Mapping

from formerlab.data import TextData, TokenizerFile, TokenizerOf
from formerlab.data.dataset import DataSpec
from formerlab.data.text.released_tokenizer import ReleasedTokenizer
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
            pass
        elif isinstance(spec.tokenizer, ReleasedTokenizer):
            spec = _with_that_of_a_model(spec, spec.tokenizer.model, released, key, file)
        elif (above := _lender(name, data, borrowers, key)) is not None:
            lender = fill(above, (*borrowers, above))
            if not isinstance(lender, TextData):
                raise UserError(f"{key}.data: {above!r} is no text; name a corpus")
            spec = _with_tokenizer(spec, key, f"data set {above!r}", vocabulary=lender.vocabulary)
        return filled.setdefault(name, spec)

    for name in data:
        fill(name, (name,))
    return filled


def _lender(name: str, data: DataSets, borrowers: tuple[str, ...], key: str) -> str | None:
    above = tokenizer_of(name, data)
    if above is not None and above not in data:
        raise UserError(f"{key}.data: no data set {above!r} at this scale{near_misses(above, list(data))}")
    if above in borrowers:
        circle = " -> ".join([*borrowers, str(above)])
        raise UserError(f"{key}.data: {above!r} closes a cycle ({circle}); name another")
    return above


def _with_that_of_a_model(
    spec: TextData, model: str, released: Mapping[str, ReleasedModel], key: str, file: str
) -> TextData:
    if model not in released:
        raise UserError(f"{key}.model: no released model {model!r} at this scale{near_misses(model, list(released))}")
    vocabulary = sizes_of(model, released[model], file).vocabulary
    return _with_tokenizer(spec, key, f"released model {model!r}", vocabulary=vocabulary, source=released[model])


def _with_tokenizer(spec: TextData, key: str, owner: str, *, vocabulary: int, **more: object) -> TextData:
    stated = spec.tokenizer.vocabulary
    if stated not in (None, vocabulary):
        raise UserError(f"{key}.vocabulary: {stated}, but {owner} has {vocabulary}; leave it out")
    tokenizer = spec.tokenizer.model_copy(update={"vocabulary": vocabulary, **more})
    return spec.model_copy(update={"tokenizer": tokenizer})


def sizes_of(model: str, source: ReleasedModel, file: str) -> Sizes:
    """Return the sizes of a released model; where they cannot be seen, the configuration has to state them."""
    try:
        return source.known_sizes()
    except UserError as error:
        raise UserError(f"{file}: released.{model}: {error}; or state its sizes") from None


def tokenizer_of(name: str, data: DataSets) -> str | None:
    """Return the data set whose tokenizer this one takes, if it takes one."""
    spec = data[name]
    return spec.tokenizer.data if isinstance(spec, TextData) and isinstance(spec.tokenizer, TokenizerOf) else None


def chain(name: str, data: DataSets) -> list[str]:
    """Return the data set, the one whose tokenizer it takes, and so on."""
    above = tokenizer_of(name, data)
    return [name] if above is None else [name, *chain(above, data)]


def same_tokenizer(one: str, other: str, data: DataSets) -> bool:
    """Say whether two data sets have the same tokenizer; learned on different text, two are never the same."""
    first, second = (chain(name, data)[-1] for name in (one, other))
    specs = [data[name] for name in (first, second)]
    named = [spec.tokenizer for spec in specs if isinstance(spec, TextData)]
    fixed = [tokenizer for tokenizer in named if isinstance(tokenizer, TokenizerFile | ReleasedTokenizer)]
    return first == second or (len(fixed) == 2 and fixed[0] == fixed[1])
