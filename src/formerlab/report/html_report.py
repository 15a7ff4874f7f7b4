"""report.html: a self-contained page with every figure and table of a scale.

The page begins with the scope, three figures, the headline tables, the verdicts, and thumbnails of all figures. A
section per study follows, with each figure and table, its caption, the verdicts on claims about its runs, and its
command. The page ends with the workflow by stage, and the provenance and cost of all runs.
"""

import base64
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from pandas import DataFrame

from formerlab.progress import duration
from formerlab.report import pages
from formerlab.report.catalogue import CatalogueEntry, catalogue
from formerlab.report.headline import NOTE, headline_tables
from formerlab.report.pages import format_table
from formerlab.report.run_table import costs_by_study, run_table
from formerlab.report.write import COMMAND
from formerlab.results.read import Results

MAIN_FIGURES = (
    *("tokenformer_stage_length", "tokenformer_cost", "denseformer_gain", "denseformer_depth", "decay_accuracy"),
    *("decay_league", "vision_accuracy", "combined_effects", "transformer_differences"),
)
"""Candidates for the top of the page, in order of preference."""
STYLE = """
body { margin: 0 auto; max-width: 1180px; padding: 1.2em; }
section { border-top: 2px solid #ddd; margin-top: 2.2em; }
.thumbnails { display: grid; grid-template-columns: repeat(auto-fill, minmax(320px, 1fr)); gap: 16px; }
.thumbnails a { color: #222; text-decoration: none; font-size: 13px; line-height: 1.3; }
.thumbnails img { width: 100%; height: 220px; object-fit: contain; border: 1px solid #ddd; background: #fff; }
.heads { display: flex; flex-wrap: wrap; gap: 16px 40px; }
.heads div { min-width: 0; max-width: 100%; } .heads .wide { max-height: 15em; overflow: auto; }
.heads td, .heads th { white-space: nowrap; }
@media (max-width: 700px) {
  .thumbnails { grid-template-columns: 1fr; } .thumbnails img { height: auto; } .stages { flex-direction: column; }
}
article { margin: 1.6em 0 2.4em; }
article img { max-width: 100%; }
h3 { font-size: 1em; margin: .2em 0; } h4 { margin: 1em 0 .3em; }
code { background: #f3f3f3; padding: 0 .25em; } summary { cursor: pointer; }
.small, .small td { color: #555; font-size: 12.5px; }
.wide { overflow-x: auto; }
.stages { display: flex; align-items: center; gap: 8px; flex-wrap: wrap; }
.stages div { border: 1px solid #bbb; border-radius: 6px; padding: .5em .8em; }
.stages p { margin: .15em 0; }
.verdict { border-radius: 3px; padding: 0 .4em; background: #eee; }
.agrees, .holds { background: #d9efd9; } .contradicts, .fails { background: #f6d8d5; }
.cannot_tell { background: #fdf0cc; }
"""


