"""Read config, scale and studies, and apply the overrides of the overlay file and the command line."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import create_model

from formerlab.data import TextData, TokenizerFile, TokenizerOf
from formerlab.data.dataset import DataSpec
from formerlab.data.text.tokenizer import ReleasedTokenizer
from formerlab.errors import UserError, near_misses
from formerlab.plan.merging import Tree, merge, merge_all, nested, parse
from formerlab.plan.schema import Config, Scale, Study
from formerlab.released import ReleasedModel, Sizes
from formerlab.spec import Spec
from formerlab.training.any_run import ReleasedRun
from formerlab.training.run import Run
from formerlab.yaml_files import read_yaml, study_names

DataSets = Mapping[str, DataSpec]
_SET_BY_STUDY = {"study", "name", "seed"}
RUN_KEYS = (frozenset(Run.model_fields) | frozenset(ReleasedRun.model_fields)) - _SET_BY_STUDY
CONFIG_KEYS = frozenset(Config.model_fields) - {"overlay", "set"}
"""Keys of config.yaml that apply to all studies. `scale` is the name of a scale, or a mapping with keys of a
scale's file."""
KEY_FORMS = "write <study>.<key>, <study>.runs.<run>.<key>, scale.<key>, study.<study>.<key> or a key of config.yaml"


@dataclass(frozen=True, eq=False)
class Sources:
    """Configuration, scale and studies, as specs and as trees that store their files."""

    config: Config
    scale: Scale
    studies: dict[str, Study]
    config_tree: Tree
    scale_tree: Tree
    study_trees: dict[str, Tree]
    overrides: list[Tree]
    added: dict[str, frozenset[str]]
    """Runs that config.yaml, an overlay or `set` adds, by study; they exist at every scale."""

    def scale_settings(self, study: str, *path: str) -> Tree:
        """Return the scale's settings below a path of a study."""
        return self.scale_tree.subtree("studies", study, *path)

    def study_settings(self, study: str, *path: str) -> Tree:
        """Return a study's settings below a path, with the scale's settings merged over them."""
        study_tree, subject = self.study_trees[study].subtree(*path), ".".join((study, *path))
        return merge(study_tree, self.scale_settings(study, *path), subject)


def study_file(name: str) -> str:
    """Return the path of a study's file."""
    return f"workflow/studies/{name}.yaml"


def read_tree(root: Path, file: str) -> Tree:
    """Read a YAML file below `root`."""
    return Tree(read_yaml(root, file), file)


def read_sources(root: Path, command_line: dict[str, Any]) -> Sources:
    """Read config, scale and studies below `root`; `command_line` overrides them. Raises UserError if invalid."""
    existing_studies = sorted(path.stem for path in root.glob("workflow/studies/*.yaml"))
    scales = sorted(path.stem for path in root.glob("workflow/scales/*.yaml"))
    overrides = _overrides(root, command_line)
    override_spec = _override_spec(existing_studies)
    for tree in overrides:
        parse(override_spec, tree, remedy=KEY_FORMS)
    with_scale_keys = [tree for tree in overrides if isinstance(tree.get("scale"), dict)]
    config_trees = [tree.drop("scale") if tree in with_scale_keys else tree for tree in overrides]
    config_tree = merge_all([tree.select(CONFIG_KEYS) for tree in config_trees])
    config = parse(Config, config_tree)
    if config.scale not in scales:
        near = near_misses(config.scale, scales)
        raise UserError(f"{config_tree.file_of('scale')}: scale: no scale {config.scale!r}{near}")
    scale_tree = _with_default_kind(read_tree(root, f"workflow/scales/{config.scale}.yaml"))
    input_trees = [tree.select({key for key in ("data", "suites", "released") if tree.get(key)}) for tree in overrides]
    for tree in (*input_trees, *(Tree(tree.subtree("scale"), f"{tree.file}: scale") for tree in with_scale_keys)):
        scale_tree = _with_default_kind(merge(scale_tree, tree))
    scale = parse(Scale, scale_tree)
    studies = config.studies or tuple(name for name in study_names(root) if name in (scale.studies or existing_studies))
    named_studies: list[tuple[str, Tree, tuple[str, ...]]] = [(name, config_tree, ("studies",)) for name in studies]
    named_studies += [(name, scale_tree, ("studies", name)) for name in scale.studies]
    for name, tree, path in named_studies:
        if name not in existing_studies:
            key = f"{tree.file_of(*path)}: {'.'.join(path)}"
            raise UserError(f"{key}: no study {name!r}{near_misses(name, existing_studies)}")
    scale = scale.model_copy(update={"data": with_vocabularies(scale.data, scale_tree, scale.released)})
    file_trees = {name: read_tree(root, study_file(name)) for name in studies}
    trees = dict[str, Tree]()
    for name, tree in file_trees.items():
        changes = [Tree(override.subtree("study", name), f"{override.file}: study.{name}") for override in overrides]
        trees[name] = merge_all([tree, *changes], name)
    parsed = {name: parse(Study, tree) for name, tree in trees.items()}
    file_runs = {name: tree.subtree("runs").keys() for name, tree in file_trees.items()}
    added = {name: frozenset(tree.subtree("runs").keys() - file_runs[name]) for name, tree in trees.items()}
    return Sources(config, scale, parsed, config_tree, scale_tree, trees, overrides, added)


