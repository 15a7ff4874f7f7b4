"""Render figures and tables from rows, and write them with their captions. The same rows give the same bytes.

A figure is a PNG, a CSV of its rows, and a PDF if requested. A table is a CSV with every digit, and Markdown and HTML
for readers. Markdown and HTML have separate blocks for our and published values; in the CSV, the column `source`
distinguishes them.
"""

import io
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from html import escape
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
from PIL.PngImagePlugin import PngInfo

from formerlab.errors import UserError, near_misses, some
from formerlab.files import DiskFull, replacing, write_text
from formerlab.report import pages
from formerlab.report.catalogue import (
    CatalogueEntry,
    Declaration,
    catalogue,
    expand_columns,
    failure_file,
    load_declaration,
    load_rows,
)
from formerlab.report.columns import MINUS, count, meanings, verdict_words
from formerlab.report.marks import hidden_marks
from formerlab.report.names import RELEASED_NAMES, data_set_label, regime_label
from formerlab.report.style import SETTINGS, empty
from formerlab.report.tables.cells import claim_verdicts
from formerlab.report.terms import terms
from formerlab.results.read import Results, StalenessReason, has_runs, read_once

DOTS_PER_INCH = 150
"""Resolution of the PNG, high enough for the size at which pages show it."""
HIDDEN = "Marks lie outside the panels"
"""First words of the note on marks that a figure does not show (`marks.hidden_marks`)."""
subset.Options._drop_tables_default += ("GSUB", "GPOS", "GDEF", "MATH")  # unused in a PDF, but slow to subset
Selection = Callable[[CatalogueEntry, str], bool]
"""Returns whether a figure or table is rendered at a scale."""
COMMAND = "\n\nCommand: "
"""Separator between a caption with its notes and the command that renders the figure or table."""


def draw(name: str, results: Results, out: Path, *, skip_empty: bool = False, pdf: bool = True) -> list[Path]:
    """Render one figure or table into the folder `out` and return the written files.

    If our runs have no rows, the files name the missing rows; with `skip_empty`, earlier files are removed instead and
    no files are written. Without `pdf`, an earlier PDF is removed. Raises UserError if no figure or table has this
    name.
    """
    if name not in catalogue():
        raise UserError(f"no figure or table is called {name!r}{near_misses(name, list(catalogue()))}")
    entry = catalogue()[name]
    rows = load_rows(entry, results)
    if rows["source"].eq("ours").any() or not skip_empty:
        return write(entry, results, out, rows, pdf=pdf)
    for file in entry.outputs:
        (out / file).unlink(missing_ok=True)
    return []


def draw_each(
    names: Iterable[str],
    root: Path,
    out: Path,
    staleness_reason: StalenessReason | None = None,
    *,
    skip_empty: bool = False,
) -> list[str]:
    """Render figures and tables from the rows in `root` (results/<tree>/<scale>) and return the names that failed.

    With `skip_empty`, skip figures and tables without rows of our runs, and remove their earlier files. Raises DiskFull
    if the disk is full.
    """
    by_name = _draw_names(Results(root, staleness_reason), out, names, skip_empty=skip_empty)
    return [name for name, files in by_name.items() if files is None]


def draw_all(
    tree_root: Path,
    out_root: Path,
    *,
    scale: str = "*",
    pool: Executor | None = None,
    pdf: bool = True,
    selects: Selection | None = None,
) -> list[Path]:
    """Render the figures and tables of each scale below `tree_root` (results/<tree>) into `out_root`/<scale>.

    Figures and tables without rows have no files, and figures have a PDF only with `pdf`. `scale` is a glob of scales,
    and `selects` chooses figures and tables. The processes of a `pool` render the studies with the largest files first.
    Returns the paths of all written files. Raises UserError if a figure or table failed, or if no file was written.
    """
    roots = [root for root in sorted(tree_root.glob(f"{scale}/")) if has_runs(root)]
    jobs = [(root, study) for root in roots for study in sorted({entry.study for entry in catalogue().values()})]
    jobs.sort(key=lambda job: -sum(file.stat().st_size for file in job[0].joinpath(job[1]).glob("*.*")))
    run = pool.map if pool else map
    by_job = run(_draw_study, *zip(*jobs, strict=True), repeat(out_root), repeat(pdf), repeat(selects)) if jobs else ()
    pairs = zip(jobs, by_job, strict=True)
    files = {(root.name, name): paths for (root, _), by_name in pairs for name, paths in by_name.items()}
    for root in roots:
        counts = [len(paths) for (scale, _), paths in files.items() if scale == root.name and paths is not None]
        print(f"{root.name}: {len(counts) - counts.count(0)} rendered, {counts.count(0)} have no rows of finished runs",
              file=sys.stderr)  # fmt: skip
    if failed := sorted(f"{scale}: {name}" for (scale, name), paths in files.items() if paths is None):
        raise UserError(f"{', '.join(failed)} could not be rendered, for the reasons above")
    if not (written := [path for paths in files.values() for path in paths or ()]):
        raise UserError(f"{tree_root}: no finished runs at any scale; run the workflow first")
    return written


