"""A package imports only from packages below it (docs/architecture.md), and no imports are circular."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import formerlab

PACKAGE = Path(formerlab.__file__).parent

PAGE = (Path(__file__).resolve().parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("\n| package |")[2].partition("\n\n")[0]
PACKAGES = [package or ground for package, ground in re.findall(r"^\| (?:`(\w+)/`|(shared by all)) \|", TABLE, re.M)]
"""The packages in the order of docs/architecture.md. A file may import from its own package and from packages below it.
"""
SHARED = "shared by all"
LEVEL = {package: -index for index, package in enumerate(PACKAGES)} | {"__main__": 1}


def modules():
    """Return the syntax tree of every module by its name, without imports that only type checkers execute."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        trees[name] = tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = [ast.Pass()]
    return trees


def imported(tree, module_names):
    """Return the modules of formerlab that the tree imports, including imports inside functions."""
    imported_modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported_modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported_modules |= {
                name if (name := f"{node.module}.{a.name}") in module_names else node.module for a in node.names
            }
    return imported_modules & module_names


def package(module):
    """Return the package of a module. A file at the top level is shared by all packages."""
    name = module.split(".")[1] if "." in module else SHARED
    return name if name in LEVEL else SHARED


def test_the_table_of_packages_is_complete():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {*PACKAGES} == {*packages, SHARED}
    assert len(list(PACKAGE.glob("*.py"))) <= 13


def test_no_package_imports_from_a_package_above_it():
    trees = modules()
    module_names = set(trees)
    upward_imports = [
        f"{module} -> {target}"
        for module, tree in trees.items()
        if module != "formerlab"  # the public API re-exports names of all packages
        for target in imported(tree, module_names)
        if LEVEL[package(target)] > LEVEL[package(module)]
    ]
    assert not upward_imports


def test_no_circular_imports():
    trees = modules()
    module_names = set(trees)
    imports = {
        module: imported(tree, module_names) - {module} for module, tree in trees.items() if module != "formerlab"
    }
    visited: set[str] = set()

    def visit(module, path):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in visited:
            for target in sorted(imports.get(module, ())):
                visit(target, [*path, module])
            visited.add(module)

    for module in sorted(imports):
        visit(module, [])


HEAVY = {
    "formerlab.__main__": {"pandas", "torch", "matplotlib"},  # starts every job
    "formerlab.plan.locate, formerlab.plan.attempts, formerlab.plan.staleness": {"torch", "pydantic", "pandas"},
    "formerlab.evaluation.pruning.prune": {"lm_eval", "datasets", "pandas"},
}
"""Libraries that modules of commands, of the Snakefile and of a sweep must not import, because they take seconds."""


@pytest.mark.parametrize("names", HEAVY)
def test_modules_import_no_heavy_library(names):
    code = f"import sys, {names}; print({HEAVY[names]} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
