"""What each run of a study is made of: one tree, from the general to the particular."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from formerlab.errors import UserError, near_misses
from formerlab.plan.layers import Tree, at, fields, fill, grid_points, laid, may_fit, named, pattern_of
from formerlab.plan.schema import StudyScale
from formerlab.plan.sources import RUN_KEYS, Sources
from formerlab.results.stages import MEASURED, TIMED

RELEASED = "released"
"""The key of a run that names a released model in place of training."""
PATTERNS: tuple[tuple[str, ...], ...] = tuple(
    ("measure", stage, key) for stage in (*MEASURED, *TIMED) for key in ("runs", "by_run")
)
"""Where studies and scales name runs by patterns."""


def run_trees(name: str, sources: Sources) -> dict[str, Tree]:
    """Return the tree of every run of a study, also of those that the scale leaves out.

    Raises UserError for patterns and overrides that match no run.
    """
    study, scale = sources.study_trees[name], sources.at_scale(name)
    common = [sources.scale_tree.part("defaults"), study.part("defaults"), scale.part("defaults")]
    found: dict[str, Tree] = {}
    for template in study.part("runs"):
        for run, own, exact in _instances(study.part("runs", template), scale.part("runs", template), template):
            if run in found:
                raise UserError(f"{study.file}: runs.{template}: gives a second run {run!r}; remove one")
            patterns = (pattern for pattern in scale.part("runs") if pattern != template and fnmatchcase(run, pattern))
            special = [own, *(scale.part("runs", pattern) for pattern in patterns), exact]
            found[run] = _run_tree(name, run, common, special, sources)
    _check_patterns(name, list(found), sources)
    return found


def _run_tree(study: str, run: str, common: list[Tree], special: list[Tree], sources: Sources) -> Tree:
    """Return what is said of all runs, then of this one, then what each override says of all and of this one."""
    subject, overrides = f"{study}.runs.{run}", [tree.part(study) for tree in sources.overrides]
    if laid(special, subject).get(RELEASED) is not None:  # what is said of all runs is said of training, but for data
        general = [tree.only({"data"}) for tree in (*common, *overrides)]
        return laid([*general, *special, *(tree.part("runs", run) for tree in overrides)], subject)
    over = [part for tree in overrides for part in (tree.only(RUN_KEYS), tree.part("runs", run))]
    return laid([*common, *special, *over], subject)


def chosen(name: str, trees: dict[str, Tree], sources: Sources) -> list[str]:
    """Return the runs that exist at this scale, the most wanted first."""
    only = [*sources.scale.studies.get(name, StudyScale()).only, *sorted(map(pattern_of, sources.added[name]))]
    fitting = {run: [n for n, pattern in enumerate(only) if fnmatchcase(run, pattern)] for run in trees}
    return sorted((run for run in trees if fitting[run]), key=lambda run: fitting[run][0])


def _instances(study: Tree, scale: Tree, template: str) -> Iterator[tuple[str, Tree, Tree]]:
    """Yield the runs that a template stands for, each with its two trees; a plain name stands for itself."""
    whole = laid([study, scale])
    grid, file = whole.get("grid"), whole.file_of("grid")
    try:
        names = fields(template)
    except ValueError as error:
        raise UserError(f"{file}: runs.{template}: {error}; write a field as {{name}}") from None
    if not names and grid is not None:
        raise UserError(f"{file}: runs.{template}.grid: got {grid!r}; put {{fields}} into the name of the run")
    points: list[dict[str, Any]] = [{}] if not names else [] if grid is None else grid_points(file, template, grid)
    for point in points:
        own, exact = (_filled(tree.without("grid"), template, point) if names else tree for tree in (study, scale))
        yield named(template, point), own, exact


def _filled(tree: Tree, template: str, point: dict[str, Any]) -> Tree:
    try:
        filled: Tree = fill(tree, point)
    except (LookupError, ValueError) as error:
        near = near_misses(str(error).strip("'"), list(point))
        raise UserError(f"{tree.file}: runs.{template}: no field {error} in the name of the run{near}") from None
    return filled


def _check_patterns(study: str, names: list[str], sources: Sources) -> None:
    """Refuse patterns that match no run of the study, and overrides of runs that it does not have."""
    known = [*names, *sources.study_trees[study].part("runs")]
    own, scale = sources.study_trees[study], sources.at_scale(study)
    asked = [(own, "", path) for path in PATTERNS]
    asked += [(scale, f"studies.{study}.", path) for path in (*PATTERNS, ("only",), ("runs",))]
    for tree, above, path in asked:
        given = at(tree, path)
        for pattern in given if isinstance(given, list | dict) else ():
            if isinstance(pattern, str) and not any(may_fit(name, pattern) for name in known):
                key = f"{above}{'.'.join(path)}"
                raise UserError(
                    f"{tree.file_of(*path)}: {key}: {pattern!r} matches no run{near_misses(pattern, known)}"
                )
    for tree in sources.overrides:
        for name in tree.part(study, "runs"):
            if name not in names:
                raise UserError(f"{tree.file}: {study}.runs.{name}: no such run{near_misses(name, names)}")
