"""Render figures and tables from rows, and write them with their captions. The same rows give the same bytes.

A figure is a PNG, a CSV of the rows it shows, and a PDF if wanted. A table is a CSV with every digit, and Markdown and
HTML for readers. Markdown and HTML have separate blocks for our and published values; in the CSV, the column `source`
distinguishes them.
"""

import io
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from itertools import repeat
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from fontTools import subset
from matplotlib.figure import Figure
from pandas import DataFrame
from pandas.testing import assert_frame_equal
from PIL import Image

from formerlab.errors import UserError, near_misses, some
from formerlab.files import NoRoom, replacing, write_text
from formerlab.report import pages
from formerlab.report.drawings import Drawing, catalogue, declaration, failure_of, rows_of, shown_columns
from formerlab.report.names import RELEASED, data_set
from formerlab.report.style import SETTINGS, empty
from formerlab.results.read import Results, StalenessReason, has_runs, read_once

DOTS_PER_INCH = 150
"""Resolution of the PNG, sharp at the size at which pages show it."""
subset.Options._drop_tables_default += ("GSUB", "GPOS", "GDEF", "MATH")  # unused in a PDF, but slow to subset
Wanted = Callable[[Drawing, str], bool]
"""Returns whether a figure or table of a scale is rendered."""
COMMAND = "\n\nCommand: "
"""Separates a caption with its notes from the command that renders the figure or table."""


def draw(name: str, results: Results, out: Path, *, where_rows: bool = False, pdf: bool = True) -> list[Path]:
    """Render one figure or table into the folder `out` and return the written files.

    Without rows of ours, the files name the missing rows. With `where_rows`, no files are written in this case and
    earlier files are removed. Without `pdf`, an earlier PDF is removed.
    """
    if name not in catalogue():
        raise UserError(f"no figure or table is called {name!r}{near_misses(name, list(catalogue()))}")
    drawing = catalogue()[name]
    rows = rows_of(drawing, results)
    if rows["source"].eq("ours").any() or not where_rows:
        return write(drawing, results, out, rows, pdf=pdf)
    for file in drawing.outputs:
        (out / file).unlink(missing_ok=True)
    return []


def draw_each(
    names: Iterable[str],
    root: Path,
    out: Path,
    staleness_reason: StalenessReason | None = None,
    *,
    where_rows: bool = False,
) -> list[str]:
    """Render several figures and tables from the rows in `root` (results/<tree>/<scale>); return the names that fail.

    With `where_rows`, those without rows of ours are skipped. Raises NoRoom if the disk is full.
    """
    drawn = _drawn(Results(root, staleness_reason), out, names, where_rows=where_rows)
    return [name for name, files in drawn.items() if files is None]


def draw_all(
    tree_root: Path, out_root: Path, *, pool: Executor | None = None, pdf: bool = True, wanted: Wanted | None = None
) -> list[Path]:
    """Render every figure and table for each scale below `tree_root` (results/<tree>) into `out_root`/<scale>.

    A figure or table without rows has no files there, and a figure has a PDF only with `pdf`. `wanted` selects figures
    and tables; by default all are rendered. The processes of a `pool` take the studies in order of decreasing size of
    their rows.
    """
    roots = [root for root in sorted(tree_root.glob("*/")) if has_runs(root)]
    shares = [(root, study) for root in roots for study in sorted({one.study for one in catalogue().values()})]
    shares.sort(key=lambda share: -sum(file.stat().st_size for file in share[0].joinpath(share[1]).glob("*.*")))
    each = pool.map if pool else map
    parts = each(_share, *zip(*shares, strict=True), repeat(out_root), repeat(pdf), repeat(wanted)) if shares else ()
    found = {f"{root.name}: {name}": files
             for (root, _), part in zip(shares, parts, strict=True) for name, files in part.items()}  # fmt: skip
    for root in roots:
        drawn = [len(files) for name, files in found.items() if name.startswith(f"{root.name}: ") and files is not None]
        print(f"{root.name}: {len(drawn) - drawn.count(0)} drawn, {drawn.count(0)} have no rows of finished runs",
              file=sys.stderr)  # fmt: skip
    if failed := sorted(name for name, files in found.items() if files is None):
        raise UserError(f"{', '.join(failed)} could not be drawn, for the reasons above")
    if not (written := [path for files in found.values() for path in files or ()]):
        raise UserError(f"{tree_root}: no finished runs at any scale; run the DAG first")
    return written


def _share(root: Path, study: str, out_root: Path, pdf: bool, wanted: Wanted | None) -> dict[str, list[Path] | None]:
    """Render the figures and tables of a study at a scale that have rows."""
    of_study = {name: one for name, one in catalogue().items() if one.study == study}
    names = [name for name, one in of_study.items() if wanted is None or wanted(one, root.name)]
    return _drawn(read_once(root), out_root / root.name, names, where_rows=True, pdf=pdf)


