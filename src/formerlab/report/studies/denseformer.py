"""The runs that figures of averages over depth compare: one run per model, text and number of training tokens."""

from collections.abc import Sequence

from pandas import DataFrame

from formerlab.report.claims.arms import registered_arms
from formerlab.report.families import run_setting
from formerlab.report.runs import TRANSFORMER, cached_reader, load_runs
from formerlab.results.read import Results

STUDY = "denseformer"
DEPTH, SPARSE, LONG = (
    "denseformer-better-at-equal-depth",
    "denseformer-sparse-keeps-the-gain",
    "denseformer-gain-persists-with-training",
)
"""The claims whose arms are models of different depth, sparsity and length of training."""


def registered_runs(scale: str, *claims: str) -> set[str]:
    """Return the runs that are arms of these claims in the files of the study and of the scale."""
    return {arm.run for claim in claims for _, arm in registered_arms(claim, scale).named() if arm.run}


@cached_reader
def compared_runs(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the rows of `load_runs` for one run per model, text and number of tokens, sorted by depth and tokens.

    If a run of a model is an arm of the claims above, only the arms of this model are returned, without its runs at
    other learning rates. Otherwise, its runs of setting `main` or `long` are returned. `plain` is the Transformer of
    equal depth, width, regime and tokens, if any.
    """
    records = load_runs(results, STUDY, runs)
    arm = records["run"].isin(registered_runs(results.scale, DEPTH, SPARSE, LONG))
    records = records.assign(arm=arm)[arm | records["run"].map(run_setting).isin(("main", "long"))]
    model = ["regime", "layers", "spec.model.width", "tokens"]
    with_arm = records.groupby([*model, "variant"], dropna=False)["arm"].transform("any").astype(bool)
    records = records[records["arm"] | ~with_arm].sort_values(["layers", "tokens", "variant", "run", "seed"])
    plain = records[records["variant"] == TRANSFORMER].drop_duplicates(model).set_index(model)["run"]
    return records.join(plain.rename("plain"), on=model)
