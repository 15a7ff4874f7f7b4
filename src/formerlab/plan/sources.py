"""Read config, scale and studies, with the overrides of overlay file and command line in force."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import create_model

from formerlab.errors import UserError, near_misses
from formerlab.plan.layers import Tree, laid, merge, nested
from formerlab.plan.read import fields_of, parse
from formerlab.plan.schema import Config, Scale, Study
from formerlab.plan.tokenizers import with_vocabularies
from formerlab.spec import Spec
from formerlab.training.released import ReleasedRun
from formerlab.training.run import Run
from formerlab.yaml_files import read_yaml

_OF_THE_FILE = {"study", "name", "seed"}
RELEASED_KEYS = frozenset(ReleasedRun.model_fields) - _OF_THE_FILE - {"model"}
"""What a run says of a released model."""
RUN_KEYS = (frozenset(Run.model_fields) - _OF_THE_FILE) | RELEASED_KEYS
CONFIG_KEYS = frozenset(Config.model_fields) - {"overlay", "set"}
"""Keys of config.yaml that an override may give; `scale` with a mapping below it means the file of the scale."""


@dataclass(frozen=True)
class Sources:
    """Everything that was read, before runs are made of it: as specs, and as trees that know their files."""

    config: Config
    scale: Scale
    studies: dict[str, Study]
    config_tree: Tree
    scale_tree: Tree
    study_trees: dict[str, Tree]
    overrides: list[Tree]
    added: dict[str, frozenset[str]]
    """Runs that an overlay or `set` adds to a study: who adds a run wants it at any scale."""

    @property
    def scale_file(self) -> str:
        """The file of the scale."""
        return scale_file(self.config)

    def at_scale(self, study: str, *path: str) -> Tree:
        """Return what the scale says below a path of a study."""
        return self.scale_tree.part("studies", study, *path)

    def settings(self, study: str, *path: str) -> Tree:
        """Return what a study says below a path, and on top what the scale says of it there."""
        return merge(self.study_trees[study].part(*path), self.at_scale(study, *path), ".".join((study, *path)))


def scale_file(config: Config) -> str:
    """Return the file of a configuration's scale."""
    return f"workflow/scales/{config.scale}.yaml"


def study_file(name: str) -> str:
    """Return the file of a study."""
    return f"workflow/studies/{name}.yaml"


def read_tree(root: Path, file: str) -> Tree:
    """Read a YAML file below `root`."""
    return Tree(read_yaml(root, file), file)


def read_sources(root: Path, given: dict[str, Any]) -> Sources:
    """Read config, scale and studies below `root`; `given` are the values of the command line."""
    known = sorted(path.stem for path in (root / "workflow" / "studies").glob("*.yaml"))
    own = [read_tree(root, "config.yaml"), Tree(given, "command line")]
    below_set = {name: f"set: {{{way}: ...}}" for name, way in _ways(root, known, known).items()}
    config = parse(Config, laid(own), "", below_set)
    overrides = [] if config.overlay is None else [nested(read_yaml(root, config.overlay), config.overlay)]
    overrides += [nested(tree.part("set"), f"{tree.file}: set") for tree in own]
    for tree in overrides:
        parse(
            _form_of_overrides(tuple(known)), tree, "", _ways(root, known, [study for study in known if study in tree])
        )
    config_tree = laid([*own, *(_of_config(tree) for tree in overrides)])
    config = parse(Config, config_tree)
    _check_studies(config.studies, config_tree, ("studies",), known)
    _check_folders(root, config, config_tree)
    scale_tree = _scale_tree(root, config, [*own, *overrides], overrides)
    scale = parse(Scale, scale_tree)
    for name in scale.studies:
        _check_studies([name], scale_tree, ("studies", name), known)
    scale = scale.model_copy(update={"data": with_vocabularies(scale.data, scale_file(config), scale.released)})
    tracked = {name: read_tree(root, study_file(name)) for name in config.studies}
    trees = {name: laid([tree, *_of_study(name, overrides)], name) for name, tree in tracked.items()}
    studies = {name: parse(Study, tree) for name, tree in trees.items()}
    added = {name: frozenset(trees[name].part("runs").keys() - tracked[name].part("runs").keys()) for name in trees}
    return Sources(config, scale, studies, config_tree, scale_tree, trees, overrides, added)


