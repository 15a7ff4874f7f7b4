"""Imports run downwards through the packages (docs/architecture.md), and no imports are circular."""

import ast
import re
from pathlib import Path

import formerlab

PACKAGE = Path(formerlab.__file__).parent

PAGE = (Path(__file__).resolve().parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("\n| package |")[2].partition("\n\n")[0]
PACKAGES = [package or ground for package, ground in re.findall(r"^\| (?:`(\w+)/`|(shared by all)) \|", TABLE, re.M)]
"""The packages in the order of docs/architecture.md: a file may import from its own package and from those below."""
GROUND = "shared by all"
LEVEL = {package: -index for index, package in enumerate(PACKAGES)} | {"__main__": 1}


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


def imported(tree, known):
    """Return the modules of this package that one imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {name if (name := f"{node.module}.{a.name}") in known else node.module for a in node.names}
    return found & known


def package(module):
    """Return the package of a module; a file at the top level is shared by all packages."""
    name = module.split(".")[1] if "." in module else GROUND
    return name if name in LEVEL else GROUND


def test_the_table_lists_every_package():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {*PACKAGES} == {*packages, GROUND}
    assert len(list(PACKAGE.glob("*.py"))) <= 13


def test_no_import_runs_back_up():
    trees = modules()
    known = set(trees)
    back = [
        f"{module} -> {target}"
        for module, tree in trees.items()
        if module != "formerlab"  # the public API re-exports names of all packages
        for target in imported(tree, known)
        if LEVEL[package(target)] > LEVEL[package(module)]
    ]
    assert not back


def test_no_two_files_need_each_other_imports_inside_functions_included():
    trees = modules()
    known = set(trees)
    needs = {module: imported(tree, known) - {module} for module, tree in trees.items() if module != "formerlab"}
    done: set[str] = set()

    def visit(module, above):
        assert module not in above, " -> ".join([*above[above.index(module) :], module])
        if module not in done:
            for target in sorted(needs.get(module, ())):
                visit(target, [*above, module])
            done.add(module)

    for module in sorted(needs):
        visit(module, [])
