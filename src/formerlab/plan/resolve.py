"""Resolve the spec of every run from study, scale and overrides."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from formerlab.data import TextData
from formerlab.data.text.tokenizer import ReleasedTokenizer
from formerlab.errors import UserError, near_misses
from formerlab.evaluation.timing.speed import EqualTime, Speed
from formerlab.growth.stage import continued_spec, grown_spec
from formerlab.plan.measure import timing_keys
from formerlab.plan.merging import (
    Tree,
    fill,
    fill_template,
    grid_points,
    may_match,
    merge,
    merge_all,
    parse,
    pattern_of,
    template_fields,
    value_at,
)
from formerlab.plan.schema import ExecutionKeys, Scale, StudyScale
from formerlab.plan.sources import RUN_KEYS, Sources, same_tokenizer, sizes_of, study_file
from formerlab.results.stages import MEASURED, TIMED
from formerlab.training.any_run import ReleasedRun
from formerlab.training.run import Run

RELEASED = "released"
"""Key of a run that evaluates a released model instead of training a model; the value is the name of the model."""
PATTERNS: tuple[tuple[str, ...], ...] = tuple(
    ("measure", stage, key) for stage in (*MEASURED, *TIMED) for key in ("runs", "by_run")
)
"""Paths of the keys of studies and scales that contain patterns of run names."""


@functools.cache
def run_trees(name: str, sources: Sources) -> Mapping[str, Tree]:
    """Return the tree of every run of a study by name, including runs outside the scale's key `only`."""
    study, scale = sources.study_trees[name], sources.scale_settings(name)
    defaults = [sources.scale_tree.subtree("defaults"), study.subtree("defaults"), scale.subtree("defaults")]
    trees: dict[str, Tree] = {}
    for template in study.subtree("runs"):
        templates = study.subtree("runs", template), scale.subtree("runs", template)
        for run, study_keys, scale_keys in _instances(*templates, template):
            if run in trees:
                raise UserError(f"{study.file}: runs.{template}: run {run!r} is defined twice; remove one")
            patterns = (
                name for name in scale.subtree("runs") if name not in (template, run) and fnmatchcase(run, name)
            )
            run_keys = [study_keys, *(scale.subtree("runs", pattern) for pattern in patterns), scale_keys]
            if run != template:  # keys under the run's own name override the keys of its template
                run_keys.append(scale.subtree("runs", run))
            subject, overrides = f"{name}.runs.{run}", [tree.subtree(name) for tree in sources.overrides]
            if merge_all(run_keys, subject).get(RELEASED) is None:
                run_overrides = [
                    keys for tree in overrides for keys in (tree.select(RUN_KEYS), tree.subtree("runs", run))
                ]
                trees[run] = merge_all([*defaults, *run_keys, *run_overrides], subject)
            else:  # a released run uses only `data` of the common keys; the others configure training
                general = [tree.select({"data"}) for tree in (*defaults, *overrides)]
                run_overrides = [tree.subtree("runs", run) for tree in overrides]
                trees[run] = merge_all([*general, *run_keys, *run_overrides], subject)
    _check_patterns(name, list(trees), sources)
    return trees


def _instances(study: Tree, scale: Tree, template: str) -> Iterator[tuple[str, Tree, Tree]]:
    """Yield (run name, tree of the study, tree of the scale) for the runs of a template or a name without fields."""
    merged = merge_all([study, scale])
    grid, file = merged.get("grid"), merged.file_of("grid")
    try:
        names = template_fields(template)
    except ValueError as error:
        raise UserError(f"{file}: runs.{template}: {error}; write a field as {{name}}") from None
    if not names and grid is not None:
        raise UserError(f"{file}: runs.{template}.grid: got {grid!r}; put {{fields}} into the name of the run")
    points: list[dict[str, Any]] = [{}] if not names else [] if grid is None else grid_points(file, template, grid)
    for point in points:
        try:
            study_keys, scale_keys = (fill(tree.drop("grid"), point) if names else tree for tree in (study, scale))
        except (LookupError, ValueError) as error:
            near = near_misses(str(error).strip("'"), list(point))
            key = f"{merged.files_of()}: runs.{template}"
            raise UserError(f"{key}: no field {error} in the name of the run{near}") from None
        yield fill_template(template, point), study_keys, scale_keys


