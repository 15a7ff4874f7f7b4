"""Group runs by name, by settings of the model, by regime (data set and schedule), or by specs that differ in one key.

The last grouping recognises a hyperparameter search whatever the names of its runs.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

_IGNORED = ("study", "name", "seed", "compile")
"""Keys of a spec that comparisons ignore: three keys identify the run, and `compile` changes only rounding."""

Spec = Mapping[str, Any]

SETTING_PREFIXES = (
    *("small-batch", "long-context", "long", "books", "modern", "late", "no-decay", "equal-time"),
    *("searched", "whole", "shallow", "league"),
)
"""Name prefixes of runs that differ from the main runs of a study in more than size and kind of layer."""
ANNEALED_PREFIX = "annealed-"
"""Name prefix of runs whose schedules end at zero; `regime` distinguishes them from the others."""


def run_setting(run: str) -> str:
    """Return the setting of a run: an element of `SETTING_PREFIXES`, or `main`."""
    return next((name for name in SETTING_PREFIXES if run.removeprefix(ANNEALED_PREFIX).startswith(f"{name}-")), "main")


def matches(run: str, spec: Spec, patterns: Sequence[str]) -> bool:
    """Return whether a run matches one of the patterns: a glob for its name, or `key=glob` conditions on its model.

    `depth.kind=dwa depth.period=1` matches every run whose model meets both conditions, whatever its name. Patterns
    with conditions match only runs whose setting is `main`.
    """
    return any(_matches_pattern(run, spec, pattern) for pattern in patterns)


def _matches_pattern(run: str, spec: Spec, pattern: str) -> bool:
    if "=" not in pattern:
        return fnmatchcase(run, pattern)
    for keys, _, glob in (condition.partition("=") for condition in pattern.split()):
        value: Any = spec["model"]
        for key in keys.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if not fnmatchcase(str(value), glob):
            return False
    return run_setting(run) == "main"


def regime(spec: Spec) -> str:
    """Return the data set and the learning rate schedule of a run, such as `novels, cosine to 0`.

    Losses are comparable within a regime. The result is "" for a run that was not trained here.
    """
    schedule = spec.get("schedule") or {}
    if not isinstance(kind := schedule.get("kind"), str):
        return ""
    end = {"cosine": schedule.get("floor"), "onecycle": 1 / (schedule.get("end_division") or 1)}.get(kind)
    return f"{spec.get('data')}, {kind}" + ("" if end is None else f" to {end:g}")


def families(specs: Sequence[Spec], varied: str) -> list[int]:
    """Return the family number of each spec. Specs of one family differ only in the key `varied`.

    Families are numbered from 0 in the order of their first spec. A spec gets -1 if no other spec differs from it in
    the key `varied` alone. A key that is a mapping (`model.depth`) is compared as one value.
    """
    pairs = [_split_key(spec, varied) for spec in specs]
    values_by_common = defaultdict(set)
    for common, value in pairs:
        values_by_common[common].add(value)
    searched = [common for common, values in values_by_common.items() if len(values) > 1]
    return [searched.index(common) if common in searched else -1 for common, _ in pairs]


def _split_key(spec: Spec, varied: str) -> tuple[str, str]:
    """Return a spec without the key `varied` and the ignored keys, and the value of `varied`, both as JSON."""
    copy: dict[str, Any] = json.loads(json.dumps({key: value for key, value in spec.items() if key not in _IGNORED}))
    *outer, last = varied.split(".")
    section = copy
    for key in outer:
        section = section.get(key) or {}
    value = section.pop(last, None)
    return json.dumps(copy, sort_keys=True), json.dumps(value, sort_keys=True)
