"""Documentation in Python sources, read with `ast`: no module is imported and no code is run."""

import ast
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from inspect import cleandoc

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Entry:
    """A documented module, class or function."""

    signature: str
    """`def fit(X, y):`, `class Ridge(LinearModel):`, or the dotted name of a module."""
    paragraphs: tuple[str, ...]
    """Its docstring, split at blank lines, lines kept."""
    summary: bool = True
    """Whether the first paragraph is the docstring's first."""

    def render(self) -> str:
        """Return the text a model reads: the signature, then the paragraphs between blank lines."""
        return f"{self.signature}\n" + "\n\n".join(self.paragraphs)

    def filtered(self, keep: Callable[[str], bool]) -> "Entry":
        """Return the entry without the paragraphs that `keep` refuses."""
        kept = [keep(paragraph) for paragraph in self.paragraphs]
        paragraphs = tuple(paragraph for paragraph, stays in zip(self.paragraphs, kept, strict=True) if stays)
        return replace(self, paragraphs=paragraphs, summary=self.summary and kept[0])


@dataclass(frozen=True)
class Module:
    """The documented things of one module, in the order of its source."""

    name: str
    entries: tuple[Entry, ...]

    def render(self) -> str:
        """Return the module's document."""
        return "\n\n".join(entry.render() for entry in self.entries)

    def filtered(self, keep: Callable[[str], bool]) -> "Module":
        """Return the module without the paragraphs that `keep` refuses, and without entries left empty."""
        kept = (entry.filtered(keep) for entry in self.entries)
        return replace(self, entries=tuple(entry for entry in kept if entry.paragraphs))


def read_module(name: str, source: bytes) -> Module:
    """Return what a module documents; a source that does not parse documents nothing."""
    tree = _parsed(source)
    return Module(name, () if tree is None else tuple(_entries(name, tree)))


def read_code(name: str, source: bytes) -> Module:
    """Return the code of a module without docstrings and comments, as one entry; its paragraphs are the definitions."""
    tree = _parsed(source)
    if tree is None:
        return Module(name, ())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | Definition) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])
    try:
        blocks = _plain(ast.unparse(tree)).split("\n\n")
    except (ValueError, RecursionError):  # nested deeper than the interpreter goes
        return Module(name, ())
    paragraphs = tuple(block.strip("\n") for block in blocks if block.strip())
    return Module(name, (Entry(name, paragraphs, summary=False),) if paragraphs else ())


def _parsed(source: bytes) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _entries(name: str, tree: ast.Module) -> Iterator[Entry]:
    yield from _entry(name, tree)
    for definition in _definitions(tree):
        yield from _entry(_signature(definition), definition)


def _entry(signature: str, node: ast.Module | Definition) -> Iterator[Entry]:
    text = ast.get_docstring(node, clean=False)
    paragraphs = _paragraphs(text) if text else ()
    if paragraphs:
        yield Entry(signature, paragraphs)


def _definitions(node: ast.AST) -> Iterator[Definition]:
    """Yield functions and classes in source order, those inside classes and blocks too, those inside functions not."""
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
    if arguments.vararg:
        names.append(f"*{arguments.vararg.arg}")
    names += [argument.arg for argument in arguments.kwonlyargs]
    if arguments.kwarg:
        names.append(f"**{arguments.kwarg.arg}")
    return f"def {definition.name}({', '.join(name for name in names if name not in ('self', 'cls'))}):"


def _paragraphs(docstring: str) -> tuple[str, ...]:
    lines = (line.rstrip() for line in _plain(cleandoc(docstring)).splitlines())
    blocks = "\n".join(lines).split("\n\n")
    return tuple(block.strip("\n") for block in blocks if block.strip())


def _plain(text: str) -> str:
    """Return the text without what UTF-8 cannot hold, such as lone surrogates."""
    return text.encode("utf-8", "replace").decode()
