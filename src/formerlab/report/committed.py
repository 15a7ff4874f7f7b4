"""The committed figures and tables of the evidence, below `figures/cached`, and the page that shows them.

They are drawn from the committed rows, so that a reader of the code sees them without running anything.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from formerlab.files import write_text
from formerlab.report.drawings import Drawing, catalogue, declaration, shown_rows
from formerlab.report.gallery import title
from formerlab.results.read import Results, has_runs
from formerlab.yaml_files import read_yaml

INDEX = Path("figures", "README.md")
SKETCHES = ("smoke", "laptop")
"""Scales that are no evidence, and are drawn but not committed."""
RATES_ALONE = ("pilot",)
"""Scales that chose rates and show nothing else."""
LAST = ("combined",)
"""Studies that make sense after the others."""
FIRST = ("pretrained",)
"""Scales that say more than the others: a released model."""
KEPT = {"figure": ("png", "csv"), "table": ("md", "csv")}
"""Endings of the files that are committed."""
_HEAD = """# Figures and tables of the committed rows

Written by `make readme`, not by hand. Everything here is drawn from the rows in `results/cached`; `make figures`
draws it again, in PDF too. Scale `overnight` are small models on two CPU cores, `pilot` the search for their rates,
`pretrained` a released model. [docs/verdicts.md](../docs/verdicts.md) says what follows for the claims of the papers.
"""


def evidence(root: Path) -> list[Results]:
    """Return the committed rows of every scale that is evidence."""
    cached = root / "results" / "cached"
    return [Results(path) for path in sorted(cached.glob("*/")) if has_runs(path) and path.name not in SKETCHES]


def place(root: Path, drawing: Drawing, scale: str, ending: str) -> Path:
    """Return where a file of a drawing is committed."""
    return root / "figures" / "cached" / scale / f"{drawing.name}.{ending}"


def is_kept(drawing: Drawing, scale: str) -> bool:
    """Say whether a drawing of a scale is committed, if it has rows."""
    return scale not in RATES_ALONE or bool(drawing.varied)


def outdated(root: Path) -> Iterator[tuple[Drawing, Results]]:
    """Give the drawings whose committed numbers are not those that the committed rows give now."""
    from formerlab.report.write import same_rows

    for results in evidence(root):
        for drawing in catalogue().values():
            if is_kept(drawing, results.scale):
                rows = shown_rows(drawing, results)
                files = [place(root, drawing, results.scale, ending) for ending in KEPT[drawing.kind]]
                if rows is None and not any(file.exists() for file in files):
                    continue
                if rows is None or not all(file.exists() for file in files) or not same_rows(files[-1], rows):
                    yield drawing, results


def refresh(root: Path) -> list[str]:
    """Draw what is outdated and write the page anew; return the names of the files that changed."""
    from formerlab.report.write import write

    found = []
    for drawing, results in outdated(root):
        files = [place(root, drawing, results.scale, ending) for ending in KEPT[drawing.kind]]
        if (rows := shown_rows(drawing, results)) is not None:
            write(drawing, declaration(drawing.name), results, files[0].parent, rows)
        else:
            for file in files:
                file.unlink(missing_ok=True)
        found.append(str(files[0].relative_to(root)))
    if index(root) != _written_index(root):
        write_text(root / INDEX, index(root))
        found.append(str(INDEX))
    return found


def complaint(root: Path) -> str:
    """Return a line that names what is not up to date and how to mend it; nothing where all is."""
    found = [str(place(root, one, results.scale, "csv").relative_to(root)) for one, results in outdated(root)]
    found += [str(INDEX)] * (index(root) != _written_index(root))
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{found[0]}{more}: not what results/cached gives now; run make readme, commit figures" if found else ""


def _written_index(root: Path) -> str:
    path = root / INDEX
    return path.read_text(encoding="utf-8") if path.exists() else ""


def index(root: Path) -> str:
    """Return the page: for every study its figures as pictures, and its tables as links."""
    parts = [_HEAD]
    for path in sorted((root / "workflow" / "studies").glob("*.yaml"), key=lambda path: (path.stem in LAST, path.stem)):
        entries: dict[str, list[str]] = {"figure": [], "table": []}
        for drawing in catalogue().values():
            if drawing.study == path.stem:
                entries[drawing.kind] += _entries(root, drawing)
        if any(entries.values()):
            parts += [f"## {read_yaml(path.parent, path.name)['title']}\n", *entries["figure"]]
            parts += ["Tables:\n", *entries["table"], ""] if entries["table"] else []
    return "\n".join(parts).rstrip() + "\n"


def _entries(root: Path, drawing: Drawing) -> Iterator[str]:
    """Give what the page says of a drawing that a scale has: a heading, and its files by scale; of a table a line."""
    words = escape(title(drawing), quote=False)
    found = []
    paths = (root / "figures" / "cached").glob(f"*/{drawing.name}.{KEPT[drawing.kind][0]}")
    for path in sorted(paths, key=lambda path: (path.parent.name not in FIRST, path.parent.name)):
        scale = path.parent.name
        if scale in SKETCHES or not is_kept(drawing, scale):
            continue
        there = path.relative_to(root / "figures").as_posix()
        numbers = f"[numbers]({there.rpartition('.')[0]}.csv)"
        if drawing.kind == "table":
            found.append(f"[{scale}]({there}), {numbers}")
        else:
            found.append(f"![{drawing.name}]({there})\n\nScale `{scale}`, {numbers}.")
    if found and drawing.kind == "table":
        yield f"- {words}: {'; '.join(found)}"
    elif found:
        yield "\n\n".join(filter(None, [f"### {words}", to_see(drawing), *found])) + "\n"


def to_see(drawing: Drawing) -> str:
    """Return the sentence of a caption that says what to look for."""
    sentence = " ".join(drawing.caption.split()).partition("To see:")[2].strip()
    return f"To see: {sentence.split('. ')[0].rstrip('.')}." if sentence else ""
