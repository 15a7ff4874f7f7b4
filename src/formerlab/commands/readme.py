"""What the command `readme` writes into pages: verdicts on cached rows, where claims have arms, the stages."""

from collections.abc import Callable
from pathlib import Path

from formerlab.errors import UserError
from formerlab.files import write_text
from formerlab.plan.claim_arms import read_arms
from formerlab.plan.claim_coverage import SCALES, coverage_block
from formerlab.report.claims.readable import all_block, first_screen
from formerlab.report.claims.table import verdicts
from formerlab.report.claims.verdict import Verdict
from formerlab.results.read import Results, has_runs
from formerlab.results.stages import STAGES, TABLES

BEGIN = "<!-- written by `make readme`, not by hand -->"
END = "<!-- end of what `make readme` writes -->"


def _verdicts(root: Path) -> dict[str, list[Verdict]]:
    """Return the verdicts by scale that has cached rows, the largest first. Raises UserError where none has."""
    cached = root / "results" / "cached"
    scales = [name for name in reversed(SCALES) if has_runs(cached / name)]
    if not scales:
        raise UserError(f"{cached}: no rows at any scale; export some first (make results-export)")
    return {scale: verdicts(Results(cached / scale), read_arms(root, scale)) for scale in scales}


def first_block(root: Path) -> str:
    """Return the verdicts for the first screen of the README."""
    return first_screen(_verdicts(root))


def verdicts_block(root: Path) -> str:
    """Return all verdicts at the largest scale that has cached rows."""
    scale, found = next(iter(_verdicts(root).items()))
    return all_block(found, scale)


def stages_block(root: Path) -> str:
    """Return the table of stages and the files of rows that each leaves, as Markdown."""
    del root
    lines = ["| stage | what it does, for every | files |", "|---|---|---|"]
    for stage in STAGES.values():
        files = " ".join(f"`{file}`" for file in stage.written)
        lines.append(f"| `{stage.name}` | {stage.text} ({stage.unit}) | {files} |")
    lines += ["", "| file | one row is | columns (? where a file may lack them) |", "|---|---|---|"]
    for file, table in TABLES.items():
        names = ", ".join(name + "?" * (name in table.optional) for name in table.names)
        lines.append(f"| `{file}` | {table.row} | {names} |")
    return "\n".join(lines)


PAGES: dict[str, Callable[[Path], str]] = {
    "README.md": first_block,
    "docs/verdicts.md": verdicts_block,
    "docs/claims_table.md": coverage_block,
    "docs/files.md": stages_block,
}
"""Page to what stands between its marks."""


def written(root: Path, name: str) -> str:
    """Return a page of PAGES with its block as it should be now. Raises UserError where it has no marks."""
    path = root / name
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{path}: no place for what is generated; put the lines '{BEGIN}' and '{END}' around it")
    return f"{before}{BEGIN}\n\n{PAGES[name](root).strip()}\n\n{END}{after}"


def outdated(root: Path) -> dict[str, str]:
    """Return the pages that are not up to date, with what they should hold."""
    texts = {name: written(root, name) for name in PAGES}
    return {name: text for name, text in texts.items() if text != (root / name).read_text(encoding="utf-8")}


def write(root: Path) -> list[str]:
    """Rewrite the pages that are not up to date; return their names."""
    texts = outdated(root)
    for name, text in texts.items():
        write_text(root / name, text)
    return list(texts)