def _drawn(results: Results, out: Path, names: Iterable[str], **how: bool) -> dict[str, list[Path] | None]:
    """Render several figures and tables; return their files by name, or None for a failure. Warn about excluded rows.

    A failure does not stop the others, and each reason is printed once. The earlier files of a figure or table that
    fails stay. Its missing files are written with a message, since Snakemake requires all files of a job. Raises NoRoom
    if the disk is full.
    """
    found, reasons = dict[str, list[Path] | None](), dict[str, list[str]]()
    for name in names:
        try:
            found[name] = draw(name, results, out, **how)
            failure_of(out, name).unlink(missing_ok=True)
        except NoRoom:
            raise
        except Exception as error:
            found[name] = None
            reason = str(error) if isinstance(error, UserError) else traceback.format_exc().rstrip()
            reasons.setdefault(reason, []).append(name)
            if name in catalogue():
                write_text(failure_of(out, name), f"{reason}\n")
                _fill_in(catalogue()[name], out)
    for reason, alike in reasons.items():
        *details, last = reason.splitlines()
        print(*details, f"warning: {some(alike)} could not be drawn: {last}", sep="\n", file=sys.stderr)
    if warning := results.warning():
        print(f"{results.scale}: {warning}", file=sys.stderr)
    return found


def _fill_in(drawing: Drawing, out: Path) -> None:
    """Write the missing files of a figure or table that failed, with a message that says so."""
    words = f"{drawing.name} could not be drawn; `python -m formerlab status` says why."
    for path in (path for file in drawing.outputs if not (path := out / file).exists()):
        if path.suffix in (".pdf", ".png"):
            save(empty(words), path)
        else:
            write_text(path, "source\n" if path.suffix == ".csv" else f"{words}\n")


def write(drawing: Drawing, results: Results, out: Path, rows: DataFrame, *, pdf: bool = True) -> list[Path]:
    """Write the files of a figure or table with the rows of `rows_of` into `out`; return their paths."""
    paths, notes = [out / name for name in drawing.outputs], ""
    if drawing.kind == "figure":
        if not pdf:
            paths.pop(0).unlink(missing_ok=True)  # it would show the rows of before
        notes = _write_pictures(drawing, results, paths[:-2], rows)
    else:
        for path, text in zip(paths[1:3], _texts(drawing, results, rows), strict=True):
            write_text(path, text)
    numbers = out / f"{drawing.name}.csv"
    if not same_rows(numbers, rows):  # another machine may round the last digit differently
        write_text(numbers, _csv(rows))
    caption = f"{drawing.caption} {notes}".rstrip()
    write_text(paths[-1], f"{caption}{COMMAND}``python -m formerlab draw {drawing.name} --scale {results.scale}``\n")
    return paths


def _csv(rows: DataFrame) -> str:
    """Return rows as CSV, without the columns that only the figure uses."""
    shown = rows[[name for name in rows if not str(name).startswith("_")]]
    return str(shown.to_csv(index=False, lineterminator="\n"))


def same_rows(path: Path, rows: DataFrame) -> bool:
    """Return whether a CSV file contains these rows, up to the rounding of the last digits."""
    ours = _csv(rows)
    try:
        theirs = path.read_text(encoding="utf-8")
        if theirs != ours:
            old, new = (pd.read_csv(io.StringIO(text)) for text in (theirs, ours))
            assert_frame_equal(old, new, check_dtype=False, rtol=1e-6, atol=1e-9)
    except (FileNotFoundError, ValueError, AssertionError):
        return False
    return True


@matplotlib.rc_context()
def _write_pictures(drawing: Drawing, results: Results, paths: Sequence[Path], rows: DataFrame) -> str:
    """Write the PDF and PNG of a figure; return the notes for its caption."""
    matplotlib.rcdefaults()  # neither a user's matplotlibrc nor an earlier figure changes the bytes
    matplotlib.rcParams.update(SETTINGS)
    if rows["source"].eq("ours").any():
        known = with_settings(rows, results.runs(drawing.study), results.scale)
        # matplotlib would read text between two dollars as a formula
        figure = declaration(drawing.name).draw(known.replace(r"\$", r"\\$", regex=True))
    else:
        figure = empty(
            f"{drawing.name} shows {', '.join(drawing.reads)} of runs like "
            f"{' or '.join(drawing.needs or drawing.runs)}; no finished run of study '{drawing.study}' at scale "
            f"'{results.scale}' has them yet, or what they have cannot be compared."
        )
    save(figure, *paths)
    return f"{figure.get_label()} Rows: {results.origin(drawing.study, drawing.runs)}."


