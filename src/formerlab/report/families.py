"""Which runs belong together: those of a name or a kind of part, and those whose specs differ in one key alone.

Names decide nothing in the latter, so a search is found at every scale, whatever its runs are called.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

_ASIDE = ("study", "name", "seed", "compile")
"""Keys of a spec that identify the run, and one that changes roundings alone."""

Spec = Mapping[str, Any]

SETTINGS = (
    *("small-batch", "long-context", "long", "books", "modern", "late", "no-decay", "equal-time"),
    *("searched", "whole", "shallow", "league"),
)
"""Beginnings of the names of runs that differ from the main ones of a study in more than size and kind."""
ROUND = "annealed-"
"""Prefix of runs of the third round of evidence, which `regime` tells from the others."""


def setting(run: str) -> str:
    """Return the setting of a run: one of SETTINGS or `main`."""
    return next((name for name in SETTINGS if run.removeprefix(ROUND).startswith(f"{name}-")), "main")


def is_of(run: str, spec: Spec, patterns: Sequence[str]) -> bool:
    """Say whether a run is of one of the patterns: globs of its name, or of keys of its model.

    `depth.kind=dwa depth.period=1` asks for both, so a run of one's own is found whatever it is called; runs named
    after another of SETTINGS are not of such a pattern.
    """
    return any(_fits(run, spec, pattern) for pattern in patterns)


def _fits(run: str, spec: Spec, pattern: str) -> bool:
    if "=" not in pattern:
        return fnmatchcase(run, pattern)
    for keys, _, wanted in (part.partition("=") for part in pattern.split()):
        value: Any = spec["model"]
        for key in keys.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if not fnmatchcase(str(value), wanted):
            return False
    return setting(run) == "main"


def regime(spec: Spec) -> str:
    """Return the data set of a run and how its learning rate ends, such as `novels, cosine to 0`.

    Losses compare where these are equal. Nothing is said of a run that was not trained here.
    """
    schedule = spec.get("schedule") or {}
    if not isinstance(kind := schedule.get("kind"), str):
        return ""
    ends = {"cosine": schedule.get("floor"), "onecycle": 1 / (schedule.get("end_division") or 1), "trapezoid": 0.0}
    last = ends.get(kind)
    return f"{spec.get('data')}, {kind}" + ("" if last is None else f" to {last:g}")


def families(specs: Sequence[Spec], varied: str) -> list[int]:
    """Return the number of the family of each spec: those of one family differ in the key `varied` alone.

    Families are numbered from 0 in the order of their first spec; -1 stands where no other spec has another value of
    the key. What a key that is a mapping (`model.depth`) says is one value.
    """
    rest, values = zip(*(_apart(spec, varied) for spec in specs), strict=True) if specs else ((), ())
    known = defaultdict(set)
    for common, value in zip(rest, values, strict=True):
        known[common].add(value)
    searched = [common for common, found in known.items() if len(found) > 1]
    return [searched.index(common) if common in searched else -1 for common in rest]


def _apart(spec: Spec, varied: str) -> tuple[str, str]:
    """Return, as text, a spec without the key and those aside, and the value of the key."""
    copy: dict[str, Any] = json.loads(json.dumps({key: value for key, value in spec.items() if key not in _ASIDE}))
    *outer, last = varied.split(".")
    place = copy
    for key in outer:
        place = place.get(key) or {}
    value = place.pop(last, None)
    return json.dumps(copy, sort_keys=True), json.dumps(value, sort_keys=True)
