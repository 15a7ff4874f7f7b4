"""From result rows to the quantities that expressions ask for."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float
from pandas import DataFrame, Series

from formerlab.evaluation.translation.bleu import STATISTICS, corpus_bleu
from formerlab.report.claims import envelope
from formerlab.report.claims.bootstrap import Chosen, Examples, Sample, grouped
from formerlab.report.claims.quantity import Agreement, Level, MissingRowsError, Pooled, residual_variance
from formerlab.report.claims.registry import Arm, ClaimArms
from formerlab.report.two_fold import half_of
from formerlab.results.read import Results
from formerlab.statistics import weighted_means

Found = TypeVar("Found")
OF_WINDOWS = {"loss_nats": "prune.csv", "early_share": "prune_masks.csv", "distance_to_ideal": "prune_masks.csv"}
"""What is measured of a policy on every window, and where it stands."""
POOL_FACTOR = 2
"""Runs within this factor of the arms, in FLOPs and in parameters, share their variance (pool_factor)."""


class Rows:
    """The rows of one study that stand for the arms of one claim."""

    def __init__(self, results: Results, study: str, arms: ClaimArms, found: dict[Any, Any] | None = None) -> None:
        """Read from `results`; what was `found` of runs is shared by all claims that are given the same dictionary."""
        self.results, self.study, self.arms = results, study, arms
        self.used: set[str] = set()
        self._found = {} if found is None else found

    @property
    def all_runs(self) -> DataFrame:
        """The records of all runs of the study."""
        return self._once(lambda: self.results.runs(self.study), "runs")

    def records(self, run: str) -> DataFrame:
        """Return the records of a run."""
        return self.all_runs[self.all_runs["run"] == run]

    def level(self, arm: Arm, metric: str, *, logarithm: bool = False) -> Level:
        """Return the metric of an arm, a number per seed; or its logarithm."""
        if metric in ("time_s", "memory_bytes"):
            return self._timing(arm, metric)
        run = self.run(arm)
        if metric in ("loss_nats", "error_rate"):

            def read(other: str) -> Level:
                return self._held_out(other, metric, arm.at, logarithm=logarithm)

            return replace(read(run), pooled=lambda levels: self._pooled(levels, read))
        values: Mapping[int, float]
        if metric in ("flops", "flops_cumulative", "training_time_s"):
            values = self._recorded(run, metric)
        elif metric == "flops_ratio_at_equal_loss":
            values = self._flops_ratio(run, arm)
        elif metric in ("embedding_weight_first_third", "embedding_weight_last_third"):
            values = self._embedding_weight(run, last=metric.endswith("last_third"))
        elif metric in ("bleu", "bleu_compound_split"):
            sentences = self._sentences(run, metric, "test")
            values = {seed: float(corpus_bleu(group.sum(axis=0))) for seed, group in sentences.items()}
        else:
            raise MissingRowsError(f"metric {metric} is in no rows of study {self.study}")
        return Level(f"{metric} {run}", values)

    def _pooled(self, levels: Sequence[Level], read: Callable[[str], Level]) -> Pooled | None:
        """Return the variance of one run between seeds, over the runs like those of the levels."""
        names = frozenset(level.name for level in levels)

        def find() -> Pooled | None:
            values = []
            like = alike(self.all_runs, {name.split()[-1] for name in names})
            for run in like["run"].unique():
                try:
                    found = read(str(run)).values
                except MissingRowsError:
                    continue
                values += [(run, seed, found[seed]) for seed in like.loc[like["run"] == run, "seed"] if seed in found]
            return residual_variance(DataFrame(values, columns=["run", "seed", "value"]))

        return self._once(find, names)

    def sample(self, arm: Arm, metric: str, *, above_chance: bool = False, suite: str | None = None) -> Sample:
        """Return an arm's examples, in the same order for every arm; of accuracies, over guessing where asked."""
        if metric == "bleu":
            return self._translations(self.run(arm))
        if arm.alphas:
            return self._over_alphas(arm, metric, above_chance, suite)
        run = self.run(arm)
        if metric in OF_WINDOWS:
            rows = self.policy(self.rows(OF_WINDOWS[metric], run), arm)
            rows = rows[rows["metric"] == metric] if "metric" in rows else rows.assign(value=rows[metric])
            return grouped(rows.assign(task=metric), "window", run)
        if metric != "accuracy":
            raise MissingRowsError(f"metric {metric} is in no rows of study {self.study}")
        rows = self.rows("prune_questions.csv" if arm.policy else "zeroshot.csv", run)
        rows = self.policy(rows, arm) if arm.policy else rows
        rows = rows[rows["metric"] == self.arms.metric]
        suites = (suite,) if suite else self.arms.suites
        rows = rows[rows["task"].isin(suites)] if suites else rows
        guess = 1 / rows["choices"] if arm.chance or above_chance else 0.0
        return grouped(rows.assign(value=guess if arm.chance else rows["value"] - guess), "example", run)

    def realised_budget(self, arm: Arm, metric: str) -> float:
        """Return the mean realised cache budget of a policy where the metric is measured: on windows or questions."""
        rows = self.rows("prune_questions.csv" if metric == "accuracy" else "prune.csv", self.run(arm))
        return float(np.mean([self.policy(rows, one)["realised_budget"].mean() for one in _each_alpha(arm)]))

    def agreement(self, arm: Arm) -> Agreement:
        """Return how far seeds agree about the mixing weights at the last step, those of a block on itself left out."""
        rows = _last_step(self.rows("depth.csv", self.run(arm)))
        rows = rows[rows["destination"] != rows["source"]]
        return Agreement(rows.pivot(index="seed", columns=["destination", "source"], values="weight").to_numpy())

    def run(self, arm: Arm) -> str:
        """Return the name of the run that stands for an arm."""
        names = list(self.all_runs["run"].unique())
        found = [name for name in names if fnmatchcase(name, arm.run or arm.best_of or "")]
        if not found:
            raise MissingRowsError(f"no finished run {arm.run or arm.best_of}")
        best: str = (
            min(found, key=lambda name: (self._diverged(name), self._validation(name))) if found[1:] else found[0]
        )
        self.used.add(best)
        return best

    def _validation(self, run: str) -> float:
        return float(np.mean([group["loss_nats"].iloc[-1] for _, group in _seeds(self.curve(run))]))

    def _diverged(self, run: str) -> bool:
        return bool((self.records(run)["status"] == "diverged").any())

    def _over_alphas(self, arm: Arm, metric: str, above_chance: bool, suite: str | None) -> Sample:
        """Return the mean over the alphas, or the answers under the alpha that the other half chose."""
        found = [self.sample(one, metric, above_chance=above_chance, suite=suite) for one in _each_alpha(arm)]
        each = [one for one in found if isinstance(one, Examples)]
        first = each[0]
        if any((one.seeds, one.names) != (first.seeds, first.names) for one in each):
            raise MissingRowsError(f"run {arm.run} answered different questions under different alphas")
        stacks = [np.stack(groups) for groups in zip(*(one.groups for one in each), strict=True)]
        if arm.chosen is None:
            return Examples(tuple(stack.mean(axis=0) for stack in stacks), first.seeds, first.names)
        halves = {}
        for (task, names), stack in zip(first.names.items(), stacks, strict=True):
            half = np.array([half_of(example) for example in names])
            if len(set(half)) == 2:
                halves[task] = (stack[:, :, half == 0, 0], stack[:, :, half == 1, 0])
        return Chosen(halves, first.seeds, {task: first.names[task] for task in halves}, arm.chosen == "common")

    def _recorded(self, run: str, key: str) -> dict[int, float]:
        """Return a number of run.json."""
        records = self.records(run)
        return {int(seed): float(value) for seed, value in zip(records["seed"], records[key], strict=True)}

    def _flops_ratio(self, run: str, arm: Arm) -> dict[int, float]:
        """Return the cumulative FLOPs of a run by those that models from scratch need for its loss."""
        if not arm.envelope:
            raise MissingRowsError(f"arm {run} names no envelope")
        points = self.results.runs(self.study, arm.envelope)
        envelope.check_envelope(points, ", ".join(arm.envelope))
        losses = {name: self._held_out(str(name), "loss_nats").values for name in points["run"].unique()}
        self.used |= set(losses)
        found = [losses[name][seed] for name, seed in zip(points["run"], points["seed"], strict=True)]
        points = points.assign(loss_nats=found)
        costs, own = self._recorded(run, "flops_cumulative"), self._held_out(run, "loss_nats").values
        return {s: envelope.flops_ratio(costs[s], loss, envelope.of_seed(points, s)) for s, loss in own.items()}

    def rows(self, name: str, run: str) -> DataFrame:
        """Return the rows of a file of a run. Raises MissingRowsError where there are none."""
        rows = self.results.rows(name, self.study, [run])
        if rows.empty:
            raise MissingRowsError(f"run {run} has no rows in {name}")
        return rows

    def _held_out(self, run: str, metric: str, at: str = "end", *, logarithm: bool = False) -> Level:
        """Return the loss or error of a run at a moment, on the test split with its documents, pairs or images."""
        name = f"{'ln ' * logarithm}{metric} {at} {run}"
        return self._once(lambda: self._read_held_out(name, run, metric, at, logarithm=logarithm), name)

    def _read_held_out(self, name: str, run: str, metric: str, at: str, *, logarithm: bool) -> Level:
        change: Callable[[float], float] = (lambda value: float(np.log(value))) if logarithm else float
        rows = self.rows("test.csv" if at == "end" else "eval.csv", run)
        if rows["loss_nats"].isna().any() and not self._diverged(run):
            raise MissingRowsError(f"run {run} has losses that are no numbers")
        if at != "end":
            return Level(name, {seed: change(value) for seed, value in self._at(run, at).items()})
        rows = rows.assign(loss_nats=rows["rank"] > 0, tokens=1) if metric == "error_rate" else rows
        found = {int(str(seed)): float(mean) for seed, mean in weighted_means(rows, ["seed"]).sort_index().items()}
        values = {seed: change(value) for seed, value in found.items()}
        if (unit := self._unit(rows, run)) is None:
            return Level(name, values)
        means = weighted_means(rows, ["seed", unit]).unstack()
        units = {seed: means.loc[seed].to_numpy() / (mean if logarithm else 1.0) for seed, mean in found.items()}
        weights = rows[rows["seed"] == next(iter(found))].groupby(unit)["tokens"].sum().to_numpy(float)
        return Level(name, values, units, weights)

    def _unit(self, rows: DataFrame, run: str) -> str | None:
        """Return the column of the units of a held-out split that were drawn by themselves, where it is known."""
        if "document" in rows:
            return "document"
        task = self.all_runs.get("spec.task.kind")
        pairs = task is not None and (task[self.all_runs["run"] == run] == "translation").all()
        return "window" if pairs or "label" in rows else None

    def _at(self, run: str, at: str) -> dict[int, float]:
        """Return the validation loss at the first or last step, or its mean over the steps."""
        steps = self.curve(run)
        if at == "first_step" and (steps.groupby("seed")["step"].min() > 0).any():
            raise MissingRowsError(f"run {run} was not evaluated before its first step")
        if at == "area_under_curve":
            return {seed: _mean_over_steps(group) for seed, group in _seeds(steps)}
        return {s: float(g["loss_nats"].iloc[0 if at == "first_step" else -1]) for s, g in _seeds(steps)}

    def curve(self, run: str) -> DataFrame:
        """Return the validation loss of a run by seed and step."""
        rows = self.rows("eval.csv", run)
        rows = rows[rows["split"] == "valid"]
        return weighted_means(rows, ["seed", "step"]).reset_index().sort_values(["seed", "step"])

    def _sentences(self, run: str, metric: str, split: str) -> dict[int, Float[np.ndarray, "sentences statistics"]]:
        """Return what each sentence of a split contributes to corpus BLEU, by seed."""
        name = "compound_split" if metric == "bleu_compound_split" else "sacrebleu"
        rows = self.rows("bleu.csv", run)
        rows = rows[(rows["metric"] == name) & (rows["split"] == split)].sort_values("sentence")
        return {seed: group[list(STATISTICS)].to_numpy(float) for seed, group in _seeds(rows)}

    def _translations(self, run: str) -> Examples:
        by_seed = self._sentences(run, "bleu", "valid")
        if len({len(group) for group in by_seed.values()}) != 1:
            raise MissingRowsError(f"the seeds of {run} translated different sentences")
        stacked = np.stack(list(by_seed.values()))
        return Examples((stacked,), tuple(by_seed), {"valid": tuple(map(str, range(stacked.shape[1])))}, corpus_bleu)

    def policy(self, rows: DataFrame, arm: Arm) -> DataFrame:
        """Return the rows of an arm's policy."""
        wanted = rows["policy"] == arm.policy
        wanted &= rows["alpha"].isna() if arm.alpha is None else np.isclose(rows["alpha"], arm.alpha)
        if arm.recent is not None:
            wanted &= np.isclose(rows["recent"], arm.recent)
        if arm.budget is not None and arm.policy != "full":
            wanted &= np.isclose(rows["budget"], arm.budget)
        if not wanted.any():
            raise MissingRowsError(f"no rows of policy {arm.policy} alpha {arm.alpha} recent {arm.recent}")
        return rows[wanted]

    def _embedding_weight(self, run: str, *, last: bool) -> dict[int, float]:
        """Mean weight on X_0 over the first or the last third of the averages, the very last average left out."""
        rows = _last_step(self.rows("depth.csv", run))
        destinations = sorted(rows["destination"].unique())
        third = len(destinations) // 3
        wanted = destinations[:-1][-third:] if last else destinations[:third]
        chosen = rows[(rows["source"] == 0) & rows["destination"].isin(wanted)]
        return {seed: float(group["weight"].mean()) for seed, group in _seeds(chosen)}

    def _timing(self, arm: Arm, metric: str) -> Level:
        """Return seconds or bytes of a run by repetition, which stands for the seed."""
        rows = self.results.rows_of_study("speed.csv", self.study)
        chosen = rows[(rows["run"] == arm.run) & (rows["measure"] == arm.measure)]
        if chosen.empty:
            raise MissingRowsError(f"no timing of {arm.run}")
        self.used.add(str(arm.run))
        found = {int(n): float(value) for n, value in zip(chosen["repetition"], chosen[metric], strict=True)}
        return Level(f"{metric} {arm.run}", found)

    def _once(self, find: Callable[[], Found], *key: Any) -> Found:
        return once(self._found, (self.study, *key), find)


