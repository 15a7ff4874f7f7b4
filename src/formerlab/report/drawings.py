"""The catalogue of figures and tables, read without importing the code that draws them.

A module below `figures/` or `tables/` declares each by a function of its name that returns its rows: `@plot(...)` above
`decay_budget` in `figures/decay/loss.py`, `@table(...)` above `vision_sizes` in `tables/vision.py`. The docstring is
the caption, in reStructuredText: what is shown and what to see. The study is the folder or file below; a declaration
that names `studies` is drawn for each, called `<study>_<name>`. The plan reads which runs and files it takes, and its
caption, from the source, so these are literals.
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
_LISTS = ("reads", "runs", "needs", "studies")


class Declared(NamedTuple):
    """The part of a declaration that is code, which only drawing needs."""

    rows: "Callable[..., DataFrame]"
    """Returns the rows, given the results and the names of the finished runs among `runs`, where a file of `reads` has
    rows; a declaration for several studies is given the `study` too. Those of a table are ours alone. Columns whose
    names begin with _ are for the picture alone, and stand in no CSV."""
    draw: Any = None
    """Draws the rows of a figure (`panel.sheet`)."""
    published: "Callable[[], DataFrame] | None" = None
    """Returns the published rows of a table."""
    columns: str = ""
    """Those of a table in order; by default all. `loss_nats[]` has the ends of an interval behind it,
    `perplexity[]±` a standard error too; `~` is a space. `-flops` stands in the CSV alone, not in what people read."""
    each: str = ""
    """Column of which every value has a block of its own in a table, of our rows."""


def plot(**said: Any) -> "Callable[[Callable[..., DataFrame]], Declared]":
    """Declare a figure by the function that returns its rows; `catalogue` reads the other keys from the source."""
    return lambda rows: Declared(rows, **{key: said[key] for key in Declared._fields if key in said})


table = plot  # and a table


def shown_columns(words: str) -> list[str]:
    """Return the columns that words with marks stand for."""
    found = []
    for word in words.split():
        name = word.lstrip("-").rstrip("±").removesuffix("[]").replace("~", " ")
        ends = ("", *(("_low", "_high") if "[]" in word else ()), *(("_se",) if "±" in word else ()))
        found += [name + end for end in ends]
    return found


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The declaration of a figure or table of a study, in literals of the source."""

    name: str
    kind: str
    """figure or table."""
    study: str
    """The study whose runs it reads."""
    module: str
    declared: str
    """Name in the module."""
    caption: str
    """What it shows and what to see, in reStructuredText."""
    reads: Sequence[str]
    """Files of a run or of the study that it is drawn from, beside run.json."""
    runs: Sequence[str] = ("*",)
    """Patterns of the runs that it is drawn from (`families.is_of`)."""
    varied: str = ""
    """Key of the spec, such as optimizer.lr: of `runs`, those are shown that differ from another in this key alone."""
    needs: Sequence[str] = ()
    """Patterns of `runs`, one of which a scale must have; else it has no such figure."""
    studies: Sequence[str] = ()
    """Studies of each of which there is such a figure, where it is declared once for several."""
    within: bool = False
    """Whether it compares runs within a regime alone: it may then have runs of several."""

    def chosen(self, runs: "Sequence[tuple[str, str, Mapping[str, Any]]]") -> list[int]:
        """Return the indices of the runs that are drawn, of `runs` given by study, name and spec.

        A figure of one study has runs of one regime, unless it compares `within` each: that of most runs of the study,
        if `needs` allows it.
        """
        own = {at: (run, spec) for at, (study, run, spec) in enumerate(runs) if study == self.study}
        found = [at for at, one in own.items() if is_of(*one, self.runs)]
        if self.varied:
            numbers = families([runs[at][2] for at in found], self.varied)
            found = [at for at, family in zip(found, numbers, strict=True) if family >= 0]
        elif self.kind == "figure" and not (self.within or self.studies):  # one for several has a panel per data set
            regimes = {at: regime(spec) for at, (_, spec) in own.items()}
            enough = {regimes[at] for at, one in own.items() if is_of(*one, self.needs or ("*",))}
            wanted = [one for one in dict.fromkeys(regimes[at] for at in found) if one and one in enough]
            counts = Counter(name for name, _ in {(regimes[at], run) for at, (run, _) in own.items()})
            main = max(wanted, key=counts.__getitem__, default="")
            found = [at for at in found if regimes[at] in ("", main)]
        return found if any(is_of(*own[at], self.needs or self.runs) for at in found) else []

    def names(self, results: "Results") -> list[str]:
        """Return the names of the finished runs that are drawn."""
        records = results.records()
        found = self.chosen([(one["study"], one["run"], one["spec"]) for one in records])
        return list(dict.fromkeys(records[at]["run"] for at in found))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the files that drawing writes; the last is the caption."""
        endings = ("pdf", "png", "csv", "rst") if self.kind == "figure" else ("csv", "md", "html", "rst")
        return tuple(f"{self.name}.{ending}" for ending in endings)


@cache
def catalogue() -> dict[str, Drawing]:
    """Return every figure and table by name, without importing what draws them."""
    found = []
    for kind in ("figure", "table"):
        for path in sorted((REPORT / f"{kind}s").rglob("*.py")):
            parts = path.relative_to(REPORT).with_suffix("").parts
            shared = {"kind": kind, "module": ".".join(("formerlab", "report", *parts))}
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                match node:
                    case ast.FunctionDef(name=name, decorator_list=[ast.Call(ast.Name("plot" | "table")) as call]):
                        said = shared | {"declared": name} | _said(call, ast.get_docstring(node))
                        studies = [(f"{study}_{name}", study) for study in said.get("studies", ())]
                        found += [
                            Drawing(name=one, study=study, **said) for one, study in studies or [(name, parts[1])]
                        ]
    return {drawing.name: drawing for drawing in found}


def _said(call: ast.Call, caption: str | None) -> dict[str, Any]:
    """Return the declared values; files and patterns of runs may be one text, separated by spaces."""
    words = {str(word.arg): word.value for word in call.keywords if word.arg not in Declared._fields}
    said = {key: ast.literal_eval(value) for key, value in words.items()}
    said |= {key: tuple(said[key].split()) for key in _LISTS if isinstance(said.get(key), str)}
    reads = tuple(dict.fromkeys([*said.get("reads", ()), "run.json"]))
    return said | {"reads": reads, "caption": " ".join((caption or "").split())}


def declaration(name: str) -> Declared:
    """Return what a module declares under a name of the catalogue."""
    found: Declared = getattr(import_module(catalogue()[name].module), catalogue()[name].declared)
    return found


def rows_of(drawing: Drawing, results: "Results") -> "DataFrame":
    """Return the rows that a figure or table shows; none of ours where there is nothing to compare.

    The first column of a table, `source`, tells ours from the published ones below.
    """
    import pandas as pd

    runs, declared = drawing.names(results), declaration(drawing.name)
    owners = [drawing.study, *results.runs(drawing.study, runs)["id"]] if runs else []
    files = [file for file in drawing.reads if file != "run.json"]
    known = any(len(results.rows_of(file, owner)) for file in files for owner in owners) if files else bool(owners)
    of_study = {"study": drawing.study} if drawing.studies else {}
    ours = declared.rows(results, runs, **of_study) if known else pd.DataFrame()
    if drawing.kind == "figure":
        return ours if "source" in ours else ours.assign(source="ours")
    blocks = {"ours": ours, "published": declared.published() if declared.published else pd.DataFrame()}
    parts = [block.assign(source=source) for source, block in blocks.items() if len(block)]
    found: DataFrame = pd.concat(parts or [pd.DataFrame(columns=["source"])], ignore_index=True)
    return found.reindex(columns=shown_columns(declared.columns) or ["source", *found.columns.drop("source")])


def failure_of(out: Path, name: str) -> Path:
    """Return the file that says why a drawing failed, its last line in short; `status` reads it."""
    return out / f".{name}.failed"
