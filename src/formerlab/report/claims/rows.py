"""From result rows to the quantities that expressions ask for."""

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
from jaxtyping import Float
from pandas import DataFrame

from formerlab.evaluation.translation.bleu import STATISTICS, corpus_bleu
from formerlab.report.claims import envelope
from formerlab.report.claims.arms import Arm, ClaimArms
from formerlab.report.claims.bootstrap import Examples
from formerlab.report.claims.quantity import MissingRowsError, Seeds
from formerlab.report.two_fold import half_of, two_fold_selection
from formerlab.results.read import Results
from formerlab.statistics import weighted_means

RUN_KEYS = ("flops", "flops_cumulative", "training_time_s")
"""Metrics that stand in run.json."""
FLOPS_RATIO = "flops_ratio_at_equal_loss"
OF_WINDOWS = {"loss_nats": "prune.csv", "early_share": "prune_masks.csv", "distance_to_ideal": "prune_masks.csv"}
"""What is measured of a policy on every window, and where it stands."""


class Rows:
    """The rows of one study that stand for the arms of one claim."""

    def __init__(self, results: Results, study: str, arms: ClaimArms) -> None:
        self.results, self.study, self.arms = results, study, arms
        self.used: set[str] = set()

    def value(self, arm: Arm, metric: str) -> Seeds:
        """Return the metric of an arm, a number per seed."""
        if arm.constant is not None:
            seeds = self.results.runs(self.study)["seed"].unique()
            return Seeds({int(seed): arm.constant for seed in seeds})
        if metric in ("time_s", "memory_bytes"):
            return self._timing(arm, metric)
        run = self._run(arm)
        if metric == "loss_nats":
            return self._loss(run, arm)
        if metric in (*RUN_KEYS, FLOPS_RATIO):
            return self._recorded(run, metric) if metric in RUN_KEYS else self._flops_ratio(run, arm)
        if metric == "error_rate":
            rows = self._rows("test.csv", run)
            return Seeds({seed: float((group["rank"] > 0).mean()) for seed, group in _seeds(rows)})
        if metric in ("embedding_weight_first_third", "embedding_weight_last_third"):
            return self._embedding_weight(run, last=metric.endswith("last_third"))
        if metric in ("bleu", "bleu_compound_split"):
            sentences = self._sentences(run, metric, "test")
            return Seeds({seed: float(corpus_bleu(group.sum(axis=0))) for seed, group in sentences.items()})
        raise MissingRowsError(f"metric {metric} is in no rows of study {self.study}")

    def examples(self, arm: Arm, metric: str, like: "Examples | None" = None) -> Examples:
        """Return the statistics of an arm's examples, in the same order for every arm of a claim."""
        if arm.constant is not None:
            if like is None:
                raise MissingRowsError("a constant is compared with rows, not with a constant")
            return replace(like, groups=tuple(np.full_like(group, arm.constant) for group in like.groups))
        if arm.alphas:
            return self._over_alphas(arm, metric)
        run = self._run(arm)
        if metric in OF_WINDOWS:
            rows = self._policy(self._rows(OF_WINDOWS[metric], run), arm)
            rows = rows[rows["metric"] == metric] if "metric" in rows else rows.assign(value=rows[metric])
            return _grouped(rows.assign(task=metric), "window", run)
        if metric == "accuracy":
            rows = self._answers(arm, run)
            rows = rows.assign(value=1 / rows["choices"]) if arm.chance else rows
            return _grouped(rows, "example", run)
        if metric == "bleu":
            return self._translations(run)
        raise MissingRowsError(f"metric {metric} is in no rows of study {self.study}")

    def realised_budget(self, arm: Arm, metric: str) -> float:
        """Return the mean realised cache budget of a policy where the metric is measured: on windows or questions."""
        rows = self._rows(OF_WINDOWS.get(metric, "prune_questions.csv"), self._run(arm))
        return float(self._policy(rows, arm)["realised_budget"].mean())

    def seed_correlation(self, arm: Arm) -> float:
        """Return the smallest correlation between two seeds' off-diagonal mixing weights."""
        rows = _last_step(self._rows("depth.csv", self._run(arm)))
        rows = rows[rows["destination"] != rows["source"]]
        wide = rows.pivot(index=["destination", "source"], columns="seed", values="weight")
        if wide.shape[1] < 2:
            raise MissingRowsError("a correlation between seeds needs two of them")
        correlations = np.corrcoef(wide.to_numpy().T)
        return float(correlations[np.triu_indices(len(correlations), 1)].min())

    def _answers(self, arm: Arm, run: str) -> DataFrame:
        rows = self._rows("prune_questions.csv" if arm.policy else "zeroshot.csv", run)
        rows = self._policy(rows, arm) if arm.policy else rows
        rows = rows[rows["metric"] == self.arms.metric]
        return rows[rows["task"].isin(self.arms.suites)] if self.arms.suites else rows

    def _over_alphas(self, arm: Arm, metric: str) -> Examples:
        """Return the mean over the alphas, or each example under the alpha that the other half chose."""
        single = [arm.model_copy(update={"alpha": alpha, "alphas": (), "chosen": None}) for alpha in arm.alphas]
        each = [self.examples(one, metric) for one in single]
        if any((one.seeds, one.names) != (each[0].seeds, each[0].names) for one in each):
            raise MissingRowsError(f"run {arm.run} answered different questions under different alphas")
        stacks = [np.stack(groups) for groups in zip(*(one.groups for one in each), strict=True)]
        if arm.chosen is None:
            return replace(each[0], groups=tuple(stack.mean(axis=0) for stack in stacks))
        names = each[0].names
        halves = {task: np.array([half_of(example) for example in names[task]]) for task in names}
        found = two_fold_selection({task: stack[..., 0] for task, stack in zip(names, stacks, strict=True)}, halves)
        groups = tuple(getattr(one, arm.chosen)[:, :, None] for one in found.values())
        return replace(each[0], groups=groups, names={task: names[task] for task in found})

    def _run(self, arm: Arm) -> str:
        names = list(self.results.runs(self.study)["run"].unique())
        if arm.run is not None:
            if arm.run not in names:
                raise MissingRowsError(f"no finished run {arm.run}")
            self.used.add(arm.run)
            return arm.run
        candidates = [name for name in names if fnmatchcase(name, arm.best_of or "")]
        if not candidates:
            raise MissingRowsError(f"no finished run {arm.best_of}")
        best: str = min(candidates, key=lambda name: (self._diverged(name), self._validation(name)))
        self.used.add(best)
        return best

    def _validation(self, run: str) -> float:
        return float(np.mean(list(self._last_valid(run).values.values())))

    def _diverged(self, run: str) -> bool:
        return bool((self.results.runs(self.study, [run])["status"] == "diverged").any())

    def _recorded(self, run: str, key: str) -> Seeds:
        """Return a number of run.json."""
        records = self.results.runs(self.study, [run])
        return Seeds({int(seed): float(value) for seed, value in zip(records["seed"], records[key], strict=True)})

    def _flops_ratio(self, run: str, arm: Arm) -> Seeds:
        """Return the cumulative FLOPs of a run by those that models from scratch need for its loss."""
        if not arm.envelope:
            raise MissingRowsError(f"arm {run} names no envelope")
        points = self.results.runs(self.study, arm.envelope)
        envelope.check_envelope(points, ", ".join(arm.envelope))
        losses = {name: self._loss(str(name), arm).values for name in points["run"].unique()}
        self.used |= set(losses)
        found = [losses[name][seed] for name, seed in zip(points["run"], points["seed"], strict=True)]
        points = points.assign(loss_nats=found)
        costs = self._recorded(run, "flops_cumulative").values
        return Seeds(
            {
                seed: envelope.flops_ratio(costs[seed], loss, envelope.of_seed(points, seed))
                for seed, loss in self._loss(run, arm).values.items()
            }
        )

    def _rows(self, name: str, run: str) -> DataFrame:
        rows = self.results.rows(name, self.study, [run])
        if rows.empty:
            raise MissingRowsError(f"run {run} has no rows in {name}")
        return rows

    def _loss(self, run: str, arm: Arm) -> Seeds:
        rows = self._rows("test.csv" if arm.at == "end" else "eval.csv", run)
        if rows["loss_nats"].isna().any() and not self._diverged(run):
            raise MissingRowsError(f"run {run} has losses that are no numbers")
        if arm.at == "end":
            return _weighted(rows)
        steps = self._valid(run)
        first = {seed: float(group["loss_nats"].iloc[0]) for seed, group in _seeds(steps)}
        if arm.at == "first_step":
            if (steps.groupby("seed")["step"].min() > 0).any():
                raise MissingRowsError(f"run {run} was not evaluated before its first step")
            return Seeds(first)
        if arm.at == "last_step":
            return self._last_valid(run)
        return Seeds({seed: _mean_over_steps(group) for seed, group in _seeds(steps)})

    def _valid(self, run: str) -> DataFrame:
        rows = self._rows("eval.csv", run)
        rows = rows[rows["split"] == "valid"]
        return weighted_means(rows, ["seed", "step"]).reset_index().sort_values(["seed", "step"])

    def _last_valid(self, run: str) -> Seeds:
        steps = self._valid(run)
        return Seeds({seed: float(group["loss_nats"].iloc[-1]) for seed, group in _seeds(steps)})

    def _sentences(self, run: str, metric: str, split: str) -> dict[int, Float[np.ndarray, "sentences statistics"]]:
        """Return what each sentence of a split contributes to corpus BLEU, by seed."""
        name = "compound_split" if metric == "bleu_compound_split" else "sacrebleu"
        rows = self._rows("bleu.csv", run)
        rows = rows[(rows["metric"] == name) & (rows["split"] == split)].sort_values("sentence")
        return {seed: group[list(STATISTICS)].to_numpy(float) for seed, group in _seeds(rows)}

    def _translations(self, run: str) -> Examples:
        by_seed = self._sentences(run, "bleu", "valid")
        if len({len(group) for group in by_seed.values()}) != 1:
            raise MissingRowsError(f"the seeds of {run} translated different sentences")
        stacked = np.stack(list(by_seed.values()))
        names = {"valid": tuple(map(str, range(stacked.shape[1])))}
        return Examples((stacked,), tuple(by_seed), names, lambda sums, _: corpus_bleu(sums))

    def _policy(self, rows: DataFrame, arm: Arm) -> DataFrame:
        wanted = rows["policy"] == arm.policy
        wanted &= rows["alpha"].isna() if arm.alpha is None else np.isclose(rows["alpha"], arm.alpha)
        if arm.recent is not None:
            wanted &= np.isclose(rows["recent"], arm.recent)
        if arm.budget is not None and arm.policy != "full":
            wanted &= np.isclose(rows["budget"], arm.budget)
        if not wanted.any():
            raise MissingRowsError(f"no rows of policy {arm.policy} alpha {arm.alpha} recent {arm.recent}")
        return rows[wanted]

    def _embedding_weight(self, run: str, *, last: bool) -> Seeds:
        """Mean weight on X_0 over the first or the last third of the averages, the very last average left out."""
        rows = _last_step(self._rows("depth.csv", run))
        destinations = sorted(rows["destination"].unique())
        third = len(destinations) // 3
        wanted = destinations[:-1][-third:] if last else destinations[:third]
        chosen = rows[(rows["source"] == 0) & rows["destination"].isin(wanted)]
        return Seeds({seed: float(group["weight"].mean()) for seed, group in _seeds(chosen)})

    def _timing(self, arm: Arm, metric: str) -> Seeds:
        """Return seconds or bytes of a run by repetition, which stands for the seed."""
        rows = self.results.rows_of_study("speed.csv", self.study)
        chosen = rows[(rows["run"] == arm.run) & (rows["measure"] == arm.measure)]
        if chosen.empty:
            raise MissingRowsError(f"no timing of {arm.run}")
        self.used.add(str(arm.run))
        return Seeds({int(n): float(value) for n, value in zip(chosen["repetition"], chosen[metric], strict=True)})


