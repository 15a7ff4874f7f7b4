"""Compute the quantities of criteria from result rows."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Float
from pandas import DataFrame, Series

from formerlab.evaluation.translation.bleu import STATISTICS, corpus_bleu
from formerlab.report.claims.envelope import envelope_variance, flops_at_loss
from formerlab.report.claims.quantity import (
    Examples,
    MissingRowsError,
    PairedMean,
    RunMetric,
    combine_alphas,
    group_examples,
    residual_variance,
    within_run_variance,
)
from formerlab.report.claims.registry import Arm, ClaimArms
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE, weighted_means

BLEU = {"bleu": "sacrebleu", "bleu_compound_split": "compound_split"}
"""Names of the translation metrics in claims, with their names in rows."""
WINDOW_METRICS = {"loss_nats": "prune.csv", "early_share": "prune_masks.csv", "distance_to_ideal": "prune_masks.csv"}
"""Metrics of a policy that are measured on every window, with the files that have them."""
POOL_FACTOR = 2
"""Runs within this factor of the FLOPs and parameters of the arms share their variance (pool_factor)."""
Result = TypeVar("Result")


def cached_method(method: Callable[..., Result]) -> Callable[..., Result]:
    """Cache the results of a method. Claims of one study share them if their suites and metric are the same."""

    @wraps(method)
    def cached(self: "ClaimRows", *args: Any, **kwargs: Any) -> Result:
        key = (method.__name__, self.study, self.arms.suites, self.arms.metric, *args, *kwargs.items())
        if key not in self.cache:
            self.cache[key] = method(self, *args, **kwargs)
        result: Result = self.cache[key]
        return result

    return cached


class ClaimRows:
    """The rows of one study for the arms of one claim."""

    def __init__(self, results: Results, study: str, arms: ClaimArms, cache: dict[Any, Any] | None = None) -> None:
        """Read from `results`. Claims that are given the same `cache` share cached results."""
        self.results, self.study, self.arms = results, study, arms
        self.used_runs: set[str] = set()
        self.cache = {} if cache is None else cache

    @cached_method
    def all_runs(self) -> DataFrame:
        """Return the records of all runs of the study. The columns of parents exist even if no run has a parent."""
        runs, parents = self.results.runs(self.study), ["init.id", "init.weights_sha256", "weights_sha256"]
        return runs.reindex(columns=runs.columns.union(parents, sort=False))

    @cached_method
    def records(self, run: str) -> DataFrame:
        """Return the records of a run."""
        return self.all_runs()[self.all_runs()["run"] == run]

    def select_run(self, arm: Arm) -> str:
        """Return the name of the run of an arm.

        If several runs match, return the run with the lowest mean validation loss; runs that diverged come last. Raises
        MissingRowsError if no run matches.
        """
        pattern = arm.run or arm.best_of or ""
        candidates = [name for name in self.all_runs()["run"].unique() if fnmatchcase(name, pattern)]
        if not candidates:
            raise MissingRowsError(f"a planned run ({pattern}) is not finished")

        def validation(run: str) -> tuple[bool, float]:
            return self._diverged(run), float(self._validation(run, "last_step").to_numpy().mean())

        best = str(min(candidates, key=validation) if candidates[1:] else candidates[0])
        self.used_runs.add(best)
        return best

    def _diverged(self, run: str) -> bool:
        return bool((self.records(run)["status"] == "diverged").any())

    def rows(self, name: str, run: str) -> DataFrame:
        """Return the rows of a file of a run. Raises MissingRowsError if there are no rows."""
        rows = self.results.rows(name, self.study, [run])
        if rows.empty:
            raise MissingRowsError(f"run {run} has no rows in {name}")
        return rows

    def run_metric(self, arm: Arm, metric: str, *, logarithm: bool = False) -> RunMetric:
        """Return a metric of an arm by seed; timings are by repetition.

        `logarithm` applies only to loss_nats and error_rate. Raises MissingRowsError if the run or its rows are
        missing.
        """
        if metric in ("time_s", "memory_bytes"):
            rows = self.results.rows_of("speed.csv", self.study)
            rows = rows[(rows["run"] == arm.run) & (rows["measure"] == arm.measure)]
            if rows.empty:
                raise MissingRowsError(f"a planned run ({arm.run}) has not been timed")
            self.used_runs.add(str(arm.run))
            return RunMetric(f"{metric} {arm.measure} {arm.run}", rows.set_index("repetition")[metric].astype(float))
        run = self.select_run(arm)
        if metric in ("loss_nats", "error_rate"):
            key = (metric, arm.at, logarithm)
            return replace(
                self._held_out(run, *key),
                pooled=lambda terms: self._pooled(frozenset(terms), *key),
                model_variance=lambda: self._model_variance(run, *key),
            )
        if metric in BLEU:
            values = Series(
                {s: corpus_bleu(group.sum(axis=0)) for s, group in self._sentences(run, metric, "test").items()}
            )
        elif metric == "flops_ratio_at_equal_loss":
            return self._flops_ratio(run, arm.envelope)
        elif metric.startswith("embedding_weight_"):
            values = self._embedding_weight(run, last=metric.endswith("last_third"))
        else:
            values = self._recorded(run, metric)
        return RunMetric(f"{metric} {run}", values)

    @cached_method
    def _held_out(self, run: str, metric: str, at: str, logarithm: bool) -> RunMetric:
        """Return the loss or error rate of a run at an evaluation point.

        For the test split, `units` has the metric by document, sentence pair or image.
        """
        rows = self.rows("test.csv" if at == "end" else "eval.csv", run)
        if rows["loss_nats"].isna().any() and not self._diverged(run):
            raise MissingRowsError(f"run {run} has losses that are NaN")
        rows = rows.assign(loss_nats=rows["rank"] > 0, tokens=1) if metric == "error_rate" else rows
        means = weighted_means(rows, ["seed"]).sort_index() if at == "end" else self._validation(run, at)
        values, name = means.apply(np.log) if logarithm else means, f"{'ln ' * logarithm}{metric} {at} {run}"
        pairs = (self.records(run).get("spec.task.kind", Series([None])) == "translation").all()
        unit = "document" if "document" in rows else "window" if pairs or "label" in rows else None
        if at != "end" or unit is None:  # units exist only for test rows of documents, pairs or images
            return RunMetric(name, values)
        units = weighted_means(rows, ["seed", unit]).unstack()
        weights = rows[rows["seed"] == means.index[0]].groupby(unit)["tokens"].sum().to_numpy(float)
        return RunMetric(name, values, units.div(means, axis=0) if logarithm else units, weights)

    @cached_method
    def _pooled(self, terms: frozenset[RunMetric], *key: Any) -> tuple[float, int] | None:
        """Return the between-seed variance of one run, pooled over runs similar to the runs in `terms`, and its degrees
        of freedom.
        """
        by_run = {}
        for run, records in similar_runs(self.all_runs(), {term.name.split()[-1] for term in terms}).groupby(
            "run", sort=False
        ):
            with suppress(MissingRowsError):
                values = self._held_out(str(run), *key).values
                by_run[run] = values[values.index.isin(records["seed"])]
        return residual_variance(pd.concat(by_run)) if by_run else None

    @cached_method
    def _model_variance(self, run: str, *key: Any) -> tuple[float, int] | None:
        """Return the variance between seeds over runs with the same model and initial weights and a similar budget.

        The runs may have different training data.
        """
        similar, models = similar_runs(self.all_runs(), [run], any_text=True), {}
        for name, records in similar.groupby("run", sort=False):
            models[str(name)] = self.results.stage_record(str(records["id"].iloc[0]), "train")["spec"]["model"]
        by_run = []
        for name in (name for name, model in models.items() if model == models.get(run)):
            with suppress(MissingRowsError):
                values = self._held_out(name, *key).values
                by_run.append(values[values.index.isin(similar.loc[similar["run"] == name, "seed"])])
        return within_run_variance(by_run)

    def validation_curve(self, run: str) -> DataFrame:
        """Return the validation loss of a run by seed and step."""
        rows = self.rows("eval.csv", run)
        rows = rows[rows["split"] == "valid"]
        return weighted_means(rows, ["seed", "step"]).reset_index().sort_values(["seed", "step"])

    def _validation(self, run: str, at: str) -> Series:
        """Return the validation loss by seed at the first or last step, or its mean over the steps.

        The last step of a run that diverged has the loss of a uniform guess, as on the test split.
        """
        losses_by_seed, records = {}, self.records(run).set_index("seed")
        diverged = records.index[records["status"] == "diverged"]
        guess = weighted_means(self.rows("test.csv", run), ["seed"]) if len(diverged) else Series(dtype=float)
        for seed, group in self.validation_curve(run).groupby("seed"):
            steps, losses = group["step"].to_numpy(float), group["loss_nats"].to_numpy(float)
            if seed in diverged:
                steps, losses = np.append(steps, records["spec.steps"][seed]), np.append(losses, guess[seed])
            if at == "first_step" and steps[0] > 0:
                raise MissingRowsError(f"run {run} was not evaluated before its first step")
            area = at == "area_under_curve" and len(steps) > 1
            loss = losses[-1] if at == "last_step" else losses[0]
            losses_by_seed[seed] = np.trapezoid(losses, steps) / (steps[-1] - steps[0]) if area else loss
        return Series(losses_by_seed, dtype=float)

    def _recorded(self, run: str, key: str) -> Series:
        return self.records(run).set_index("seed")[key].astype(float).sort_index()

    def _flops_ratio(self, run: str, envelope: Sequence[str]) -> RunMetric:
        """Return the cumulative FLOPs of a run divided by the FLOPs that models from scratch need for its loss.

        All seeds of the run use the same envelope, which is built from means over seeds. The variance of the envelope
        is therefore common to all seeds (`RunMetric.shared`).
        """
        points, patterns = self.results.runs(self.study, envelope), ", ".join(envelope)
        if grown := sorted(points.loc[points.get("init.id", Series(None, points.index)).notna(), "run"].unique()):
            raise MissingRowsError(f"the envelope {patterns} has runs that are not from scratch: {', '.join(grown)}")
        lengths = points.groupby("parameters")["tokens"].nunique() if len(points) else ()
        if (sizes := sum(count >= 3 for count in lengths)) < 3:
            raise MissingRowsError(
                f"the envelope {patterns} needs 3 model sizes with 3 training lengths each; it has {sizes}"
            )
        self.used_runs |= {*points["run"]}
        by_run = {name: self._held_out(name, "loss_nats", "end", False).values for name in points["run"].unique()}
        flops = points.groupby("run")["flops_cumulative"].mean()[[*by_run]].to_numpy()
        losses = np.array([values.mean() for values in by_run.values()])
        cost = self._recorded(run, "flops_cumulative")
        run_losses = self._losses_on_text_of(str(points["run"].iloc[0]), run)
        scratch_flops = run_losses.map(lambda loss: flops_at_loss(loss, flops, losses))
        if (beyond := run_losses[scratch_flops.isna()]).size:
            ends = f"{losses.max():.4g} to {losses.min():.4g}"
            raise MissingRowsError(f"a loss of {beyond.iloc[0]:.4g} nats lies beyond the ends of the envelope ({ends})")
        shared = envelope_variance(run_losses.to_numpy(), cost[run_losses.index].to_numpy(), flops, [*by_run.values()])
        return RunMetric(f"flops_ratio_at_equal_loss {run}", cost / scratch_flops, shared=shared)

    def _losses_on_text_of(self, reference: str, run: str) -> Series:
        """Return the loss by seed of a run on the test text of a `reference` run.

        The text of `reference` must be the run's own test text, or the test text of the data set whose tokenizer the
        run uses; otherwise MissingRowsError is raised.
        """
        if {*self.records(run)["data.fingerprint"]} == {*self.records(reference)["data.fingerprint"]}:
            return self._held_out(run, "loss_nats", "end", False).values
        test, lent = self.rows("test.csv", reference), self.rows("lender_test.csv", run)
        windows = [rows[rows["seed"] == rows["seed"].min()].set_index("window")["tokens"] for rows in (test, lent)]
        if not windows[0].equals(windows[1]):
            raise MissingRowsError(f"run {run} was not tested on the text of {reference}")
        return weighted_means(lent, ["seed"])

    def _sentences(self, run: str, metric: str, split: str) -> dict[Any, Float[np.ndarray, "sentences statistics"]]:
        """Return the statistics that each sentence of a split contributes to corpus BLEU, by seed."""
        rows = self.rows("bleu.csv", run)
        rows = rows[(rows["metric"] == BLEU[metric]) & (rows["split"] == split)].sort_values("sentence")
        return {seed: group[list(STATISTICS)].to_numpy(float) for seed, group in rows.groupby("seed")}

    def _last_mixing_rows(self, run: str) -> DataFrame:
        rows = self.rows("depth.csv", run)
        last: DataFrame = rows[rows["step"] == rows["step"].max()]
        return last

    def _embedding_weight(self, run: str, *, last: bool) -> Series:
        """Return the mean DWA weight on the embedding X_0 over the first or last third of the depth-weighted averages,
        without the final average.
        """
        rows = self._last_mixing_rows(run)
        destinations = sorted(rows["destination"].unique())
        count = len(destinations) // 3
        third = destinations[:-1][-count:] if last else destinations[:count]
        return rows[(rows["source"] == 0) & rows["destination"].isin(third)].groupby("seed")["weight"].mean()

    def mixing_weights(self, arm: Arm) -> Float[np.ndarray, "seeds entries"]:
        """Return the mixing weights at the last step, without the weight of each block on itself."""
        rows = self._last_mixing_rows(self.select_run(arm)).query("destination != source")
        return rows.pivot(index="seed", columns=["destination", "source"], values="weight").to_numpy()

    @cached_method
    def load_examples(self, arm: Arm, metric: str, *, above_chance: bool = False, suite: str | None = None) -> Examples:
        """Return an arm's examples, in the same order for every arm.

        `above_chance` subtracts the chance accuracy; `suite` selects one task. Raises MissingRowsError if rows are
        missing, or the seeds have different examples.
        """
        if metric == "bleu":
            by_seed = self._sentences(self.select_run(arm), metric, "valid")
            if len({len(group) for group in by_seed.values()}) != 1:
                raise MissingRowsError(f"the seeds of {arm.run} translated different sentences")
            stacked = np.stack(list(by_seed.values()))
            names = {"valid": tuple(map(str, range(stacked.shape[1])))}
            return Examples((stacked,), tuple(by_seed), names, corpus_bleu)
        if arm.alphas:
            by_alpha = [
                self.load_examples(a, metric, above_chance=above_chance, suite=suite) for a in _arms_by_alpha(arm)
            ]
            return combine_alphas(by_alpha, arm.run, arm.chosen)
        run = self.select_run(arm)
        if metric in WINDOW_METRICS:
            return group_examples(self._window_rows(arm, metric).assign(task=metric), "window", run)
        rows = self.rows("prune_questions.csv" if arm.policy else "zeroshot.csv", run)
        rows = policy_rows(rows, arm) if arm.policy else rows
        rows = rows[rows["metric"] == self.arms.metric]
        suites = (suite,) if suite else self.arms.suites
        if missing := sorted({*suites} - {*rows["task"]}):
            raise MissingRowsError(f"run {run} has no {self.arms.metric} of {', '.join(missing)}")
        rows = rows[rows["task"].isin(suites)] if suites else rows
        choices = rows.get("choices", Series(np.nan, rows.index))  # files with only free answers have no such column
        guess = (1 / choices).fillna(0.0) if arm.chance or above_chance else 0.0  # 0: a free answer
        return group_examples(rows.assign(value=guess if arm.chance else rows["value"] - guess), "example", run)

    def _window_rows(self, arm: Arm, metric: str) -> DataFrame:
        """Return the rows of an arm's policy on windows, with the metric in the column `value`."""
        rows = policy_rows(self.rows(WINDOW_METRICS[metric], self.select_run(arm)), arm)
        return rows[rows["metric"] == metric] if "metric" in rows else rows.assign(value=rows[metric])

    def window_and_document_counts(self, arm: Arm, metric: str) -> tuple[int, int | None]:
        """Return the number of windows with the metric of an arm, and the number of their documents if it is known.
        Raises MissingRowsError if rows are missing.
        """
        rows = self._window_rows(arm, metric)
        documents = rows["document"].nunique() if "document" in rows and rows["document"].notna().all() else None
        return rows["window"].nunique(), documents

    def paired_mean(self, left: Arm, right: Arm, metric: str) -> PairedMean:
        """Return the mean difference left - right over the same examples; one of the arms may be a constant. Raises
        MissingRowsError if rows are missing, or the arms have different examples or no seed in common.
        """
        if left.constant is not None:
            return -1.0 * self.paired_mean(right, left, metric)
        first = self.load_examples(left, metric)
        if right.constant is not None:
            return self._estimate(left, metric, first.seeds) - right.constant
        second = self.load_examples(right, metric)
        if first.names != second.names or (first.chosen is None) != (second.chosen is None):
            raise MissingRowsError("the arms have rows of different examples")
        if not (seeds := tuple(seed for seed in first.seeds if seed in second.seeds)):
            raise MissingRowsError("the arms have no seed in common")
        return self._estimate(left, metric, seeds) - self._estimate(right, metric, seeds)

    @cached_method
    def _estimate(self, arm: Arm, metric: str, seeds: tuple[int, ...]) -> PairedMean:
        return self.load_examples(arm, metric).for_seeds(seeds).estimate()

    @cached_method
    def above_chance(self, arm: Arm, suite: str | None = None) -> float:
        """Return the lower end of the interval of accuracy minus chance accuracy."""
        return self.load_examples(arm, "accuracy", above_chance=True, suite=suite).estimate().ends(CONFIDENCE)[0]

    def cache_size(self, arm: Arm, metric: str) -> float:
        """Return the mean measured cache size of a policy, as a fraction of all keys and values, on the questions
        (metric accuracy) or windows (other metrics). Raises MissingRowsError if rows are missing.
        """
        rows = self.rows("prune_questions.csv" if metric == "accuracy" else "prune.csv", self.select_run(arm))
        return float(np.mean([policy_rows(rows, a)["realised_budget"].mean() for a in _arms_by_alpha(arm)]))


