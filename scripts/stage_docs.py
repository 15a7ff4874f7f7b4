"""Put the pages of the site into build/docs: README, docs, API and verbs, with links that hold there.

    python scripts/stage_docs.py

`make docs` calls it. README becomes the first page. A link from a page to another file of the repository leads to a
copy below `repository/`, under its path in the repository. The pages `api.md` and `commands.md` are written here, from the
unions that configurations choose from and from the parser of the command line.
"""

import argparse
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import formerlab
from formerlab.__main__ import build_parser
from formerlab.cache import CachePolicy
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.norm import Norm
from formerlab.layers.position import Position
from formerlab.layers.projection import FeedForward, Projection
from formerlab.spec import variants

ROOT = Path(__file__).resolve().parents[1]
STAGED = ROOT / "build/docs"
NAMED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "figures/README.md": "figures.md",
}
"""Pages outside docs, and their names on the site."""
LINK = re.compile(r"(\]\()([^)#\s]+)([^)]*\))")
UNIONS = {
    "Projections": (Projection,),
    "Feed-forward, norms, positions": (FeedForward, Norm, Position),
    "Depth mixers": (DepthMixer,),
    "Cache policies": (CachePolicy,),
}
FUNCTIONS = {
    "Growth": ("formerlab.growth.stage.Growth", "formerlab.growth.width.widen"),
    "Caches": (
        "formerlab.cache.evicting.PrunedCache",
        "formerlab.cache.simulation.simulate",
        "formerlab.cache.budget.resolve_budget",
    ),
}
"""What belongs on the page of the API beside the public face and the unions."""
STYLE = ".md-grid { max-width: 80rem }\n.md-typeset table:not([class]) code { white-space: nowrap }\n"
"""Wide tables have room, and names in them do not break."""


def pages() -> dict[Path, Path]:
    """Return every page with its path on the site."""
    found = {path: path.relative_to(ROOT / "docs") for path in sorted((ROOT / "docs").rglob("*.md"))}
    return found | {ROOT / name: Path(there) for name, there in NAMED.items()}


def staged(page: Path, there: dict[Path, Path]) -> str:
    """Return the text of a page with its links as they are on the site; copy the files that it links to."""

    def link(match: re.Match[str]) -> str:
        target = match[2]
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = (page.parent / target).resolve()
        if not path.is_file():
            raise SystemExit(f"{page.relative_to(ROOT)}: the link to {target} leads to no file; name one")
        up = "../" * (len(there[page].parts) - 1)
        if path in there:
            return f"{match[1]}{up}{there[path]}{match[3]}"
        return f"{match[1]}{up}{copied(path)}{match[3]}"

    return LINK.sub(link, page.read_text(encoding="utf-8"))


def copied(path: Path) -> Path:
    """Copy a file of the repository to the site and return its path there; code becomes text that browsers show."""
    own = Path("repository") / path.relative_to(ROOT)
    there = own if path.suffix in (".png", ".svg", ".csv") else own.with_name(f"{own.name}.txt")
    (STAGED / there).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, STAGED / there)
    return there


def api() -> str:
    """Return the page of the API, which mkdocstrings fills in from the docstrings."""
    lines = ["# API", "", "`import formerlab` has what code of your own needs; the unions list what a key may choose."]
    sections = {"The public face": [f"{home}.{name}" for name, home in formerlab._HOMES.items()]}
    for title, unions in UNIONS.items():
        found = [f"{one.__module__}.{one.__name__}" for union in unions for one in variants(union)]
        sections[title] = list(dict.fromkeys(found))
    seen: set[str] = set()
    for title, names in (sections | {title: list(names) for title, names in FUNCTIONS.items()}).items():
        lines += ["", f"## {title}", ""]
        lines += [line for name in names if name not in seen for line in (f"::: {name}", "")]
        seen |= set(names)
    return "\n".join(lines)


def commands() -> str:
    """Return the page of the command line, from its parser."""
    parser = build_parser()
    (choices,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    helps = {one.dest: one.help for one in choices._choices_actions}
    head = ["# Every verb", "", f"{parser.description} `--help` behind a verb says the same.", ""]
    return "\n".join(
        head + [line for name, command in choices.choices.items() for line in _command(name, command, helps)]
    )


def _command(name: str, parser: argparse.ArgumentParser, helps: dict[str, str | None]) -> Iterator[str]:
    does = str(helps.get(name) or parser.description)
    yield from (f"## {name}", "", f"{does[:1].upper()}{does[1:]}.", "")
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    yield from ("```", f"python -m {usage}", "```", "", "| word | meaning |", "|---|---|")
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
            word = ", ".join(action.option_strings) or str(action.metavar or action.dest)
            meaning = (action.help or "").replace("%%", "%").replace("|", "\\|").replace("<", "&lt;")
            yield f"| `{word}` | {meaning} |"
    yield ""


def main() -> None:
    """Write the folder anew."""
    shutil.rmtree(STAGED, ignore_errors=True)
    there = pages()
    for page, name in there.items():
        path = STAGED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(staged(page, there), encoding="utf-8")
    (STAGED / "site.css").write_text(STYLE, encoding="utf-8")
    (STAGED / "api.md").write_text(api(), encoding="utf-8")
    (STAGED / "commands.md").write_text(commands(), encoding="utf-8")
    print(f"{len(there) + 2} pages in {STAGED.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