def _overrides(root: Path, command_line: dict[str, Any]) -> list[Tree]:
    """Return the overrides by increasing priority: keys of config.yaml, overlay and command line, then their `set`."""
    files = [read_tree(root, "config.yaml"), Tree(command_line, "command line")]
    if (overlay := parse(Config, merge_all([tree.select({"overlay"}) for tree in files])).overlay) is not None:
        files.insert(1, read_tree(root, overlay))
        if "overlay" in files[1]:
            problem = "an overlay cannot name another overlay; write the keys of both into one file"
            raise UserError(f"{overlay}: overlay: {problem}")
    for tree in files:
        parse(Config, tree.select({"set"}))
    keys = [(tree.drop("overlay", "set"), tree.file) for tree in files]
    sets = [(tree.subtree("set"), f"{tree.file}: set") for tree in files]
    return [override for tree, file in (*keys, *sets) for override in _literal_and_dotted_keys(tree, file)]


def _literal_and_dotted_keys(tree: Tree, file: str) -> list[Tree]:
    """Return a tree with the key `hardware` and the name of the scale, and a nested tree of all other (dotted) keys.

    Names of processors may contain dots, so the keys of `hardware` stay unchanged.
    """
    literal = tree.select({"hardware"} if isinstance(tree.get("scale"), dict | None) else {"hardware", "scale"})
    return [Tree(literal, file), nested(tree.drop(*literal), file)]


def _with_default_kind(tree: Tree) -> Tree:
    """Return the tree of a scale with `kind: text` added to every data set that has no `kind`."""
    data = tree.subtree("data")
    kinds = {name: {"kind": "text"} for name, spec in data.items() if isinstance(spec, Tree) and "kind" not in spec}
    return merge(Tree({"data": kinds} if kinds else {}, tree.file), tree)


def _override_spec(studies: list[str]) -> type[Spec]:
    """Return a spec of the keys that overrides may have; the values are checked after the merge."""
    run_keys: dict[str, Any] = dict.fromkeys(RUN_KEYS, (Any, None)) | {"runs": (dict[str, dict[str, Any]], {})}
    study_keys: dict[str, Any] = dict.fromkeys(studies, (dict[str, Any], {}))
    keys: dict[str, Any] = dict.fromkeys(CONFIG_KEYS, (Any, None))
    keys |= dict.fromkeys(studies, (create_model("RunOverrides", __base__=Spec, **run_keys), None))
    keys["study"] = (create_model("StudyOverrides", __base__=Spec, **study_keys), None)
    return create_model("Overrides", __base__=Spec, **keys)


def with_vocabularies(data: DataSets, tree: Tree, released: Mapping[str, ReleasedModel]) -> DataSets:
    """Return the data sets with the vocabularies of shared tokenizers; the owner of a tokenizer precedes its users.

    A data set that uses the tokenizer of a released model gets the files and the vocabulary of this model. Raises
    UserError if the owner of a tokenizer does not exist or has another vocabulary, or if two data sets use each other's
    tokenizer.
    """
    paths_to_owner = {name: tokenizer_chain(name, data, tree) for name in data}
    filled: dict[str, DataSpec] = {}
    for name in sorted(data, key=lambda name: len(paths_to_owner[name])):
        spec, changes = data[name], dict[str, object]()
        key = f"{tree.file_of('data', name, 'tokenizer')}: data.{name}.tokenizer"
        tokenizer = getattr(spec, "tokenizer", None)
        if isinstance(tokenizer, ReleasedTokenizer):
            if (owner := tokenizer.model) not in released:
                near = near_misses(owner, list(released))
                raise UserError(f"{key}.model: no released model {owner!r} at this scale{near}")
            sizes = sizes_of(owner, released[owner], tree.file_of("released", owner))
            changes = {"vocabulary": sizes.vocabulary, "source": released[owner]}
        elif isinstance(tokenizer, TokenizerOf):
            changes = {"vocabulary": getattr(filled[tokenizer.data], "vocabulary", None)}
        if tokenizer is not None and changes:
            if tokenizer.vocabulary not in (None, changes["vocabulary"]):
                difference = f"{tokenizer.vocabulary}, but the tokenizer has {changes['vocabulary']}"
                raise UserError(f"{key}.vocabulary: {difference}; leave it out")
            spec = spec.model_copy(update={"tokenizer": tokenizer.model_copy(update=changes)})
        filled[name] = spec
    return filled


def sizes_of(model: str, source: ReleasedModel, file: str) -> Sizes:
    """Return the sizes of a released model; raise UserError if no sizes are set and its files cannot be read."""
    try:
        return source.load_sizes()
    except UserError as error:
        raise UserError(f"{file}: released.{model}: {error}; or set its sizes") from None


def tokenizer_chain(name: str, data: DataSets, tree: Tree | None = None) -> list[str]:
    """Return the data sets from `name` to the owner of its tokenizer; each uses the tokenizer of the next data set.

    Raises UserError if an owner does not exist or data sets use each other's tokenizer.
    """
    names = [name]
    while isinstance(tokenizer := getattr(data[names[-1]], "tokenizer", None), TokenizerOf):
        file = tree.file_of("data", names[-1], "tokenizer") if tree else ""
        key, owner = f"{file}: data.{names[-1]}.tokenizer.data", tokenizer.data
        texts = [text for text, spec in data.items() if isinstance(spec, TextData)]
        if owner not in texts:
            raise UserError(f"{key}: no data set {owner!r} of text at this scale{near_misses(owner, texts)}")
        names.append(owner)
        if owner in names[:-1]:
            raise UserError(f"{key}: {owner!r} closes a cycle ({' -> '.join(names)}); choose another data set")
    return names


def same_tokenizer(a: str, b: str, data: DataSets) -> bool:
    """Return whether two data sets have the same tokenizer. Tokenizers trained on different texts always differ."""
    first, second = (tokenizer_chain(name, data)[-1] for name in (a, b))
    tokenizer = getattr(data[first], "tokenizer", None)
    fixed = isinstance(tokenizer, TokenizerFile | ReleasedTokenizer)
    return first == second or (fixed and tokenizer == getattr(data[second], "tokenizer", None))
