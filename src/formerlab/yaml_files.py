"""Read YAML files; every error is one line with the file."""

import copy
import functools
from pathlib import Path
from typing import Any

import yaml

from formerlab.errors import UserError, near_misses, short_repr

FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader of libyaml if PyYAML has it; its errors have less detail."""


class _UniqueKeyLoader(yaml.SafeLoader):
    """A safe loader that refuses duplicate keys."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} given twice", problem_mark=key.start_mark)
            keys.add(key.value)
        return node


@functools.lru_cache(64)
def _parsed(text: str) -> Any:
    return yaml.load(text, Loader=_UniqueKeyLoader)


def read_yaml(root: Path, name: str) -> dict[str, Any]:
    """Read a mapping from the YAML file `name`, a path below `root`; raise UserError for any mistake."""
    path = root / name
    if path.exists() and not path.is_file():
        raise UserError(f"{name}: a folder or device; name a file")
    try:
        tree = copy.deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        if name == "config.yaml":
            problem = f"config.yaml: not in {root.resolve()}"
            raise UserError(f"{problem}; run this in a project's folder; `formerlab init FOLDER` makes one") from None
        near = near_misses(path.name, [file.name for file in path.parent.glob("*.yaml")])
        raise UserError(f"{name}: no such file{near}") from None
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{name}: not valid YAML: {error.problem}{line}; correct it") from None
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{name}: cannot be read: {' '.join(str(error).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UserError(f"{name}: got {short_repr(tree)}; write keys and values")
    return tree


def study_names(root: Path) -> list[str]:
    """Return the names of the studies in workflow/studies, in the order of their papers."""
    files = root.glob("workflow/studies/*.yaml")
    papers = {path.stem: str(read_yaml(path.parent, path.name).get("paper")) for path in files}
    return sorted(papers, key=lambda name: (papers[name], name))


def read_scale(root: Path, name: str) -> dict[str, Any]:
    """Return the keys of a scale in workflow/scales, or an empty mapping if its file is missing."""
    path = root / "workflow" / "scales" / f"{name}.yaml"
    return read_yaml(path.parent, path.name) if path.exists() else {}
