"""Embedded pairs: dates, times, amounts and measures, written out by Unicode's CLDR in two languages."""

import datetime
import functools
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from formerlab.data.pairs.sources import Pair, PairSource
from formerlab.data.splitting import Split
from formerlab.errors import UserError

CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF", "SEK")
UNITS = (
    *("length-kilometer", "mass-kilogram", "duration-day", "duration-hour", "volume-liter", "temperature-celsius"),
    *("area-square-meter", "speed-kilometer-per-hour", "duration-year", "length-meter"),
)
FIRST_DAY, DAYS = datetime.date(1900, 1, 1), 73049
"""1900 to 2099."""
TRIES = 20
"""Phrases drawn for each one wanted before the languages are said to have too few."""


class Phrases(PairSource):
    """Dates, times, amounts of money and measures in two languages: real localisation with one right answer each.

    A phrase of the source language has exactly one translation; all are distinct, drawn with a fixed seed.
    """

    kind: Literal["embedded"] = "embedded"
    source: str = "en"
    """Locale to translate from, as CLDR names it."""
    target: str = "de"
    """Locale to translate into."""
    count: int = Field(default=12000, gt=0, le=200000)
    """Distinct pairs, over all splits."""

    @field_validator("source", "target")
    @classmethod
    def _known(cls, value: str) -> str:
        from babel.localedata import exists

        if not exists(value):
            raise ValueError(f"{value!r} is no locale of CLDR; for example en, de, fr, pt_BR")
        return value

    def versions(self) -> dict[str, str]:
        return {"Babel": metadata.version("Babel")}

    def licence_notice(self) -> str:
        return f"Unicode CLDR (Unicode License v3) as shipped with Babel {self.versions()['Babel']} (BSD-3-Clause)"

    def read(self, split: Split) -> Iterator[Pair]:
        return iter(_written_out(self))


@functools.lru_cache(maxsize=1)
def _written_out(spec: Phrases) -> tuple[Pair, ...]:
    """Return all pairs; writing them takes seconds, so that is done once for all splits."""
    random, found = np.random.Generator(np.random.Philox(key=1706)), dict[str, str]()
    plain = str.maketrans("\u202f\xa0", "  ")  # of narrow and no-break spaces
    for _ in range(TRIES * spec.count):
        phrase = _phrase(random)
        source = phrase(spec.source).translate(plain)
        if source not in found:
            found[source] = phrase(spec.target).translate(plain)
        if len(found) == spec.count:
            return tuple(found.items())
    raise UserError(f"source.count={spec.count}: only {len(found)} distinct phrases of {spec.source!r}; lower it")


def _phrase(random: np.random.Generator) -> Callable[[str], str]:
    """Draw a date, a date with a time, an amount of money or a measure; return what writes it out in a locale."""
    from babel.dates import format_date, format_time
    from babel.numbers import format_currency
    from babel.units import format_unit

    def draw(end: int, start: int = 0) -> int:
        return int(random.integers(start, end))

    form = draw(4)
    if form == 0:
        style, day = ("full", "long")[draw(2)], FIRST_DAY + datetime.timedelta(days=draw(DAYS))
        return lambda locale: format_date(day, style, locale)
    if form == 1:
        day, moment = FIRST_DAY + datetime.timedelta(days=draw(DAYS)), datetime.time(draw(24), draw(60))
        return lambda locale: f"{format_time(moment, 'short', locale=locale)}, {format_date(day, 'long', locale)}"
    if form == 2:
        value, currency = draw(10000, 1), CURRENCIES[draw(len(CURRENCIES))]
        return lambda locale: format_currency(value, currency, locale=locale, format_type="name")
    value, unit = draw(10000, 1), UNITS[draw(len(UNITS))]
    return lambda locale: format_unit(value, unit, "long", locale=locale)
