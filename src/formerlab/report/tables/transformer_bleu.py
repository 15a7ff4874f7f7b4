"""BLEU and training cost (arXiv:1706.03762, Table 2)."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._translation import over_seeds
from formerlab.report.published import TRANSFORMER, published
from formerlab.results.read import Results

STUDY = "transformer"
READS = ("run.json", "test.csv", "translate.csv", "bleu.csv")
RUNS = ("*",)
CAPTION = (
    "Translations of the test split and what training cost, after Table 2 of arXiv:1706.03762. The column sacrebleu is "
    "the score to compare with others; its signature stands in translate.json of each run. compound_split is "
    "tokenised, with hyphenated compounds split, as the 2017 paper reports (there with Moses' tokenizer and a tweaked "
    "reference: up to 1.5 BLEU more than sacreBLEU); tokenized_lowercase is what most tutorials report. exact is the "
    "share of translations equal to the reference, which means something on the embedded task alone. Perplexity is per "
    "word piece, so it compares within one vocabulary only. Scores of another data set or language pair do not compare "
    "with the published ones."
)
_COLUMNS = ["source", "run", "data", "sacrebleu", "sacrebleu_low", "sacrebleu_high", "compound_split"]
_COLUMNS += ["tokenized_lowercase", "exact_percent", "bleu_en_de", "bleu_en_fr", "perplexity", "parameters", "flops"]
_COLUMNS += ["seeds"]


def table(results: Results) -> DataFrame:
    """Return our runs, then the published ones."""
    ours = over_seeds(results, "test").rename(columns={"data.name": "data"})
    return pd.concat([ours, _published()], ignore_index=True).reindex(columns=_COLUMNS)


def _published() -> DataFrame:
    rows = published(TRANSFORMER, "Table 2")
    names = {("bleu", True): "bleu_en_de", ("bleu", False): "bleu_en_fr"}
    found: dict[str, dict[str, object]] = {}
    for row in rows[["model", "setting", "metric", "value"]].astype(str).to_dict("records"):
        place = found.setdefault(row["model"], {"source": "published", "run": row["model"]})
        to_german = "En-De" in row["setting"]
        name = "flops" if row["metric"] == "training_cost" else names[row["metric"], to_german]
        if name != "flops" or to_german or "flops" not in place:
            place[name] = float(row["value"])
    return DataFrame(list(found.values()))
