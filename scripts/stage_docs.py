"""Write the pages of the site to build/docs: README, docs, API and commands, with working links.

    python scripts/stage_docs.py

`make docs` calls this script. README is the first page. Links to other files of the repository lead to copies below
`repository/`. The script generates `api.md`, `commands.md` and `configuration.md` from the code.
"""

import argparse
import ast
import inspect
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import formerlab
from formerlab.__main__ import build_parser
from formerlab.cache import CachePolicy
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.norm import Norm
from formerlab.layers.position import Position
from formerlab.layers.projection import FeedForward, Projection
from formerlab.plan.schema import Config, ExecutionKeys, Scale, Study
from formerlab.spec import Spec, variants
from formerlab.training.run import Run

ROOT = Path(__file__).resolve().parents[1]
STAGED = ROOT / "build/docs"
SITE_NAMES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "figures/README.md": "figures.md",
}
"""Pages outside docs, with their names on the site."""
LINK = re.compile(r'(\]\(|src=")([^)#"\s]+)([^)"]*[)"])')
"""Matches the links and images of a page, including images in HTML."""
UNIONS = {
    "Projections": (Projection,),
    "Feed-forward, norms, positions": (FeedForward, Norm, Position),
    "Depth mixers": (DepthMixer,),
    "Cache policies": (CachePolicy,),
}
API_OBJECTS = {
    "Growth": ("formerlab.growth.stage.Growth", "formerlab.growth.width.widen"),
    "Caches": (
        "formerlab.cache.evicting.PrunedCache",
        "formerlab.cache.simulation.simulate",
        "formerlab.cache.budget.resolve_budget",
    ),
}
"""Functions and classes on the API page in addition to the public API and the unions."""
STYLE = ".md-grid { max-width: 80rem }\n.md-typeset table:not([class]) code { white-space: nowrap }\n"
"""CSS: a wider page, and no line breaks inside `code` in tables."""


def pages() -> dict[Path, Path]:
    """Return every page with its path on the site."""
    docs = {path: path.relative_to(ROOT / "docs") for path in sorted((ROOT / "docs").rglob("*.md"))}
    del docs[ROOT / "docs/README.md"]  # the index for readers of the repository; the site has its own navigation
    return docs | {ROOT / name: Path(site_name) for name, site_name in SITE_NAMES.items()}


def rewrite_links(page: Path, site_paths: dict[Path, Path]) -> str:
    """Return the text of a page with links that work on the site, and copy the linked files."""

    def link(match: re.Match[str]) -> str:
        target = match[2]
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = (page.parent / target).resolve()
        path = ROOT / "README.md" if path == ROOT / "docs/README.md" else path
        if not path.is_file():
            raise SystemExit(
                f"{page.relative_to(ROOT)}: the file of the link to {target} does not exist; correct the link"
            )
        prefix = "../" * (len(site_paths[page].parts) - 1)
        if path in site_paths:
            return f"{match[1]}{prefix}{site_paths[path]}{match[3]}"
        return f"{match[1]}{prefix}{copy_to_site(path)}{match[3]}"

    return LINK.sub(link, page.read_text(encoding="utf-8"))


def copy_to_site(path: Path) -> Path:
    """Copy a repository file to the site; return its path there, with suffix `.txt` unless it is an image or CSV."""
    target = Path("repository") / path.relative_to(ROOT)
    if path.suffix not in (".png", ".svg", ".csv"):
        target = target.with_name(f"{target.name}.txt")
    (STAGED / target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, STAGED / target)
    return target


def api() -> str:
    """Return the API page for mkdocstrings."""
    lines = [
        "# API",
        "",
        "`import formerlab` provides the public API. The other sections list the classes that a configuration key "
        "accepts, and further functions and classes.",
    ]
    sections = {"Public API": [f"{module}.{name}" for name, module in formerlab._MODULES.items()]}
    for title, unions in UNIONS.items():
        names = [f"{variant.__module__}.{variant.__name__}" for union in unions for variant in variants(union)]
        sections[title] = list(dict.fromkeys(names))
    listed: set[str] = set()
    for title, names in (sections | {title: list(objects) for title, objects in API_OBJECTS.items()}).items():
        lines += ["", f"## {title}", ""]
        lines += [line for name in names if name not in listed for line in (f"::: {name}", "")]
        listed |= set(names)
    return "\n".join(lines)