def _check_patterns(study: str, names: list[str], sources: Sources) -> None:
    """Raise UserError for a pattern that matches no run of the study, or for overrides of a missing run."""
    study_tree, scale = sources.study_trees[study], sources.scale_settings(study)
    templates = [*names, *study_tree.subtree("runs")]
    checked = [(study_tree, "", path) for path in PATTERNS]
    checked += [(scale, f"studies.{study}.", path) for path in (*PATTERNS, ("only",), ("given",), ("runs",))]
    for tree, prefix, path in checked:
        patterns = value_at(tree, path)
        for pattern in patterns if isinstance(patterns, list | dict) else ():
            if isinstance(pattern, str) and not any(may_match(name, pattern) for name in templates):
                key = f"{tree.file_of(*path)}: {prefix}{'.'.join(path)}"
                raise UserError(f"{key}: {pattern!r} matches no run{near_misses(pattern, templates)}")
    only = sources.scale.studies.get(study, StudyScale()).only
    if only and not any(fnmatchcase(name, pattern) for pattern in only for name in names):
        key = f"{scale.file_of('only')}: studies.{study}.only"
        raise UserError(f"{key}: {only[0]!r} matches no run at this scale{near_misses(only[0], names)}")
    for tree in sources.overrides:
        for name in tree.subtree(study, "runs"):
            if name not in names:
                raise UserError(f"{tree.file}: {study}.runs.{name}: no such run{near_misses(name, names)}")


def _runs_at_scale(name: str, sources: Sources, *, released: bool) -> dict[str, Tree]:
    """Return the trees of the trained or released runs at this scale, in the order of the key `only`."""
    trees = {run: tree for run, tree in run_trees(name, sources).items() if (tree.get(RELEASED) is None) != released}
    only = [*sources.scale.studies.get(name, StudyScale()).only, *sorted(map(pattern_of, sources.added[name]))]
    return {run: tree for pattern in only for run, tree in trees.items() if fnmatchcase(run, pattern)}


def resolve_study(name: str, sources: Sources) -> list[Run]:
    """Return a study's trained runs per seed, in the order of `only`, parents first. Raises UserError if invalid."""
    trees = _runs_at_scale(name, sources, released=False)
    runs = {run: _parse_run(name, run, tree, sources.scale) for run, tree in trees.items()}
    default_seeds = sources.scale.studies.get(name, StudyScale()).seeds or sources.scale.seeds
    seeds: dict[str, tuple[int, ...]] = {}
    resolved = []
    for run in _with_parent_models(_with_parents_first(runs, run_trees(name, sources)), trees, sources.scale):
        seeds[run.name] = sources.config.seeds or execution_keys(run, sources).seeds or default_seeds
        if run.init is not None and (orphans := sorted({*seeds[run.name]} - {*seeds[run.init]})):
            raise UserError(
                f"{trees[run.name].file_of('seeds')}: {name}.runs.{run.name}: seed {orphans[0]} has no parent, "
                f"because {run.init!r} has seeds {', '.join(map(str, seeds[run.init]))}; give both runs the same seeds"
            )
        resolved += [run.model_copy(update={"seed": seed}) for seed in seeds[run.name]]
    return resolved


def resolve_released(name: str, sources: Sources) -> list[ReleasedRun]:
    """Return the runs of a study that evaluate a released model without training."""
    trees = _runs_at_scale(name, sources, released=True)
    return [_parse_released(name, run, tree, sources.scale) for run, tree in trees.items()]


def execution_keys(run: Run, sources: Sources) -> ExecutionKeys:
    """Return the keys of a run's tree that control its execution."""
    tree = run_trees(run.study, sources)[run.name].select(ExecutionKeys.model_fields)
    return parse(ExecutionKeys, tree, f"{run.study}.runs.{run.name}")