def _check_studies(names: Any, tree: Tree, path: tuple[str, ...], known: list[str]) -> None:
    for name in names:
        if name not in known:
            raise UserError(f"{tree.file_of(*path)}: {'.'.join(path)}: no study {name!r}{near_misses(name, known)}")


def _of_config(tree: Tree) -> Tree:
    return tree.only(CONFIG_KEYS - ({"scale"} if isinstance(tree.get("scale"), dict) else set()))


def _of_study(name: str, overrides: list[Tree]) -> list[Tree]:
    return [Tree(tree.part("study", name), f"{tree.file}: study.{name}") for tree in overrides]


def _scale_tree(root: Path, config: Config, layers: list[Tree], overrides: list[Tree]) -> Tree:
    """Return the file of the scale, on it data, suites and models of the configuration, then overrides of the file.

    A data set is text where what names it first says no kind.
    """
    mine = [tree.only({key for key in ("data", "suites", "released") if tree.get(key)}) for tree in layers]
    mine += [Tree(tree.part("scale"), f"{tree.file}: scale") for tree in overrides]
    whole = _as_text(read_tree(root, scale_file(config)))
    for tree in mine:
        whole = _as_text(merge(whole, tree))
    return whole


def _as_text(tree: Tree) -> Tree:
    data = tree.part("data")
    silent = {name: {"kind": "text"} for name, one in data.items() if isinstance(one, Tree) and "kind" not in one}
    return merge(Tree({"data": silent} if silent else {}, tree.file), tree)


def _check_folders(root: Path, config: Config, tree: Tree) -> None:
    """Refuse folders to write into that are files, or below one."""
    for key in ("results", "figures"):
        folder = root / getattr(config, key)
        for path in (folder, *folder.parents):
            if path.exists() and not path.is_dir():
                raise UserError(f"{tree.file_of(key)}: {key}: {path} is a file; name another folder")


def _form_of_overrides(studies: tuple[str, ...]) -> type[Spec]:
    """Return the spec of what overrides may name; the values of these keys are judged where they are laid."""
    of_study: dict[str, Any] = dict.fromkeys(RUN_KEYS, (Any, None)) | {"runs": (dict[str, dict[str, Any]], {})}
    of_files: dict[str, Any] = dict.fromkeys(studies, (dict[str, Any], {}))
    keys: dict[str, Any] = dict.fromkeys(CONFIG_KEYS, (Any, None))
    keys |= dict.fromkeys(studies, (create_model("OfStudy", __base__=Spec, **of_study), None))
    keys["study"] = (create_model("OfFiles", __base__=Spec, **of_files), None)
    return create_model("Overrides", __base__=Spec, **keys)


def _ways(root: Path, studies: list[str], meant: list[str]) -> dict[str, str]:
    """Return what the keys of every file and run, and the names of runs, are as overrides; `meant` are the studies."""
    one = meant[0] if len(meant) == 1 else "<study>"
    of_runs = {name: way for name, way in fields_of(Run).items() if name not in _OF_THE_FILE}
    found = {name: f"scale.{way}" for name, way in fields_of(Scale).items()}
    found |= {name: f"study.{one}.{name}" for name in Study.model_fields}
    found |= {name: f"{one}.{way}" for name, way in of_runs.items()}
    found |= {"study": f"study.{one}.<key>"} | {name: f"{name}.<key>" for name in studies}
    runs = {study: read_yaml(root, study_file(study)).get("runs") or () for study in studies}
    return found | {run: f"{study}.runs.{run}.<key>" for study in studies for run in runs[study]}
