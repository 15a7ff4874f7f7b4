"""From study, scale and overrides to the resolved spec of every run."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from formerlab.data import TextData
from formerlab.data.dataset import DataSpec
from formerlab.data.text.released_tokenizer import ReleasedTokenizer
from formerlab.errors import UserError, near_misses
from formerlab.evaluation.timing.equal_time import EqualTime
from formerlab.growth.tokens import continued_spec, growable, grown_spec
from formerlab.plan.layers import (
    Layer,
    Tree,
    at,
    fields,
    fill,
    grid_points,
    last_place_of,
    may_fit,
    merge_layers,
    named,
    part,
    place_of,
)
from formerlab.plan.memory import too_large
from formerlab.plan.read import check_values, named_in, parse
from formerlab.plan.schema import BesideSpec, Scale, StudyScale
from formerlab.plan.sources import RUN_KEYS, Sources, study_place
from formerlab.plan.tokenizers import same_tokenizer
from formerlab.results.stages import MEASURED, TIMED
from formerlab.training.released import ReleasedRun
from formerlab.training.run import Run

Layers = list[Layer]
EQUAL = "equal_time"
"""The key of a run that trains for the time of another: the steps follow from it."""
SEEDS = "seeds"
"""The key of a run whose seeds differ from those of its study."""
BESIDE_SPEC = (EQUAL, *BesideSpec.model_fields)
"""Keys of a run that are no part of its spec."""
RELEASED = "released"
"""The key of a run that names a released model in place of training."""
_PATTERNS: tuple[tuple[str, ...], ...] = tuple(
    ("measure", stage, key) for stage in (*MEASURED, *TIMED) for key in ("runs", "by_run")
)
"""Where studies and scales name runs by patterns."""


def resolve_study(name: str, sources: Sources) -> list[Run]:
    """Return the runs that a study trains, the most wanted first but parents before children, one run per seed.

    Runs that the scale leaves out are checked too, key by key: at another scale they will be there.
    """
    scale = sources.scale
    at_scale = scale.studies.get(name, StudyScale())
    layers = _run_layers(name, sources)
    _check_patterns(name, list(layers), sources)
    layers = {run: own for run, own in layers.items() if not _names_released(own)}
    only = [*at_scale.only, *added_runs(name, sources)]
    fitting = {run: [n for n, pattern in enumerate(only) if fnmatchcase(run, pattern)] for run in layers}
    kept = sorted((run for run in layers if fitting[run]), key=lambda run: fitting[run][0])
    runs = {run: _parse_run(name, run, layers[run], scale) for run in kept}
    for run in layers.keys() - runs.keys():
        known_name = Layer(study_place(name), {"study": name, "name": run})
        check_values(Run, [known_name, *(_without(layer, *BESIDE_SPEC) for layer in layers[run])], f"{name}.runs.{run}")
    grown = _grow(name, _with_parents_first(name, runs, layers), scale.data, layers)
    seeds = _seeds(name, grown, layers, sources)
    return [run.model_copy(update={"seed": seed}) for run in grown for seed in seeds[run.name]]


def added_runs(name: str, sources: Sources) -> list[str]:
    """Return patterns of the runs that an overlay or `set` adds to a study: who adds a run wants it at any scale."""
    tracked, *overrides = sources.study_layers[name]
    added = {run for layer in part(overrides, "runs") for run in layer.tree} - {*tracked.tree.get("runs", {})}
    return sorted(re.sub(r"\{.*?\}", "*", run) for run in added)


def _seeds(study: str, runs: list[Run], layers: Mapping[str, Layers], sources: Sources) -> dict[str, tuple[int, ...]]:
    """Return the seeds of each run: those of the configuration, of the run, of its study at this scale, of the scale.

    Raises UserError where a run has a seed that its parent has not.
    """
    of_study = sources.scale.studies.get(study, StudyScale()).seeds or sources.scale.seeds
    found: dict[str, tuple[int, ...]] = {}
    for run in runs:
        own = _beside_spec(study, run.name, layers[run.name])
        found[run.name] = sources.config.seeds or own.seeds or of_study
        if run.init is not None and (orphans := sorted({*found[run.name]} - {*found[run.init]})):
            raise UserError(
                f"{place_of(layers[run.name], (SEEDS,))}: {study}.runs.{run.name}: seed {orphans[0]} has no parent, "
                f"since {run.init!r} has seeds {', '.join(map(str, found[run.init]))}; give both the same"
            )
    return found


def _beside_spec(study: str, run: str, layers: Layers) -> BesideSpec:
    """Return what the layers of a run say beside its spec."""
    keys = BesideSpec.model_fields.keys()
    said = [Layer(layer.place, {key: layer.tree[key] for key in keys & layer.tree.keys()}) for layer in layers]
    return parse(BesideSpec, said, f"{study}.runs.{run}")


def own_gpus(name: str, sources: Sources) -> dict[str, int]:
    """Return the runs of a study that name their number of GPUs, with it."""
    found = {run: _beside_spec(name, run, layers).gpus for run, layers in _run_layers(name, sources).items()}
    return {run: gpus for run, gpus in found.items() if gpus is not None}


def resolve_released(name: str, sources: Sources) -> list[ReleasedRun]:
    """Return the runs of a study that take a released model as it is.

    Raises UserError for a model that the scale does not have, data of other tokens, and windows that it cannot read.
    """
    only = [*sources.scale.studies.get(name, StudyScale()).only, *added_runs(name, sources)]
    layers = {run: own for run, own in _run_layers(name, sources).items() if _names_released(own)}
    kept = [run for run in layers if any(fnmatchcase(run, pattern) for pattern in only)]
    for run in layers.keys() - set(kept):
        known_name = Layer(study_place(name), {"study": name, "name": run})
        check_values(ReleasedRun, [known_name, *layers[run]], f"{name}.runs.{run}")
    return [_parse_released(name, run, layers[run], sources.scale) for run in kept]


def _names_released(layers: Layers) -> bool:
    return merge_layers(layers).get(RELEASED) is not None


def _parse_released(study: str, name: str, layers: Layers, scale: Scale) -> ReleasedRun:
    subject = f"{study}.runs.{name}"
    tree = merge_layers(layers)
    model, data = tree[RELEASED], tree.get("data", ReleasedRun.model_fields["data"].default)
    for key, value, known, what in (
        (RELEASED, model, scale.released, "released model"),
        ("data", data, scale.data, "data set"),
    ):
        if not isinstance(value, str) or value not in known:
            near = near_misses(str(value), list(known))
            raise UserError(f"{place_of(layers, (key,))}: {subject}.{key}: no {what} {value!r} at this scale{near}")
    source = scale.released[model]
    try:
        sizes = source.known_sizes()
    except UserError as error:
        raise UserError(f"{place_of(layers, (RELEASED,))}: released.{model}: {error}; or state its sizes") from None
    longest = min(sizes.context, source.context or sizes.context)
    known = sizes.to_dict() | {"context": longest, "kind": "released", "name": model, "source": source.to_dict()}
    by_place = {"study": study, "name": name, "model": known}
    run = parse(ReleasedRun, [Layer(study_place(study), by_place), *layers], subject)
    tokenizer = spec.tokenizer if isinstance(spec := scale.data[data], TextData) else None
    if not isinstance(tokenizer, ReleasedTokenizer) or tokenizer.model != model:
        raise UserError(
            f"{place_of(layers, ('data',))}: {subject}.data: {data!r} is not in the tokens of {model!r}; give that "
            f"data set tokenizer: {{kind: released, model: {model}}}"
        )
    if run.context > longest:
        raise UserError(
            f"{place_of(layers, ('context',))}: {subject}.context: {run.context} exceeds the {longest} tokens that "
            f"{model!r} reads; lower it"
        )
    if run.dtype is None:
        return run
    narrowed = run.model.model_copy(update={"source": source.model_copy(update={"dtype": run.dtype})})
    return run.model_copy(update={"model": narrowed})


def equal_times(name: str, sources: Sources) -> dict[str, EqualTime]:
    """Return the runs of a study that train for the time of another, each with whose time it is."""
    layers = _run_layers(name, sources)
    found = {run: part(own, EQUAL) for run, own in layers.items()}
    return {run: parse(EqualTime, own, f"{name}.runs.{run}.{EQUAL}") for run, own in found.items() if own}


def _run_layers(name: str, sources: Sources) -> dict[str, list[Layer]]:
    """Return what each run of a study is made of, from the general to the particular."""
    of_study, patterns = sources.study_layers[name], sources.scale.studies.get(name, StudyScale()).runs
    common = [
        *part(sources.scale_layers, "defaults"),
        *part(of_study, "defaults"),
        *sources.at_scale(name, "defaults"),
    ]
    result: dict[str, list[Layer]] = {}
    for template in sources.studies[name].runs:
        mine, exact = part(of_study, "runs", template), sources.at_scale(name, "runs", template)
        for run, own, at_this_scale in _instances(mine, exact, template):
            if run in result:
                raise UserError(f"{mine[0].place}: runs.{template}: gives a second run {run!r}; remove one")
            matching = [p for p in patterns if p != template and fnmatchcase(run, p)]
            patterned = [layer for pattern in matching for layer in sources.at_scale(name, "runs", pattern)]
            special = [*own, *patterned, *at_this_scale]
            result[run] = [*common, *special, *_overrides_of(name, run, sources)]
            if _names_released(special):  # what is said of all runs is said of training, but for the data
                mine = part(sources.overrides, name, "runs", run)
                of_all = [*common, *part(sources.overrides, name)]
                data = [Layer(layer.place, {"data": layer.tree["data"]}) for layer in of_all if "data" in layer.tree]
                result[run] = [*data, *special, *mine]
    _check_overridden(name, list(result), sources)
    return result


def _overrides_of(study: str, run: str, sources: Sources) -> list[Layer]:
    """Return what each override says of all runs of the study, and of this one."""
    layers = []
    for override in part(sources.overrides, study):
        layers.append(Layer(override.place, {key: value for key, value in override.tree.items() if key in RUN_KEYS}))
        layers += part([override], "runs", run)
    return layers


def _instances(study: Layers, scale: Layers, template: str) -> list[tuple[str, Layers, Layers]]:
    """Return the runs that a template stands for, each with its layers; a plain name stands for itself."""
    grid = merge_layers([*study, *scale]).get("grid")
    place = place_of([*study, *scale], ("grid",))
    study, scale = ([_without(layer, "grid") for layer in layers] for layers in (study, scale))
    names = _fields(place, template)
    if not names:
        if grid is not None:
            raise UserError(f"{place}: runs.{template}.grid: got {grid!r}; put {{fields}} into the name of the run")
        return [(template, study, scale)]
    points = [] if grid is None else grid_points(place, template, grid)
    if not points:
        kind = ReleasedRun if _names_released([*study, *scale]) else Run
        check_values(kind, [_without(layer, *BESIDE_SPEC) for layer in (*study, *scale)], f"runs.{template}", names)

    def filled(layers: Layers, point: Tree) -> Layers:
        return [_filled(layer, template, point) for layer in layers]

    return [(named(template, point), filled(study, point), filled(scale, point)) for point in points]


def _without(layer: Layer, *left_out: str) -> Layer:
    return Layer(layer.place, {key: value for key, value in layer.tree.items() if key not in left_out})


def _fields(place: str, template: str) -> list[str]:
    try:
        return fields(template)
    except ValueError as error:
        raise UserError(f"{place}: runs.{template}: {error}; write a field as {{name}}") from None


def _filled(layer: Layer, template: str, point: Tree) -> Layer:
    try:
        return Layer(layer.place, fill(layer.tree, point))
    except (LookupError, ValueError) as error:
        near = near_misses(str(error).strip("'"), list(point))
        raise UserError(f"{layer.place}: runs.{template}: no field {error} in the name of the run{near}") from None


def _parse_run(study: str, name: str, layers: list[Layer], scale: Scale) -> Run:
    subject = f"{study}.runs.{name}"
    layers = [_without(layer, *BESIDE_SPEC) for layer in layers]
    tree = merge_layers(layers)
    for key in Run.model_fields.keys() - RUN_KEYS & tree.keys():
        place = place_of(layers, (key,))
        raise UserError(f"{place}: {subject}.{key}: got {tree[key]!r}, but the run's place says it; remove it")
    data, task = tree.get("data", Run.model_fields["data"].default), tree.get("task")
    if not isinstance(data, str) or data not in scale.data:
        near = near_misses(str(data), list(scale.data))
        raise UserError(f"{place_of(layers, ('data',))}: {subject}.data: no data set {data!r} at this scale{near}")
    known, place = scale.data[data].known(task if isinstance(task, dict) else {}), study_place(study)
    by_place = Layer(place, {"study": study, "name": name} | known)
    run = parse(Run, [by_place, *layers, Layer(place, _not_given(known, tree))], subject)
    if (absurd := too_large(run)) is not None:
        key, reason = absurd
        raise UserError(f"{place_of(layers, (key, *_largest(tree.get(key))))}: {subject}.{key}: {reason}")
    if run.task.reads != scale.data[data].kind:
        raise UserError(
            f"{place_of(layers, ('data',))}: {subject}.data: {data!r} is {scale.data[data].kind}, but "
            f"task.kind={run.task.kind} reads {run.task.reads}; name another data set or task"
        )
    vocabulary, given = known.get("model", {}).get("vocabulary", 0), getattr(run.model, "vocabulary", 0)
    if given < vocabulary:
        raise UserError(
            f"{place_of(layers, ('model', 'vocabulary'))}: {subject}.model.vocabulary: {given} is less "
            f"than the {vocabulary} tokens of data set {data!r}; leave it out"
        )
    return run


def _largest(tree: Any) -> tuple[str, ...]:
    """Return the path of the largest number in a tree."""
    found: dict[tuple[str, ...], float] = {}
    waiting: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, dict):
            waiting += [((*path, key), value) for key, value in node.items()]
        elif isinstance(node, int | float):
            found[path] = node
    return max(found, key=lambda path: found[path], default=())


def _not_given(known: Tree, tree: Tree) -> Tree:
    """Return what the data know of a run where the run itself is silent."""
    inner = {key: tree.get(key) for key in known}
    return {
        key: {name: value for name, value in known[key].items() if name not in (given or {})}
        for key, given in inner.items()
        if given is None or isinstance(given, dict)
    }


def _with_parents_first(study: str, runs: dict[str, Run], layers: Mapping[str, Layers]) -> list[Run]:
    """Order runs so that parents come first; a missing parent or a cycle is named."""
    ordered: dict[str, Run] = {}

    def visit(name: str, chain: tuple[str, ...]) -> None:
        parent, place = runs[name].init, f"{place_of(layers[name], ('init',))}: runs.{name}.init"
        if name in chain:
            raise UserError(
                f"{place}: {parent!r} closes a cycle ({' -> '.join([*chain, name])}); start one from scratch"
            )
        if name in ordered:
            return
        if parent is not None and parent not in runs:
            where = "is left out at this scale by `only`" if parent in layers else "does not exist"
            near = near_misses(parent, [run for run in runs if run != name])
            raise UserError(f"{place}: {parent!r} {where}{near}")
        if parent is not None:
            visit(parent, (*chain, name))
        ordered[name] = runs[name]

    for name in runs:
        visit(name, ())
    return list(ordered.values())


def _grow(study: str, ordered: list[Run], data: Mapping[str, DataSpec], layers: Mapping[str, Layers]) -> list[Run]:
    """Give every grown run the tau that its growth asks for, and refuse what cannot grow."""
    done: dict[str, Run] = {}
    for run in ordered:
        if run.init is not None:
            parent = done[run.init]
            _check_tokenizers(run, parent, data, f"{place_of(layers[run.name], ('data',))}: runs.{run.name}")
            try:
                if run.growth is None:
                    model = continued_spec(parent.model, run.model)
                else:
                    model = grown_spec(growable(parent.model), growable(run.model), run.growth)
            except UserError as error:
                culprits = [("init",), *named_in(str(error), ("model",), merge_layers(layers[run.name]))]
                place = last_place_of(layers[run.name], culprits)
                raise UserError(f"{place}: runs.{run.name}.init: {run.init!r}: {error}") from None
            run = run.model_copy(update={"model": model})
        done[run.name] = run
    return list(done.values())


def _check_tokenizers(run: Run, parent: Run, data: Mapping[str, DataSpec], place: str) -> None:
    """Refuse a run that goes on with tokens of another meaning."""
    if same_tokenizer(run.data, parent.data, data):
        return
    raise UserError(
        f"{place}.data: {run.data!r} has another tokenizer than {parent.data!r}, on which init={parent.name!r} is "
        f"trained; give data set {run.data!r} tokenizer: {{kind: of, data: {parent.data}, ...}}"
    )


def _check_overridden(study: str, names: list[str], sources: Sources) -> None:
    """Refuse overrides of runs that the study does not have."""
    for override in part(sources.overrides, study, "runs"):
        for name, tree in override.tree.items():
            if name not in names:
                raise UserError(f"{override.place}: {study}.runs.{name}: no such run{near_misses(name, names)}")
            if not isinstance(tree, dict):
                raise UserError(f"{override.place}: {study}.runs.{name}: got {tree!r}; name a key below it")


def _check_patterns(study: str, names: list[str], sources: Sources) -> None:
    """Refuse patterns that match no run of the study."""
    known = [*names, *sources.studies[study].runs]
    of_study, at_scale = sources.study_layers[study], sources.at_scale(study)
    asked = [(layer, "", path) for layer in of_study for path in _PATTERNS]
    asked += [(layer, f"studies.{study}.", path) for layer in at_scale for path in (*_PATTERNS, ("only",), ("runs",))]
    for layer, above, path in asked:
        given = at(layer.tree, path)
        for pattern in given if isinstance(given, list | dict) else ():
            if isinstance(pattern, str) and not any(may_fit(name, pattern) for name in known):
                key = ".".join(path)
                raise UserError(f"{layer.place}: {above}{key}: {pattern!r} matches no run{near_misses(pattern, known)}")