def match_times(runs: list[Run], timed: Mapping[str, Any], sources: Sources) -> tuple[list[Run], dict[str, EqualTime]]:
    """Return all runs and the equal-time settings by run id.

    A run with `equal_time` trains as long as the run `arm`. It has the number of steps of `arm` until the stage `train`
    computes the number from measured times. Raises UserError if `timed`, the jobs of the stage `speed`, do not include
    `arm` and `reference`, or if the reference and the run differ in model, task, optimizer, precision or compile.
    """
    by_id = {run.id: run for run in runs}
    matched, equal_by_id = [], {}
    for run in runs:
        if (equal := execution_keys(run, sources).equal_time) is not None:
            key = f"{study_file(run.study)}: runs.{run.name}.equal_time"
            names = [name.split("/")[1] for name in timed.get(run.study, {"runs": []})["runs"]]
            for name in (equal.arm, equal.reference):
                if name not in names:
                    raise UserError(f"{key}: {name!r} is not timed by the stage `speed`{near_misses(name, names)}")
            arm, reference = (by_id[f"{run.study}/{name}/seed{run.seed}"] for name in (equal.arm, equal.reference))
            if timing_keys(reference, Speed) != timing_keys(run, Speed):
                raise UserError(
                    f"{key}.reference: {equal.reference!r} differs from the run; choose a reference with the same "
                    "model, task, optimizer, precision and compile"
                )
            run = run.model_copy(update={"steps": arm.steps})
            equal_by_id[run.id] = equal
        matched.append(run)
    return matched, equal_by_id


def _parse_released(study: str, name: str, tree: Tree, scale: Scale) -> ReleasedRun:
    subject = f"{study}.runs.{name}"
    model = _entry_name(tree, RELEASED, scale.released, "released model", subject)
    data = _entry_name(tree, "data", scale.data, "data set", subject)
    source = scale.released[model]
    sizes = sizes_of(model, source, tree.file_of(RELEASED))
    longest = min(sizes.context, source.context or sizes.context)
    model_keys = sizes.to_dict() | {"context": longest, "kind": "released", "name": model, "source": source.to_dict()}
    defaults = Tree({"study": study, "name": name, "model": model_keys}, study_file(study))
    run = parse(ReleasedRun, merge(defaults, tree, subject), subject)
    tokenizer = spec.tokenizer if isinstance(spec := scale.data[data], TextData) else None
    if not isinstance(tokenizer, ReleasedTokenizer) or tokenizer.model != model:
        remedy = f"give that data set tokenizer: {{kind: released, model: {model}}}"
        key = f"{tree.file_of('data')}: {subject}.data"
        raise UserError(f"{key}: {data!r} does not use the tokenizer of {model!r}; {remedy}")
    if run.context > longest:
        key = f"{tree.file_of('context')}: {subject}.context"
        raise UserError(f"{key}: {run.context} exceeds the maximum context of {model!r}, {longest} tokens; lower it")
    if run.dtype is None:
        return run
    model_with_dtype = run.model.model_copy(update={"source": source.model_copy(update={"dtype": run.dtype})})
    return run.model_copy(update={"model": model_with_dtype})


def _entry_name(tree: Tree, key: str, names: Iterable[str], noun: str, subject: str) -> str:
    """Return the data set or released model of a run; raise UserError unless it is in `names`."""
    value = tree.get(key, Run.model_fields[key].default if key in Run.model_fields else None)
    if not isinstance(value, str) or value not in names:
        near = near_misses(str(value), list(names))
        raise UserError(f"{tree.file_of(key)}: {subject}.{key}: no {noun} {value!r} at this scale{near}")
    return value


