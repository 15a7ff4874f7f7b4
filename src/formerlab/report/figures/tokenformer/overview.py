"""The cost of growth, as README shows it."""

from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.figures.tokenformer.cost import tokenformer_cost
from formerlab.report.overview import overview
from formerlab.report.runs import seed_count
from formerlab.report.studies.tokenformer import PARENT
from formerlab.report.style import BETTER
from formerlab.results.read import Results


@plot(reads="test.csv", needs="annealed-random-*", within_regime=True, draw=overview(
    "Cost of a Tokenformer, Transformer = 1", f"cost at equal loss, log ({BETTER})", 1.5, ratio=True
))  # fmt: skip
def tokenformer_overview(results: Results, runs: list[str]) -> DataFrame:
    """Training cost of a grown Tokenformer in brief (arXiv:2410.23168): FLOPs with all ancestors, divided by the FLOPs
    of a Transformer from scratch of equal loss, for the parent and after growth, with the 95 % interval of the claim,
    which asks for at most half the cost (dashed). Hollow: the paper's largest grown model, in TPU hours, interpolated
    by us. Its ratio is 0.40 to 0.42, because the paper prints two values of one perplexity. To see: whether growth
    costs less than training from scratch. tokenformer_cost has the losses.
    """
    rows = tokenformer_cost.rows(results, runs)
    if rows.empty or (rows := rows.dropna(subset="flops_ratio")).empty:
        return rows
    published, seeds = rows["source"].eq("published"), seed_count(rows["seeds"])
    label = rows["series"].eq(PARENT).map({True: "before growth", False: "after growth"})
    return DataFrame({
        **rows[["source", "run", "verdict"]],
        "label": label.mask(published, "paper, 1.4B"),
        "series": published.map({True: "the paper (TPU hours)", False: f"ours ({seeds}), 95 % interval"}),
        "value": rows["flops_ratio"],
        "low": rows["flops_ratio_pooled_low"],
        "high": rows["flops_ratio_pooled_high"],
        "limit": rows["flops_ratio_limit"],
        "_style": rows["series"],
    })  # fmt: skip
