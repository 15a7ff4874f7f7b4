"""From study, scale and overrides to the resolved spec of every run."""

from collections.abc import Iterable, Mapping
from typing import Any

from formerlab.data import TextData
from formerlab.data.dataset import DataSpec
from formerlab.data.text.released_tokenizer import ReleasedTokenizer
from formerlab.errors import UserError, near_misses
from formerlab.evaluation.timing.equal_time import EqualTime
from formerlab.evaluation.timing.speed import Speed
from formerlab.growth.tokens import continued_spec, growable, grown_spec
from formerlab.plan.layers import Tree, filled_up, merge
from formerlab.plan.measure import deciding
from formerlab.plan.memory import too_large
from formerlab.plan.read import parse
from formerlab.plan.runs import RELEASED, chosen, run_trees
from formerlab.plan.schema import BesideSpec, Scale, StudyScale
from formerlab.plan.sources import RUN_KEYS, Sources, study_file
from formerlab.plan.tokenizers import same_tokenizer, sizes_of
from formerlab.training.released import ReleasedRun
from formerlab.training.run import Run

EQUAL = "equal_time"
"""The key of a run that trains for the time of another: the steps follow from it."""
BESIDE_SPEC = (EQUAL, *BesideSpec.model_fields)
"""Keys of a run that are no part of its spec."""


def resolve_study(name: str, sources: Sources) -> list[Run]:
    """Return the runs that a study trains, the most wanted first but parents before children, one run per seed."""
    trees = {run: tree for run, tree in run_trees(name, sources).items() if tree.get(RELEASED) is None}
    runs = {run: _parse_run(name, run, trees[run], sources.scale) for run in chosen(name, trees, sources)}
    grown = _grow(_with_parents_first(runs, trees), sources.scale.data, trees)
    seeds = _seeds(name, grown, trees, sources)
    return [run.model_copy(update={"seed": seed}) for run in grown for seed in seeds[run.name]]


def _seeds(study: str, runs: list[Run], trees: Mapping[str, Tree], sources: Sources) -> dict[str, tuple[int, ...]]:
    """Return the seeds of each run: those of the configuration, of the run, of its study at this scale, of the scale.

    Raises UserError where a run has a seed that its parent has not.
    """
    of_study = sources.scale.studies.get(study, StudyScale()).seeds or sources.scale.seeds
    found: dict[str, tuple[int, ...]] = {}
    for run in runs:
        own = _beside_spec(study, run.name, trees[run.name])
        found[run.name] = sources.config.seeds or own.seeds or of_study
        if run.init is not None and (orphans := sorted({*found[run.name]} - {*found[run.init]})):
            raise UserError(
                f"{trees[run.name].file_of('seeds')}: {study}.runs.{run.name}: seed {orphans[0]} has no parent, "
                f"since {run.init!r} has seeds {', '.join(map(str, found[run.init]))}; give both the same"
            )
    return found


def _beside_spec(study: str, run: str, tree: Tree) -> BesideSpec:
    """Return what the tree of a run says beside its spec."""
    return parse(BesideSpec, tree.only(BesideSpec.model_fields), f"{study}.runs.{run}")


def own_gpus(name: str, sources: Sources) -> dict[str, int]:
    """Return the runs of a study that name their number of GPUs, with it."""
    found = {run: _beside_spec(name, run, tree).gpus for run, tree in run_trees(name, sources).items()}
    return {run: gpus for run, gpus in found.items() if gpus is not None}


def match_times(runs: list[Run], jobs: Mapping[str, Any], sources: Sources) -> tuple[list[Run], dict[str, EqualTime]]:
    """Return the runs, those of equal time with the arm's steps as an estimate, and by id whose time they match.

    Raises UserError where an arm or reference is not timed, or where the reference is another model.
    """
    wanted = {
        (study, name): parse(EqualTime, part, f"{study}.runs.{name}.{EQUAL}")
        for study in sources.config.studies
        for name, tree in run_trees(study, sources).items()
        if (part := tree.part(EQUAL))
    }
    by_id = {run.id: run for run in runs}
    matched, equal_by_id = [], {}
    for run in runs:
        equal = wanted.get((run.study, run.name))
        if equal is not None:
            key_of_run = f"{study_file(run.study)}: runs.{run.name}.equal_time"
            timed = jobs.get(run.study, {"runs": []})["runs"]
            names = [name.split("/")[1] for name in timed]
            for key, one in (("arm", equal.arm), ("reference", equal.reference)):
                if one not in names:
                    raise UserError(
                        f"{key_of_run}.{key}: {one!r} is no run that `speed` times{near_misses(one, names)}"
                    )
            arm, reference = (by_id[f"{run.study}/{one}/seed{run.seed}"] for one in (equal.arm, equal.reference))
            if deciding(reference, Speed) != deciding(run, Speed):
                raise UserError(
                    f"{key_of_run}.reference: {reference.name!r} is another model or batch; name an equal one"
                )
            run = run.model_copy(update={"steps": arm.steps})
            equal_by_id[run.id] = equal
        matched.append(run)
    return matched, equal_by_id


def resolve_released(name: str, sources: Sources) -> list[ReleasedRun]:
    """Return the runs of a study that take a released model as it is.

    Raises UserError for a model that the scale does not have, data of other tokens, and windows that it cannot read.
    """
    trees = {run: tree for run, tree in run_trees(name, sources).items() if tree.get(RELEASED) is not None}
    wanted = chosen(name, trees, sources)
    return [_parse_released(name, run, tree, sources.scale) for run, tree in trees.items() if run in wanted]


