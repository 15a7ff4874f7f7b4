"""Read config, scale and studies, with the overrides of overlay file and command line in force."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from formerlab.errors import UserError, near_misses, shown
from formerlab.plan.layers import Layer, Tree, nested, part, place_of
from formerlab.plan.read import fields_of, parse
from formerlab.plan.schema import Config, Scale, Study
from formerlab.plan.tokenizers import with_vocabularies
from formerlab.results.stages import MEASURED, TIMED
from formerlab.training.released import ReleasedRun
from formerlab.training.run import Run
from formerlab.yaml_files import read_yaml

_OF_THE_PLACE = {"study", "name", "seed"}
RELEASED_KEYS = frozenset(ReleasedRun.model_fields) - _OF_THE_PLACE - {"model"}
"""What a run says of a released model."""
RUN_KEYS = (frozenset(Run.model_fields) - _OF_THE_PLACE) | RELEASED_KEYS
CONFIG_KEYS = frozenset(Config.model_fields) - {"overlay", "set"}
"""Keys of config.yaml that an override may give; `scale` with a mapping below it means the file of the scale."""


@dataclass(frozen=True)
class Sources:
    """Everything that was read, before runs are made of it, and the layers that it was read from."""

    config: Config
    scale: Scale
    studies: dict[str, Study]
    config_layers: list[Layer]
    scale_layers: list[Layer]
    study_layers: dict[str, list[Layer]]
    overrides: list[Layer]

    @property
    def scale_place(self) -> str:
        """The file of the scale."""
        return f"workflow/scales/{self.config.scale}.yaml"

    def at_scale(self, study: str, *path: str) -> list[Layer]:
        """Return what the scale says below a path of a study."""
        return part(self.scale_layers, "studies", study, *path)

    def settings(self, study: str, *path: str) -> list[Layer]:
        """Return what a study says below a path, and on top what the scale says of it there."""
        return [Layer(study_place(study), {}), *part(self.study_layers[study], *path), *self.at_scale(study, *path)]


def study_place(name: str) -> str:
    """Return the file of a study."""
    return f"workflow/studies/{name}.yaml"


def read_sources(root: Path, given: Tree) -> Sources:
    """Read config, scale and studies below `root`; `given` are the values of the command line."""
    layers = [Layer("config.yaml", read_yaml(root, "config.yaml")), Layer("command line", given)]
    known = sorted(path.stem for path in (root / "workflow" / "studies").glob("*.yaml"))
    _check_config_keys(root, layers, known)
    overrides = _overrides(root, layers)
    _check_names(root, overrides, known)
    layers += [Layer(layer.place, _config_part(layer.tree)) for layer in overrides]
    config = parse(Config, layers)
    for name in config.studies:
        if name not in known:
            raise UserError(f"{place_of(layers, ('studies',))}: studies: no study {name!r}{near_misses(name, known)}")
    _check_folders(root, config, layers)
    scale_layers = _scale_layers(root, config, layers, overrides)
    scale = _read_scale(scale_layers)
    for name in scale.studies:
        if name not in known:
            place = place_of(scale_layers, ("studies", name))
            raise UserError(f"{place}: studies.{name}: no such study{near_misses(name, known)}")
    study_layers = {name: _study_layers(root, name, overrides) for name in config.studies}
    studies = {name: parse(Study, of_study) for name, of_study in study_layers.items()}
    return Sources(config, scale, studies, layers, scale_layers, study_layers, overrides)


def _overrides(root: Path, layers: list[Layer]) -> list[Layer]:
    """Return the overlay, then `set` of config.yaml, then `set` of the command line."""
    config = parse(Config, layers)
    overlay = [] if config.overlay is None else [Layer(config.overlay, nested(read_yaml(root, config.overlay)))]
    return overlay + [Layer(f"{layer.place}: set", nested(layer.tree)) for layer in part(layers, "set")]


def _config_part(tree: Tree) -> Tree:
    return {
        name: value
        for name, value in tree.items()
        if name in CONFIG_KEYS and not (name == "scale" and isinstance(value, dict))
    }


def _check_folders(root: Path, config: Config, layers: list[Layer]) -> None:
    """Refuse folders to write into that are files, or below one."""
    for key in ("results", "figures"):
        folder = root / getattr(config, key)
        for path in (folder, *folder.parents):
            if path.exists() and not path.is_dir():
                raise UserError(f"{place_of(layers, (key,))}: {key}: {path} is a file; name another folder")


def _scale_layers(root: Path, config: Config, layers: list[Layer], overrides: list[Layer]) -> list[Layer]:
    """Return the file of the scale, on it data, suites and models of the configuration, then overrides of the file."""
    place = f"workflow/scales/{config.scale}.yaml"
    mine = [
        Layer(layer.place, {k: layer.tree[k] for k in ("data", "suites", "released") if layer.tree.get(k)})
        for layer in layers
    ]
    return [Layer(place, read_yaml(root, place)), *mine, *_named(part(overrides, "scale"), "scale")]


def _read_scale(layers: list[Layer]) -> Scale:
    """Return the scale; a data set is text where what names it first says no kind."""
    named: Tree = {}
    for layer in part(layers, "data"):
        named = layer.tree | named
    silent = {name: {"kind": "text"} for name, tree in named.items() if isinstance(tree, dict) and "kind" not in tree}
    for of_study in part(layers, "studies"):
        for name in of_study.tree:
            _refuse_moved(part([of_study], name), f"studies.{name}.")
    place = layers[0].place
    scale = parse(Scale, [Layer(place, {"data": silent} if silent else {}), *layers])
    return scale.model_copy(update={"data": with_vocabularies(scale.data, place, scale.released)})


def _study_layers(root: Path, name: str, overrides: list[Layer]) -> list[Layer]:
    place = study_place(name)
    layers = [Layer(place, read_yaml(root, place)), *_named(part(overrides, "study", name), f"study.{name}")]
    _refuse_moved(layers, "")
    return layers


def _refuse_moved(layers: list[Layer], above: str) -> None:
    """Refuse a measurement in the place that it had before the key `measure`."""
    for layer in layers:
        for name in [key for key in layer.tree if key in (*MEASURED, *TIMED)]:
            now = f"{above}measure.{name}"
            raise UserError(f"{layer.place}: {above}{name}: is {now} now; write {now}: {{runs: [...], ...}}")


def _named(layers: list[Layer], path: str) -> list[Layer]:
    return [Layer(f"{layer.place}: {path}", layer.tree) for layer in layers]


def _check_config_keys(root: Path, layers: list[Layer], studies: list[str]) -> None:
    """Refuse keys that would be right below `set`."""
    for layer in layers:
        for name, value in layer.tree.items():
            if name in Config.model_fields:
                continue
            path = _path(name, value) if name in (*studies, "study") else _meant(name, value, studies, root)
            if path:
                raise UserError(
                    f"{layer.place}: {name}: unknown key (value {shown(value)}); did you mean set: {{{path}: ...}}?"
                )


def _check_names(root: Path, overrides: list[Layer], studies: list[str]) -> None:
    """Refuse overrides that no part of the configuration would read."""
    for layer in overrides:
        for name, value in layer.tree.items():
            if name in studies:
                _check_keys(layer.place, name, value, RUN_KEYS | {"runs"}, [name], root)
            elif name == "study":
                _check_keys(layer.place, name, value, studies, [], root)
            elif name == "scale" and isinstance(value, dict):
                for study in value.keys() & set(studies):
                    near = f"did you mean scale.studies.{_path(study, value[study])}?"
                    raise UserError(f"{layer.place}: scale.{study}: unknown key (value {shown(value[study])}); {near}")
            elif name not in CONFIG_KEYS:
                near = _meant(name, value, studies, root)
                near = f"; did you mean {near}?" if near else near_misses(name, [*studies, "study", *CONFIG_KEYS])
                raise UserError(f"{layer.place}: {name}: unknown key (value {shown(value)}){near}")


def _check_keys(place: str, name: str, tree: Any, known: Collection[str], studies: list[str], root: Path) -> None:
    if not isinstance(tree, dict):
        raise UserError(f"{place}: {name}: got {shown(tree)}; name a key below it, such as {name}.{min(known)}")
    for key, value in tree.items():
        if key not in known:
            near = _meant(key, value, studies, root)
            near = f"; did you mean {near}?" if near else near_misses(key, list(known))
            raise UserError(f"{place}: {name}.{key}: unknown key (value {shown(value)}){near}")
        if key == "runs" and not isinstance(value, dict):
            raise UserError(
                f"{place}: {name}.runs: got {shown(value)}; name a run below it, such as {name}.runs.<run>.steps"
            )


def _meant(name: str, value: Any, studies: list[str], root: Path) -> str:
    """Return the path that a natural but wrong one may mean; nothing where there is none."""
    path = _path(name, value)
    for study in studies:
        runs = read_yaml(root, study_place(study)).get("runs")
        if any(fnmatchcase(str(name), re.sub(r"\{.*?\}", "*", str(run))) for run in runs or ()):
            return f"{study}.runs.{path}"
    of_run, study = fields_of(Run), studies[0] if len(studies) == 1 else "<study>"
    if studies and name in of_run:
        return f"{study}.{of_run[name]}{path.removeprefix(str(name))}"
    if studies and name in Study.model_fields:
        return f"study.{study}.{path}"
    return f"scale.{path}" if name in Scale.model_fields else ""


def _path(name: str, value: Any) -> str:
    """Return a key with those below it, as far as there is one of each."""
    keys = [name]
    while isinstance(value, dict) and len(value) == 1:
        ((key, value),) = value.items()
        keys.append(key)
    return ".".join(map(str, keys))