def _draw_study(
    root: Path, study: str, out_root: Path, pdf: bool, selects: Selection | None
) -> dict[str, list[Path] | None]:
    """Render those figures and tables of a study that have rows at this scale; return what `_draw_names` returns."""
    entries = [entry for entry in catalogue().values() if entry.study == study]
    names = [entry.name for entry in entries if selects is None or selects(entry, root.name)]
    return _draw_names(read_once(root), out_root / root.name, names, skip_empty=True, pdf=pdf)


def _draw_names(results: Results, out: Path, names: Iterable[str], **options: bool) -> dict[str, list[Path] | None]:
    """Render figures and tables, warn about excluded rows, and return the files by name, or None if rendering failed.

    A failure does not stop the others, and each reason is printed once. Existing files of a failed figure or table are
    kept, and missing files are created, since Snakemake requires all outputs (`_write_missing_files`). Raises DiskFull
    if the disk is full.
    """
    files, reasons = dict[str, list[Path] | None](), dict[str, list[str]]()
    for name in names:
        try:
            files[name] = draw(name, results, out, **options)
            failure_file(out, name).unlink(missing_ok=True)
        except DiskFull:
            raise
        except Exception as error:
            files[name] = None
            reason = str(error) if isinstance(error, UserError) else traceback.format_exc().rstrip()
            reasons.setdefault(reason, []).append(name)
            if name in catalogue():
                write_text(failure_file(out, name), f"{reason}\n")
                _write_missing_files(catalogue()[name], out)
    for reason, failed in reasons.items():
        *details, last = reason.splitlines()
        print(*details, f"warning: {some(failed)} could not be rendered: {last}", sep="\n", file=sys.stderr)
    if warning := results.warning():
        print(f"{results.scale}: {warning}", file=sys.stderr)
    return files


def _write_missing_files(entry: CatalogueEntry, out: Path) -> None:
    """Write the missing files of a figure or table that could not be rendered: an empty CSV, and other files with an
    error message.
    """
    message = f"{entry.name} could not be rendered; `python -m formerlab status` says why."
    for path in (path for file in entry.outputs if not (path := out / file).exists()):
        if path.suffix in (".pdf", ".png"):
            save(empty(message), path)
        else:
            write_text(path, "source\n" if path.suffix == ".csv" else f"{message}\n")


def write(entry: CatalogueEntry, results: Results, out: Path, rows: DataFrame, *, pdf: bool = True) -> list[Path]:
    """Write the files of a figure or table into `out` and return their paths; `rows` is the result of `load_rows`."""
    paths, notes = [out / name for name in entry.outputs], ""
    if entry.kind == "figure":
        if not pdf:
            paths.pop(0).unlink(missing_ok=True)  # an earlier PDF would show earlier rows
        notes = _write_pictures(entry, results, paths[:-2], rows)
    else:
        for path, text in zip(paths[1:3], table_texts(entry, results, rows), strict=True):
            write_text(path, text)
    csv_file = out / f"{entry.name}.csv"
    if not same_rows(csv_file, rows):  # another machine may round the last digit differently
        write_text(csv_file, _csv(rows))
    caption = f"{entry.caption} {notes}".rstrip().replace(" - ", "\n\n- ")
    write_text(paths[-1], f"{caption}{COMMAND}``python -m formerlab draw {entry.name} --scale {results.scale}``\n")
    return paths


def _csv(rows: DataFrame) -> str:
    """Return rows as CSV, without the columns that only the figure uses."""
    columns = [name for name in rows if not str(name).startswith("_")]
    return str(rows[columns].to_csv(index=False, lineterminator="\n"))


