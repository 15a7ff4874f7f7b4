"""The catalogue of figures and tables, read without importing the code that renders them.

A module below `figures/` or `tables/` declares a figure or table by a function of the same name that returns its rows:
`@plot(...)` above `decay_budget` in `figures/decay/loss.py`, `@table(...)` above `vision_sizes` in `tables/vision.py`.
The docstring is the caption in reStructuredText; it says what is shown and what to look for. The folder or file below
`figures/` or `tables/` names the study. A declaration with `every_study` is rendered once per study, as
`<study>_<name>`.
The plan reads the runs, the files and the caption from the source, so they must be literals.
"""

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from formerlab.report.families import families, is_of, regime

if TYPE_CHECKING:  # pandas takes a second to import; the plan reads the catalogue without it
    from pandas import DataFrame

    from formerlab.results.read import Results

REPORT = Path(__file__).parent
_LISTS = ("reads", "runs", "needs")


class Declared(NamedTuple):
    """The executable fields of a declaration, which are only needed for rendering."""

    rows: "Callable[..., DataFrame]"
    """Returns the rows, given the results and the names of the finished runs among `runs`, and the `study` if the
    declaration is for several studies. It is called only if a file of `reads` has rows. For a table it returns only our
    rows. Columns whose names begin with _ are used by the figure and are not written to the CSV."""
    draw: Any = None
    """Renders the rows of a figure (`panel.sheet`)."""
    published: "Callable[[], DataFrame] | None" = None
    """Returns the published rows of a table."""
    columns: str = ""
    """Columns of a table in order; by default all. `loss_nats[]` adds the ends of an interval, and `perplexity[]±` also
    adds a standard error; `~` is a space. `-flops` is written to the CSV only, not to the Markdown and HTML."""
    each: str = ""
    """Column of a table whose values split our rows into blocks."""


def plot(**said: Any) -> "Callable[[Callable[..., DataFrame]], Declared]":
    """Declare a figure by the function that returns its rows. `catalogue` reads the other arguments from the source."""
    return lambda rows: Declared(rows, **{key: said[key] for key in Declared._fields if key in said})


table = plot  # declares a table


def shown_columns(words: str) -> list[str]:
    """Expand a specification of columns, such as `loss_nats[] -flops`, to the column names (see `Declared.columns`)."""
    found = []
    for word in words.split():
        name = word.lstrip("-").rstrip("±").removesuffix("[]").replace("~", " ")
        ends = ("", *(("_low", "_high") if "[]" in word else ()), *(("_se",) if "±" in word else ()))
        found += [name + end for end in ends]
    return found


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The declaration of a figure or table of a study, read from literals in the source."""

    name: str
    kind: str
    """figure or table."""
    study: str
    """The study whose runs it reads."""
    module: str
    declared: str
    """Name of the function in the module."""
    caption: str
    """Caption in reStructuredText: what is shown and what to look for."""
    reads: Sequence[str]
    """Files of a run or of the study that it reads, including run.json."""
    runs: Sequence[str] = ("*",)
    """Patterns of the runs that it shows (`families.is_of`)."""
    varied: str = ""
    """Key of the spec, such as optimizer.lr. Only `runs` that differ from another run in this key alone are shown."""
    needs: Sequence[str] = ()
    """Patterns of runs. The figure exists only at scales that have a run of one of them."""
    every_study: bool = False
    """Whether the declaration is rendered once for each study that has a figure or table of its own."""
    within: bool = False
    """Whether all comparisons are within a regime. The figure may then show runs of several regimes."""

    def chosen(self, runs: "Sequence[tuple[str, str, Mapping[str, Any]]]") -> list[int]:
        """Return the indices of the runs that are shown, among `runs` given as (study, name, spec).

        A figure of one study shows runs of one regime, unless it compares `within` each regime. This is the regime with
        the most runs of the study, among the regimes that meet `needs`.
        """
        own = {at: (run, spec) for at, (study, run, spec) in enumerate(runs) if study == self.study}
        found = [at for at, one in own.items() if is_of(*one, self.runs)]
        if self.varied:
            numbers = families([runs[at][2] for at in found], self.varied)
            found = [at for at, family in zip(found, numbers, strict=True) if family >= 0]
        elif self.kind == "figure" and not (self.within or self.every_study):  # there each data set has a panel
            regimes = {at: regime(spec) for at, (_, spec) in own.items()}
            enough = {regimes[at] for at, one in own.items() if is_of(*one, self.needs or ("*",))}
            wanted = [one for one in dict.fromkeys(regimes[at] for at in found) if one and one in enough]
            counts = Counter(name for name, _ in {(regimes[at], run) for at, (run, _) in own.items()})
            main = max(wanted, key=counts.__getitem__, default="")
            found = [at for at in found if regimes[at] in ("", main)]
        return found if any(is_of(*own[at], self.needs or self.runs) for at in found) else []

    def names(self, results: "Results") -> list[str]:
        """Return the names of the finished runs that are shown."""
        records = results.records()
        found = self.chosen([(one["study"], one["run"], one["spec"]) for one in records])
        return list(dict.fromkeys(records[at]["run"] for at in found))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the files that `write` writes; the last file is the caption."""
        endings = ("pdf", "png", "csv", "rst") if self.kind == "figure" else ("csv", "md", "html", "rst")
        return tuple(f"{self.name}.{ending}" for ending in endings)


