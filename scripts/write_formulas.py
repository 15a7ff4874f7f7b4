"""Write docs/formulas.md: every formula with its source and its location, from the docstrings.

    python scripts/write_formulas.py

A public class or function gets a row if the first paragraph of its docstring has a source in parentheses.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/formerlab"
PAGE = ROOT / "docs/formulas.md"

TOPICS = {
    "Parameter tokens": ("layers/pattention.py", "layers/score.py", "growth"),
    "Attention, positions, blocks": (
        "layers/attention.py",
        "layers/position.py",
        "layers/linear.py",
        "layers/mlp.py",
        "layers/norm.py",
        "layers/block.py",
        "models",
    ),
    "Averages over depth": ("layers/depth",),
    "Cache eviction": ("cache/eviction.py", "cache/policies", "cache/budget.py"),
    "Training, translation, measures": (
        "training/schedule.py",
        "training/optimizer.py",
        "tasks/translation.py",
        "evaluation/translation",
        "statistics.py",
        "report/studies/tokenformer.py",
        "evaluation/timing/complexity.py",
    ),
}
"""Each table of the page, with the files or folders of the package from which it is made."""

HEAD = """# Where is the formula?

The docstring of every variant begins with its formula or rule, and the source. `scripts/write_formulas.py` writes \
this page from the docstrings.
"""
SOURCE = re.compile(r"\(((?:[^()]|\([^()]*\))*(?:arXiv:\d|\beq\. \d|official)(?:[^()]|\([^()]*\))*)\)")
"""Matches parentheses that name an article, an equation or official code."""
ARTICLE = re.compile(r"arXiv:(\d{4}\.\d{5})")


class Formula(NamedTuple):
    """A row of the page."""

    name: str
    """Name of the class or function."""
    path: Path
    text: str
    """First paragraph of the docstring, up to the source in parentheses."""
    source: str


def formulas(topic: str) -> Iterator[Formula]:
    """Yield the rows of a topic in the order of its files in TOPICS, and in source order within a file."""
    for name in TOPICS[topic]:
        path = PACKAGE / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                    opening = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
                    if match := SOURCE.search(opening):
                        yield Formula(node.name, file, opening[: match.start()].strip(" ."), match[1])


def row(formula: Formula) -> str:
    """Return a row of the table: name with link, formula, source."""
    text = formula.text.removeprefix("Return ").replace("|", "\\|")
    source = ARTICLE.sub(r"[\1](https://arxiv.org/abs/\1)", formula.source)
    link = f"[`{formula.name}`](../{formula.path.relative_to(ROOT)})"
    return f"| {link} | {text} | {source} |"


def page() -> str:
    """Return the page."""
    lines = [HEAD]
    for topic in TOPICS:
        lines += [f"## {topic}", "", "| in code | formula | source |", "|---|---|---|"]
        lines += [*map(row, formulas(topic)), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE.relative_to(ROOT)}")
