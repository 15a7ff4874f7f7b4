"""Figures and tables: what there is of them, and drawing them from rows alone.

A module below `figures/` or `tables/` declares each at its top level, under its name: `decay_budget = Plot(...)` in
`figures/decay/budget.py`, `vision_sizes = Table(...)` in `tables/vision.py`. The study is the folder or file below; a
declaration that names `studies` is drawn for each, called `<study>_<name>`. The plan reads which runs and files it
takes, and its caption, from the source without importing what draws, so these are literals.

The rows of a figure are written beside the picture, which shows nothing else. In figures and tables the column `source`
is `ours` or `published`. The caption is written beside them for Snakemake's report.
"""

import ast
import difflib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from formerlab.errors import UserError
from formerlab.files import write_text
from formerlab.report.families import families, is_of, main_regime, regime

if TYPE_CHECKING:  # these take a second to import; the plan reads the catalogue without them
    from concurrent.futures import Executor

    from matplotlib.figure import Figure
    from pandas import DataFrame

    from formerlab.results.read import Objection, Results

MOST_NAMED = 3
"""Drawings that a line names that cannot be drawn for one reason."""
REPORT = Path(__file__).parent
_READ, _MAY_SAY = ("reads", "runs", "caption"), ("varied", "needs", "studies")


class Plot(NamedTuple):
    """A figure: the rows that it shows, and how."""

    reads: Sequence[str]
    """Files of a run or of the study that it is drawn from."""
    runs: Sequence[str]
    """Patterns of the runs that it is drawn from (`families.is_of`)."""
    caption: str
    """What it shows and what to see, in reStructuredText."""
    data: "Callable[..., DataFrame]"
    """Returns the rows, given the results and the names of the finished runs among `runs`, where a file of
    `reads` has rows; a declaration for several studies is given the `study` too."""
    draw: "Callable[[DataFrame], Figure]"
    varied: str = ""
    """Key of the spec, such as optimizer.lr: of `runs`, those are shown that differ from another in this key alone."""
    needs: Sequence[str] = ()
    """Patterns of `runs` without any of which there is nothing to draw: a scale that has none lacks the figure."""
    studies: Sequence[str] = ()
    """Studies of each of which there is such a figure, where it is declared once for several."""


class Table(NamedTuple):
    """A table: our rows, then the published ones."""

    reads: Sequence[str]
    runs: Sequence[str]
    caption: str
    ours: "Callable[[Results, Sequence[str]], DataFrame]"
    """Returns our rows, given the same; none where no run is finished."""
    published: "Callable[[], DataFrame] | None" = None
    columns: str = ""
    """The columns, in this order; all where none are named. `loss_nats[]` has the ends of an interval behind it,
    `perplexity[]±` a standard error too; `~` is a space. `-flops` stands in the CSV alone, not in what people read."""
    each: str = ""
    """Column of which every value has a block of its own, of our rows."""
    varied: str = ""
    """As of a figure."""
    needs: Sequence[str] = ()
    """As of a figure."""

    @property
    def hidden(self) -> set[str]:
        """Columns that stand in the CSV alone."""
        return {shown_columns(word)[0] for word in self.columns.split() if word.startswith("-")}

    def rows(self, results: "Results", runs: Sequence[str] | None = None) -> "DataFrame":
        """Return ours above the published ones; the first column, `source`, tells them apart."""
        import pandas as pd

        found = {"ours": self.ours(results, self.runs if runs is None else runs)}
        if self.published is not None:
            found["published"] = self.published()
        blocks = [block.drop(columns="source", errors="ignore") for block in found.values()]
        for source, block in zip(found, blocks, strict=True):
            block.insert(0, "source", source)
        blocks = [block for block in blocks if len(block)] or blocks[:1]
        table = pd.concat(blocks, ignore_index=True)
        return table.reindex(columns=shown_columns(self.columns)) if self.columns else table


def shown_columns(words: str) -> list[str]:
    """Return the columns that words with marks stand for."""
    found = []
    for word in words.split():
        name = word.lstrip("-").rstrip("±").removesuffix("[]").replace("~", " ")
        ends = ("", *(("_low", "_high") if "[]" in word else ()), *(("_se",) if "±" in word else ()))
        found += [name + end for end in ends]
    return found


