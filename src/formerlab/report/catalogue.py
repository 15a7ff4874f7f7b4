"""The catalogue of figures and tables, read without importing the code that renders them.

A figure or table is declared by a function in a module below `figures/` or `tables/`. The function has the name of the
figure or table and returns its rows: `@plot(...)` above `decay_league` in `figures/decay/loss.py`, `@table(...)` above
`vision_table` in `tables/vision.py`. The docstring is the caption in reStructuredText. It describes the content and
names what to look for. The caption of a table is a question and at most three points: the comparison, the meaning of
the brackets, and the doubts. The folder or file below `figures/` or `tables/` names the study. A declaration with
`studies` is rendered once for each of them, as `<study>_<name>`. The plan reads the runs, the files and the caption
from the source, so they must be literals.
"""

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from formerlab.report.families import families, matches, regime

if TYPE_CHECKING:  # pandas takes a second to import; the plan reads the catalogue without it
    from pandas import DataFrame

    from formerlab.results.read import Results

REPORT = Path(__file__).parent
_STRING_LISTS = ("studies", "reads", "runs", "needs")
"""Fields that may be declared as one string of words separated by spaces."""


class Declaration(NamedTuple):
    """The fields of a declaration that only rendering needs."""

    rows: "Callable[..., DataFrame]"
    """Returns the rows (of a table: only our rows), given the results and the names of the finished runs among `runs`,
    and the `study` if the declaration has `studies`. It is called if one of the files in `reads` has rows. If `reads`
    has only run.json, it is called if there is a run. Columns whose names begin with _ are for the figure and are not
    written to the CSV."""
    draw: Any = None
    """Renders the rows of a figure (`panel.layout`)."""
    published: "Callable[[], DataFrame] | None" = None
    """Returns the published rows of a table."""
    columns: str = ""
    """Columns of a table in order; by default all. `loss_nats[]` adds the ends of an interval, `perplexity[]±` also a
    standard error, `gain_nats[]+` also the ends of the pooled interval that verdicts use; `~` is a space. `-flops` is
    written to the CSV only, not to the Markdown and HTML."""
    readers: "Callable[[DataFrame], DataFrame | dict[str, DataFrame]] | None" = None
    """Returns the rows that the Markdown and HTML of a table show: fewer rows, other columns, or blocks by heading. Its
    argument is our rows with their labels (`write.with_labels`), or the published rows. The CSV has all rows."""
    answer: "Callable[[DataFrame], str] | None" = None
    """Returns the result in one to three sentences, which are shown below the title of a table, or "" if rows are
    missing. Its argument is our rows with their labels."""


def plot(**fields: Any) -> "Callable[[Callable[..., DataFrame]], Declaration]":
    """Declare a figure by the function that returns its rows. `catalogue` reads the other arguments from the source."""
    return lambda rows: Declaration(rows, **{key: fields[key] for key in Declaration._fields if key in fields})


table = plot  # declares a table


