"""Write figures, tables and their captions; the same rows give the same bytes.

A figure is a PDF, a PNG and the rows it shows. A table is a CSV with every digit, and Markdown and HTML for people,
ours and published values in blocks of their own.
"""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import pandas as pd
from pandas import DataFrame
from pandas.api.types import is_numeric_dtype
from pandas.testing import assert_frame_equal

from formerlab.files import replacing, write_text
from formerlab.report import pages, pictures
from formerlab.report.drawings import Drawing, Plot, Table
from formerlab.report.names import RELEASED, data_set
from formerlab.report.style import SETTINGS, empty
from formerlab.results.read import Results

_BEHIND = """

Command: ``python -m formerlab draw %(name)s --scale %(scale)s``

Runs behind it: {{ snakemake.params.drawings.%(name)s.runs | join(", ") }}
"""
"""Below a caption, for Snakemake's report, which fills in the runs."""


def rows_of(drawing: Drawing, declared: Plot | Table, results: Results) -> DataFrame:
    """Return the rows that a figure or table shows; the column `source` tells ours from the published ones."""
    runs = drawing.names(results)
    if isinstance(declared, Table):
        return declared.rows(results, runs)
    files = [file for file in drawing.reads if file != "run.json"]
    known = (bool(runs) and not files) or any(_has(results, drawing.study, runs, file) for file in files)
    rows = declared.data(results, runs) if known else DataFrame()
    return rows if "source" in rows else rows.assign(source="ours")


def _has(results: Results, study: str, runs: Sequence[str], file: str) -> bool:
    """Say whether the study, or one of its runs, has rows of a file."""
    records = results.runs(study, runs)
    owners = [study, *(f"{study}/{run}/seed{seed}" for run, seed in zip(records["run"], records["seed"], strict=True))]
    return any(frame is not None and len(frame) > 0 for frame in (results.rows_of(file, owner) for owner in owners))


def write(
    drawing: Drawing, declared: Plot | Table, results: Results, out: Path, rows: DataFrame | None = None
) -> list[Path]:
    """Write the files of a figure or table into `out`; without rows of ours they say what is missing.

    `rows` are those of `rows_of`, where they are at hand.
    """
    paths, numbers = [out / name for name in drawing.outputs], out / f"{drawing.name}.csv"
    rows = rows_of(drawing, declared, results) if rows is None else rows
    if not _compares(drawing, results):
        rows = rows[rows["source"] != "ours"]
    notes: list[str] = []
    if isinstance(declared, Plot):
        notes = _write_pictures(paths[:2], drawing, declared, rows, results)
    else:
        write_text(paths[1], markdown(drawing, declared, rows, results))
        write_text(paths[2], html(drawing, declared, rows, results))
    if not same_rows(numbers, rows):  # another machine may round the last digit otherwise, which is no change
        with replacing(numbers) as temporary:
            rows.to_csv(temporary, index=False, lineterminator="\n")
    caption = " ".join([drawing.caption, *notes])
    write_text(paths[-1], caption + _BEHIND % {"name": drawing.name, "scale": results.scale})
    return paths


def write_failure(drawing: Drawing, reason: str, out: Path) -> None:
    """Write the files of a drawing that failed: they say so, and hold no rows."""
    words = f"{drawing.name} could not be drawn: {reason}"
    for path in (out / name for name in drawing.outputs):
        write_text(path, "source\n" if path.suffix == ".csv" else f"{words}\n")
    if drawing.kind == "figure":
        pictures.save(empty(words), *(out / name for name in drawing.outputs[:2]))


def same_rows(path: Path, rows: DataFrame) -> bool:
    """Say whether a CSV file holds these rows, up to the rounding of the last digits."""
    ours = rows.to_csv(index=False, lineterminator="\n")
    try:
        theirs = path.read_text(encoding="utf-8")
        if theirs != ours:
            old, new = (pd.read_csv(io.StringIO(text)) for text in (theirs, ours))
            assert_frame_equal(old, new, check_dtype=False, rtol=1e-6, atol=1e-9)
    except (FileNotFoundError, ValueError, AssertionError):
        return False
    return True


