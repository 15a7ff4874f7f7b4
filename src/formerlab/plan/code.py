"""Hash the code that a stage depends on, so that editing a module reruns exactly the stages that use the module.

The modules of a job are found by following imports in the source. Modules that cannot change a result are left out, and
so are specs that the stage does not use: an edit of one depth mixer retrains only models with this mixer. The hash
ignores comments, docstrings, formatting and unions of variants.
"""

import ast
import functools
import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from formerlab.spec import Spec

PACKAGE = "formerlab"
ROOT = Path(__file__).resolve().parents[1]

WITHOUT_EFFECT = frozenset(
    f"{PACKAGE}.{name}"
    for name in (
        *("errors", "progress", "torchvision_shim", "plan.code", "plan.source_hashes"),
        *("results.schema", "results.stages", "training.provenance", "training.runtime"),
    )
)
"""Modules that cannot change a result."""
ENTRIES_ONLY = frozenset((f"{PACKAGE}.growth.stage",))
"""The hash of a job includes these modules only if the job starts in them or one of its specs is defined in them."""
MODULES_BY_HASH: dict[str, tuple[str, ...]] = {}
"""The modules of each hash that this process computed."""


def entries_of_training(run: Any) -> tuple[str, ...]:
    """Return the modules that train a run, including growth if the run starts from another run."""
    return ("formerlab.training.stage", *(sorted(ENTRIES_ONLY) if run.init_id else ()))


def code_hash(*entries: str, specs: Iterable[Spec] = ()) -> str:
    """Return the hash (16 hexadecimal digits) of the code that the modules `entries` run for the given specs."""
    classes = {cls for spec in specs for nested in spec.nested_specs() for cls in type(nested).__mro__}
    return _hash(entries, frozenset(cls.__module__ for cls in classes if _in_package(cls.__module__)))


@functools.cache
def _hash(entries: tuple[str, ...], spec_modules: frozenset[str]) -> str:
    """Return the hash of the code reachable from `entries`, given the modules that define the job's specs."""
    modules = tuple(sorted(closure(entries, spec_modules)))
    code = hash_of(modules)
    MODULES_BY_HASH[code] = modules
    return code


def hash_of(modules: Collection[str]) -> str:
    """Return the hash of the code of modules, which must be sorted."""
    digest, imported = hashlib.sha256(), {None, *modules}
    for module in modules:
        lines = [text for text, target in _statements(module) if target in imported]
        tables = [table.read_text(encoding="utf-8") for table in _tables(module)]
        digest.update("\n".join((module, *lines, *tables, "")).encode())
    return digest.hexdigest()[:16]


def files_of(modules: Iterable[str]) -> set[str]:
    """Return the files that the hash of modules covers, as paths relative to the package."""
    paths = [path for module in modules for path in (_path(module), *_tables(module))]
    return {path.relative_to(ROOT).as_posix() for path in paths}


def module_of(file: str) -> str:
    """Return the module name of a file of the package."""
    return f"{PACKAGE}.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")


def closure(entries: Iterable[str], spec_modules: frozenset[str]) -> set[str]:
    """Return the modules whose code can change the result of a job.

    These are `entries`, `spec_modules` and the modules that they import, directly or indirectly, without the modules in
    `WITHOUT_EFFECT`. `spec_modules` define the specs of the job. A module that defines specs but is not in
    `spec_modules` is included in two cases: (1) a module in `spec_modules` uses one of its specs in a function body or
    as a base class; (2) an included module imports one of its functions. `ENTRIES_ONLY` lists modules to which (2) does
    not apply. Specs that occur only in defaults, unions or annotations do not count: if the job builds one of them, its
    module is in `spec_modules`.
    """
    included: set[str] = set()
    remaining = [*entries, *spec_modules]
    while remaining:
        module = remaining.pop()
        if module in included or module in WITHOUT_EFFECT:
            continue
        included.add(module)
        used_names = _names_used(module) if module in spec_modules else frozenset()
        remaining += [
            target
            for name, target in _imports(module)
            if target in spec_modules
            or name in used_names
            or not _defines_specs(target)
            or (name in _functions(target) and target not in ENTRIES_ONLY)
        ]
    return included