def commands() -> str:
    """Return the page of the command line, generated from its parser."""
    parser = build_parser()
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    helps = {action.dest: action.help for action in subparsers._choices_actions}
    lines = ["# Commands", "", f"{parser.description} `--help` after a command prints the same text.", ""]
    for name, command in subparsers.choices.items():
        lines += _command(name, command, helps)
    return "\n".join(lines)


def configuration() -> str:
    """Return a page that lists every key of config.yaml, scales, studies and runs with default, type and meaning."""
    introduction = "Every key with its default. A section whose title begins with `kind` lists the keys of one variant."
    lines = ["# Configuration", "", introduction, ""]
    written = list[type[Spec]]()
    remaining: list[type[Spec]] = [Config, Scale, Study, Run, ExecutionKeys]
    while remaining:
        spec = remaining.pop(0)
        if spec in written:
            continue
        written.append(spec)
        kind = spec.model_fields.get("kind")
        title = f"{spec.__name__}" if kind is None else f"kind: {kind.default} ({spec.__name__})"
        lines += [f"## {title}", "", (spec.__doc__ or "").partition("\n\n")[0].strip(), ""]
        lines += ["| key | default | type | meaning |", "|---|---|---|---|"]
        meanings = _meanings(spec)
        for name, field in spec.model_fields.items():
            remaining += [inner for inner in _specs(field.annotation) if inner not in written]
            default = "required" if field.is_required() else _value(field.get_default(call_default_factory=True))
            cells = (f"`{name}`", default, _type(field.annotation), meanings.get(name, ""))
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('<', '&lt;') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines)


def _meanings(spec: type[Spec]) -> dict[str, str]:
    """Return the attribute docstrings of a spec and its bases by name, from the source."""
    meanings: dict[str, str] = {}
    for cls in reversed([base for base in spec.__mro__ if issubclass(base, Spec)]):
        (body,) = ast.parse(inspect.getsource(cls)).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                    meanings[name] = " ".join(meaning.split())
    return meanings


def _specs(annotation: Any) -> list[type[Spec]]:
    """Return the specs that occur in a type."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return [annotation]
    return [spec for inner in get_args(annotation) for spec in _specs(inner)]


def _type(annotation: Any) -> str:
    """Return a type in words: specs and plain types by name, literals as their values."""
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if isinstance(annotation, type) and not get_args(annotation):
        return "null" if annotation is NoneType else annotation.__name__
    words = [_type(inner) for inner in get_args(annotation) if inner is not Ellipsis and not _is_limit(inner)]
    joined = ", ".join(dict.fromkeys(filter(None, words)))
    return f"{origin.__name__} of {joined}" if (origin := get_origin(annotation)) in (tuple, dict) else joined


def _is_limit(argument: Any) -> bool:
    """Return whether an argument of a type is metadata of Annotated, such as a range."""
    return not (isinstance(argument, type) or get_args(argument))


def _value(value: Any) -> str:
    """Return a default as in YAML; a spec is represented by its kind or its class name."""
    if isinstance(value, Spec):
        return f"`{getattr(value, 'kind', type(value).__name__)}`"
    return f"`{json.dumps(value, default=str)}`"


def _command(name: str, parser: argparse.ArgumentParser, helps: dict[str, str | None]) -> Iterator[str]:
    summary = str(helps.get(name) or parser.description)
    yield from (f"## {name}", "", f"{summary[:1].upper()}{summary[1:]}.", "")
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    yield from ("```", f"python -m {usage}", "```", "", "| argument | meaning |", "|---|---|")
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
            word = ", ".join(action.option_strings) or str(action.metavar or action.dest)
            meaning = (action.help or "").replace("%%", "%").replace("|", "\\|").replace("<", "&lt;")
            yield f"| `{word}` | {meaning} |"
    yield ""


def main() -> None:
    """Delete and rewrite build/docs."""
    shutil.rmtree(STAGED, ignore_errors=True)
    site_paths = pages()
    for page, name in site_paths.items():
        path = STAGED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rewrite_links(page, site_paths), encoding="utf-8")
    (STAGED / "site.css").write_text(STYLE, encoding="utf-8")
    (STAGED / "api.md").write_text(api(), encoding="utf-8")
    (STAGED / "commands.md").write_text(commands(), encoding="utf-8")
    (STAGED / "configuration.md").write_text(configuration(), encoding="utf-8")
    print(f"{len(site_paths) + 3} pages in {STAGED.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
