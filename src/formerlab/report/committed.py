"""Update the committed figures and tables below `figures/cached`, and the page that shows them.

They are rendered from the committed rows, so that readers of the repository see them without running anything.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from pandas import Series

from formerlab.files import write_text
from formerlab.report import pages
from formerlab.report.drawings import Drawing, catalogue, rows_of
from formerlab.report.write import same_rows, write
from formerlab.results.read import Results, has_runs
from formerlab.yaml_files import read_scale, read_yaml, study_names

INDEX = Path("figures", "README.md")
KEPT = {"figure": ("png", "csv"), "table": ("md", "csv")}
"""Suffixes of the committed files, by kind."""
_HEAD = """# Figures and tables of the committed rows

Written by `make readme`, not by hand. Everything here is drawn from the rows in `results/cached`; `make figures`
draws it again, `make figures PDF=1` in PDF too. Scale `overnight` are small models, mostly on CPUs, `pilot` the search
for their rates, `pretrained` a released model. [docs/verdicts.md](../docs/verdicts.md) says what follows for the claims
of the papers.

A colour is one thing in all figures: Transformers are black, Tokenformers blue (a parent that trains further is pink),
DenseFormers orange, Decay green, H2O vermilion. Published values are hollow, on a tinted ground. The line below a
figure says how many seeds or windows it shows and what its bars are. Figures are 7 inches wide, two columns of a paper,
or 3.5 inches, one column.
"""


def place(root: Path, drawing: Drawing, scale: str, ending: str) -> Path:
    """Return the path of a committed file of a figure or table."""
    return root / "figures" / "cached" / scale / f"{drawing.name}.{ending}"


def evidence_scales(root: Path) -> list[str]:
    """Return the scales of `evidence: true` that have committed rows, the largest training first."""
    flops = {
        path.name: Results(path).runs().get("flops", Series([0])).fillna(0).max()
        for path in root.glob("results/cached/*/")
        if has_runs(path) and read_scale(root, path.name).get("evidence") is True
    }
    return sorted(flops, key=lambda name: (-flops[name], name))


def is_kept(root: Path, drawing: Drawing, scale: str) -> bool:
    """Return whether a figure or table of a scale is committed if it has rows."""
    return read_scale(root, scale).get("evidence") == ("rates" if drawing.varied else True)


def refresh(root: Path, *, look_only: bool = False) -> list[str]:
    """Render each figure or table whose rows or table caption changed, write the page, and return the changed files.

    With `look_only`, return the files that would change and write nothing.
    """
    changed = []
    for path in (path for path in sorted((root / "results" / "cached").glob("*/")) if has_runs(path)):
        results = Results(path)
        for drawing in (drawing for drawing in catalogue().values() if is_kept(root, drawing, path.name)):
            rows = rows_of(drawing, results)
            files = [place(root, drawing, path.name, ending) for ending in KEPT[drawing.kind]]
            exist, has_rows = [file.exists() for file in files], rows["source"].eq("ours").any()
            if all(exist) and _says(files[0], drawing) and same_rows(files[-1], rows) if has_rows else not any(exist):
                continue
            changed.append(str(files[0].relative_to(root)))
            if has_rows and not look_only:
                write(drawing, results, files[0].parent, rows, pdf=False)
            for file in () if look_only or has_rows else files:
                file.unlink(missing_ok=True)
    page = root / INDEX
    if not page.exists() or index(root) != page.read_text(encoding="utf-8"):
        changed.append(str(INDEX))
        if not look_only:
            write_text(page, index(root))
    return changed


def _says(file: Path, drawing: Drawing) -> bool:
    """Return whether the file of a table has the current caption; always true for figures, which commit no caption."""
    return drawing.kind == "figure" or drawing.caption in file.read_text(encoding="utf-8")


def complaint(root: Path) -> str:
    """Return one line that names stale files and the remedy, or "" if all files are up to date."""
    stale = refresh(root, look_only=True)
    more = f" and {len(stale) - 1} more" if len(stale) > 1 else ""
    return f"{stale[0]}{more}: not what results/cached gives now; run make readme, commit figures" if stale else ""


def index(root: Path) -> str:
    """Return the page with the figures of every study as images and its tables as links."""
    parts = [_HEAD]
    for study in study_names(root):
        drawings = [drawing for drawing in catalogue().values() if drawing.study == study]
        figures, tables = (
            [entry for drawing in drawings if drawing.kind == kind for entry in _entries(root, drawing)]
            for kind in KEPT
        )
        if figures or tables:
            parts += [f"## {read_yaml(root, f'workflow/studies/{study}.yaml')['title']}\n", *figures]
            parts += ["Tables:\n", *tables, ""] if tables else []
    return "\n".join(parts).rstrip() + "\n"


def _entries(root: Path, drawing: Drawing) -> Iterator[str]:
    """Yield the entry of a figure (a heading and its images by scale) or of a table (a line of links by scale)."""
    words = escape(pages.title(drawing.caption), quote=False)
    paths = (root / "figures" / "cached").glob(f"*/{drawing.name}.{KEPT[drawing.kind][0]}")
    paths = (path for path in paths if is_kept(root, drawing, path.parent.name))
    shown = []
    for path in sorted(paths):
        scale, link = path.parent.name, path.relative_to(root / "figures").as_posix()
        numbers = f"[numbers]({link.rpartition('.')[0]}.csv)"
        picture = f"![{drawing.name}]({link})\n\nScale `{scale}`, {numbers}."
        shown.append(picture if drawing.kind == "figure" else f"[{scale}]({link}), {numbers}")
    if shown and drawing.kind == "table":
        yield f"- {words}: {'; '.join(shown)}"
    elif shown:
        yield "\n\n".join([f"### {words}", *shown, escape(drawing.caption, quote=False)]) + "\n"