@dataclass(frozen=True)
class Drawing:
    """What the source says of a figure or table."""

    name: str
    kind: str
    """figure or table."""
    study: str
    """The study whose runs it reads."""
    module: str
    reads: tuple[str, ...]
    runs: tuple[str, ...]
    caption: str
    varied: str = ""
    needs: tuple[str, ...] = ()
    declared: str = ""
    """Name in the module."""

    def chosen(self, runs: "Sequence[tuple[str, str, Mapping[str, Any]]]") -> list[int]:
        """Return the places of the runs that are drawn, of `runs` given by study, name and spec."""
        own = [(place, run, spec) for place, (study, run, spec) in enumerate(runs) if study == self.study]
        found = [place for place, run, spec in own if is_of(run, spec, self.runs)]
        if self.varied:
            numbers = families([runs[place][2] for place in found], self.varied)
            found = [place for place, family in zip(found, numbers, strict=True) if family >= 0]
        elif self.kind == "figure" and self.declared == self.name:  # one for several studies has a panel per data set
            found = self._comparable(own, found)
        return found if any(is_of(*runs[place][1:], self.needs or self.runs) for place in found) else []

    def _comparable(self, own: "Sequence[tuple[int, str, Mapping[str, Any]]]", found: list[int]) -> list[int]:
        """Return, of the places `found`, those of one regime: that of most runs of the study, if `needs` allows it."""
        specs = {place: spec for place, _, spec in own}
        of_place = {place: regime(specs[place]) for place in found}
        needed = [place for place, run, spec in own if is_of(run, spec, self.needs or ("*",))]
        enough = {of_place.get(place) for place in needed}
        wanted = [one for one in dict.fromkeys(of_place.values()) if one and one in enough]
        main = main_regime([(run, spec) for _, run, spec in own], wanted) if wanted else ""
        return [place for place in found if of_place[place] in ("", main)]

    def names(self, results: "Results") -> list[str]:
        """Return the names of the finished runs that are drawn."""
        records = results.records()
        places = self.chosen([(one["study"], one["run"], one["spec"]) for one in records])
        return list(dict.fromkeys(records[place]["run"] for place in places))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the files that drawing writes; the last is the caption."""
        endings = ("pdf", "png", "csv", "rst") if self.kind == "figure" else ("csv", "md", "html", "rst")
        return tuple(f"{self.name}.{ending}" for ending in endings)


@cache
def catalogue() -> dict[str, Drawing]:
    """Return every figure and table by name, without importing what draws them."""
    return {
        drawing.name: drawing
        for kind in ("figure", "table")
        for path in sorted((REPORT / f"{kind}s").rglob("*.py"))
        for drawing in _declared(kind, path)
    }


def _declared(kind: str, path: Path) -> list[Drawing]:
    parts = path.relative_to(REPORT).with_suffix("").parts
    module = ".".join(("formerlab", "report", *parts))
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="Plot" | "Table")) as call):
                given = {word.arg: word.value for word in call.keywords}
                if missing := [key for key in _READ if key not in given]:
                    raise UserError(f"{path}: {name} lacks {missing[0]}; every figure and table has {', '.join(_READ)}")
                literals = [key for key in (*_READ, *_MAY_SAY) if key in given]
                values: dict[str, Any] = {key: ast.literal_eval(given[key]) for key in literals}
                studies = values.pop("studies", ())
                for whole, study in [(f"{study}_{name}", study) for study in studies] or [(name, parts[1])]:
                    found.append(Drawing(whole, kind, study, module, **values, declared=name))
    return found


def draw(name: str, results: "Results", out: Path) -> list[Path]:
    """Draw one figure or table into the folder `out`; the same rows give the same bytes. Return the files written."""
    drawings = catalogue()
    if name not in drawings:
        near = difflib.get_close_matches(name, drawings, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(drawings)}"
        raise UserError(f"no figure or table is called '{name}'; {hint}")
    from formerlab.report.write import write

    return write(drawings[name], declaration(name), results, out)


def declaration(name: str) -> Plot | Table:
    """Return what a module declares under a name of the catalogue."""
    drawing = catalogue()[name]
    declared: Plot | Table = getattr(import_module(drawing.module), drawing.declared)
    if isinstance(declared, Plot) and declared.studies:
        return declared._replace(data=partial(declared.data, study=drawing.study))
    return declared


def draw_one(name: str, root: Path, out: Path, objection: "Objection | None" = None) -> list[Path]:
    """Draw one figure or table from the rows in `root` (results/<tree>/<scale>) into `out`."""
    from formerlab.results.read import Results

    results = Results(root, objection)
    written = draw(name, results, out)
    if warning := results.warning():
        print(f"{name}: {warning}", file=sys.stderr)
    return written


def draw_each(names: Iterable[str], root: Path, out: Path, objection: "Objection | None" = None) -> list[str]:
    """Draw several; say of those that cannot be drawn why, each reason once. Return the names of those."""
    found = _attempts({name: partial(draw_one, name, root, out, objection) for name in names}, out)
    return [name for name, written in found.items() if written is None]


def _attempts(draws: "Mapping[str, Callable[[], list[Path]]]", out: Path) -> dict[str, list[Path] | None]:
    """Draw each; whatever is wrong with one, its files say so and the others are wanted. Return what was written.

    Of those that cannot be drawn each reason is said once.
    """
    found: dict[str, list[Path] | None] = dict.fromkeys(draws)
    reasons: dict[str, list[str]] = {}
    for name, draw in draws.items():
        note = failure_of(out, name)
        try:
            found[name] = draw()
            note.unlink(missing_ok=True)
        except Exception as error:
            reason = str(error) if isinstance(error, UserError) else traceback.format_exc().rstrip()
            reasons.setdefault(reason, []).append(name)
            if name in catalogue():
                from formerlab.report.write import write_failure

                write_failure(catalogue()[name], reason.splitlines()[-1], out)
                write_text(note, f"{reason}\n")
    for reason, names in reasons.items():
        more = ", ..." if len(names) > MOST_NAMED else ""
        some = names[0] if len(names) == 1 else f"{len(names)} drawings ({', '.join(names[:MOST_NAMED])}{more})"
        print(f"{some} not drawn: {reason}", file=sys.stderr)
    return found


def failure_of(out: Path, name: str) -> Path:
    """Return the file that says why a drawing failed, its last line in short; `status` reads it."""
    return out / f".{name}.failed"


def draw_all(
    tree_root: Path,
    out_root: Path,
    objection_of: "Callable[[Path], Objection | None]" = lambda root: None,
    *,
    pool: "Executor | None" = None,
) -> list[Path]:
    """Draw, for every scale below `tree_root` (results/<tree>), what has rows, into `out_root`/<scale>.

    A drawing without rows leaves no file there. The processes of a `pool` share the studies, those with the most rows
    first, where no rows are objected to.
    """
    from formerlab.results.read import Results, has_runs

    opened = [Results(root, objection_of(root)) for root in sorted(tree_root.glob("*/")) if has_runs(root)]
    studies = sorted({drawing.study for drawing in catalogue().values()})
    shares = [(results, study) for results in opened for study in studies]
    if pool is None:
        parts = [_draw_study(results, out_root / results.scale, study) for results, study in shares]
    else:
        shares.sort(key=lambda share: _bytes_of_rows(share[0].root / share[1]), reverse=True)
        tasks = [pool.submit(_draw_there, results.root, out_root / results.scale, study) for results, study in shares]
        parts = [task.result() for task in tasks]
    drawn: dict[str, dict[str, list[Path] | None]] = {results.scale: {} for results in opened}
    for (results, _), part in zip(shares, parts, strict=True):
        drawn[results.scale] |= part
    for results in opened:
        made = [paths for paths in drawn[results.scale].values() if paths is not None]
        without = sum(not paths for paths in made)
        print(f"{results.scale}: {len(made) - without} drawn, {without} have no rows of finished runs", file=sys.stderr)
        if warning := results.warning():
            print(f"{results.scale}: {warning}", file=sys.stderr)
    failed = [f"{scale}: {name}" for scale, part in drawn.items() for name in sorted(part) if part[name] is None]
    if failed:
        raise UserError(f"{', '.join(failed)} could not be drawn, for the reasons above")
    written = [path for part in drawn.values() for paths in part.values() for path in paths or ()]
    if not written:
        raise UserError(f"{tree_root}: no finished runs at any scale; run the DAG first")
    return written


def _bytes_of_rows(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*") if path.is_file())


def _draw_there(root: Path, out: Path, study: str) -> dict[str, list[Path] | None]:
    """Draw in another process, which reads the rows for itself, once for all drawings of the study."""
    from formerlab.results.read import Results

    return _draw_study(Results(root), out, study)


def _draw_study(results: "Results", out: Path, study: str) -> dict[str, list[Path] | None]:
    """Draw what a study has rows for; return the files written, by drawing, and nothing of those that failed."""
    own = [drawing for drawing in catalogue().values() if drawing.study == study]
    return _attempts({drawing.name: partial(_draw_if_rows, results, out, drawing) for drawing in own}, out)


def _draw_if_rows(results: "Results", out: Path, drawing: Drawing) -> list[Path]:
    """Draw one figure or table; without rows of ours remove what was drawn of others, and return no file."""
    from formerlab.report.write import write

    rows = shown_rows(drawing, results)
    if rows is not None:
        return write(drawing, declaration(drawing.name), results, out, rows)
    for file in drawing.outputs:
        (out / file).unlink(missing_ok=True)
    return []


def shown_rows(drawing: Drawing, results: "Results") -> "DataFrame | None":
    """Return the rows that a drawing shows, or nothing where no run of ours has any for it."""
    from formerlab.report.write import rows_of

    if not drawing.names(results):
        return None
    rows = rows_of(drawing, declaration(drawing.name), results)
    return rows if (rows["source"] == "ours").any() else None
