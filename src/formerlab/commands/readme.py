"""What the command `readme` writes into pages: verdicts on cached rows, the stages."""

from pathlib import Path

from formerlab.errors import UserError
from formerlab.files import write_text
from formerlab.plan.claim_arms import read_arms
from formerlab.plan.claim_coverage import testable
from formerlab.report.claims.render import all_block, first_screen
from formerlab.report.claims.table import verdicts
from formerlab.report.claims.verdict import Verdict
from formerlab.results.read import Results, has_runs
from formerlab.results.stages import STAGES, TABLES

BEGIN = "<!-- written by `make readme`, not by hand -->"
END = "<!-- end of what `make readme` writes -->"


SCALES = ("paper", "workstation", "overnight", "pretrained")
"""The scales whose rows the pages tell of, the first that tests a claim."""


def _verdicts(root: Path) -> dict[str, list[Verdict]]:
    """Return the verdicts by scale. Raises UserError where no scale has rows."""
    cached = root / "results" / "cached"
    scales = [name for name in SCALES if has_runs(cached / name)]
    if not scales:
        raise UserError(f"{cached}: no rows at any scale; export some first (make results-export)")
    return {name: verdicts(Results(cached / name), read_arms(root, name)) for name in scales}


def stages_block() -> str:
    """Return the table of stages and the files of rows that each leaves, as Markdown."""
    lines = ["| stage | what it does, for every | files |", "|---|---|---|"]
    for stage in STAGES.values():
        files = " ".join(f"`{file}`" for file in stage.written)
        lines.append(f"| `{stage.name}` | {stage.text} ({stage.unit}) | {files} |")
    lines += ["", "| file | one row is | columns (? where a file may lack them) |", "|---|---|---|"]
    for file, table in TABLES.items():
        names = ", ".join(name + "?" * (name in table.optional) for name in table.names)
        lines.append(f"| `{file}` | {table.row} | {names} |")
    return "\n".join(lines)


PAGES = ("README.md", "docs/verdicts.md", "docs/files.md")
"""The pages with something between the marks."""


def blocks(root: Path) -> dict[str, str]:
    """Return what stands between the marks of every page of PAGES."""
    found = _verdicts(root)
    texts = first_screen(found), all_block(found, testable(root, SCALES)), stages_block()
    return dict(zip(PAGES, texts, strict=True))


def written(path: Path, block: str) -> str:
    """Return a page with the block between its marks. Raises UserError where it has none."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{path}: no place for what is generated; put the lines '{BEGIN}' and '{END}' around it")
    return f"{before}{BEGIN}\n\n{block.strip()}\n\n{END}{after}"


def outdated(root: Path) -> dict[str, str]:
    """Return the pages that are not up to date, with what they should hold."""
    texts = {name: written(root / name, block) for name, block in blocks(root).items()}
    return {name: text for name, text in texts.items() if text != (root / name).read_text(encoding="utf-8")}


def write(root: Path) -> list[str]:
    """Rewrite the pages that are not up to date; return their names."""
    texts = outdated(root)
    for name, text in texts.items():
        write_text(root / name, text)
    return list(texts)
