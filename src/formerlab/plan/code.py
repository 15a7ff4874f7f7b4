"""Hash of the code that a stage depends on, so that editing a module reruns exactly the stages that use it.

The modules are found by following imports in the source, without running any of it. Two kinds are left out: a module
that only defines variants which the stage's spec does not choose (editing one depth mixer must not retrain the models
of another), and the few modules that cannot change a number. Comments, docstrings and formatting do not count.
"""

import ast
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

from formerlab.spec import Spec

PACKAGE = "formerlab"
ROOT = Path(__file__).resolve().parents[1]

WITHOUT_EFFECT = frozenset(
    f"{PACKAGE}.{name}" for name in ("errors", "progress", "plan.code", "training.provenance", "training.stop")
)
"""Modules that shape messages, progress and records, but no result."""


def code_hash(entry: str, specs: Iterable[Spec] = ()) -> str:
    """Return 16 hexadecimal digits of the code that stage module `entry` runs for the given specs."""
    chosen = {type(part).__module__ for spec in specs for part in spec.parts()}
    digest = hashlib.sha256()
    for module in sorted(closure(entry, frozenset(chosen))):
        digest.update(f"{module}:{_normal_form(module)}\n".encode())
    return digest.hexdigest()[:16]


def closure(entry: str, chosen: frozenset[str]) -> set[str]:
    """Return the modules that `entry` imports, directly or not, given the modules whose variants are `chosen`."""
    found: set[str] = set()
    waiting = [entry, *chosen]
    while waiting:
        module = waiting.pop()
        if module in found or module in WITHOUT_EFFECT:
            continue
        if module != entry and module not in chosen and _defines_only_variants(module):
            continue
        found.add(module)
        waiting.extend(_imports(module))
    return found


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_path(module).read_text(encoding="utf-8"))


@functools.cache
def _path(module: str) -> Path:
    base = ROOT.joinpath(*module.split(".")[1:])
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
    """Return the modules of this package that a module imports anywhere in its code."""
    found: list[str] = []
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.append(submodule if _path(submodule).exists() else node.module)
        elif isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)
    return tuple(found)


@functools.cache
def _defines_only_variants(module: str) -> bool:
    """Say whether a module defines variants: classes with a literal `kind`."""
    return any(
        isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and statement.target.id == "kind"
        for node in _tree(module).body
        if isinstance(node, ast.ClassDef)
        for statement in node.body
    )


@functools.cache
def _normal_form(module: str) -> str:
    """Return a hash of a module's syntax tree without docstrings."""
    tree = ast.parse(ast.unparse(_tree(module)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [s for s in node.body if not _is_text(s)] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