def html_report(
    results: Results,
    figures: Path,
    studies: Mapping[str, Mapping[str, Any]],
    runs: Mapping[str, Sequence[str]],
    stages: Sequence[Mapping[str, int]],
) -> str:
    """Return the page as HTML.

    `figures` is the folder with the rendered files. `studies` has the title and question of each study. `runs` has the
    runs of each figure and table. `stages` has the number of jobs of every stage, in groups that run in sequence.
    """
    path, columns = (
        figures / "claims.csv",
        ["claim", "item", "outcome", "verdict", "changed", "ours", "runs", "statement"],
    )
    claims = pd.read_csv(path, dtype=str, keep_default_na=False) if path.exists() else DataFrame(columns=columns)
    study_of_claim = claims["claim"].str.split("-").str[0]
    entries = [entry for entry in catalogue().values() if entry.name in runs and (figures / entry.outputs[1]).exists()]
    tables = [f"<div><h3>{escape(title)}</h3><div class='wide'>{pages.html_table(format_table(rows))}</div></div>"
              for title, rows in headline_tables(results).items()]  # fmt: skip
    rows, overview, sections = run_table(results), [], []
    for name, study in studies.items():
        of_study, study_claims = [entry for entry in entries if entry.study == name], claims[study_of_claim == name]
        images = _thumbnails([entry for entry in of_study if entry.kind == "figure"], figures)
        overview.append(f"{pages.heading(study['title'])}{images}" if images else "")
        articles = [_article(entry, runs[entry.name], figures, study_claims, results) for entry in of_study]
        command = f"snakemake --cores 2 {name} --config scale={results.scale}"
        placeholder = f'<p class="small">No figures or tables yet: <code>{escape(command)}</code></p>'
        content = [pages.heading(study["title"]), pages.paragraph(study["question"]),
                   _verdicts("All claims of this study", study_claims), *(articles or [placeholder])]  # fmt: skip
        sections.append(f'<section id="{escape(name)}">{"".join(content)}</section>')
    html = pages.html_page(f"formerlab at scale {results.scale}", [
        pages.paragraph(_scope(rows, results)),
        _thumbnails(_main_figures(entries), figures, takeaway=True),
        f'<div class="heads">{"".join(tables)}</div>',
        pages.paragraph(NOTE),
        _verdicts("Verdicts on the claims of the papers", claims[study_of_claim.isin(list(studies))]),
        pages.paragraph(
            "Each image links to its caption, the verdicts on claims about its runs, and the command that renders it."
        ),
        *overview,
        *sections,
        f"<section>{pages.heading('The workflow, by stage')}{_workflow(stages)}</section>",
        f"<section>{pages.heading('Provenance and cost')}{_provenance(rows, figures)}</section>",
    ])  # fmt: skip
    return html.replace("</style>", f"{STYLE}</style>", 1)


def _scope(rows: DataFrame, results: Results) -> str:
    """Return sentences on the number of runs, their training time and devices, and on excluded runs."""
    if rows.empty:
        return f"No run of scale {results.scale} is finished yet."
    hours, devices = rows["training_time_s"].sum() / 3600, ", ".join(sorted(set(rows["device"].dropna())))
    count = f"{len(rows)} finished runs of {rows['study'].nunique()} studies at scale {results.scale}"
    single = rows.groupby(["study", "run"]).size().max() == 1
    caution = "Every run has a single seed, so no interval contains the variance between seeds." if single else ""
    return " ".join(filter(None, [f"{count}: {duration(hours)} of training on {devices}.", caution, results.warning()]))


def _main_figures(entries: Sequence[CatalogueEntry]) -> list[CatalogueEntry]:
    """Return the first rendered figure of MAIN_FIGURES of each study, up to three."""
    rendered = {entry.name: entry for entry in entries}
    by_study: dict[str, CatalogueEntry] = {}
    for entry in (rendered[name] for name in MAIN_FIGURES if name in rendered):
        by_study.setdefault(entry.study, entry)
    return [*by_study.values()][:3]


def _thumbnails(entries: Sequence[CatalogueEntry], figures: Path, *, takeaway: bool = False) -> str:
    """Return thumbnails that link to the section of each figure, with its title as caption.

    With `takeaway`, the caption also says what to look for (the sentence of the figure's caption after `To see:`).
    """
    links = []
    for entry in entries:
        title = escape(pages.caption_title(entry.caption))
        text = f"<b>{title}.</b> {escape(pages.takeaway(entry.caption))}" if takeaway else title
        links.append(f'<a href="#{entry.name}"><img alt="" src="{_uri(figures / entry.outputs[1])}"><br>{text}</a>')
    return f'<div class="thumbnails">{"".join(links)}</div>' if links else ""