def save(figure: Figure, *paths: Path) -> None:
    """Save a figure atomically as PDF or PNG, by the suffix of each path; the same figure gives the same bytes."""
    for path in paths:
        with replacing(path) as temporary:
            if path.suffix == ".pdf":
                figure.savefig(temporary, format="pdf", metadata={"CreationDate": None})
                continue
            pixels = io.BytesIO()
            figure.savefig(pixels, format="raw", dpi=DOTS_PER_INCH)
            width, height = (int(inches * DOTS_PER_INCH) for inches in figure.get_size_inches())
            picture = Image.frombytes("RGBA", (width, height), pixels.getvalue()).convert("RGB")
            fewer_colours(picture).save(temporary, "PNG")


def fewer_colours(colours: Image.Image) -> Image.Image:
    """Return an image with 256 colours, which looks the same in a third of the bytes.

    The palette covers the whole range of colours, so rare colours, as in a colour bar, stay right. One step of k-means
    makes the frequent colours exact.
    """
    return colours.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)


def with_settings(rows: DataFrame, records: DataFrame, scale: str) -> DataFrame:
    """Return rows with the missing columns on the data set and model of each run, which titles use.

    Losses on the text of another data set (`lent`) have no data set; the runs of that data set beside them name it.
    """
    if "run" not in rows:
        return rows
    columns = {"spec.model.layers": "_blocks", "spec.model.width": "_wide", "spec.released": "_released"}
    known = records.drop_duplicates("run").set_index("run").reindex(columns=["data.name", *columns])
    known = known.rename(columns=columns)
    released = known["_released"].astype(object).where(known["_released"].notna(), None)
    names = [data_set(str(name), model, scale) for name, model in zip(known["data.name"], released, strict=True)]
    known = known.assign(_data_set=names, _released=released.map(lambda name: RELEASED.get(name, name)))
    new = [name for name in ("_data_set", *columns.values()) if name not in rows]
    found = rows.assign(**{name: rows["run"].map(known[name]) for name in new})
    return found.assign(_data_set=found["_data_set"].mask(found["lent"].eq(True))) if "lent" in found else found


def labelled(rows: DataFrame, scale: str) -> DataFrame:
    """Return rows of a table for readers: labels of data sets, and names of runs behind the labels of models.

    `regime` is `<data set>, <schedule>`. The run of a baseline is `<baseline> on <data set>`.
    """
    labels: dict[str, Any] = {}
    if "regime" in rows:
        split = [str(text).partition(", ") for text in rows["regime"].fillna("")]
        labels["regime"] = ["".join((data_set(name, None, scale), *schedule)) for name, *schedule in split]
    if "variant" in rows and "run" in rows and rows["source"].eq("ours").all():
        baseline = rows["variant"].eq("floor")
        split = [str(run).partition(" on ") for run in rows["run"]]
        runs = ["".join((name, on, data_set(data, None, scale) if on else "")) for name, on, data in split]
        labels["variant"] = rows["variant"].mask(baseline, runs)
        rows = rows[[*rows.columns.drop("run"), "run"]].assign(run=rows["run"].mask(baseline))
    return rows.assign(**labels)


def _texts(drawing: Drawing, results: Results, table: DataFrame) -> tuple[str, str]:
    """Return a table as Markdown and as HTML: its caption, and blocks of our values and of published values."""
    declared, where = declaration(drawing.name), results.origin(drawing.study, drawing.runs)
    hidden = {shown_columns(word)[0] for word in declared.columns.split() if word.startswith("-")}
    ours, theirs = (table[table["source"] == source] for source in ("ours", "published"))
    blocks = [(f"Ours ({where})", ours)]
    if declared.each and len(ours):
        blocks = [(f"Ours, {name} ({where})", rows) for name, rows in ours.groupby(declared.each, sort=False)]
    blocks += [("Published, not ours", theirs)] if len(theirs) else []
    text, page = [f"# {pages.title(drawing.caption)}", drawing.caption], [pages.paragraph(drawing.caption)]
    for heading, rows in blocks:
        cells, said = DataFrame(), f"No finished run of study '{drawing.study}' has {', '.join(drawing.reads)} yet."
        if len(rows):
            own = hidden if rows is theirs else hidden | {declared.each}
            cells, said = pages.without_constants(pages.readable(labelled(rows, results.scale), own))
        text += [f"**{heading}** {said}".strip(), *([] if cells.empty else [pages.pipes(cells)])]
        page += [pages.heading(heading), pages.paragraph(said), *([] if cells.empty else [pages.table(cells)])]
    return "\n\n".join(text) + "\n", pages.page(pages.title(drawing.caption), page)