@cache
def catalogue() -> dict[str, Drawing]:
    """Return every figure and table by name, without importing their modules."""
    declared = list[tuple[str, dict[str, Any]]]()
    for kind in ("figure", "table"):
        for path in sorted((REPORT / f"{kind}s").rglob("*.py")):
            parts = path.relative_to(REPORT).with_suffix("").parts
            shared = {"kind": kind, "module": ".".join(("formerlab", "report", *parts))}
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                match node:
                    case ast.FunctionDef(name=name, decorator_list=[ast.Call(ast.Name("plot" | "table")) as call]):
                        said = shared | {"declared": name} | _said(call, ast.get_docstring(node))
                        declared.append(("" if said.get("every_study") else parts[1], said))
    studies = sorted({study for study, _ in declared if study})
    found = {}
    for of_module, said in declared:
        for study in [of_module] if of_module else studies:
            name = said["declared"] if of_module else f"{study}_{said['declared']}"
            found[name] = Drawing(name=name, study=study, **said)
    return found


def _said(call: ast.Call, caption: str | None) -> dict[str, Any]:
    """Return the declared literals. Files and run patterns may be one string, separated by spaces."""
    words = {str(word.arg): word.value for word in call.keywords if word.arg not in Declared._fields}
    said = {key: ast.literal_eval(value) for key, value in words.items()}
    said |= {key: tuple(said[key].split()) for key in _LISTS if isinstance(said.get(key), str)}
    reads = tuple(dict.fromkeys([*said.get("reads", ()), "run.json"]))
    return said | {"reads": reads, "caption": " ".join((caption or "").split())}


def declaration(name: str) -> Declared:
    """Import the module of a figure or table and return its declaration."""
    found: Declared = getattr(import_module(catalogue()[name].module), catalogue()[name].declared)
    return found


def rows_of(drawing: Drawing, results: "Results") -> "DataFrame":
    """Return the rows that a figure or table shows, without rows of ours if there is nothing to compare.

    The column `source` distinguishes our rows from published rows; in a table it is the first column.
    """
    import pandas as pd

    runs, declared = drawing.names(results), declaration(drawing.name)
    owners = [drawing.study, *results.runs(drawing.study, runs)["id"]] if runs else []
    files = [file for file in drawing.reads if file != "run.json"]
    known = any(len(results.rows_of(file, owner)) for file in files for owner in owners) if files else bool(owners)
    of_study = {"study": drawing.study} if drawing.every_study else {}
    ours = declared.rows(results, runs, **of_study) if known else pd.DataFrame()
    if drawing.kind == "figure":
        return ours if "source" in ours else ours.assign(source="ours")
    blocks = {"ours": ours, "published": declared.published() if declared.published else pd.DataFrame()}
    parts = [block.assign(source=source) for source, block in blocks.items() if len(block)]
    found: DataFrame = pd.concat(parts or [pd.DataFrame(columns=["source"])], ignore_index=True)
    return found.reindex(columns=shown_columns(declared.columns) or ["source", *found.columns.drop("source")])


def failure_of(out: Path, name: str) -> Path:
    """Return the file with the error of a figure or table that failed; its last line, the summary, is for `status`."""
    return out / f".{name}.failed"