def same_rows(path: Path, rows: DataFrame) -> bool:
    """Return whether a CSV file contains these rows, up to the rounding of the last digits."""
    new = _csv(rows)
    try:
        old = path.read_text(encoding="utf-8")
        if old != new:
            left, right = (pd.read_csv(io.StringIO(text)) for text in (old, new))
            assert_frame_equal(left, right, check_dtype=False, rtol=1e-6, atol=1e-9)
    except (FileNotFoundError, ValueError, AssertionError):
        return False
    return True


@matplotlib.rc_context()
def _write_pictures(entry: CatalogueEntry, results: Results, paths: Sequence[Path], rows: DataFrame) -> str:
    """Write the PDF and PNG of a figure; return the notes for its caption."""
    matplotlib.rcdefaults()  # output must not depend on a matplotlibrc or on earlier figures
    matplotlib.rcParams.update(SETTINGS)
    if rows["source"].eq("ours").any():
        rows = with_settings(rows, results.runs(entry.study), results.scale)
        # matplotlib would read text between two dollars as a formula
        figure = load_declaration(entry.name).draw(rows.replace(r"\$", r"\\$", regex=True))
        if panels := hidden_marks(figure):
            figure.set_label(f"{figure.get_label()} {HIDDEN} {', '.join(panels)}.")
    else:
        figure = empty(
            f"{entry.name} needs {', '.join(entry.reads)} from runs that match "
            f"{' or '.join(entry.needs or entry.runs)}. No finished run of study '{entry.study}' at scale "
            f"'{results.scale}' has them, or their rows are not comparable."
        )
    save(figure, *paths)
    return f"{figure.get_label()} Rows: {results.origin(entry.study, entry.runs)}."


def save(figure: Figure, *paths: Path) -> None:
    """Save a figure atomically as PDF, or as PNG with its label as the description, by the suffix of each path. The
    same figure gives the same bytes.
    """
    for path in paths:
        with replacing(path) as temporary:
            if path.suffix == ".pdf":
                figure.savefig(temporary, format="pdf", metadata={"CreationDate": None})
            else:
                figure.savefig(temporary, format="png", dpi=DOTS_PER_INCH)
                notes = PngInfo()
                notes.add_itxt("Description", str(figure.get_label()))
                fewer_colours(Image.open(temporary).convert("RGB")).save(temporary, "PNG", pnginfo=notes)


def fewer_colours(colours: Image.Image) -> Image.Image:
    """Return an image with 256 colours, which looks the same in a third of the bytes.

    The palette covers the whole range of colours, so that rare colours (in a colour bar) keep their hue. One step of
    k-means makes the frequent colours exact.
    """
    return colours.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)


def with_settings(rows: DataFrame, records: DataFrame, scale: str) -> DataFrame:
    """Add the data set and model of each run as columns for titles, unless the rows have them.

    Runs whose tokenizer comes from another data set (column `lent`) get no data set, because their test text is from
    the data set of the tokenizer. Titles name the data sets of the other runs.
    """
    if "run" not in rows:
        return rows
    columns = {"spec.model.layers": "_blocks", "spec.model.width": "_wide", "spec.released": "_released"}
    runs = records.drop_duplicates("run").set_index("run").reindex(columns=["data.name", *columns])
    runs = runs.rename(columns=columns)
    released = runs["_released"].astype(object).where(runs["_released"].notna(), None)
    names = [data_set_label(str(name), model, scale) for name, model in zip(runs["data.name"], released, strict=True)]
    runs = runs.assign(_data_set=names, _released=released.map(lambda name: RELEASED_NAMES.get(name, name)))
    missing = [name for name in ("_data_set", *columns.values()) if name not in rows]
    rows = rows.assign(**{name: rows["run"].map(runs[name]) for name in missing})
    return rows.assign(_data_set=rows["_data_set"].mask(rows["lent"].eq(True))) if "lent" in rows else rows


BASELINE = " (baseline)"
"""End of the label of a baseline."""