def _weighted(rows: DataFrame) -> Seeds:
    means = weighted_means(rows, ["seed"]).sort_index()
    return Seeds({int(seed): float(mean) for seed, mean in zip(means.index, means, strict=True)})


def _seeds(rows: DataFrame) -> Iterator[tuple[int, DataFrame]]:
    for seed, group in rows.groupby("seed"):
        yield int(str(seed)), group


def _last_step(rows: DataFrame) -> DataFrame:
    return rows[rows["step"] == rows["step"].max()] if "step" in rows else rows


def _mean_over_steps(group: DataFrame) -> float:
    steps, losses = group["step"].to_numpy(float), group["loss_nats"].to_numpy(float)
    return float(np.trapezoid(losses, steps) / (steps[-1] - steps[0])) if len(steps) > 1 else float(losses[0])


def _grouped(rows: DataFrame, example: str, run: str) -> Examples:
    """Return an array per task, seeds by examples, in sorted order."""
    groups, names, seeds = [], {}, set()
    for task, block in sorted(rows.groupby("task"), key=lambda pair: str(pair[0])):
        wide = block.pivot(index="seed", columns=example, values="value")
        if wide.isna().any(axis=None):
            raise MissingRowsError(f"the seeds of {run} answered different examples")
        groups.append(wide.to_numpy()[:, :, None])
        names[str(task)] = tuple(map(str, wide.columns))
        seeds.add(tuple(map(int, wide.index)))
    if len(seeds) != 1:
        raise MissingRowsError(
            f"the seeds of {run} answered different tasks" if seeds else f"run {run} has no such rows"
        )
    return Examples(tuple(groups), seeds.pop(), names)