def _parse_released(study: str, name: str, tree: Tree, scale: Scale) -> ReleasedRun:
    subject = f"{study}.runs.{name}"
    model = _named(tree, RELEASED, scale.released, "released model", subject)
    data = _named(tree, "data", scale.data, "data set", subject)
    source = scale.released[model]
    sizes = sizes_of(model, source, tree.file_of(RELEASED))
    longest = min(sizes.context, source.context or sizes.context)
    known = sizes.to_dict() | {"context": longest, "kind": "released", "name": model, "source": source.to_dict()}
    by_file = Tree({"study": study, "name": name, "model": known}, study_file(study))
    run = parse(ReleasedRun, merge(by_file, tree, subject), subject)
    tokenizer = spec.tokenizer if isinstance(spec := scale.data[data], TextData) else None
    if not isinstance(tokenizer, ReleasedTokenizer) or tokenizer.model != model:
        raise UserError(
            f"{tree.file_of('data')}: {subject}.data: {data!r} is not in the tokens of {model!r}; give that "
            f"data set tokenizer: {{kind: released, model: {model}}}"
        )
    if run.context > longest:
        raise UserError(
            f"{tree.file_of('context')}: {subject}.context: {run.context} exceeds the {longest} tokens that "
            f"{model!r} reads; lower it"
        )
    if run.dtype is None:
        return run
    narrowed = run.model.model_copy(update={"source": source.model_copy(update={"dtype": run.dtype})})
    return run.model_copy(update={"model": narrowed})


def _named(tree: Tree, key: str, known: Iterable[str], what: str, subject: str) -> str:
    """Return what a run names of the scale, by default what its class says."""
    value = tree.get(key, Run.model_fields[key].default if key in Run.model_fields else None)
    if not isinstance(value, str) or value not in known:
        near = near_misses(str(value), list(known))
        raise UserError(f"{tree.file_of(key)}: {subject}.{key}: no {what} {value!r} at this scale{near}")
    return value


def _parse_run(study: str, name: str, tree: Tree, scale: Scale) -> Run:
    subject, tree = f"{study}.runs.{name}", tree.without(*BESIDE_SPEC)
    for key in Run.model_fields.keys() - RUN_KEYS & tree.keys():
        raise UserError(f"{tree.file_of(key)}: {subject}.{key}: got {tree[key]!r}, but its study says it; remove it")
    data = _named(tree, "data", scale.data, "data set", subject)
    known = scale.data[data].known(tree.part("task"))
    run = parse(Run, filled_up(tree, {"study": study, "name": name} | known, study_file(study)), subject)
    if (absurd := too_large(run)) is not None:
        key, reason = absurd
        raise UserError(f"{tree.files_of(key)}: {subject}.{key}: {reason}")
    if run.task.reads != scale.data[data].kind:
        raise UserError(
            f"{tree.file_of('data')}: {subject}.data: {data!r} is {scale.data[data].kind}, but "
            f"task.kind={run.task.kind} reads {run.task.reads}; name another data set or task"
        )
    vocabulary, given = known.get("model", {}).get("vocabulary", 0), getattr(run.model, "vocabulary", 0)
    if given < vocabulary:
        raise UserError(
            f"{tree.file_of('model', 'vocabulary')}: {subject}.model.vocabulary: {given} is less "
            f"than the {vocabulary} tokens of data set {data!r}; leave it out"
        )
    return run


def _with_parents_first(runs: dict[str, Run], trees: Mapping[str, Tree]) -> list[Run]:
    """Order runs so that parents come first; a missing parent or a cycle is named."""
    ordered: dict[str, Run] = {}

    def visit(name: str, chain: tuple[str, ...]) -> None:
        parent, key = runs[name].init, f"{trees[name].file_of('init')}: runs.{name}.init"
        if name in chain:
            raise UserError(f"{key}: {parent!r} closes a cycle ({' -> '.join([*chain, name])}); start one from scratch")
        if parent is not None and parent not in runs:
            where = "is left out at this scale by `only`" if parent in trees else "does not exist"
            raise UserError(f"{key}: {parent!r} {where}{near_misses(parent, [run for run in runs if run != name])}")
        if parent is not None:
            visit(parent, (*chain, name))
        ordered[name] = runs[name]

    for name in runs:
        visit(name, ())
    return list(ordered.values())


def _grow(ordered: list[Run], data: Mapping[str, DataSpec], trees: Mapping[str, Tree]) -> list[Run]:
    """Give every grown run the tau that its growth asks for, and refuse what cannot grow."""
    done: dict[str, Run] = {}
    for run in ordered:
        if run.init is not None:
            parent, tree = done[run.init], trees[run.name]
            _check_tokenizers(run, parent, data, f"{tree.file_of('data')}: runs.{run.name}")
            try:
                if run.growth is None:
                    model = continued_spec(parent.model, run.model)
                else:
                    model = grown_spec(growable(parent.model), growable(run.model), run.growth)
            except UserError as error:
                files = tree.only({"init", "model"}).files_of()
                raise UserError(f"{files}: runs.{run.name}.init: {run.init!r}: {error}") from None
            run = run.model_copy(update={"model": model})
        done[run.name] = run
    return list(done.values())


def _check_tokenizers(run: Run, parent: Run, data: Mapping[str, DataSpec], key: str) -> None:
    """Refuse a run that goes on with tokens of another meaning."""
    if not same_tokenizer(run.data, parent.data, data):
        raise UserError(
            f"{key}.data: {run.data!r} has another tokenizer than {parent.data!r}, on which init={parent.name!r} is "
            f"trained; give data set {run.data!r} tokenizer: {{kind: of, data: {parent.data}, ...}}"
        )