def with_labels(rows: DataFrame, scale: str) -> DataFrame:
    """Return our rows of a table with labels for `regime` (data set and schedule), and for baselines in `variant`.

    The run of a baseline is `<baseline> on <data set>`. Its regime becomes the label of the data set.
    """
    if "regime" not in rows or rows.empty:
        return rows
    regimes = rows["regime"].astype(object).where(rows["regime"].notna(), "")
    if "variant" in rows:
        baseline = rows["variant"].eq("floor")
        named = rows["run"].where(baseline, "").str.partition(" on ")
        regimes = regimes.mask(baseline, named[2])
        rows = rows.assign(variant=rows["variant"].mask(baseline, named[0] + BASELINE))
    return rows.assign(regime=[regime_label(str(regime), scale) for regime in regimes])


_PUBLISHED = "Published, not ours"


def _blocks(
    declaration: Declaration, ours: DataFrame, published: DataFrame, runs: set[str]
) -> list[tuple[str, DataFrame]]:
    """Return the blocks of a table with their headings: ours as readers see them, then the published rows. Add the runs
    that our blocks name in `run` and `other_run` to `runs`.
    """
    blocks = []
    for heading, rows in ("Ours", ours), (_PUBLISHED, published):
        reader_rows = declaration.readers(rows) if declaration.readers and len(rows) else rows
        for name, block in (reader_rows if isinstance(reader_rows, dict) else {"": reader_rows}).items():
            labels = block.drop(columns=["run", "other_run"], errors="ignore") if rows is not published else block
            if rows is not published:
                runs |= {*block.reindex(columns=["run", "other_run"]).stack().dropna()}
            blocks.append((": ".join(filter(None, [heading, name])), labels))
    return blocks if len(published) else blocks[:-1]


def _origin(entry: CatalogueEntry, results: Results, shown_runs: Collection[str], names: Collection[str]) -> list[str]:
    """Return one line about the models, as a list.

    If the study has released models (its main run or runs in `shown_runs`): their names, weight bits and window
    lengths. Otherwise: the sizes of our trained runs in `shown_runs`, or in `names` if `shown_runs` is empty. The list
    is empty if there are no such runs.
    """
    columns = ["run", "spec.released", "released.quantisation", "spec.context"]
    records = results.runs(entry.study).reindex(columns=columns).dropna().drop_duplicates("run")
    is_main = records["run"].eq("released-" + records["spec.released"].astype(str))
    models = []
    for key, of_model in records[is_main | records["run"].isin(shown_runs)].groupby(columns[1:3], sort=False):
        model, weights = map(str, key)
        bits = re.sub(r"^Q(\d)_.*", r"\1 bits", weights)
        lengths = " or ".join(f"{context:.0f}" for context in sorted(of_model["spec.context"].unique()))
        windows = f", windows of {lengths} tokens" * bool({"prune.csv", "prune_one_shot.csv"} & {*entry.reads})
        models.append(f"{RELEASED_NAMES.get(model, model)}, a released model (weights in {bits}{windows})")
    if models:
        return [f"Models: {'; '.join(models)}."]
    sizes = {"spec.model.layers": "{} blocks", "spec.model.width": "width {}",
             "parameters_non_embedding": "{} parameters without embeddings"}  # fmt: skip
    trained = results.runs(entry.study).reindex(columns=["run", *sizes])
    trained = trained[trained["run"].isin(shown_runs or names)].dropna()
    words = [form.format(_range(trained[name])) for name, form in sizes.items()] if len(trained) else []
    return [f"Models: trained by us, {', '.join(words)}."] if words else []


def _range(values: "pd.Series[Any]") -> str:
    return " to ".join(dict.fromkeys(count(value) for value in (values.min(), values.max())))


def with_claim_letters(rows: DataFrame, letters: dict[str, str]) -> DataFrame:
    """Return rows with the words of verdicts and a letter for each claim, and add new claims to `letters`."""
    words, columns = partial(verdict_words, letters=letters), [name for name in map(str, rows) if "verdict" in name]
    return rows.assign(**{name: rows[name].map(words).replace("", None) for name in columns})


def _claims(letters: Mapping[str, str], results: Results, study: str, *, brief: bool) -> list[str]:
    """Return a line per claim: its letter, the claim, and the conditions that are not met. Without `brief`, the line
    also has the limits and our values.
    """
    lines = []
    for claim, verdict in claim_verdicts(results, study, *letters).items() if letters else ():
        unmet = f" Condition not met: {'. '.join(verdict.reasons)}."
        statement = f"{verdict.claim.partition('. Needed: ')[0]}." if brief else verdict.claim
        lines.append(f"({letters[claim]}) Claim: {statement}{unmet if verdict.reasons else ''}")
    return lines


