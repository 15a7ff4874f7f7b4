"""Write figures, tables and their captions; the same rows give the same bytes.

A figure is a PDF, a PNG and the rows it shows. A table is a CSV with every digit, and Markdown and HTML for people,
ours and published values in blocks of their own.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from pandas import DataFrame
from pandas.api.types import is_numeric_dtype
from pandas.testing import assert_frame_equal

from formerlab.files import replacing, write_text
from formerlab.report import pages, pictures
from formerlab.report.drawings import Drawing, Plot, Table
from formerlab.report.names import RELEASED, data_set
from formerlab.report.runs import quantity
from formerlab.report.style import SETTINGS, empty
from formerlab.results.read import Results

HEADINGS = {
    "loss_nats": "held-out loss (nats)",
    "loss_minus_plain_nats": "loss minus plain (nats)",
    "increase_nats": "loss minus Full (nats)",
    "top1_percent": "top-1 (%)",
    "top5_percent": "top-5 (%)",
    "top1_points": "top-1 minus compared (points)",
    "gain_nats": "gain over plain (nats)",
    "layers": "blocks",
    "flops": "FLOPs",
    "flops_cumulative": "cumulative FLOPs",
    "parameters_non_embedding": "without embedding",
    "inference_batches_per_s": "inference batches/s",
    "forward_sequences": "sequences of a forward pass",
}
_SUFFIXES = ("_low", "_high", "_se")


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
        write_text(paths[1], markdown(drawing, rows, results))
        write_text(paths[2], html(drawing, rows, results))
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


def markdown(drawing: Drawing, table: DataFrame, results: Results) -> str:
    """Return caption and blocks of a table."""
    ours, theirs = _blocks(table)
    parts = [f"# {drawing.name}", drawing.caption, f"**Ours** ({results.place(drawing.study, drawing.runs)})"]
    parts.append(_missing(drawing) if ours.empty else _pipes(ours))
    if len(theirs):
        parts += ["**Published, not ours**", _pipes(theirs)]
    return "\n\n".join(parts) + "\n"


def html(drawing: Drawing, table: DataFrame, results: Results) -> str:
    """Return the same as a page."""
    ours, theirs = _blocks(table)
    parts = [pages.paragraph(drawing.caption), pages.heading(f"Ours ({results.place(drawing.study, drawing.runs)})")]
    parts.append(pages.paragraph(_missing(drawing)) if ours.empty else pages.table(readable(ours)))
    if len(theirs):
        parts += [pages.heading("Published, not ours"), pages.table(readable(theirs))]
    return pages.page(drawing.name, parts)


def _blocks(table: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the rows of ours and the published ones."""
    return tuple(table[table["source"] == source] if len(table) else table for source in ("ours", "published"))  # type: ignore[return-value]


def _missing(drawing: Drawing) -> str:
    return f"No finished run of study '{drawing.study}' has {', '.join(drawing.reads)} yet."


def readable(table: DataFrame) -> DataFrame:
    """Return the table as text: `x` with `x_low` and `x_high` as `x [low, high]`, with `x_se` as `x ± se`.

    Columns without any value are left out, and the policy, whose configuration names it.
    """
    columns = {}
    for name in table.columns:
        if name in ("source", "policy") or name.endswith(_SUFFIXES) or table[name].isna().all():
            continue
        spreads = {suffix: table[name + suffix] for suffix in _SUFFIXES if name + suffix in table}
        columns[_heading(name)] = [
            _cell(name, value, {suffix: spread.iloc[row] for suffix, spread in spreads.items()})
            for row, value in enumerate(table[name])
        ]
    return DataFrame(columns)


def _heading(name: str) -> str:
    return HEADINGS.get(name, name if "(" in name else name.replace("_", " "))


def _cell(name: str, value: Any, spreads: dict[str, float]) -> str:
    if pd.isna(value):
        return ""
    if not isinstance(value, int | float):
        return str(value)
    text = number(name, value)
    if not math.isnan(spreads.get("_low", math.nan)):
        text += f" [{number(name, spreads['_low'])}, {number(name, spreads['_high'])}]"
    if not math.isnan(spreads.get("_se", math.nan)):
        text += f" ± {number(name, spreads['_se'])}"
    return text


def number(name: str, value: float) -> str:
    """Return a number with the digits that its column deserves; zero, rounded from below, has no sign."""
    if "nats" in name or name == "bits_per_byte":
        return f"{value:z.4f}"
    if "perplexity" in name or name.endswith("_per_s"):
        return f"{value:z,.2f}" if value < 1000 else f"{value:,.0f}"
    if name.startswith(("parameters", "tokens")):
        return quantity(value)
    if name.startswith("flops"):
        return f"{value:.3g}"
    if name.startswith("top"):
        return f"{value:z.2f}"
    if name.endswith(("(%)", "(points)")):
        return f"{value:z.1f}"
    if name.startswith(("acc", "chance", "calibration")) or "(" in name:
        return f"{value:z.3f}"
    return f"{value:g}" if value == round(value, 4) else f"{value:.4g}"


def plain(table: DataFrame) -> str:
    """Return a table as aligned text for a terminal."""
    return _text(readable(table), "simple")


def _pipes(table: DataFrame) -> str:
    return _text(readable(table).map(pages.markdown).rename(columns=pages.markdown), "pipe")


def _text(table: DataFrame, form: str) -> str:
    return str(table.to_markdown(index=False, tablefmt=form, disable_numparse=True))
