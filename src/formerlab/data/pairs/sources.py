"""Sources of sentence pairs: files of lines, the Hugging Face hub, or phrases formatted with Unicode's CLDR."""

import datetime
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from formerlab.data.dataset import DataSource
from formerlab.data.hub import HubSource
from formerlab.data.manifest import file_hashes
from formerlab.data.splitting import SPLITS, Split, SplitFractions, digest
from formerlab.data.text.readers import open_text, text_of
from formerlab.errors import UserError
from formerlab.file_search import expanded

Pair = tuple[str, str]
"""A sentence and its translation."""


class PairSource(DataSource, ABC):
    """A source of pairs of a sentence and its translation."""

    @abstractmethod
    def read(self, split: Split) -> Iterator[Pair]:
        """Yield the pairs of a split that the source names, in a fixed order."""

    def pairs(self, split: Split, fractions: SplitFractions) -> Iterator[Pair]:
        """Yield the pairs of a split; a hash of the source sentence takes a missing split from `train`."""
        if split not in self.hashed_splits():
            return self.read(split)
        return (pair for pair in self.read("train") if fractions.split(digest(pair[0]), self.hashed_splits()) == split)


TwoFiles = tuple[str, str]
"""Paths of the source and the target language."""


class LinePairs(PairSource):
    """Two UTF-8 text files per split, one sentence per line, optionally compressed (.gz .bz2 .xz .zst)."""

    outside_recipe: ClassVar[set[str]] = {"train", "valid", "test", "licence"}

    kind: Literal["files"] = "files"
    source: str
    """Name of the language to translate from, for example de."""
    target: str
    """Name of the language to translate into."""
    train: TwoFiles
    """Source and target file of the training pairs."""
    valid: TwoFiles | None = None
    """Source and target file of the validation pairs; null takes pairs from `train` by a hash."""
    test: TwoFiles | None = None
    """Source and target file of the test pairs; null takes pairs from `train` by a hash."""
    licence: str = "not stated"
    """The licence of the text, for the manifest."""

    @model_validator(mode="after")
    def _check_distinct(self) -> "LinePairs":
        files = self._files()
        for path in files:
            if files.count(path) > 1:
                raise ValueError(f"{path} is listed twice; list every file once")
        return self

    def contents(self, cache: Path | None = None) -> dict[str, list[str]]:
        for path in self._files():
            if not path.is_file():
                raise UserError(f"no file at '{path}' (working directory {Path.cwd()})")
        hashes = file_hashes(self._files(), cache)
        return {split: [hashes[path] for path in self._files(split)] for split in SPLITS}

    def read(self, split: Split) -> Iterator[Pair]:
        return read_pairs(*self._files(split))

    def _files(self, *splits: Split) -> list[Path]:
        return [expanded(name) for split in splits or SPLITS for name in getattr(self, split) or ()]


