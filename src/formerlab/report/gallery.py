"""report.html: a self-contained page with every figure and table of a scale.

The page begins with the scope, three figures, the headline tables, the verdicts, and thumbnails of all figures. A
section per study follows, with each figure and table, its caption, the verdicts on claims about its runs, and its
command. The page ends with the workflow by stage, and the provenance and cost of all runs.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from pandas import DataFrame

from formerlab.progress import duration
from formerlab.report import pages
from formerlab.report.drawings import Drawing, catalogue
from formerlab.report.headline import NOTE, tables
from formerlab.report.ledger import costs, ledger
from formerlab.report.pages import readable
from formerlab.report.write import COMMAND
from formerlab.results.read import Results

FIRST = (
    *("tokenformer_stage_length", "tokenformer_cost", "denseformer_gain", "denseformer_depth", "decay_accuracy"),
    *("decay_budget", "vision_accuracy", "combined_effects", "transformer_differences"),
)
"""Figures for the top of the page: the first rendered one of each study, up to three."""
STYLE = """
body { margin: 0 auto; max-width: 1180px; padding: 1.2em; }
section { border-top: 2px solid #ddd; margin-top: 2.2em; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(320px, 1fr)); gap: 16px; }
.sheet a { color: #222; text-decoration: none; font-size: 13px; line-height: 1.3; }
.sheet img { width: 100%; height: 220px; object-fit: contain; border: 1px solid #ddd; background: #fff; }
.heads { display: flex; flex-wrap: wrap; gap: 16px 40px; }
.heads div { min-width: 0; max-width: 100%; } .heads .wide { max-height: 15em; overflow: auto; }
.heads td, .heads th { white-space: nowrap; }
@media (max-width: 700px) {
  .sheet { grid-template-columns: 1fr; } .sheet img { height: auto; } .stages { flex-direction: column; }
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


def gallery(
    results: Results,
    figures: Path,
    studies: Mapping[str, Mapping[str, Any]],
    drawings: Mapping[str, Sequence[str]],
    stages: Sequence[Mapping[str, int]],
) -> str:
    """Return the page as HTML.

    `figures` is the folder with the rendered files. `studies` has the title and question of each study, `drawings` the
    runs of each figure and table. `stages` has the number of jobs of every stage, in groups that run in sequence.
    """
    path, columns = figures / "claims.csv", ["claim", "item", "outcome", "verdict", "ours", "runs", "statement"]
    claims = pd.read_csv(path) if path.exists() else DataFrame(columns=columns, dtype=str)
    of_study = claims["claim"].str.split("-").str[0]
    drawn = [one for one in catalogue().values() if one.name in drawings and (figures / one.outputs[1]).exists()]
    heads = [f"<div><h3>{escape(name)}</h3><div class='wide'>{pages.table(readable(rows))}</div></div>"
             for name, rows in tables(results).items()]  # fmt: skip
    sheets, sections = [], []
    for name, study in studies.items():
        found, own = [one for one in drawn if one.study == name], claims[of_study == name]
        sheets.append(_sheet(study["title"], [one for one in found if one.kind == "figure"], figures))
        articles = [_article(drawing, drawings[drawing.name], figures, own, results) for drawing in found]
        command = f"snakemake --cores 2 {name} --config scale={results.scale}"
        nothing = f'<p class="small">No figures or tables yet: <code>{escape(command)}</code></p>'
        inside = [pages.heading(study["title"]), pages.paragraph(study["question"]),
                  _verdicts("All claims of this study", own), *(articles or [nothing])]  # fmt: skip
        sections.append(f'<section id="{escape(name)}">{"".join(inside)}</section>')
    whole = pages.page(f"formerlab at scale {results.scale}", [
        pages.paragraph(_scope(results)),
        _first({one.name: one for one in drawn}, figures),
        f'<div class="heads">{"".join(heads)}</div>',
        pages.paragraph(NOTE),
        _verdicts("Verdicts on the claims of the papers", claims[of_study.isin(list(studies))]),
        pages.paragraph(
            "Each image links to its caption, the verdicts on claims about its runs, and the command that renders it."
        ),
        *sheets,
        *sections,
        f"<section>{pages.heading('The workflow, by stage')}{_workflow(stages)}</section>",
        f"<section>{pages.heading('Provenance and cost')}{_provenance(results, figures)}</section>",
    ])  # fmt: skip
    return whole.replace("</style>", f"{STYLE}</style>", 1)


def _scope(results: Results) -> str:
    """Return a sentence on the number of runs, their training time and devices, and a warning on excluded runs."""
    rows = ledger(results)
    if rows.empty:
        return f"No run of scale {results.scale} is finished yet."
    hours, devices = rows["training_time_s"].sum() / 3600, ", ".join(sorted(set(rows["device"].dropna())))
    words = f"{len(rows)} finished runs of {rows['study'].nunique()} studies at scale {results.scale}"
    single = rows.groupby(["study", "run"]).size().max() == 1
    few = "One seed of a small model proves nothing: this page shows how the pipeline works." if single else ""
    return " ".join(filter(None, [f"{words}: {duration(hours)} of training on {devices}.", few, results.warning()]))


def _first(drawn: Mapping[str, Drawing], figures: Path) -> str:
    """Return the figures of FIRST, each with the sentence of its caption that says what to look for."""
    by_study: dict[str, Drawing] = {}
    for drawing in (drawn[name] for name in FIRST if name in drawn):
        by_study.setdefault(drawing.study, drawing)
    links = [f'<a href="#{one.name}"><img alt="" src="{_uri(figures / one.outputs[1])}"><br>'
             f"<b>{escape(pages.title(one.caption))}.</b> {escape(pages.to_see(one.caption))}</a>"
             for one in [*by_study.values()][:3]]  # fmt: skip
    return f'<div class="sheet">{"".join(links)}</div>' if links else ""


def _sheet(title: str, found: Sequence[Drawing], figures: Path) -> str:
    links = [f'<a href="#{one.name}"><img alt="" src="{_uri(figures / one.outputs[1])}"><br>'
             f"{escape(pages.title(one.caption))}</a>" for one in found]  # fmt: skip
    return f'{pages.heading(title)}<div class="sheet">{"".join(links)}</div>' if links else ""


def _article(drawing: Drawing, runs: Sequence[str], figures: Path, claims: DataFrame, results: Results) -> str:
    words = escape(pages.title(drawing.caption))
    if drawing.kind == "figure":
        shown = f'<img alt="{words}" src="{_uri(figures / drawing.outputs[1])}">'
    else:
        tables = _body(figures / f"{drawing.name}.html").partition("</p>")[2].replace("h2>", "h4>")  # without caption
        shown = f'<details open><summary>table</summary><div class="wide">{tables}</div></details>'
    # the caption with its notes; the only reStructuredText markup in it is code and bold
    caption = (figures / drawing.outputs[-1]).read_text(encoding="utf-8").partition(COMMAND)[0]
    prose = re.sub(r"``(.+?)``", r"<code>\1</code>", escape(caption, quote=False))
    prose = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", prose)
    command = f"python -m formerlab draw {drawing.name} --scale {results.scale}"
    behind = f"<details class='small'><summary>{len(runs)} source runs</summary>{escape(', '.join(runs))}</details>"
    return (
        f'<article id="{drawing.name}"><h3>{words}</h3>{shown}<p>{prose}</p>'
        f"{_verdicts('Claims about these runs', _about(claims, runs))}"
        f'<p class="small">Command: <code>{escape(command)}</code></p>{behind}</article>'
    )


def _about(claims: DataFrame, runs: Sequence[str]) -> DataFrame:
    """Return the claims whose runs are all among the runs of a figure or table."""
    shown = {run.partition(" ")[0].rpartition("/")[2] for run in runs}
    named = [{run.strip() for run in str(text).split(",")} for text in claims["runs"].fillna("")]
    return claims[[judged <= shown and judged != {""} for judged in named]]


def _verdicts(title: str, claims: DataFrame) -> str:
    """Return a collapsible table of verdicts with their counts in the summary line; items follow their claim."""
    if claims.empty:
        return ""
    shown = claims.drop_duplicates(["claim", "item"]).astype(object).where(lambda frame: frame.notna(), "").astype(str)
    lines = [f"<tr><td>{_chip(outcome, verdict)}</td><td>{escape(statement)}</td><td>{escape(ours)}</td></tr>"
             for outcome, verdict, statement, ours in shown[["outcome", "verdict", "statement", "ours"]].to_numpy()
             ]  # fmt: skip
    outcomes = claims.drop_duplicates("claim")["outcome"].value_counts()
    counts = ", ".join(f"{count} {_chip(str(word), str(word).replace('_', ' '))}" for word, count in outcomes.items())
    return f"<details><summary>{title}: {counts}</summary><table class='small'>{''.join(lines)}</table></details>"


def _chip(outcome: str, words: str) -> str:
    return f'<span class="verdict {escape(outcome)}">{escape(words)}</span>'


def _workflow(stages: Sequence[Mapping[str, int]]) -> str:
    """Return the stages as boxes with their numbers of jobs, from left to right."""
    boxes = [
        "".join(f"<p><b>{escape(stage)}</b> {count} job{'s' * (count != 1)}</p>" for stage, count in group.items())
        for group in stages
        if group
    ]
    return f'<div class="stages">{" &rarr; ".join(f"<div>{box}</div>" for box in boxes)}</div>'


def _provenance(results: Results, figures: Path) -> str:
    rows, page = ledger(results), figures / "runs.html"
    if rows.empty:
        return pages.paragraph("No finished run.")
    every = _body(page) if page.exists() else ""
    unfolded = f"<details><summary>Every run</summary><div class='wide'>{every}</div></details>" * bool(every)
    return f"<div class='wide'>{pages.table(costs(rows))}</div>{unfolded}"


def _body(page: Path) -> str:
    """Return the body of one of our pages below its title."""
    return re.sub(r"^.*?</h1>|</body>.*$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def _uri(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
