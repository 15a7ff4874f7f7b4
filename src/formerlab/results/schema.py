"""The columns of all CSV files: a name means the same thing, of the same type and unit, in all of them.

Which files there are, and which columns each has, is said where the stages are listed (`stages.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Type = Literal["text", "integer", "number"]


TRAINING, FORWARD, DECODE = "training_step", "forward", "decode"
"""Measures of speed.csv."""
COSINE, PRUNED, SINGULAR = "cosine_with_embedding", "pruned_loss_nats", "singular values: "
"""Measures of flow.csv; the last is followed by the name of a matrix."""
CLAIMS, EXACT = "claims", "exact.csv"
"""The one job of the stage `exact`, and the numbers of the exact checks: claim, name, value."""
UNPLANNED = "not in the plan"
"""Why rows of a run outside the plan are left out."""

NGRAMS = "correct_1 correct_2 correct_3 correct_4 total_1 total_2 total_3 total_4"
COLUMNS: dict[str, Type] = {
    **dict.fromkeys(("run", "task", "task_version", "example", "metric", "claim", "name"), "text"),
    **dict.fromkeys(("query_token", "key_token"), "text"),
    **dict.fromkeys(("batch", "repetition", "layer", "head", "multiply_adds"), "integer"),
    **dict.fromkeys(("weight", "value"), "number"),
    "step": "integer",  # optimizer steps since the run began
    "tokens": "integer",  # tokens predicted
    "loss_nats": "number",  # nats per token, mean over `tokens`
    "lr": "number",  # learning rate of the step
    "grad_norm": "number",  # norm of the gradient before it is clipped
    "time_s": "number",  # seconds
    "prompt_s": "number",  # seconds in which a prompt is read
    "tokens_per_s": "number",  # tokens per second of training
    "memory_bytes": "integer",  # bytes held at one time, at most
    "split": "text",  # train, valid or test
    "top1": "number",  # share of right answers
    "top5": "number",  # share of answers whose truth is among the first five
    "window": "integer",  # number of the held-out example: a window, a sentence, an image
    "document": "integer",  # number of the held-out document that the window lies in, from 0
    "unsmoothed_nats": "number",  # loss_nats without label smoothing
    "label": "integer",  # true class
    "prediction": "integer",  # most probable class
    "rank": "integer",  # place of the true class, from 0
    "confidence": "number",  # probability of the prediction
    "destination": "integer",  # block after which is mixed
    "source": "integer",  # block whose output is mixed in; 0 is the embedding
    "measure": "text",  # what is measured, by a name of `results/schema.py`
    "place": "number",  # of a run in its repetition; of a measure over depth, block or share
    "sequences": "integer",  # sequences at a time
    "length": "integer",  # tokens of a prompt; words of a translation
    "policy": "text",  # kind of cache policy, with its other non-default fields behind it
    "alpha": "number",  # decay factor
    "recent": "number",  # share of the budget that the last tokens have
    "budget": "number",  # entries of the cache (above 1), or their share of the sequence
    "realised_budget": "number",  # share of the entries that was kept, as it came out
    "cache_bytes": "integer",  # bytes of keys and values
    "metadata_bytes": "integer",  # bytes of scores and positions beside them
    "kept": "integer",  # weights that are left
    "choices": "integer",  # answers to choose from
    "sentence": "integer",  # number of the pair in its split
    "source_tokens": "integer",  # tokens of the source
    "reference_tokens": "integer",  # tokens of the reference
    "score": "number",  # log-probability over length penalty, nats
    "exact": "integer",  # 1 where the translation is the reference
    **dict.fromkeys(NGRAMS.split(), "integer"),  # n-grams of so many words
    "reference_length": "integer",  # words of the reference
    "part": "text",  # which attention
    "query": "integer",  # position
    "key": "integer",  # position
    "operation": "text",  # type of layer
    "axis": "text",  # which of n and d varies
    "n": "integer",  # length
    "d": "integer",  # width
    "k": "integer",  # kernel of the convolution
    "r": "integer",  # neighbourhood of restricted attention
    "path": "integer",  # longest path between two positions, layers
    "choice": "text",  # way of choosing alpha
    "distance_to_ideal": "number",  # 1 - cosine of attention rows and the ideal ones
    "group": "text",  # group of tokens
    "floor": "text",  # unigram, 5-gram, linear probe
    "mean": "number",  # score
    "low": "number",  # 10 % quantile
    "high": "number",  # 90 % quantile
    "missed": "number",  # share of the group that is not among the kept
    "depth": "number",  # position of a hidden number, as a share of the text
    "number": "integer",  # which hidden number there
    "found": "integer",  # 1 where every token of the number is the most probable one
    "log_prob": "number",  # log-probability of the number, nats
    "prompt": "integer",  # tokens of the prompt that is compressed
}
"""The columns by name, each with its unit or what a value says, where the name does not; an empty cell means not
applicable, of any type."""


@dataclass(frozen=True)
class Table:
    """A file of rows."""

    row: str
    """What one row is."""
    columns: Mapping[str, Type]
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
        return tuple(self.columns)

    @property
    def required(self) -> tuple[str, ...]:
        """Return the names of the columns that the file must have."""
        return tuple(name for name in self.columns if name not in self.optional)


def table(row: str, columns: str, own: Mapping[str, Type] | None = None, value: str = "", by: str = "") -> Table:
    """Return a table of shared columns, given by their names, with columns of its `own` behind them.

    A question mark behind a name says that the column is optional. `value` and `by` name what MLflow shows. Raises
    KeyError for a name that is not shared.
    """
    named = {name.removesuffix("?"): COLUMNS[name.removesuffix("?")] for name in columns.split()}
    optional = frozenset(name.removesuffix("?") for name in columns.split() if name.endswith("?"))
    return Table(row, named | dict(own or {}), optional, value, tuple(by.split()))