def policy_rows(rows: DataFrame, arm: Arm) -> DataFrame:
    """Return the rows of an arm's policy. Raises MissingRowsError for no rows, or rows of several configurations."""
    matches = rows["policy"] == arm.policy
    matches &= rows["alpha"].isna() if arm.alpha is None else np.isclose(rows["alpha"], arm.alpha)
    if arm.recent is not None:
        matches &= np.isclose(rows["recent"], arm.recent)
    if arm.budget is not None and arm.policy != "full":
        matches &= np.isclose(rows["budget"], arm.budget)
    if not matches.any():
        raise MissingRowsError(f"no rows of policy {arm.policy}, alpha {arm.alpha}, recent {arm.recent}")
    rows = rows[matches]
    for key in ("recent", "budget"):
        if rows[key].nunique() > 1:
            raise MissingRowsError(f"policy {arm.policy} has rows of several values of {key}; set `{key}` of the arm")
    return rows


def similar_runs(runs: DataFrame, arm_runs: Collection[str], *, any_text: bool = False) -> DataFrame:
    """Return finished runs that are similar to the arms. They start from the same parent run as an arm (or from
    scratch, if the arm does), have the training data of an arm (any data with `any_text`), and have FLOPs and
    parameters within a factor POOL_FACTOR of the arms.
    """
    start = runs["init.id"].astype(object).fillna("").astype(str).str.rpartition("/")[0]
    arms = runs["run"].isin(arm_runs)
    similar = (runs["status"] == "finished") & start.isin(start[arms])
    if not any_text:
        similar &= runs["data.fingerprint"].isin(runs.loc[arms, "data.fingerprint"])
    for column in ("flops", "parameters_non_embedding"):
        lowest, highest = runs.loc[arms, column].min() / POOL_FACTOR, runs.loc[arms, column].max() * POOL_FACTOR
        similar &= runs[column].between(lowest, highest)
    return runs[similar]


def _arms_by_alpha(arm: Arm) -> list[Arm]:
    return [arm.model_copy(update={"alpha": a, "alphas": (), "chosen": None}) for a in arm.alphas] or [arm]
