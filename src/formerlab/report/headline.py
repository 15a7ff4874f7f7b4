"""The headline of each study, for a terminal and for the first screen of report.html."""

from pathlib import Path

from pandas import DataFrame

from formerlab.report.pages import plain
from formerlab.report.pruning import configurations, main_configurations
from formerlab.report.tables.denseformer import denseformer_table
from formerlab.report.tables.tokenformer import tokenformer_table
from formerlab.report.tables.transformer import transformer_bleu
from formerlab.report.tables.vision import vision_scores, vision_sizes
from formerlab.results.read import Objection, Results

_TRANSLATION = ["run", "sacrebleu", "exact_percent", "perplexity", "parameters", "seeds"]
_TOKENFORMER = ["run", "parameters", "flops_cumulative", "loss_nats", "perplexity", "seeds"]
_DENSEFORMER = ["run", "layers", "perplexity", "loss_minus_plain_nats", "interval", "seeds"]
_VISION = ["run", "parameters", "top1_percent", "top1_points", "compared_with", "interval", "seeds"]
_DECAY = ["run", "configuration", "realised_budget", "perplexity", "increase_nats", "seeds"]

PUBLISHED_BUDGET = 0.4
"""Share of the tokens kept in the Decay article, Fig 4a and Table 2."""


NOTE = "[low, high]: 95 % interval, over seeds where there are several, else over windows of these models alone."


def headline(root: Path, objection: Objection | None = None) -> str:
    """Return the main numbers of every study with finished runs in `root` (results/<tree>/<scale>), as aligned text."""
    results = Results(root, objection)
    parts = [f"{title} (scale {results.scale})\n\n{plain(table)}" for title, table in tables(results).items()]
    parts = [*parts, NOTE] if parts else [f"{root}: no finished runs of any study yet"]
    return "\n\n".join(filter(None, [*parts, results.warning()])) + "\n"


def tables(results: Results) -> dict[str, DataFrame]:
    """Return the main numbers of every study with finished runs, by what they are."""
    blocks = [
        ("Transformer: translation of the test sentences", transformer_bleu.rows(results), _TRANSLATION),
        ("Tokenformer: held-out loss and cumulative training cost", tokenformer_table.rows(results), _TOKENFORMER),
        ("DenseFormer: held-out loss against the plain Transformer", denseformer_table.rows(results), _DENSEFORMER),
        ("Decay: held-out loss with a pruned cache against the whole one", _decay(results), _DECAY),
        ("Vision: top-1 accuracy of ViT and Tokenformer", vision_sizes.rows(results), _VISION),
        ("Vision: scores of the parameter attention", vision_scores.rows(results), _VISION),
    ]
    return {title: _block(table, wanted) for title, table, wanted in blocks if (table["source"] == "ours").any()}


def _decay(results: Results) -> DataFrame:
    """Return the policies at the published budget, or at the one nearest to it."""
    table = configurations(results, "decay")
    if table.empty:
        return table
    pruned = table.loc[table["policy"] != "full", "budget"]
    nearest = min(pruned.unique(), key=lambda budget: abs(budget - PUBLISHED_BUDGET), default=None)
    return main_configurations(table[(table["policy"] == "full") | (table["budget"] == nearest)])


def _block(table: DataFrame, wanted: list[str]) -> DataFrame:
    """Return our rows in the wanted columns with the ends of their intervals; none where a difference has them."""
    ends = [f"{name}{end}" for name in wanted for end in ("", "_low", "_high")]
    levels = ["perplexity_low", "perplexity_high"] if "increase_nats" in wanted else []
    return table.loc[table["source"] == "ours", [name for name in ends if name in table and name not in levels]]
