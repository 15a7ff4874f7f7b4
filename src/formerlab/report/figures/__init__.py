"""Figures and tables: one file each, found by name, drawn from rows alone.

A figure `figures/<name>.py` or a table `tables/<name>.py` holds literal constants that the plan reads without importing
anything: STUDY, READS (files of a run), RUNS (glob patterns of run names) and CAPTION (reStructuredText: what to see).
A figure has `data(results) -> DataFrame` and `draw(data) -> Figure`; the frame is written beside the picture,
so the picture shows nothing else. A table has `table(results) -> DataFrame`. In both, the column `source` is `ours` or
`published`. Files whose name starts with an underscore are shared parts.
"""

import ast
import difflib
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from formerlab.errors import UserError
from formerlab.files import write_text

if TYPE_CHECKING:  # pandas takes a second to import; the plan reads the catalogue without it
    from collections.abc import Callable

    from formerlab.results.read import Objection, Results

_CONSTANTS = ("STUDY", "READS", "RUNS", "CAPTION")
_REPORT = Path(__file__).parents[1]
_BEHIND = """

Command: ``{{ snakemake.params.command }}``

Runs behind it: {{ snakemake.params.runs | join(", ") }}
"""


@dataclass(frozen=True)
class Drawing:
    """What the constants of a figure or table say."""

    name: str
    kind: Literal["figure", "table"]
    study: str
    """The study whose runs it reads."""
    reads: tuple[str, ...]
    """Files that it reads of each run."""
    runs: tuple[str, ...]
    """Glob patterns of the names of the runs that it reads."""
    caption: str
    path: Path
    """The module."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the files that drawing writes."""
        endings = ("pdf", "png", "csv") if self.kind == "figure" else ("csv", "md", "html")
        return tuple(f"{self.name}.{ending}" for ending in endings)


def catalogue() -> dict[str, Drawing]:
    """Return every figure and table by name, reading their constants without importing them."""
    kinds: tuple[tuple[Literal["figure", "table"], str], ...] = (("figure", "figures"), ("table", "tables"))
    paths = [(kind, path) for kind, folder in kinds for path in sorted((_REPORT / folder).glob("[!_]*.py"))]
    return {path.stem: _read(kind, path) for kind, path in paths}


def _read(kind: Literal["figure", "table"], path: Path) -> Drawing:
    constants = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in _CONSTANTS:
            constants[node.targets[0].id.lower()] = ast.literal_eval(node.value)
    if missing := [name for name in _CONSTANTS if name.lower() not in constants]:
        raise UserError(f"{path}: lacks the constant {missing[0]}; every figure and table has {', '.join(_CONSTANTS)}")
    return Drawing(name=path.stem, kind=kind, path=path, **constants)


def draw(name: str, results: "Results", out: Path) -> list[Path]:
    """Draw one figure or table into the folder `out`; the same rows give the same bytes. Return the files written."""
    drawings = catalogue()
    if name not in drawings:
        near = difflib.get_close_matches(name, drawings, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(drawings)}"
        raise UserError(f"no figure or table is called '{name}'; {hint}")
    drawing = drawings[name]
    module = import_module(f"formerlab.report.{drawing.kind}s.{name}")
    if drawing.kind == "figure":
        from formerlab.report.figures._write import write_figure

        return write_figure(drawing, module, results, out)
    from formerlab.report.tables._write import write_table

    return write_table(drawing, module.table(results), results, out)


def draw_one(name: str, root: Path, out: Path, objection: "Objection | None" = None) -> list[Path]:
    """Draw one figure or table from the rows in `root` (results/<tree>/<scale>) into `out`."""
    from formerlab.results.read import Results

    results = Results(root, objection)
    written = draw(name, results, out)
    if warning := results.warning():
        print(f"{name}: {warning}", file=sys.stderr)
    return written


def draw_all(
    tree_root: Path, out_root: Path, objection_of: "Callable[[Path], Objection | None]" = lambda root: None
) -> list[Path]:
    """Draw, for every scale below `tree_root` (results/<tree>), what has finished runs, into `out_root`/<scale>."""
    from formerlab.results.read import Results, has_runs

    written = []
    for root in sorted(path for path in tree_root.glob("*/") if has_runs(path)):
        results = Results(root, objection_of(root))
        for drawing in catalogue().values():
            if results.runs(drawing.study, drawing.runs).empty:
                print(f"{root.name}: {drawing.name} skipped, no finished runs of '{drawing.study}'", file=sys.stderr)
            else:
                written += draw(drawing.name, results, out_root / root.name)
                print(f"{root.name}: {drawing.name} drawn", file=sys.stderr)
        if warning := results.warning():
            print(f"{root.name}: {warning}", file=sys.stderr)
    if not written:
        raise UserError(f"{tree_root}: no finished runs at any scale; run the DAG first")
    return written


def write_captions(folder: Path) -> None:
    """Write the caption of every figure and table as `<name>.rst`, the form in which Snakemake's report wants them.

    Below it stand the command that draws it and the runs behind it, which the report fills in.
    """
    for drawing in catalogue().values():
        write_text(folder / f"{drawing.name}.rst", drawing.caption + _BEHIND)