def _write_pictures(paths: list[Path], drawing: Drawing, plot: Plot, data: DataFrame, results: Results) -> list[str]:
    """Write the pictures; return the notes that their caption needs."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # neither a user's matplotlibrc nor an earlier figure changes the bytes
        matplotlib.rcParams.update(SETTINGS)
        if data.empty or not (data["source"] == "ours").any():
            figure = empty(_why_empty(drawing, results))
        else:
            figure = plot.draw(_without_formulas(with_settings(data, results.runs(drawing.study), results.scale)))
        pictures.save(figure, *paths)
        return [str(figure.get_label()), f"Rows: {results.place(drawing.study, drawing.runs)}."]


def _compares(drawing: Drawing, results: Results) -> bool:
    """Say whether there is one of the runs without which a drawing has nothing to compare."""
    return not drawing.needs or bool(drawing.names(results))


def _why_empty(drawing: Drawing, results: Results) -> str:
    """Return why there is nothing to draw."""
    where = f"study '{drawing.study}' at scale '{results.scale}'"
    if not _compares(drawing, results):
        wanted = " or ".join(drawing.needs)
        return f"{drawing.name} compares runs like {wanted}, and no finished run of {where} is one of them."
    what = f"the rows {drawing.name} needs ({', '.join(drawing.reads)})"
    return f"No finished run of {where} has {what} yet, or what it has cannot be compared."


def with_settings(rows: DataFrame, records: DataFrame, scale: str) -> DataFrame:
    """Return rows with data set and model of each run, which titles name: `data_set`, `blocks`, `wide`, `released`."""
    if "run" not in rows:
        return rows
    columns = {"spec.model.layers": "blocks", "spec.model.width": "wide", "spec.released": "released"}
    known = records.drop_duplicates("run").set_index("run").reindex(columns=["data.name", *columns])
    known = known.rename(columns=columns)
    released = known["released"].astype(object).where(known["released"].notna(), None)
    names = [data_set(str(name), model, scale) for name, model in zip(known["data.name"], released, strict=True)]
    known = known.assign(data_set=names, released=released.map(lambda name: RELEASED.get(name, name)))
    return rows.assign(**{name: rows["run"].map(known[name]) for name in ("data_set", "blocks", "wide", "released")})


def _without_formulas(data: DataFrame) -> DataFrame:
    """Return rows in whose texts a dollar is a dollar: what stands between two, matplotlib would read as a formula."""
    plain = data.copy()
    for name in data:
        if not is_numeric_dtype(data[name]):
            plain[name] = [value.replace("$", r"\$") if isinstance(value, str) else value for value in data[name]]
    return plain


def markdown(drawing: Drawing, declared: Table, table: DataFrame, results: Results) -> str:
    """Return caption and blocks of a table."""
    parts = [f"# {pages.title(drawing.caption)}", drawing.caption]
    for heading, cells, said in _blocks(drawing, declared, table, results):
        parts += [f"**{heading}** {said}".strip(), *([] if cells.empty else [pages.pipes(cells)])]
    return "\n\n".join(parts) + "\n"


def html(drawing: Drawing, declared: Table, table: DataFrame, results: Results) -> str:
    """Return the same as a page."""
    parts = [pages.paragraph(drawing.caption)]
    for heading, cells, said in _blocks(drawing, declared, table, results):
        parts += [pages.heading(heading), pages.paragraph(said), *([] if cells.empty else [pages.table(cells)])]
    return pages.page(pages.title(drawing.caption), parts)


def _blocks(drawing: Drawing, declared: Table, table: DataFrame, results: Results) -> list[tuple[str, DataFrame, str]]:
    """Return heading, readable rows and what all of these say, of ours and of the published ones."""
    place = results.place(drawing.study, drawing.runs)
    ours, theirs = (table[table["source"] == source] if len(table) else table for source in ("ours", "published"))
    blocks = [(f"Ours ({place})", ours)]
    if declared.each and len(ours):
        blocks = [(f"Ours, {name} ({place})", rows) for name, rows in ours.groupby(declared.each, sort=False)]
    blocks += [("Published, not ours", theirs)] if len(theirs) else []
    missing = DataFrame(), f"No finished run of study '{drawing.study}' has {', '.join(drawing.reads)} yet."
    found = []
    for name, rows in blocks:
        hidden = declared.hidden | ({declared.each} if rows is not theirs else set())
        found.append((name, *(pages.without_constants(pages.readable(rows, hidden)) if len(rows) else missing)))
    return found
