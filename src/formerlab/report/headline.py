"""The main numbers of the studies in `HEADLINE_TABLES`, for a terminal and for the top of report.html."""

from pathlib import Path

from pandas import DataFrame

from formerlab.report.catalogue import catalogue, load_rows
from formerlab.report.pages import format_table
from formerlab.report.studies.pruning import main_configurations, nearest_budget_rows
from formerlab.results.read import Results, StalenessReason

HEADLINE_TABLES = {
    "Transformer: translation of the test sentences":
        "transformer_variations: run test_sacrebleu test_exact_percent test_perplexity parameters seeds",
    "Tokenformer: held-out loss and cumulative training cost":
        "tokenformer_table: run parameters flops_cumulative loss_nats perplexity seeds",
    "DenseFormer: gain in held-out loss over the plain Transformer":
        "denseformer_table: run layers perplexity gain_nats interval seeds",
    "Decay: held-out loss with a pruned cache against the full cache":
        "decay_table: run configuration realised_budget perplexity increase_nats seeds",
    "Vision: top-1 accuracy of image classification":
        "vision_table: model parameters_non_embedding top1_percent top1_points error_ratio seeds",
}  # fmt: skip
"""Name and columns of each table, by title."""
NOTE = (
    "[low, high]: 95 % interval, over seeds if there are at least two, otherwise over the test windows, documents or "
    "images."
)


def headline(root: Path, staleness_reason: StalenessReason | None = None) -> str:
    """Return the headline tables of the results in `root` (results/<tree>/<scale>) as aligned text."""
    results, texts = Results(root, staleness_reason), []
    for title, table in headline_tables(results).items():
        text = format_table(table).to_markdown(index=False, tablefmt="simple", disable_numparse=True)
        texts.append(f"{title} (scale {results.scale})\n\n{text}")
    texts = [*texts, NOTE] if texts else [f"{root}: no study has finished runs yet"]
    return "\n\n".join(filter(None, [*texts, results.warning()])) + "\n"


def headline_tables(results: Results) -> dict[str, DataFrame]:
    """Return the tables of HEADLINE_TABLES whose study has finished runs, with the ends of intervals, by title."""
    tables = {}
    for title, (name, columns) in ((title, text.split(": ")) for title, text in HEADLINE_TABLES.items()):
        rows = load_rows(catalogue()[name], results)
        rows = rows[rows["source"] == "ours"]
        if len(rows):
            rows = main_configurations(nearest_budget_rows(rows)) if name == "decay_table" else rows
            with_ends = [f"{column}{end}" for column in columns.split() for end in ("", "_low", "_high")]
            tables[title] = rows[[column for column in with_ends if column in rows]].dropna(how="all")
    return tables
