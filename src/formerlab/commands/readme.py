"""What the command `readme` writes into pages: verdicts on cached rows, the stages, the figures of the papers."""

import re
from functools import cache
from pathlib import Path

from formerlab.errors import UserError
from formerlab.plan.arms import read_arms
from formerlab.plan.resolve import resolve_released, resolve_study
from formerlab.plan.sources import read_sources
from formerlab.report.claims.render import all_block, first_screen
from formerlab.report.claims.verdict import Verdict, verdicts
from formerlab.report.committed import KEPT, place
from formerlab.report.drawings import catalogue
from formerlab.results.read import Results, has_runs
from formerlab.results.stages import STAGES, TABLES
from formerlab.yaml_files import read_yaml

BEGIN = "<!-- written by `make readme`, not by hand -->"
END = "<!-- end of what `make readme` writes -->"
PAPERS = {
    "arXiv:1706.03762": "Transformer",
    "arXiv:2410.23168": "Tokenformer",
    "arXiv:2402.02622": "DenseFormer",
    "Decay article": "Decay article",
}
"""The papers by what captions call them, in the order of the table of their figures."""
_AFTER = re.compile(rf"(?:after|of) ((?:Fig|Table)[^()]*?) of (?:the )?({'|'.join((*PAPERS, *PAPERS.values()))})")
"""Where a caption says which figure or table of which paper it follows."""

SCALES = ("paper", "workstation", "overnight", "pretrained")
"""The scales whose rows the pages tell of, the first that tests a claim."""


@cache
def judged(root: Path) -> dict[str, list[Verdict]]:
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


def papers_block(root: Path) -> str:
    """Return a line for every figure and table that follows one of a paper, then those without a counterpart."""
    studies = sorted(path.stem for path in (root / "workflow" / "studies").glob("*.yaml"))
    runs = {}
    for scale in ("laptop", "overnight", "workstation", "paper"):
        sources = read_sources(root, {"scale": scale, "studies": studies})
        both = [run for name in studies for make in (resolve_study, resolve_released) for run in make(name, sources)]
        runs[scale] = [(run.study, run.name, run.to_dict()) for run in both]
    rows = []
    for drawing in catalogue().values():
        for item, paper in _AFTER.findall(" ".join(drawing.caption.split()))[:1]:
            smallest = next((scale for scale, found in runs.items() if drawing.chosen(found)), "")
            paths = [place(root, drawing, scale, KEPT[drawing.kind][0]) for scale in ("overnight", "pretrained")]
            links = [f"[{one.parent.name}](../{one.relative_to(root).as_posix()})" for one in paths if one.exists()]
            rows.append((PAPERS.get(paper, paper), item, f"`{drawing.name}`", ", ".join(links), smallest))
    order = list(PAPERS.values())
    rows.sort(key=lambda row: (order.index(row[0]), row[1].startswith("Table"), int(re.findall(r"\d+", row[1])[0])))
    lines = ["| paper | figure or table | ours | committed | smallest scale |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    lines += ["", "Without a counterpart, or with one that the committed rows cannot draw:", ""]
    missing = read_yaml(root, "docs/no_counterpart.yaml")
    lines += [f"- {paper}, {item}: {why}." for paper, items in missing.items() for item, why in items.items()]
    return "\n".join(lines)


PAGES = ("README.md", "docs/verdicts.md", "docs/files.md", "docs/results.md")
"""The pages with a generated part."""


def written(path: Path, block: str) -> str:
    """Return a page with the block between its marks. Raises UserError where the marks are missing."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{path}: no place for what is generated; put the lines '{BEGIN}' and '{END}' around it")
    return f"{before}{BEGIN}\n\n{block.strip()}\n\n{END}{after}"


def outdated(root: Path) -> dict[str, str]:
    """Return the pages that are not up to date, with what they should hold."""
    found = judged(root)
    blocks = first_screen(found), all_block(found), stages_block(), papers_block(root)
    texts = {name: written(root / name, block) for name, block in zip(PAGES, blocks, strict=True)}
    return {name: text for name, text in texts.items() if text != (root / name).read_text(encoding="utf-8")}
