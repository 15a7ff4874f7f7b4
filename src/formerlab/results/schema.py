"""The columns of all CSV files: a name means the same thing, of the same type and unit, in all of them.

Which files there are, and which columns each has, is said where the stages are listed (`stages.py`).
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Type = Literal["text", "integer", "number"]


class Column(NamedTuple):
    """A column of a file of rows; an empty cell means not applicable, of any type."""

    name: str
    type: Type
    unit: str = ""
    """Unit, or what a value says; nothing where the name says it."""


TRAINING, FORWARD, DECODE = "training_step", "forward", "decode"
"""Measures of speed.csv."""
COSINE, PRUNED, SINGULAR = "cosine_with_embedding", "pruned_loss_nats", "singular values: "
"""Measures of flow.csv; the last is followed by the name of a matrix."""
CLAIMS, EXACT = "claims", "exact.csv"
"""The one job of the stage `exact`, and the numbers of the exact checks: claim, name, value."""
UNPLANNED = "not in the plan"
"""Why rows of a run outside the plan are left out."""

NGRAMS = "correct_1 correct_2 correct_3 correct_4 total_1 total_2 total_3 total_4"
_PLAIN: dict[Type, str] = {
    "text": "run task task_version example metric query_token key_token claim name",
    "integer": "batch repetition layer head multiply_adds",
    "number": "weight value",
}
"""Columns whose names say all."""
COLUMNS = {
    column.name: column
    for column in (
        *(Column(name, kind) for kind, names in _PLAIN.items() for name in names.split()),
        Column("step", "integer", "optimizer steps since the run began"),
        Column("tokens", "integer", "tokens predicted"),
        Column("loss_nats", "number", "nats per token, mean over `tokens`"),
        Column("lr", "number", "learning rate of the step"),
        Column("grad_norm", "number", "norm of the gradient before it is clipped"),
        Column("time_s", "number", "seconds"),
        Column("prompt_s", "number", "seconds in which a prompt is read"),
        Column("tokens_per_s", "number", "tokens per second of training"),
        Column("memory_bytes", "integer", "bytes held at one time, at most"),
        Column("split", "text", "train, valid or test"),
        Column("top1", "number", "share of right answers"),
        Column("top5", "number", "share of answers whose truth is among the first five"),
        Column("window", "integer", "number of the held-out example: a window, a sentence, an image"),
        Column("document", "integer", "number of the held-out document that the window lies in, from 0"),
        Column("unsmoothed_nats", "number", "loss_nats without label smoothing"),
        Column("label", "integer", "true class"),
        Column("prediction", "integer", "most probable class"),
        Column("rank", "integer", "place of the true class, from 1"),
        Column("confidence", "number", "probability of the prediction"),
        Column("destination", "integer", "block after which is mixed"),
        Column("source", "integer", "block whose output is mixed in; 0 is the embedding"),
        Column("measure", "text", "what is measured, by a name of `results/schema.py`"),
        Column("place", "number", "of a run in its repetition; of a measure over depth, block or share"),
        Column("sequences", "integer", "sequences at a time"),
        Column("length", "integer", "tokens of a prompt; words of a translation"),
        Column("policy", "text", "kind of cache policy, with its other non-default fields behind it"),
        Column("alpha", "number", "decay factor"),
        Column("recent", "number", "share of the budget that the last tokens have"),
        Column("budget", "number", "entries of the cache (above 1), or their share of the sequence"),
        Column("realised_budget", "number", "share of the entries that was kept, as it came out"),
        Column("cache_bytes", "integer", "bytes of keys and values"),
        Column("metadata_bytes", "integer", "bytes of scores and positions beside them"),
        Column("kept", "integer", "weights that are left"),
        Column("choices", "integer", "answers to choose from"),
        Column("sentence", "integer", "number of the pair in its split"),
        Column("source_tokens", "integer", "tokens of the source"),
        Column("reference_tokens", "integer", "tokens of the reference"),
        Column("score", "number", "log-probability over length penalty, nats"),
        Column("exact", "integer", "1 where the translation is the reference"),
        *(Column(name, "integer", f"n-grams of {name[-1]} words") for name in NGRAMS.split()),
        Column("reference_length", "integer", "words of the reference"),
        Column("part", "text", "which attention"),
        Column("query", "integer", "position"),
        Column("key", "integer", "position"),
        Column("operation", "text", "type of layer"),
        Column("axis", "text", "which of n and d varies"),
        Column("n", "integer", "length"),
        Column("d", "integer", "width"),
        Column("k", "integer", "kernel of the convolution"),
        Column("r", "integer", "neighbourhood of restricted attention"),
        Column("path", "integer", "longest path between two positions, layers"),
        Column("choice", "text", "way of choosing alpha"),
        Column("distance_to_ideal", "number", "attention mass that the ideal mask keeps beyond"),
        Column("group", "text", "group of tokens"),
        Column("floor", "text", "unigram, 5-gram, linear probe"),
        Column("mean", "number", "score"),
        Column("low", "number", "10 % quantile"),
        Column("high", "number", "90 % quantile"),
        Column("missed", "number", "share of the group that is not among the kept"),
        Column("prompt", "integer", "tokens of the prompt that is compressed"),
    )
}
"""The columns that files share, by name."""


@dataclass(frozen=True)
class Table:
    """A file of rows."""

    row: str
    """What one row is."""
    columns: tuple[Column, ...]
    """Its columns, in their order; more are allowed."""
    optional: frozenset[str] = frozenset()
    """Those that a file may lack: not every task has them, or older files are without."""
    value: str = ""
    """Column whose mean over rows (over tokens, where the file has them) MLflow shows as a metric of the run."""
    by: tuple[str, ...] = ()
    """Columns whose values each have a mean of their own."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all columns."""
        return tuple(column.name for column in self.columns)

    @property
    def required(self) -> tuple[str, ...]:
        """Return the names of the columns that the file must have."""
        return tuple(name for name in self.names if name not in self.optional)


def table(row: str, columns: str, *own: Column, value: str = "", by: str = "") -> Table:
    """Return a table of shared columns, given by their names, with columns of its `own` behind them.

    A question mark behind a name says that the column is optional. `value` and `by` name what MLflow shows. Raises
    KeyError for a name that is not shared.
    """
    named = tuple(COLUMNS[name.removesuffix("?")] for name in columns.split())
    optional = frozenset(name.removesuffix("?") for name in columns.split() if name.endswith("?"))
    return Table(row, (*named, *own), optional, value, tuple(by.split()))
