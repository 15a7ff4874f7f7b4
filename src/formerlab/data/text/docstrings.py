"""Read docstrings and code of Python source files with `ast`, without importing modules or running code."""

import ast
import warnings
from collections.abc import Callable, Iterator
from inspect import cleandoc
from itertools import compress
from typing import NamedTuple

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Documented(NamedTuple):
    """A documented module, class or function."""

    signature: str
    """`def fit(X, y):`, `class Ridge(LinearModel):`, or the dotted name of a module."""
    paragraphs: tuple[str, ...]
    """The docstring, split at blank lines."""
    summary: bool = True
    """Whether `paragraphs[0]` is the first paragraph of the docstring."""


class Module(NamedTuple):
    """The documented definitions of one module, in source order."""

    name: str
    entries: tuple[Documented, ...]

    def render(self) -> str:
        """Return the module as text: each signature with its paragraphs, separated by blank lines."""
        return "\n\n".join(f"{entry.signature}\n" + "\n\n".join(entry.paragraphs) for entry in self.entries)

    def filtered(self, keep: Callable[[str], bool]) -> "Module":
        """Return the module with the paragraphs that `keep` accepts; entries without paragraphs are dropped."""
        selected = [(entry, [keep(paragraph) for paragraph in entry.paragraphs]) for entry in self.entries]
        entries = (
            Documented(entry.signature, tuple(compress(entry.paragraphs, mask)), entry.summary and mask[0])
            for entry, mask in selected
            if any(mask)
        )
        return Module(self.name, tuple(entries))


def read_module(name: str, source: bytes) -> Module:
    """Return the docstrings of a module, without entries if the source does not parse."""
    tree = _parsed(source)
    documented: list[tuple[str, ast.Module | Definition]] = [(name, tree)]
    documented += [(_signature(definition), definition) for definition in _definitions(tree)]
    entries = []
    for signature, node in documented:
        lines = cleandoc(ast.get_docstring(node, clean=False) or "").splitlines()
        if paragraphs := _paragraphs("\n".join(line.rstrip() for line in lines)):
            entries.append(Documented(signature, paragraphs))
    return Module(name, tuple(entries))


def read_code(name: str, source: bytes) -> Module:
    """Return the code of a module without docstrings and comments as one entry, split at blank lines."""
    tree = _parsed(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | Definition) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])
    try:
        paragraphs = _paragraphs(ast.unparse(tree))
    except (ValueError, RecursionError):  # nested too deeply for the interpreter
        return Module(name, ())
    return Module(name, (Documented(name, paragraphs, summary=False),) if paragraphs else ())


def _parsed(source: bytes) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in third-party strings
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _definitions(node: ast.AST) -> Iterator[Definition]:
    """Yield functions and classes in source order, also in classes, if, try and with, but not in functions or loops."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child
        if isinstance(child, ast.ClassDef | ast.If | ast.Try | ast.With):
            yield from _definitions(child)


def _signature(definition: Definition) -> str:
    if isinstance(definition, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in definition.bases)
        return f"class {definition.name}({bases}):" if bases else f"class {definition.name}:"
    arguments = definition.args
    names = [argument.arg for argument in arguments.posonlyargs + arguments.args]
    names += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    names += [argument.arg for argument in arguments.kwonlyargs]
    names += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return f"def {definition.name}({', '.join(name for name in names if name not in ('self', 'cls'))}):"


def _paragraphs(text: str) -> tuple[str, ...]:
    """Split a text at blank lines; lone surrogates are replaced."""
    blocks = text.encode("utf-8", "replace").decode().split("\n\n")
    return tuple(block.strip("\n") for block in blocks if block.strip())