def _article(entry: CatalogueEntry, runs: Sequence[str], figures: Path, claims: DataFrame, results: Results) -> str:
    """Return a figure or table with its title, caption, verdicts, command and source runs."""
    title = escape(pages.caption_title(entry.caption))
    if entry.kind == "figure":
        content = f'<img alt="{title}" src="{_uri(figures / entry.outputs[1])}">'
    else:
        tables = _body(figures / f"{entry.name}.html").replace("h2>", "h4>")
        content = f'<details open><summary>table</summary><div class="wide">{tables}</div></details>'
    caption = ""
    if entry.kind == "figure":  # the page of a table has its caption
        # The caption has notes. Code and bold are its only reStructuredText markup.
        caption = (figures / entry.outputs[-1]).read_text(encoding="utf-8").partition(COMMAND)[0]
        caption = re.sub(r"``(.+?)``", r"<code>\1</code>", escape(caption, quote=False))
        caption = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", caption)
    command = f"python -m formerlab draw {entry.name} --scale {results.scale}"
    sources = f"<details class='small'><summary>{len(runs)} source runs</summary>{escape(', '.join(runs))}</details>"
    return (
        f'<article id="{entry.name}"><h3>{title}</h3>{content}<p>{caption}</p>'
        f"{_verdicts('Claims about these runs', _claims_about(claims, runs))}"
        f'<p class="small">Command: <code>{escape(command)}</code></p>{sources}</article>'
    )


def _claims_about(claims: DataFrame, runs: Sequence[str]) -> DataFrame:
    """Return the claims whose runs are all among the runs of a figure or table."""
    names = {run.partition(" ")[0].rpartition("/")[2] for run in runs}
    runs_of_claims = [{run.strip() for run in text.split(",")} for text in claims["runs"]]
    return claims[[claim_runs <= names and claim_runs != {""} for claim_runs in runs_of_claims]]


def _verdicts(title: str, claims: DataFrame) -> str:
    """Return a collapsible table of verdicts with their counts in the summary line; items follow their claim."""
    if claims.empty:
        return ""
    rows = claims.drop_duplicates(["claim", "item"])
    lines = []
    for outcome, verdict, statement, ours, changed in rows[
        ["outcome", "verdict", "statement", "ours", "changed"]
    ].itertuples(index=False):
        note = f" ({escape(changed)})" if changed else ""
        chip = _chip(outcome, verdict)
        lines.append(f"<tr><td>{chip}</td><td>{escape(statement)}{note}</td><td>{escape(ours)}</td></tr>")
    outcomes = Counter(claims.drop_duplicates("claim")["outcome"])
    counts = ", ".join(f"{n} {_chip(word, word.replace('_', ' '))}" for word, n in outcomes.most_common())
    return f"<details><summary>{title}: {counts}</summary><table class='small'>{''.join(lines)}</table></details>"


def _chip(outcome: str, text: str) -> str:
    return f'<span class="verdict {escape(outcome)}">{escape(text)}</span>'


def _workflow(stages: Sequence[Mapping[str, int]]) -> str:
    """Return boxes from left to right, each with the stages of a group and their numbers of jobs."""
    boxes = [
        "".join(f"<p><b>{escape(stage)}</b> {count} job{'s' * (count != 1)}</p>" for stage, count in group.items())
        for group in stages
        if group
    ]
    return f'<div class="stages">{" &rarr; ".join(f"<div>{box}</div>" for box in boxes)}</div>'


def _provenance(rows: DataFrame, figures: Path) -> str:
    """Return the costs by study, followed by a collapsed list of all runs."""
    if rows.empty:
        return pages.paragraph("No finished run.")
    costs, page = f"<div class='wide'>{pages.html_table(costs_by_study(rows))}</div>", figures / "runs.html"
    if not page.exists():
        return costs
    return f"{costs}<details><summary>Every run</summary><div class='wide'>{_body(page)}</div></details>"


def _body(page: Path) -> str:
    """Return the body of an HTML page of this package, without its title."""
    return re.sub(r"^.*?</h1>|</body>.*$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def _uri(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