def expand_columns(specification: str) -> list[str]:
    """Return the column names of a specification such as `loss_nats[] -flops` (see `Declaration.columns`)."""
    names = []
    for word in specification.split():
        name = word.lstrip("-").rstrip("±+").removesuffix("[]").replace("~", " ")
        suffixes = ["", *(("_low", "_high") if "[]" in word else ()), *(("_se",) if "±" in word else ())]
        suffixes += ["_pooled_low", "_pooled_high"] if word.endswith("+") else []
        names += [name + suffix for suffix in suffixes]
    return names


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """A figure or table of a study, as declared by literals in the source."""

    name: str
    kind: str
    """figure or table."""
    study: str
    """The study whose runs it reads."""
    module: str
    function: str
    """Name of the decorated function in the module."""
    caption: str
    """Caption in reStructuredText: the content and what to look for."""
    reads: Sequence[str]
    """Files of a run or of the study that it reads, including run.json."""
    runs: Sequence[str] = ("*",)
    """Patterns of the runs that it shows (`families.matches`)."""
    varied: str = ""
    """Key of the spec, such as optimizer.lr. A run is shown only if the spec of another run differs in this key alone.
    """
    needs: Sequence[str] = ()
    """The figure or table is rendered only at scales with a run that matches one of these patterns."""
    within_regime: bool = False
    """Whether all comparisons are within a regime, so that the figure may show runs of several regimes."""

    def shown_indices(self, runs: "Sequence[tuple[str, str, Mapping[str, Any]]]") -> list[int]:
        """Return the indices of the runs that are shown, among `runs` given as (study, name, spec).

        If `within_regime` is false and `varied` is empty, a figure shows only the runs of one regime, and runs that
        were not trained here. The regime must have a run that matches `needs`. Of several such regimes, the figure
        shows the regime with the most runs of the study.
        """
        of_study = {index: (run, spec) for index, (study, run, spec) in enumerate(runs) if study == self.study}
        indices = [index for index, run in of_study.items() if matches(*run, self.runs)]
        if self.varied:
            numbers = families([runs[index][2] for index in indices], self.varied)
            indices = [index for index, family in zip(indices, numbers, strict=True) if family >= 0]
        elif self.kind == "figure" and not self.within_regime:
            regimes = {index: regime(spec) for index, (_, spec) in of_study.items()}
            complete = {regimes[index] for index, run in of_study.items() if matches(*run, self.needs or ("*",))}
            candidates = [regimes[index] for index in indices if regimes[index] in complete - {""}]
            counts = Counter(name for name, _ in {(regimes[index], run) for index, (run, _) in of_study.items()})
            main = max(candidates, key=counts.__getitem__, default="")
            indices = [index for index in indices if regimes[index] in ("", main)]
        return indices if any(matches(*of_study[index], self.needs or self.runs) for index in indices) else []

    def run_names(self, results: "Results") -> list[str]:
        """Return the names of the finished runs that are shown."""
        records = results.records()
        indices = self.shown_indices([(record["study"], record["run"], record["spec"]) for record in records])
        return list(dict.fromkeys(records[index]["run"] for index in indices))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the files that `write` writes; the last file is the caption."""
        suffixes = ("pdf", "png", "csv", "rst") if self.kind == "figure" else ("csv", "md", "html", "rst")
        return tuple(f"{self.name}.{suffix}" for suffix in suffixes)


@cache
def catalogue() -> dict[str, CatalogueEntry]:
    """Return the entry of every figure and table by name, without importing their modules."""
    entries = dict[str, CatalogueEntry]()
    for kind in ("figure", "table"):
        for path in sorted((REPORT / f"{kind}s").rglob("*.py")):
            parts = path.relative_to(REPORT).with_suffix("").parts
            shared = {"kind": kind, "module": ".".join(("formerlab", "report", *parts))}
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                match node:
                    case ast.FunctionDef(name=name, decorator_list=[ast.Call(ast.Name("plot" | "table")) as call]):
                        fields = shared | {"function": name} | _literal_fields(call, ast.get_docstring(node))
                        names = {f"{study}_{name}": study for study in fields.pop("studies", ())} or {name: parts[1]}
                        entries |= {
                            name: CatalogueEntry(name=name, study=study, **fields) for name, study in names.items()
                        }
    return entries


def _literal_fields(call: ast.Call, caption: str | None) -> dict[str, Any]:
    """Return the literal arguments of a decorator as fields of `CatalogueEntry`."""
    arguments = {str(argument.arg): argument.value for argument in call.keywords}
    fields = {key: ast.literal_eval(value) for key, value in arguments.items() if key not in Declaration._fields}
    fields |= {key: tuple(fields[key].split()) for key in _STRING_LISTS if isinstance(fields.get(key), str)}
    reads = tuple(dict.fromkeys([*fields.get("reads", ()), "run.json"]))
    return fields | {"reads": reads, "caption": " ".join((caption or "").split())}


def load_declaration(name: str) -> Declaration:
    """Import the module of a figure or table and return its declaration."""
    entry = catalogue()[name]
    declaration: Declaration = getattr(import_module(entry.module), entry.function)
    return declaration


def load_rows(entry: CatalogueEntry, results: "Results") -> "DataFrame":
    """Return the rows of a figure or table.

    Our rows are included if the study or a displayed run has rows in a file of `reads`. If `reads` has only run.json,
    they are included if there is a run. The column `source` distinguishes our rows from published rows. In a table it
    is the first column.
    """
    import pandas as pd

    runs, declaration = entry.run_names(results), load_declaration(entry.name)
    owners = [entry.study, *results.runs(entry.study, runs)["id"]] if runs else []
    files = [file for file in entry.reads if file != "run.json"]
    has_rows = any(len(results.rows_of(file, owner)) for file in files for owner in owners) if files else bool(owners)
    study = {"study": entry.study} if entry.function != entry.name else {}
    ours = declaration.rows(results, runs, **study) if has_rows else pd.DataFrame()
    if entry.kind == "figure":
        return ours if "source" in ours else ours.assign(source="ours")
    by_source = {"ours": ours, "published": declaration.published() if declaration.published else pd.DataFrame()}
    blocks = [rows.assign(source=source) for source, rows in by_source.items() if len(rows)]
    table: DataFrame = pd.concat(blocks or [pd.DataFrame(columns=["source"])], ignore_index=True)
    return table.reindex(columns=expand_columns(declaration.columns) or ["source", *table.columns.drop("source")])


def failure_file(out: Path, name: str) -> Path:
    """Return the file with the error of a figure or table that failed. `status` shows its last line, the summary."""
    return out / f".{name}.failed"
