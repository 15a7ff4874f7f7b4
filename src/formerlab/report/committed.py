"""Update the committed figures and tables below `figures/cached`, and the page that shows them.

They are rendered from the committed rows, so that readers of the repository see them without running a command.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from html import escape
from pathlib import Path

from pandas import Series
from PIL import Image, UnidentifiedImageError

from formerlab.files import write_text
from formerlab.report import pages
from formerlab.report.catalogue import CatalogueEntry, catalogue, load_rows
from formerlab.report.style import SIGNS
from formerlab.report.write import draw, same_rows, table_texts
from formerlab.results.read import Results, has_runs
from formerlab.yaml_files import read_scale, read_yaml, study_names

INDEX = Path("figures", "README.md")
SUFFIXES = {"figure": ("png", "csv"), "table": ("md", "csv")}
"""Suffixes of the committed files of each kind."""
_HEAD = """# Figures and tables of the committed rows

`make readme` writes this page. All figures and tables are rendered from the rows in `results/cached`; `make figures`
renders them again, and `make figures PDF=1` also writes PDFs. Scale `overnight` has small models, most of them trained
on CPUs. Scale `pilot` has the searches for their learning rates, and `pretrained` has a released model.
[docs/verdicts.md](../docs/verdicts.md) has the verdicts on the claims of the papers.

The line below a figure, or the legend of an overview figure, gives the number of seeds, windows or questions and the
meaning of the bars. Most figures are 7 inches wide (two columns of a paper) or 3.5 inches (one column). The overview
figures are 2.7 inches wide, and the width of a learning rate search depends on the number of rates.

| Sign | Meaning in all figures |
|:--|:--|
"""


def committed_file(root: Path, entry: CatalogueEntry, scale: str, suffix: str) -> Path:
    """Return the path of a committed file of a figure or table."""
    return root / "figures" / "cached" / scale / f"{entry.name}.{suffix}"


def evidence_scales(root: Path) -> list[str]:
    """Return the scales with `evidence: true` and committed rows, by decreasing FLOPs of their largest run."""
    flops = {
        path.name: Results(path).runs().get("flops", Series([0])).fillna(0).max()
        for path in root.glob("results/cached/*/")
        if has_runs(path) and read_scale(root, path.name).get("evidence") is True
    }
    return sorted(flops, key=lambda name: (-flops[name], name))


def is_committed(root: Path, entry: CatalogueEntry, scale: str) -> bool:
    """Return whether the repository keeps the files of a figure or table at this scale.

    Learning rate searches are kept at scales with `evidence: rates`, all others at scales with `evidence: true`.
    """
    return read_scale(root, scale).get("evidence") == ("rates" if entry.varied else True)


def refresh(root: Path, *, dry_run: bool = False) -> list[str]:
    """Render each figure or table whose rows changed and each table whose text changed. Write the page.

    Return a path for each changed figure or table, and the page if it changed. Files of figures and tables without our
    rows are removed. With `dry_run`, write nothing and return the paths that would change.
    """
    changed = []
    for path in (path for path in sorted((root / "results" / "cached").glob("*/")) if has_runs(path)):
        results = Results(path)
        for entry in (entry for entry in catalogue().values() if is_committed(root, entry, path.name)):
            rows = load_rows(entry, results)
            files = [committed_file(root, entry, path.name, suffix) for suffix in SUFFIXES[entry.kind]]
            exist, has_rows = [file.exists() for file in files], rows["source"].eq("ours").any()
            current = all(exist) and same_rows(files[-1], rows)
            if current and has_rows and entry.kind == "table":  # the captions of figures are not committed
                texts = files[0].read_text(encoding="utf-8"), table_texts(entry, results, rows)[0]
                current = len({re.sub(r"\d", "", text) for text in texts}) == 1  # ignore digits: the CSV covers them
            if current if has_rows else not any(exist):
                continue
            changed.append(str(files[0].relative_to(root)))
            if not dry_run:
                draw(entry.name, results, files[0].parent, skip_empty=True, pdf=False)
    page = root / INDEX
    if not page.exists() or index(root) != page.read_text(encoding="utf-8"):
        changed.append(str(INDEX))
        if not dry_run:
            write_text(page, index(root))
    return changed


def stale_message(root: Path) -> str:
    """Return a line that names the first stale file and the remedy, or "" if all files are up to date."""
    stale = refresh(root, dry_run=True)
    suffix = f" and {len(stale) - 1} more" if len(stale) > 1 else ""
    return f"{stale[0]}{suffix}: do not match results/cached; run `make readme` and commit figures/" if stale else ""


def index(root: Path) -> str:
    """Return the page in Markdown: for each study, its figures as images and its tables as links."""
    lines = [_HEAD + "".join(f"| {sign} | {meaning} |\n" for sign, meaning in SIGNS.items())]
    for study in study_names(root):
        entries = [entry for entry in catalogue().values() if entry.study == study]
        figures, tables = (
            [text for entry in entries if entry.kind == kind for text in _index_texts(root, entry)] for kind in SUFFIXES
        )
        if figures or tables:
            lines += [f"## {read_yaml(root, f'workflow/studies/{study}.yaml')['title']}\n", *figures]
            lines += ["Tables:\n", *tables, ""] if tables else []
    return "\n".join(lines).rstrip() + "\n"


def _notes(picture: Path) -> str:
    """Return the notes in a PNG (`write.save`) without the first note, which is visible in the figure."""
    with suppress(UnidentifiedImageError), Image.open(picture) as image:
        return str(image.info.get("Description", "")).partition(". ")[2]
    return ""


def _index_texts(root: Path, entry: CatalogueEntry) -> Iterator[str]:
    """Yield the Markdown of a figure (a heading and an image per scale) or a table (one line with a link per scale).

    Yield nothing if no scale has committed files.
    """
    title = escape(pages.caption_title(entry.caption), quote=False)
    by_scale = []
    for path in sorted((root / "figures" / "cached").glob(f"*/{entry.name}.{SUFFIXES[entry.kind][0]}")):
        scale, link = path.parent.name, path.relative_to(root / "figures").as_posix()
        if is_committed(root, entry, scale):
            numbers = f"[numbers]({link.rpartition('.')[0]}.csv)"
            if entry.kind == "table":
                by_scale.append(f"[{scale}]({link}), {numbers}")
                continue
            text = f"Scale `{scale}`, {numbers}. {escape(_notes(path), quote=False)}".rstrip()
            by_scale.append(f"![{entry.name}]({link})\n\n{text}")
    if by_scale and entry.kind == "table":
        yield f"- {title}: {'; '.join(by_scale)}"
    elif by_scale:
        yield "\n\n".join([f"### {title}", *by_scale, escape(entry.caption, quote=False)]) + "\n"