def _in_package(module: str) -> bool:
    return module.split(".")[0] == PACKAGE


@functools.cache
def _path(module: str) -> Path:
    base = ROOT.joinpath(*module.split(".")[1:])
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


@functools.cache
def _tree(module: str) -> ast.Module:
    """Return the syntax tree of a module without docstrings and without imports for type checkers."""
    tree = ast.parse(_path(module).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _has_no_effect(statement)] or [ast.Pass()]
    return tree


def _has_no_effect(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@functools.cache
def _statements(module: str) -> tuple[tuple[str, str | None], ...]:
    """Return (statement, imported module or None) for the statements of a module that can change a result.

    Unions (`X = Annotated[A | B, ...]`) and `__all__` are left out.
    """
    statements: list[tuple[str, str | None]] = []
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom):
            imports = [(alias, ast.ImportFrom(node.module, [alias], node.level)) for alias in node.names]
            statements += [(_text(statement), _target(node, alias)) for alias, statement in imports]
            continue
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value.value if isinstance(node.value, ast.Subscript) else None
            if node.targets[0].id == "__all__" or (isinstance(value, ast.Name) and value.id == "Annotated"):
                continue
        statements.append((_text(node), None))
    return tuple(statements)


def _text(node: object) -> str:
    """Return a syntax tree as text that, unlike `ast.unparse` and `ast.dump`, is the same in all Python versions."""
    if isinstance(node, list):
        return f"[{', '.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [f"{name}={_text(value)}" for name, value in ast.iter_fields(node) if value not in (None, [])]
    return f"{type(node).__name__}({', '.join(fields)})"


@functools.cache
def _tables(module: str) -> tuple[Path, ...]:
    """Return the tables and C++ sources in a module's folder whose names occur in its code."""
    files = [file for file in sorted(_path(module).parent.iterdir()) if file.suffix in (".csv", ".yaml", ".cpp", ".h")]
    text = ast.unparse(_tree(module)) if files else ""
    return tuple(file for file in files if file.name in text)


@functools.cache
def _imports(module: str) -> tuple[tuple[str, str], ...]:
    """Return (name, module of this package that defines it) for all imports anywhere in a module."""
    imports: list[tuple[str, str]] = []
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom):
            targets = [(alias.asname or alias.name, _target(node, alias)) for alias in node.names]
            imports += [(name, target) for name, target in targets if target is not None]
        elif isinstance(node, ast.Import):
            imports += [(alias.asname or alias.name, alias.name) for alias in node.names if _in_package(alias.name)]
    return tuple(imports)


def _target(node: ast.ImportFrom, alias: ast.alias) -> str | None:
    """Return the module of this package that a name is imported from, following re-exports of packages."""
    if node.module is None or not _in_package(node.module):
        return None
    submodule = f"{node.module}.{alias.name}"
    if _path(submodule).exists():
        return submodule
    if _path(node.module).name != "__init__.py":
        return node.module
    return dict(_imports(node.module)).get(alias.name, node.module)


@functools.cache
def _defines_specs(module: str) -> bool:
    """Return whether a module defines specs."""
    for node in (node for node in _tree(module).body if isinstance(node, ast.ClassDef)):
        fields = [field.target for field in node.body if isinstance(field, ast.AnnAssign) and field.value is not None]
        if any(isinstance(field, ast.Name) and field.id == "kind" for field in fields):
            return True
        if any(ast.unparse(base) == "Spec" for base in node.bases):
            return True
    return False


@functools.cache
def _functions(module: str) -> frozenset[str]:
    return frozenset(node.name for node in _tree(module).body if isinstance(node, ast.FunctionDef))


@functools.cache
def _names_used(module: str) -> frozenset[str]:
    """Return the names that a module uses in function bodies and as base classes."""
    used: list[ast.AST] = []
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ClassDef):
            used += node.bases
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            used += node.body
    return frozenset(name.id for tree in used for name in ast.walk(tree) if isinstance(name, ast.Name))