def read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yield the pairs of lines of two files. Raises UserError if the numbers of lines differ."""
    for number, (left, right) in enumerate(zip_longest(_lines(source), _lines(target))):
        if left is None or right is None:
            longer, shorter = (target, source) if left is None else (source, target)
            raise UserError(f"{shorter}: ends after line {number}, but {longer} has more; the lines must correspond")
        yield left, right


def _lines(path: Path) -> Iterator[str]:
    # Unicode line separators may occur inside sentences, so only a line feed ends a line.
    with open_text(path, newline="\n") as file:
        yield from (line.rstrip("\r\n") for line in file)


class HubPairs(HubSource, PairSource):
    """A translation data set of the hub whose rows map languages to sentences, for example wmt/wmt14."""

    kind: Literal["hub"] = "hub"
    source: str
    """Language to translate from."""
    target: str
    """Language to translate into."""
    valid: str | None = "validation"
    """Validation split of the data set; null takes pairs from `train` by a hash."""
    test: str | None = "test"
    """Test split of the data set; null takes pairs from `train` by a hash."""
    column: str = "translation"
    """Column of the pairs."""

    def read(self, split: Split) -> Iterator[Pair]:
        for number, pair in enumerate(self.values(getattr(self, split), self.column), 1):
            where = f"hub {self.name}, row {number}"
            if not isinstance(pair, dict) or not pair.keys() >= {self.source, self.target}:
                problem = f"{where}: no {self.column}.{self.source} and {self.column}.{self.target}"
                raise UserError(f"{problem}; set source.column, source.source or source.target")
            yield text_of(pair[self.source], where, self.source), text_of(pair[self.target], where, self.target)


CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF", "SEK")
UNITS = (
    *("length-kilometer", "mass-kilogram", "duration-day", "duration-hour", "volume-liter", "temperature-celsius"),
    *("area-square-meter", "speed-kilometer-per-hour", "duration-year", "length-meter"),
)
FIRST_DAY, DAYS = datetime.date(1900, 1, 1), 73049
"""The days from 1900 to 2099."""
MAX_SAMPLES = 20
"""Maximum number of samples per requested phrase."""


class Phrases(PairSource):
    """Dates, times, amounts of money and measures in two languages, as localised by Unicode's CLDR.

    Every source phrase occurs once.
    """

    kind: Literal["embedded"] = "embedded"
    source: str = "en"
    """Locale to translate from, a name of CLDR."""
    target: str = "de"
    """Locale to translate into."""
    count: int = Field(default=12000, gt=0, le=200000)
    """Number of distinct pairs in all splits together."""

    @field_validator("source", "target")
    @classmethod
    def _check_locale(cls, value: str) -> str:
        from babel.localedata import exists

        if not exists(value):
            raise ValueError(f"{value!r} is not a locale of CLDR; for example en, de, fr, pt_BR")
        return value

    def versions(self) -> dict[str, str]:
        return {"Babel": metadata.version("Babel")}

    def licence_notice(self) -> str:
        return f"Unicode CLDR (Unicode License v3) as shipped with Babel {self.versions()['Babel']} (BSD-3-Clause)"

    def read(self, split: Split) -> Iterator[Pair]:
        return iter(_all_pairs(self))


@functools.lru_cache(maxsize=1)
def _all_pairs(spec: Phrases) -> tuple[Pair, ...]:
    """Return the pairs of all splits."""
    random, translations = np.random.Generator(np.random.Philox(key=1706)), dict[str, str]()
    plain = str.maketrans("\u202f\xa0", "  ")  # narrow and ordinary no-break spaces
    for _ in range(MAX_SAMPLES * spec.count):
        phrase = _phrase(random)
        source = phrase(spec.source).translate(plain)
        if source not in translations:
            translations[source] = phrase(spec.target).translate(plain)
        if len(translations) == spec.count:
            return tuple(translations.items())
    raise UserError(
        f"source.count={spec.count}: only {len(translations)} distinct phrases of {spec.source!r}; lower it"
    )


def _phrase(random: np.random.Generator) -> Callable[[str], str]:
    """Sample a date, time, amount of money or measure; return a function that formats it in a given locale."""
    from babel.dates import format_date, format_time
    from babel.numbers import format_currency
    from babel.units import format_unit

    def sample(end: int, start: int = 0) -> int:
        return int(random.integers(start, end))

    form = sample(4)
    if form == 0:
        style, day = ("full", "long")[sample(2)], FIRST_DAY + datetime.timedelta(days=sample(DAYS))
        return lambda locale: format_date(day, style, locale)
    if form == 1:
        day, moment = FIRST_DAY + datetime.timedelta(days=sample(DAYS)), datetime.time(sample(24), sample(60))
        return lambda locale: f"{format_time(moment, 'short', locale=locale)}, {format_date(day, 'long', locale)}"
    if form == 2:
        value, currency = sample(10000, 1), CURRENCIES[sample(len(CURRENCIES))]
        return lambda locale: format_currency(value, currency, locale=locale, format_type="name")
    value, unit = sample(10000, 1), UNITS[sample(len(UNITS))]
    return lambda locale: format_unit(value, unit, "long", locale=locale)
