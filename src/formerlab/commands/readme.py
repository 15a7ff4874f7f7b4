"""Blocks of Markdown that the command `readme` writes into pages."""

import re
from functools import cache
from pathlib import Path

from formerlab.errors import UserError
from formerlab.plan.resolve import resolve_released, resolve_study
from formerlab.plan.schema import Config
from formerlab.plan.sources import read_sources
from formerlab.report.catalogue import catalogue
from formerlab.report.claims.arms import read_arms
from formerlab.report.claims.readme_findings import findings_table, readme_findings
from formerlab.report.claims.render import verdict_cards
from formerlab.report.claims.verdict import Verdict, evaluate_results
from formerlab.report.committed import SUFFIXES, committed_file, evidence_scales, is_committed
from formerlab.results.read import Results
from formerlab.results.stages import STAGES, TABLES
from formerlab.yaml_files import read_scale, read_yaml, study_names

BEGIN = "<!-- written by `make readme`, not by hand -->"
END = "<!-- end of the block written by `make readme` -->"
PAPERS = {
    "arXiv:1706.03762": "Transformer",
    "arXiv:2410.23168": "Tokenformer",
    "arXiv:2402.02622": "DenseFormer",
    "Decay article": "Decay article",
}
"""Titles of the papers by their names in captions, in the order of `papers_block`."""
_ORIGINAL = re.compile(rf"(?:[Aa]fter|of) ((?:Fig|Table)[^()]*?) of (?:the )?({'|'.join((*PAPERS, *PAPERS.values()))})")
"""Matches the part of a caption that names the original figure or table in a paper."""


@cache
def verdicts_by_scale(root: Path) -> dict[str, list[Verdict]]:
    """Return the verdicts at each scale with evidence. Raises UserError if no scale has rows."""
    cached, scales = root / "results" / "cached", evidence_scales(root)
    if not scales:
        raise UserError(f"{cached}: no rows at any scale; export some first (make results-export)")
    return {name: evaluate_results(Results(cached / name), read_arms(root, name)) for name in scales}


def stages_block() -> str:
    """Return a table of the stages and a table of their row files, as Markdown."""
    lines = ["| stage | task | runs once per | files |", "|---|---|---|---|"]
    for stage in STAGES.values():
        files = " ".join(f"`{file}`" for file in stage.written)
        lines.append(f"| `{stage.name}` | {stage.description} | {stage.unit} | {files} |")
    lines += ["", "| file | one row is | columns (? if optional) |", "|---|---|---|"]
    for file, table in TABLES.items():
        names = ", ".join(name + "?" * (name in table.optional) for name in table.names)
        lines.append(f"| `{file}` | {table.row} | {names} |")
    return "\n".join(lines)


def papers_block(root: Path) -> str:
    """Return a table of the figures and tables that reproduce an item of a paper, and a list of all other items."""
    studies, runs, flops = study_names(root), {}, {}
    for scale in (path.stem for path in root.glob("workflow/scales/*.yaml")):
        if scale == Config.model_fields["scale"].default or read_scale(root, scale).get("evidence") is True:
            sources = read_sources(root, {"scale": scale, "studies": studies})
            trained = [run for name in studies for run in resolve_study(name, sources)]
            released = [run for name in studies for run in resolve_released(name, sources)]
            runs[scale] = [(run.study, run.name, run.to_dict()) for run in (*trained, *released)]
            flops[scale] = sum(run.flops for run in trained)
    by_size = sorted(filter(flops.__getitem__, flops), key=flops.__getitem__)
    rows = []
    for entry in catalogue().values():
        for item, paper in _ORIGINAL.findall(" ".join(entry.caption.split()))[:1]:
            smallest = next((scale for scale in by_size if entry.shown_indices(runs[scale])), "")
            scales = [scale for scale in runs if is_committed(root, entry, scale)]
            paths = sorted(committed_file(root, entry, scale, SUFFIXES[entry.kind][0]) for scale in scales)
            links = [f"[{path.parent.name}](../{path.relative_to(root).as_posix()})" for path in paths if path.exists()]
            rows.append((PAPERS.get(paper, paper), item, f"`{entry.name}`", ", ".join(links), smallest))
    order = list(PAPERS.values())
    rows.sort(key=lambda row: (order.index(row[0]), row[1].startswith("Table"), int(re.findall(r"\d+", row[1])[0])))
    lines = ["| paper | figure or table | ours | committed | smallest scale |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    lines += ["", "Items of the papers that are not reproduced here, or that have no committed rows:", ""]
    missing = read_yaml(root, "docs/no_counterpart.yaml")
    lines += [f"- {paper}, {item}: {reason}." for paper, items in missing.items() for item, reason in items.items()]
    return "\n".join(lines)


PAGES = ("README.md", "docs/verdicts.md", "docs/files.md", "docs/results.md")
"""The pages with generated blocks."""


def with_blocks(path: Path, *blocks: str) -> str:
    """Return the text of a page with new generated blocks.

    Raises UserError if the page does not have a pair of markers for each block.
    """
    first, *parts = path.read_text(encoding="utf-8").split(BEGIN)
    if len(parts) != len(blocks) or any(END not in part for part in parts):
        problem = f"{len(blocks)} generated blocks are needed, each between the lines '{BEGIN}' and '{END}'"
        raise UserError(f"{path}: {problem}; add them")
    rests = [part.partition(END)[2] for part in parts]
    pairs = zip(blocks, rests, strict=True)
    return first + "".join(f"{BEGIN}\n\n{block.strip()}\n\n{END}{rest}" for block, rest in pairs)


def outdated(root: Path) -> dict[str, str]:
    """Return the new text of each page that is not up to date."""
    by_scale = verdicts_by_scale(root)
    results_blocks = [findings_table(by_scale), papers_block(root)]
    blocks = [readme_findings(by_scale)], [verdict_cards(by_scale)], [stages_block()], results_blocks
    texts = {name: with_blocks(root / name, *of_page) for name, of_page in zip(PAGES, blocks, strict=True)}
    return {name: text for name, text in texts.items() if text != (root / name).read_text(encoding="utf-8")}
