"""Which data sets of a scale share a tokenizer."""

from collections.abc import Mapping

from formerlab.data import TextData, TokenizerFile, TokenizerOf
from formerlab.data.dataset import DataSpec
from formerlab.data.text.released_tokenizer import ReleasedTokenizer
from formerlab.errors import UserError, near_misses
from formerlab.released import ReleasedModel

DataSets = Mapping[str, DataSpec]


def with_vocabularies(data: DataSets, place: str, released: Mapping[str, ReleasedModel]) -> DataSets:
    """Return the data sets, each after the one whose tokenizer it takes and with the vocabulary of that one.

    One that takes the tokenizer of a released model has that model's place and vocabulary. Raises UserError where what
    gives the tokenizer does not exist, has another vocabulary, or takes its tokenizer from the first.
    """
    data = {name: _of_released(name, spec, released, place) for name, spec in data.items()}
    filled: dict[str, DataSpec] = {}
    for name in data:
        for borrower in reversed(_checked_chain(name, data, place)):
            filled.setdefault(borrower, _filled(borrower, data, filled, place))
    return filled


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


def _of_released(name: str, spec: DataSpec, released: Mapping[str, ReleasedModel], place: str) -> DataSpec:
    if not isinstance(spec, TextData) or not isinstance(spec.tokenizer, ReleasedTokenizer):
        return spec
    key, model = f"{place}: data.{name}.tokenizer", spec.tokenizer.model
    if model not in released:
        raise UserError(f"{key}.model: no released model {model!r} at this scale{near_misses(model, list(released))}")
    try:
        vocabulary = released[model].known_sizes().vocabulary
    except UserError as error:
        raise UserError(f"{place}: released.{model}: {error}; or state its sizes") from None
    if spec.tokenizer.vocabulary not in (None, vocabulary):
        stated = spec.tokenizer.vocabulary
        raise UserError(f"{key}.vocabulary: {stated}, but released model {model!r} has {vocabulary}; leave it out")
    filled = spec.tokenizer.model_copy(update={"vocabulary": vocabulary, "source": released[model]})
    return spec.model_copy(update={"tokenizer": filled})


def _checked_chain(name: str, data: DataSets, place: str) -> list[str]:
    names = [name]
    while (above := tokenizer_of(names[-1], data)) is not None:
        key = f"{place}: data.{names[-1]}.tokenizer.data"
        if above not in data:
            raise UserError(f"{key}: no data set {above!r} at this scale{near_misses(above, list(data))}")
        if above in names:
            raise UserError(f"{key}: {above!r} closes a cycle ({' -> '.join([*names, above])}); name another")
        names.append(above)
    return names


def _filled(name: str, data: DataSets, filled: DataSets, place: str) -> DataSpec:
    spec, above = data[name], tokenizer_of(name, data)
    if above is None or not isinstance(spec, TextData):
        return spec
    lender = filled[above]
    if not isinstance(lender, TextData):
        raise UserError(f"{place}: data.{name}.tokenizer.data: {above!r} is no text; name a corpus")
    vocabulary, stated = lender.vocabulary, spec.tokenizer.vocabulary
    if stated not in (None, vocabulary):
        key = f"{place}: data.{name}.tokenizer.vocabulary"
        raise UserError(f"{key}: {stated}, but data set {above!r} has {vocabulary}; leave it out")
    return spec.model_copy(update={"tokenizer": spec.tokenizer.model_copy(update={"vocabulary": vocabulary})})