def _parse_run(study: str, name: str, tree: Tree, scale: Scale) -> Run:
    subject, tree = f"{study}.runs.{name}", tree.drop(*ExecutionKeys.model_fields)
    for key in Run.model_fields.keys() - RUN_KEYS & tree.keys():
        raise UserError(f"{tree.file_of(key)}: {subject}.{key}: got {tree[key]!r}, but the plan sets it; remove it")
    data = _entry_name(tree, "data", scale.data, "data set", subject)
    data_keys = scale.data[data].run_defaults(tree.subtree("task"))
    defaults = Tree({"study": study, "name": name} | data_keys, study_file(study))
    run = parse(Run, merge(defaults, tree, subject), subject)
    if run.task.reads != scale.data[data].kind:
        raise UserError(
            f"{tree.file_of('data')}: {subject}.data: {data!r} is {scale.data[data].kind}, but "
            f"task.kind={run.task.kind} reads {run.task.reads}; choose another data set or task"
        )
    for name, size in data_keys.get("model", {}).items():
        value = getattr(run.model, name, size)
        is_minimum, is_exact = name in ("vocabulary", "classes", "context"), name in ("image", "channels")
        if (is_minimum and value < size) or (is_exact and value != size):
            key = f"{tree.file_of('model', name)}: {subject}.model.{name}"
            raise UserError(f"{key}: {value} does not fit data set {data!r}, which needs {size}; leave it out")
    return run


def _with_parents_first(runs: dict[str, Run], trees: Mapping[str, Tree]) -> list[Run]:
    """Order runs so that parents come first. Raises UserError for a missing parent or a cycle."""
    ordered: dict[str, Run] = {}
    for run in runs:
        lineage = [run]
        while (parent := runs[lineage[-1]].init) is not None:
            key = f"{trees[lineage[-1]].file_of('init')}: runs.{lineage[-1]}.init"
            if parent not in runs:
                problem = "is left out by the key `only` of this scale" if parent in trees else "does not exist"
                near = near_misses(parent, [name for name in runs if name != lineage[-1]])
                raise UserError(f"{key}: {parent!r} {problem}{near}")
            lineage.append(parent)
            if parent in lineage[:-1]:
                cycle = " -> ".join(lineage)
                raise UserError(f"{key}: {parent!r} closes a cycle ({cycle}); train one of them from scratch")
        ordered |= {name: runs[name] for name in reversed(lineage)}
    return list(ordered.values())


def _check_carried(run: Run, parent: Run, tree: Tree) -> None:
    """Raise UserError if the kind of optimizer of a run differs from its parent's."""
    if (new := run.optimizer.kind) != (old := parent.optimizer.kind):
        raise UserError(
            f"{tree.file_of('optimizer', 'kind')}: runs.{run.name}.optimizer.kind: {new!r} cannot continue with the "
            f"moments of init={parent.name!r}, which has {old!r}; make them equal, or set growth.optimizer: fresh"
        )


def _with_parent_models(ordered: list[Run], trees: Mapping[str, Tree], scale: Scale) -> Iterator[Run]:
    """Yield the runs with `tau` of Pattention set by the growth rule or, for continued training, by the parent.

    Raises UserError if a run cannot continue its parent.
    """
    resolved: dict[str, Run] = {}
    for run in ordered:
        if run.init is not None:
            parent, tree = resolved[run.init], trees[run.name]
            if not same_tokenizer(run.data, parent.data, scale.data):
                raise UserError(
                    f"{tree.file_of('data')}: runs.{run.name}.data: {run.data!r} has another tokenizer than "
                    f"{parent.data!r}, on which init={parent.name!r} is trained; give data set {run.data!r} "
                    f"tokenizer: {{kind: of, data: {parent.data}, ...}}"
                )
            try:
                if run.growth is None:
                    model = continued_spec(parent.model, run.model)
                else:
                    model = grown_spec(parent.model, run.model, run.growth)
            except UserError as error:
                files = tree.select({"init", "model"}).files_of()
                raise UserError(f"{files}: runs.{run.name}.init: {run.init!r}: {error}") from None
            if run.growth is not None and run.growth.optimizer == "carry":
                _check_carried(run, parent, tree)
            run = run.model_copy(update={"model": model})
        resolved[run.name] = run
        yield run