def once(known: dict[Any, Any], key: tuple[Any, ...], find: Callable[[], Found]) -> Found:
    """Return what is known of a key, found where it is not."""
    if key not in known:
        known[key] = find()
    found: Found = known[key]
    return found


def alike(runs: DataFrame, own: Collection[str]) -> DataFrame:
    """Return the finished runs on the data of the arms that start as an arm does, of their size and budget."""
    origin = runs["init.id"] if "init.id" in runs else Series("", index=runs.index)
    start = origin.fillna("").astype(str).str.rpartition("/")[0]
    arms = runs["run"].isin(own)
    wanted = (runs["status"] == "finished") & start.isin(start[arms])
    wanted &= runs["data.fingerprint"].isin(runs.loc[arms, "data.fingerprint"])
    for column in ("flops", "parameters_non_embedding"):
        lowest, highest = runs.loc[arms, column].min() / POOL_FACTOR, runs.loc[arms, column].max() * POOL_FACTOR
        wanted &= runs[column].between(lowest, highest)
    return runs[wanted]


def shots(suite: str) -> int:
    """Return the solved examples in front of a question, as the name of a suite says."""
    found = re.search(r"_(\d+)_shots", suite)
    return int(found[1]) if found else 0


def _each_alpha(arm: Arm) -> list[Arm]:
    """Return an arm for each of its alphas."""
    return [arm.model_copy(update={"alpha": a, "alphas": (), "chosen": None}) for a in arm.alphas] or [arm]


def _seeds(rows: DataFrame) -> Iterator[tuple[int, DataFrame]]:
    for seed, group in rows.groupby("seed"):
        yield int(str(seed)), group


def _last_step(rows: DataFrame) -> DataFrame:
    return rows[rows["step"] == rows["step"].max()] if "step" in rows else rows


def _mean_over_steps(group: DataFrame) -> float:
    steps, losses = group["step"].to_numpy(float), group["loss_nats"].to_numpy(float)
    return float(np.trapezoid(losses, steps) / (steps[-1] - steps[0])) if len(steps) > 1 else float(losses[0])
