"""Growth against further training, as README shows it."""

import numpy as np
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.figures.tokenformer.cost import tokenformer_stage_length
from formerlab.report.overview import overview
from formerlab.results.read import Results


@plot(reads="test.csv", runs="annealed-random-* annealed-zero-* annealed-trained-on-*", needs="annealed-trained-on-*",
      draw=overview("Growth against further training", "change of perplexity, % (left: better)", 0.85))  # fmt: skip
def tokenformer_overview(results: Results, runs: list[str]) -> DataFrame:
    """Change of perplexity from the parent trained further to the grown Tokenformer in brief (arXiv:2410.23168), by the
    tokens after growth (M: million), for equal FLOPs, with the 95 % interval that the claim uses. To see: whether
    growth needs long training to help. tokenformer_stage_length has seeds.
    """
    rows = tokenformer_stage_length.rows(results, runs)
    if rows.empty:
        return rows
    rows = rows[rows["part"].eq("mean")].sort_values(["variant", "tokens_per_new_parameter"], kind="stable")
    tokens = rows["run"].map(results.runs("tokenformer").drop_duplicates("run").set_index("run")["tokens"])
    change = {end: 100 * np.expm1(rows[f"difference_nats{column}"])
              for end, column in (("change", ""), ("low", "_pooled_low"), ("high", "_pooled_high"))}  # fmt: skip
    return DataFrame({
        "source": rows["source"],
        "run": rows["run"],
        "label": tokens.div(1e6).map("{:.0f}M tokens".format),
        "series": "ours, " + rows["_way"],
        **change,
        "_style": rows["variant"],
    })  # fmt: skip
