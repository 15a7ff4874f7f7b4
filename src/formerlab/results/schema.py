"""The columns of all CSV files of rows; `stages.py` lists the files.

A column has the same type in all files, except `kept` in prune_mask_dumps.csv.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Type = Literal["text", "integer", "number"]


TRAINING, FORWARD, DECODE = "training_step", "forward", "decode"
"""Values of `measure` in speed.csv."""
COSINE, PRUNED, SINGULAR = "cosine_with_embedding", "pruned_loss_nats", "singular values: "
"""Values of `measure` in flow.csv; the name of a matrix is appended to the last value."""
CLAIMS, EXACT = "claims", "exact.csv"
"""Name of the only job of the stage `exact`, and its file of rows (claim, name, value)."""
UNPLANNED = "not in the plan"
"""Reason to leave out the rows of a run that is not in the plan."""

NGRAMS = "correct_1 correct_2 correct_3 correct_4 total_1 total_2 total_3 total_4"
COLUMNS: dict[str, Type] = {
    **dict.fromkeys(("run", "task", "task_version", "example", "metric", "claim", "name"), "text"),
    **dict.fromkeys(("query_token", "key_token"), "text"),
    **dict.fromkeys(("batch", "repetition", "layer", "head", "multiply_adds"), "integer"),
    **dict.fromkeys(("weight", "value"), "number"),
    "step": "integer",  # optimizer steps since the start of the run
    "tokens": "integer",  # predicted tokens
    "loss_nats": "number",  # nats per token, mean over `tokens`
    "lr": "number",  # learning rate of the step
    "grad_norm": "number",  # norm of the gradient before clipping
    "time_s": "number",  # seconds
    "prompt_s": "number",  # seconds to read the prompt
    "tokens_per_s": "number",  # training tokens per second
    "memory_bytes": "integer",  # peak memory in bytes
    "split": "text",  # train, valid or test
    "top1": "number",  # top-1 accuracy, a fraction
    "top5": "number",  # top-5 accuracy, a fraction
    "window": "integer",  # index of the held-out example: a window, a sentence or an image
    "document": "integer",  # index of the held-out document that contains the window, from 0
    "unsmoothed_nats": "number",  # loss_nats without label smoothing
    "label": "integer",  # true class
    "prediction": "integer",  # most probable class
    "rank": "integer",  # rank of the true class, from 0
    "confidence": "number",  # probability of the prediction
    "destination": "integer",  # block after which outputs are mixed
    "source": "integer",  # block whose output is mixed in; 0 is the embedding
    "measure": "text",  # name of the measure, a constant of `results/schema.py`
    "place": "number",  # order of a run in its repetition; flow.csv: block, fraction of weights or relative rank
    "sequences": "integer",  # batch size in sequences
    "length": "integer",  # tokens of a prompt; words of a translation
    "policy": "text",  # kind of cache policy and its other fields that differ from the default
    "alpha": "number",  # decay factor
    "recent": "number",  # fraction of the budget that is reserved for recent tokens
    "budget": "number",  # cache budget in keys (above 1), or as a fraction of the sequence length
    "realised_budget": "number",  # measured cache size, as a fraction of the keys
    "cache_bytes": "integer",  # bytes of keys and values
    "metadata_bytes": "integer",  # bytes of scores and positions, additional to cache_bytes
    "kept": "integer",  # number of mixing weights after pruning
    "choices": "integer",  # number of possible answers
    "sentence": "integer",  # index of the sentence pair in its split
    "source_tokens": "integer",  # tokens of the source
    "reference_tokens": "integer",  # tokens of the reference
    "score": "number",  # log-probability over length penalty, nats
    "exact": "integer",  # 1 if the translation equals the reference, otherwise 0
    **dict.fromkeys(NGRAMS.split(), "integer"),  # counts of n-grams, n = 1 to 4
    "reference_length": "integer",  # words of the reference
    "part": "text",  # attention module
    "query": "integer",  # position
    "key": "integer",  # position
    "operation": "text",  # type of layer
    "axis": "text",  # n or d, whichever varies
    "n": "integer",  # sequence length
    "d": "integer",  # width
    "k": "integer",  # kernel size of the convolution
    "r": "integer",  # neighbourhood size of restricted attention
    "path": "integer",  # longest path between two positions, in layers
    "choice": "text",  # method of choosing alpha
    "distance_to_ideal": "number",  # 1 - cosine of the attention rows and the ideal attention rows
    "group": "text",  # group of tokens
    "floor": "text",  # baseline: unigram, 5-gram or linear probe
    "mean": "number",  # mean score
    "low": "number",  # 10 % quantile of the score
    "high": "number",  # 90 % quantile of the score
    "missed": "number",  # fraction of the group that is not retained
    "depth": "number",  # position of a hidden number, as a fraction of the text
    "number": "integer",  # index of the hidden number at this depth
    "found": "integer",  # 1 if every token of the number is the most probable token, otherwise 0
    "log_prob": "number",  # log-probability of the number, nats
    "prompt": "integer",  # tokens of the compressed prompt
}
"""The type of each column by name. An empty cell of any type means "not applicable"."""


@dataclass(frozen=True)
class Table:
    """A file of rows."""

    row: str
    """Description of one row."""
    columns: Mapping[str, Type]
    """Columns in order; a file may have additional columns."""
    optional: frozenset[str] = frozenset()
    """Columns that may be missing."""
    value: str = ""
    """Column whose mean over rows, weighted by `tokens` if it exists, is a metric of the run in MLflow."""
    by: tuple[str, ...] = ()
    """Columns to group by; the mean of each group is a separate metric."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(self.columns)

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the required columns."""
        return tuple(name for name in self.columns if name not in self.optional)


def table(row: str, columns: str, extra: Mapping[str, Type] | None = None, value: str = "", by: str = "") -> Table:
    """Return a table of shared columns (names of COLUMNS, separated by spaces), followed by `extra` columns.

    A question mark after a name marks an optional column. Raises KeyError for a name that is not in COLUMNS.
    """
    shared = {name.removesuffix("?"): COLUMNS[name.removesuffix("?")] for name in columns.split()}
    optional = frozenset(name.removesuffix("?") for name in columns.split() if name.endswith("?"))
    return Table(row, shared | dict(extra or {}), optional, value, tuple(by.split()))
