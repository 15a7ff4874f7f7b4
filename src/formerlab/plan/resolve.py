"""From study, scale and overrides to the resolved spec of every run."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from formerlab.data.dataset import DataSpec
from formerlab.errors import UserError
from formerlab.evaluation.equal_time import EqualTime
from formerlab.growth import continued_spec, growable, grown_spec
from formerlab.plan.layers import Layer, Tree, fields, fill, grid_points, merge_layers, place_of
from formerlab.plan.read import near_misses, parse
from formerlab.plan.schema import Scale, StudyScale
from formerlab.plan.sources import RUN_KEYS, Sources, part, study_place
from formerlab.plan.tokenizers import same_tokenizer
from formerlab.run import Run

EQUAL = "equal_time"
"""The key of a run that is no part of its spec: the steps follow from it."""


def resolve_study(name: str, sources: Sources) -> list[Run]:
    """Return the runs of a study, parents before children, with one run per seed."""
    scale = sources.scale
    at_scale = scale.studies.get(name, StudyScale())
    layers = _run_layers(name, at_scale, sources)
    _check_patterns(name, at_scale, list(layers), sources)
    kept = [run for run in layers if any(fnmatchcase(run, pattern) for pattern in at_scale.only)]
    runs = {run: _parse_run(name, run, layers[run], scale) for run in kept}
    grown = _grow(name, _with_parents_first(name, runs, set(layers)), scale.data)
    seeds = sources.config.seeds or at_scale.seeds or scale.seeds
    return [run.model_copy(update={"seed": seed}) for run in grown for seed in seeds]


def equal_times(name: str, sources: Sources) -> dict[str, EqualTime]:
    """Return the runs of a study that train for the time of another, each with whose time it is."""
    layers = _run_layers(name, sources.scale.studies.get(name, StudyScale()), sources)
    found = {run: part(own, EQUAL) for run, own in layers.items()}
    return {run: parse(EqualTime, own, f"{name}.runs.{run}.{EQUAL}") for run, own in found.items() if own}


def _run_layers(name: str, at_scale: StudyScale, sources: Sources) -> dict[str, list[Layer]]:
    """Return what each run of a study is made of, from the general to the particular."""
    study, place = sources.studies[name], sources.scale_place
    common = [
        Layer(place, sources.scale.defaults),
        Layer(study_place(name), study.defaults),
        Layer(place, at_scale.defaults),
    ]
    result: dict[str, list[Layer]] = {}
    for template, tree in study.runs.items():
        exact = at_scale.runs.get(template, {})
        for run, (own, at_this_scale) in _instances(Layer(study_place(name), tree), Layer(place, exact), template):
            if run in result:
                raise UserError(f"{study_place(name)}: runs.{template}: gives a second run {run!r}; remove one")
            patterns = [p for p in at_scale.runs if p != template and fnmatchcase(run, p)]
            patterned = [Layer(place, at_scale.runs[pattern]) for pattern in patterns]
            result[run] = [*common, own, *patterned, at_this_scale, *_overrides_of(name, run, sources)]
    _check_overridden(name, list(result), sources)
    return result


def _overrides_of(study: str, run: str, sources: Sources) -> list[Layer]:
    """Return what each override says of all runs of the study, and of this one."""
    layers = []
    for override in part(sources.overrides, study):
        layers.append(Layer(override.place, {key: value for key, value in override.tree.items() if key in RUN_KEYS}))
        layers += part([override], "runs", run)
    return layers


def _instances(study: Layer, scale: Layer, template: str) -> list[tuple[str, tuple[Layer, Layer]]]:
    """Return the runs that a template stands for, each with its two layers; a plain name stands for itself."""
    grid = merge_layers([study, scale]).get("grid")
    place = place_of([study, scale], ("grid",))
    study, scale = _without(study, "grid"), _without(scale, "grid")
    if not _fields(place, template):
        if grid is not None:
            raise UserError(f"{place}: runs.{template}.grid: got {grid!r}; put {{fields}} into the name of the run")
        return [(template, (study, scale))]
    points = [] if grid is None else grid_points(place, template, grid)
    return [
        (template.format(**point), (_filled(study, template, point), _filled(scale, template, point)))
        for point in points
    ]


def _without(layer: Layer, left_out: str) -> Layer:
    return Layer(layer.place, {key: value for key, value in layer.tree.items() if key != left_out})


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
    layers = [_without(layer, EQUAL) for layer in layers]
    tree = merge_layers(layers)
    for key in Run.model_fields.keys() - RUN_KEYS & tree.keys():
        place = place_of(layers, (key,))
        raise UserError(f"{place}: {subject}.{key}: got {tree[key]!r}, but the run's place says it; remove it")
    data, task = tree.get("data", Run.model_fields["data"].default), tree.get("task")
    if not isinstance(data, str) or data not in scale.data:
        near = near_misses(str(data), list(scale.data))
        raise UserError(f"{place_of(layers, ('data',))}: {subject}.data: no data set {data!r} at this scale{near}")
    known, place = scale.data[data].known(task if isinstance(task, dict) else {}), study_place(study)
    named = Layer(place, {"study": study, "name": name} | known)
    run = parse(Run, [named, *layers, Layer(place, _unsaid(known, tree))], subject)
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


def _unsaid(known: Tree, tree: Tree) -> Tree:
    """Return what the data know of a run where the run itself is silent."""
    inner = {key: tree.get(key) for key in known}
    return {
        key: {name: value for name, value in known[key].items() if name not in (said or {})}
        for key, said in inner.items()
        if said is None or isinstance(said, dict)
    }


def _with_parents_first(study: str, runs: dict[str, Run], all_names: set[str]) -> list[Run]:
    """Order runs so that parents come first; a missing parent or a cycle is named."""
    ordered: dict[str, Run] = {}

    def visit(name: str, chain: tuple[str, ...]) -> None:
        parent, place = runs[name].init, f"{study_place(study)}: runs.{name}.init"
        if name in chain:
            raise UserError(
                f"{place}: {parent!r} closes a cycle ({' -> '.join([*chain, name])}); start one from scratch"
            )
        if name in ordered:
            return
        if parent is not None and parent not in runs:
            where = "is left out at this scale by `only`" if parent in all_names else "does not exist"
            near = near_misses(parent, [run for run in runs if run != name])
            raise UserError(f"{place}: {parent!r} {where}{near}")
        if parent is not None:
            visit(parent, (*chain, name))
        ordered[name] = runs[name]

    for name in runs:
        visit(name, ())
    return list(ordered.values())


def _grow(study: str, ordered: list[Run], data: Mapping[str, DataSpec]) -> list[Run]:
    """Give every grown run the tau that its growth asks for, and refuse what cannot grow."""
    done: dict[str, Run] = {}
    for run in ordered:
        if run.init is not None:
            place = f"{study_place(study)}: runs.{run.name}"
            parent = done[run.init]
            _check_tokenizers(run, parent, data, place)
            try:
                old, new = growable(parent.model), growable(run.model)
                model = continued_spec(old, new) if run.growth is None else grown_spec(old, new, run.growth)
            except UserError as error:
                raise UserError(f"{place}.init: {run.init!r}: {error}") from None
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


def _check_patterns(study: str, at_scale: StudyScale, names: list[str], sources: Sources) -> None:
    """Refuse patterns that match no run of the study, and sweeps of the scale that the study does not have."""
    of_study = sources.studies[study]
    known = [*names, *of_study.runs]
    place = f"{sources.scale_place}: studies.{study}"
    patterns = {
        f"{place}.only": at_scale.only,
        f"{place}.runs": at_scale.runs,
        f"{place}.zeroshot": at_scale.zeroshot or (),
        f"{study_place(study)}: zeroshot": of_study.zeroshot,
        f"{study_place(study)}: prune": of_study.prune,
    }
    for key, given in patterns.items():
        for pattern in given:
            if pattern not in known and not any(fnmatchcase(name, pattern) for name in known):
                raise UserError(f"{key}: {pattern!r} matches no run{near_misses(pattern, known)}")
    for pattern in at_scale.prune:
        if pattern not in of_study.prune:
            near = near_misses(pattern, list(of_study.prune))
            raise UserError(f"{place}.prune: {pattern!r} is no sweep of the study{near}")
