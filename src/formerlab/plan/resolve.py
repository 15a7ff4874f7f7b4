"""From study, scale and overrides to the resolved spec of every run."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from formerlab.errors import UserError
from formerlab.growth import grown_spec
from formerlab.plan.layers import Layer, Tree, fields, fill, grid_points, merge, nested
from formerlab.plan.read import near_misses, parse, read_yaml
from formerlab.plan.schema import Config, Scale, Study, StudyScale
from formerlab.run import Run

RUN_KEYS = frozenset(Run.model_fields) - {"study", "name", "seed"}


@dataclass(frozen=True)
class Sources:
    """Everything that was read, before runs are made of it."""

    config: Config
    scale: Scale
    studies: dict[str, Study]
    overrides: list[Layer]


def read_sources(root: Path, given: Tree) -> Sources:
    """Read config, scale and studies below `root`; `given` are the values of the command line."""
    layers = [Layer("config.yaml", read_yaml(root / "config.yaml")), Layer("command line", given)]
    config = parse(Config, layers)
    overrides: list[Layer] = []
    if config.overlay is not None:
        overrides.append(Layer(config.overlay, nested(read_yaml(root / config.overlay))))
    overrides.append(Layer("set", nested(config.set)))
    own = {name: value for layer in overrides for name, value in layer.tree.items() if _is_config_key(name, value)}
    config = parse(Config, [*layers, Layer("overlay", own)])
    workflow = root / "workflow"
    known = sorted(path.stem for path in (workflow / "studies").glob("*.yaml"))
    _check_override_names(overrides, known)
    for name in config.studies:
        if name not in known:
            raise UserError(f"config.yaml: studies: no study {name!r}{near_misses(name, known)}")
    place = f"workflow/scales/{config.scale}.yaml"
    scale_layers = [
        Layer(place, read_yaml(root / place)),
        Layer("config.yaml", {"data": config.data} if config.data else {}),
        *_part(overrides, "scale"),
    ]
    studies = {}
    for name in config.studies:
        study_place = f"workflow/studies/{name}.yaml"
        study_layers = [Layer(study_place, read_yaml(root / study_place)), *_part(overrides, "study", name)]
        studies[name] = parse(Study, study_layers)
    return Sources(config, parse(Scale, scale_layers), studies, overrides)


def resolve_study(name: str, sources: Sources) -> list[Run]:
    """Return the runs of a study, parents before children, with one run per seed."""
    study, scale, config = sources.studies[name], sources.scale, sources.config
    at_scale = scale.studies.get(name, StudyScale())
    trees = _run_layers(name, study, at_scale, sources)
    _check_patterns(name, at_scale, list(trees), list(study.runs), config.scale)
    kept = {run: layers for run, layers in trees.items() if any(fnmatchcase(run, p) for p in at_scale.only)}
    runs = {run: _parse_run(name, run, layers, scale) for run, layers in kept.items()}
    ordered = _with_parents_first(name, runs, set(trees))
    grown = _grow(name, ordered)
    seeds = config.seeds or at_scale.seeds or scale.seeds
    return [run.model_copy(update={"seed": seed}) for run in grown for seed in seeds]


def _run_layers(name: str, study: Study, at_scale: StudyScale, sources: Sources) -> dict[str, list[Layer]]:
    """Return what each run of a study is made of, from the general to the particular."""
    study_place, scale_place = f"workflow/studies/{name}.yaml", f"workflow/scales/{sources.config.scale}.yaml"
    common = [
        Layer(scale_place, sources.scale.defaults),
        Layer(study_place, study.defaults),
        Layer(scale_place, at_scale.defaults),
    ]
    result: dict[str, list[Layer]] = {}
    for template, tree in study.runs.items():
        for run, own in _instances(study_place, template, tree, at_scale.runs.get(template, {})):
            patterned = [
                Layer(scale_place, t) for p, t in at_scale.runs.items() if p != template and fnmatchcase(run, p)
            ]
            final = [
                layer
                for override in _part(sources.overrides, name)
                for layer in (
                    Layer(override.place, {k: v for k, v in override.tree.items() if k in RUN_KEYS}),
                    Layer(override.place, override.tree.get("runs", {}).get(run, {})),
                )
            ]
            result[run] = [*common, *(Layer(p, t) for p, t in own), *patterned, *final]
    return result


def _instances(place: str, template: str, tree: Tree, at_scale: Tree) -> list[tuple[str, list[tuple[str, Tree]]]]:
    """Return the runs that a template stands for, each with its trees; a plain name stands for itself."""
    both = merge(tree, at_scale)
    grid = both.pop("grid", None)
    if not fields(template):
        if grid is not None:
            raise UserError(f"{place}: runs.{template}.grid needs {{fields}} in the name of the run")
        return [(template, [(place, both)])]
    if grid is None:
        return []
    points = grid_points(place, template, grid)
    return [(template.format(**point), [(place, fill(both, point))]) for point in points]


def _parse_run(study: str, name: str, layers: list[Layer], scale: Scale) -> Run:
    subject = f"{study}.runs.{name}"
    tree = layers[0].tree
    for layer in layers[1:]:
        tree = merge(tree, layer.tree)
    data = tree.get("data", "text")
    if data not in scale.data:
        raise UserError(f"{subject}: data: no data set {data!r} at this scale{near_misses(data, list(scale.data))}")
    task = tree.get("task", {})
    filled: Tree = {"study": study, "name": name, "model": {"vocabulary": scale.data[data].vocabulary}}
    if "context" in task:
        filled["model"]["context"] = task["context"]
    run = parse(Run, [Layer("the data set", filled), *layers], subject)
    if run.model.vocabulary < scale.data[data].vocabulary:
        raise UserError(
            f"{subject}: model.vocabulary={run.model.vocabulary} is smaller than the {scale.data[data].vocabulary} "
            f"tokens of data set {data!r}; leave it out"
        )
    return run


def _with_parents_first(study: str, runs: dict[str, Run], all_names: set[str]) -> list[Run]:
    """Order runs so that parents come first; a missing parent or a cycle is named."""
    ordered: dict[str, Run] = {}

    def visit(name: str, chain: tuple[str, ...]) -> None:
        if name in chain:
            raise UserError(f"workflow/studies/{study}.yaml: runs grow in a cycle: {' -> '.join([*chain, name])}")
        if name in ordered:
            return
        parent = runs[name].init
        if parent is not None and parent not in runs:
            where = "is left out at this scale by `only`" if parent in all_names else "does not exist"
            near = near_misses(parent, [run for run in runs if run != name])
            raise UserError(f"workflow/studies/{study}.yaml: runs.{name}.init: {parent!r} {where}{near}")
        if parent is not None:
            visit(parent, (*chain, name))
        ordered[name] = runs[name]

    for name in runs:
        visit(name, ())
    return list(ordered.values())


def _grow(study: str, ordered: list[Run]) -> list[Run]:
    """Give every grown run the tau that its growth asks for, and refuse what cannot grow."""
    done: dict[str, Run] = {}
    for run in ordered:
        if run.init is not None:
            parent = done[run.init]
            if run.growth is None:
                raise UserError(f"{study}.runs.{run.name}: init={run.init} needs the key growth")
            try:
                run = run.model_copy(update={"model": grown_spec(parent.model, run.model, run.growth)})
            except UserError as error:
                raise UserError(f"{study}.runs.{run.name}: init={run.init}: {error}") from None
        done[run.name] = run
    return list(done.values())


def _part(layers: list[Layer], *path: str) -> list[Layer]:
    """Return the part of each layer below a path, where it is a mapping."""
    parts = []
    for layer in layers:
        node: Any = layer.tree
        for key in path:
            node = node.get(key) if isinstance(node, dict) else None
        if isinstance(node, dict):
            parts.append(Layer(f"{layer.place}: {'.'.join(path)}", node))
    return parts


def _is_config_key(name: str, value: Any) -> bool:
    return name in Config.model_fields and not (name == "scale" and isinstance(value, dict))


def _check_override_names(overrides: list[Layer], studies: list[str]) -> None:
    """Refuse overrides that no part of the configuration would read."""
    known = [*studies, "scale", "study", *Config.model_fields]
    for layer in overrides:
        for name, value in layer.tree.items():
            if name not in known:
                raise UserError(f"{layer.place}: {name}: unknown key (value {value!r}){near_misses(name, known)}")
            if name not in studies or not isinstance(value, dict):
                continue
            for key in value:
                if key not in RUN_KEYS and key != "runs":
                    near = near_misses(key, sorted(RUN_KEYS | {"runs"}))
                    raise UserError(f"{layer.place}: {name}.{key}: unknown key{near}")


def _check_patterns(study: str, at_scale: StudyScale, names: list[str], templates: list[str], scale: str) -> None:
    """Refuse patterns of the scale that match no run of the study."""
    for pattern in (*at_scale.only, *at_scale.runs, *at_scale.prune, *(at_scale.zeroshot or ())):
        if pattern not in templates and not any(fnmatchcase(name, pattern) for name in names):
            place = f"workflow/scales/{scale}.yaml: studies.{study}"
            raise UserError(f"{place}: {pattern!r} matches no run{near_misses(pattern, names + templates)}")
