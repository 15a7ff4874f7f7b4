"""Zero-shot accuracy (Tokenformer, arXiv:2410.23168, Table 1)."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._runs import held_out_losses
from formerlab.report.published import TOKENFORMER, published
from formerlab.report.tables._accuracy import CHANCE, accuracies
from formerlab.results.read import Results

STUDY = "tokenformer"
READS = ("zeroshot.csv", "test.csv", "run.json")
RUNS = ("*",)
CAPTION = (
    "Zero-shot accuracy, after Table 1 of Tokenformer (arXiv:2410.23168): a column per task and metric, the row "
    "chance says what guessing gives. acc takes the most probable answer, acc_norm the most probable per character, "
    "and acc_mutual_info the one that gains most from the question; small models are at chance in the first two. "
    "After ±: one standard error over questions, and over seeds where there are several. The "
    "published suites and the embedded tasks are different questions: compare models within a block, never across."
)


def table(results: Results) -> DataFrame:
    """Return a row per run, the row of chance, and the published rows."""
    rows = results.rows("zeroshot.csv", STUDY, RUNS)
    blocks = []
    if len(rows):
        runs = held_out_losses(results, STUDY, RUNS).drop_duplicates("run").set_index("run")
        ours = accuracies(rows, ["run"])
        ours.insert(1, "variant", ours["run"].map(runs["variant"]).fillna(CHANCE))
        blocks.append(ours.assign(source="ours"))
    return pd.concat([*blocks, _published()], ignore_index=True)


def _published() -> DataFrame:
    rows = published(TOKENFORMER, "Table 1")
    rows = rows[(rows["unit"] == "%") & rows["model"].str.startswith(("TokenFormer", "Pythia"))]
    order = rows["metric"].drop_duplicates()
    wide = rows.assign(value=rows["value"].astype(float) / 100).pivot(index="model", columns="metric", values="value")
    wide = wide.loc[rows["model"].drop_duplicates(), order]
    wide.columns = [f"{name} (published)" for name in order]
    return wide.reset_index().rename(columns={"model": "run"}).assign(source="published")