_SIGNS = {
    "\N{EN DASH}": "\N{EN DASH}: not run, not evaluated or no claim.",
    rf"[{MINUS}+]0\.0+\b": f"{MINUS}0.0, +0.0: rounded to zero; the sign shows the side.",
    pages.DAGGER: f"{pages.DAGGER}: the interval of these seeds alone includes equality (0, or 1 for a ratio).",
    pages.SECTION: f"{pages.SECTION}: the interval of these seeds alone excludes equality (0, or 1 for a ratio).",
}
"""Lines that explain signs in cells, by regular expression."""


def _with_dashes_and_bold_names(cells: DataFrame, *, published: bool) -> DataFrame:
    """Return formatted cells with "not published" or a dash (not run, no claim) in place of empty cells, and with bold
    names (the first column) in the rows that a claim uses.
    """
    filled = cells.copy()
    for name in map(str, cells):
        of_paper = published or name.startswith("published")
        filled[name] = cells[name].replace("", "not published" if of_paper else "\N{EN DASH}")
    verdicts = cells[[name for name in map(str, cells) if "verdict" in name]]
    if verdicts.size:
        names = str(cells.columns[0])
        filled[names] = filled[names].mask(verdicts.astype(bool).any(axis=1), "**" + filled[names] + "**")
    return filled


def _links(entry: CatalogueEntry) -> str:
    """Return links to the CSV and to pages of the repository, from the folder figures/<tree>/<scale>."""
    docs = "../../../docs"
    pages_of = {"numbers": f"{entry.name}.csv", "study": f"{docs}/{entry.study}.md"}
    pages_of["verdicts and their numbers"] = f"{docs}/verdicts.md"
    return " · ".join(f"[{name}]({page})" for name, page in {**pages_of, "all tables": "../../README.md"}.items())


def table_texts(entry: CatalogueEntry, results: Results, table: DataFrame) -> tuple[str, str]:
    """Return a table as Markdown and as HTML: the answer, our rows, the published rows, the caption, the meaning of
    columns, and in Markdown links.
    """
    declaration = load_declaration(entry.name)
    hidden = {expand_columns(word)[0] for word in declaration.columns.split() if word.startswith("-")}
    ours = with_labels(table[table["source"] == "ours"], results.scale)
    answer = declaration.answer(ours) if declaration.answer and len(ours) else ""
    heading = pages.caption_title(entry.caption)
    text, page, explained, named = [f"# {heading}"], list[str](), "", answer
    if answer:
        text.append(f"**{pages.escape_markdown(answer)}**")
        page.append(f"<p><b>{escape(answer)}</b></p>")
    headings, letters, shown_runs = list[str](), dict[str, str](), set[str]()
    for block, rows in _blocks(declaration, ours, table[table["source"] == "published"], shown_runs):
        cells, note = DataFrame(), f"No finished run of study '{entry.study}' has {', '.join(entry.reads)} yet."
        if len(rows):
            cells = pages.format_table(with_claim_letters(rows, letters), hidden)
            headings += [*cells]
            cells, note = pages.without_constants(cells)
        shown_cells = _with_dashes_and_bold_names(cells, published=block.startswith(_PUBLISHED))
        explained += " ".join(map(str, shown_cells.to_numpy().ravel()))
        title, _, settings = block.partition("\n")
        notes = list(filter(None, [settings and f"{settings}.", note]))
        text += [f"**{title}**", *([] if cells.empty else [pages.markdown_table(shown_cells)]), *notes]
        page += [pages.heading(title), *([] if cells.empty else [pages.html_table(shown_cells)])]
        page += map(pages.paragraph, notes)
        named += f" {title} {settings} " + " ".join(map(str, cells))
    lines = [*pages.bullets(entry.caption), *meanings(headings)]
    lines += terms(f"{named} {explained}")
    lines += _claims(letters, results, entry.study, brief="needed" in headings)
    lines += [meaning for sign, meaning in _SIGNS.items() if re.search(sign, explained)]
    lines += _origin(entry, results, shown_runs, {*ours.reindex(columns=["run", "tokenformer"]).stack().dropna()})
    text += ["\n".join(f"- {words}" for words in lines), _links(entry)]
    return "\n\n".join(text) + "\n", pages.html_page(heading, [*page, pages.bullet_list(lines)])
