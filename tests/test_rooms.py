"""Imports run downwards through the rooms of the house (docs/architecture.md), and no two files need each other."""

import ast
from pathlib import Path

import formerlab

PACKAGE = Path(formerlab.__file__).parent

ROOMS = (
    *("errors files progress seeding spec statistics calibration torchvision_shim yaml_files", "results", "data"),
    *("kernels", "layers", "models", "growth", "cache", "tasks", "training", "evaluation"),
    *("report", "plan", "integrations", "tracking", "commands", "__main__"),
)
"""From the ground up; rooms of one line may use each other. A file may import what stands in its line or before it."""
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms.split()}


def modules():
    """Return the syntax tree of every module by its name; imports for type checkers alone are left out."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        trees[name] = tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = [ast.Pass()]
    return trees


def imported(tree, known, *, when_imported=False):
    """Return the modules of this package that one imports, or those that it imports when it is imported itself."""
    nodes = tree.body if when_imported else ast.walk(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {name if (name := f"{node.module}.{a.name}") in known else node.module for a in node.names}
    return found & known


def room(module):
    return module.split(".")[1] if "." in module else "errors"  # the version, which is below all


def test_every_room_has_its_place():
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found - {"__init__"} == LEVEL.keys()
    assert sum(path.suffix == ".py" for path in PACKAGE.iterdir()) <= 12


def test_no_import_runs_back_up():
    trees = modules()
    known = set(trees)
    back = [
        f"{module} -> {target}"
        for module, tree in trees.items()
        if module != "formerlab"  # the public face offers what lies anywhere
        for target in imported(tree, known)
        if LEVEL[room(target)] > LEVEL[room(module)]
    ]
    assert not back


def test_no_two_files_need_each_other():
    trees = modules()
    known = set(trees)
    needs = {module: imported(tree, known, when_imported=True) - {module} for module, tree in trees.items()}
    done: set[str] = set()

    def visit(module, above):
        assert module not in above, " -> ".join([*above[above.index(module) :], module])
        if module not in done:
            for target in sorted(needs[module]):
                visit(target, [*above, module])
            done.add(module)

    for module in sorted(needs):
        visit(module, [])
