"""Read config, scale and studies, with the overrides of overlay file and command line in force."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from formerlab.errors import UserError
from formerlab.plan.layers import Layer, Tree, at, merge_layers, nested, place_of
from formerlab.plan.read import near_misses, parse, read_yaml
from formerlab.plan.schema import Config, Scale, Study
from formerlab.plan.tokenizers import with_vocabularies
from formerlab.run import Run

RUN_KEYS = frozenset(Run.model_fields) - {"study", "name", "seed"}
CONFIG_KEYS = frozenset(Config.model_fields) - {"overlay", "set"}
"""Keys of config.yaml that an override may give; `scale` with a mapping below it means the file of the scale."""


@dataclass(frozen=True)
class Sources:
    """Everything that was read, before runs are made of it."""

    config: Config
    scale: Scale
    studies: dict[str, Study]
    overrides: list[Layer]

    @property
    def scale_place(self) -> str:
        """The file of the scale."""
        return f"workflow/scales/{self.config.scale}.yaml"


def study_place(name: str) -> str:
    """Return the file of a study."""
    return f"workflow/studies/{name}.yaml"


def read_sources(root: Path, given: Tree) -> Sources:
    """Read config, scale and studies below `root`; `given` are the values of the command line."""
    layers = [Layer("config.yaml", read_yaml(root, "config.yaml")), Layer("command line", given)]
    overrides = _overrides(root, layers)
    known = sorted(path.stem for path in (root / "workflow" / "studies").glob("*.yaml"))
    _check_names(overrides, known)
    layers += [Layer(layer.place, _config_part(layer.tree)) for layer in overrides]
    config = parse(Config, layers)
    for name in config.studies:
        if name not in known:
            raise UserError(f"{place_of(layers, ('studies',))}: studies: no study {name!r}{near_misses(name, known)}")
    scale = _read_scale(root, config, overrides)
    for name in scale.studies:
        if name not in known:
            raise UserError(
                f"workflow/scales/{config.scale}.yaml: studies.{name}: no such study{near_misses(name, known)}"
            )
    studies = {name: _read_study(root, name, overrides) for name in config.studies}
    return Sources(config, scale, studies, overrides)


def part(layers: list[Layer], *path: str) -> list[Layer]:
    """Return the part of each layer below a path, where it has one."""
    found = [Layer(layer.place, at(layer.tree, path)) for layer in layers]
    return [layer for layer in found if isinstance(layer.tree, dict)]


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


def _read_scale(root: Path, config: Config, overrides: list[Layer]) -> Scale:
    place = f"workflow/scales/{config.scale}.yaml"
    mine = {"data": config.data, "suites": config.suites}
    own = Layer("config.yaml", {key: tree for key, tree in mine.items() if tree})
    layers = [Layer(place, read_yaml(root, place)), own, *_named(part(overrides, "scale"), "scale")]
    data = {
        name: {"kind": "text"} for name, tree in _data_sets(layers) if isinstance(tree, dict) and "kind" not in tree
    }
    scale = parse(Scale, [*layers, Layer(place, {"data": data} if data else {})])
    return scale.model_copy(update={"data": with_vocabularies(scale.data, place)})


def _data_sets(layers: list[Layer]) -> list[tuple[str, Any]]:
    data = merge_layers(layers).get("data")
    return list(data.items()) if isinstance(data, dict) else []


def _read_study(root: Path, name: str, overrides: list[Layer]) -> Study:
    place = study_place(name)
    return parse(
        Study, [Layer(place, read_yaml(root, place)), *_named(part(overrides, "study", name), f"study.{name}")]
    )


def _named(layers: list[Layer], path: str) -> list[Layer]:
    return [Layer(f"{layer.place}: {path}", layer.tree) for layer in layers]


def _check_names(overrides: list[Layer], studies: list[str]) -> None:
    """Refuse overrides that no part of the configuration would read."""
    for layer in overrides:
        for name, value in layer.tree.items():
            if name in studies:
                _check_keys(layer.place, name, value, RUN_KEYS | {"runs"})
            elif name == "study":
                _check_keys(layer.place, name, value, studies)
            elif name not in CONFIG_KEYS:
                near = near_misses(name, [*studies, "study", *CONFIG_KEYS])
                raise UserError(f"{layer.place}: {name}: unknown key (value {value!r}){near}")


def _check_keys(place: str, name: str, tree: Any, known: Any) -> None:
    if not isinstance(tree, dict):
        raise UserError(f"{place}: {name}: got {tree!r}; name a key below it, such as {name}.{min(known)}")
    for key, value in tree.items():
        if key not in known:
            raise UserError(f"{place}: {name}.{key}: unknown key (value {value!r}){near_misses(key, list(known))}")
        if key == "runs" and not isinstance(value, dict):
            raise UserError(
                f"{place}: {name}.runs: got {value!r}; name a run below it, such as {name}.runs.<run>.steps"
            )
