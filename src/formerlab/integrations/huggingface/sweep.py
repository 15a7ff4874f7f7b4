"""Zero-shot accuracy under cache policies: the published experiment on any model folder."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from formerlab.cache import H2O, Budget, CachePolicy
from formerlab.errors import UserError
from formerlab.evaluation.language.questions import QuestionScore
from formerlab.evaluation.language.zeroshot import evaluate_tasks, harness_version, load_tasks
from formerlab.evaluation.pruning.configuration import Configuration
from formerlab.evaluation.pruning.prune import QUESTION_COLUMNS, PruneSweep
from formerlab.files import read_json, write_json
from formerlab.integrations.huggingface.load import Loaded
from formerlab.plan.code import code_hash
from formerlab.progress import Progress
from formerlab.results.write import Cell, write_rows
from formerlab.spec import Count, Spec, fingerprint
from formerlab.tasks.scoring import AttendFor

Rows = list[list[Cell]]

LOG_PROBABILITIES = ("perplexity", "log_prob")
"""Names under which an example's log-probability goes; their perplexity is exp(-mean)."""


class QuestionSweep(Spec):
    """What the Decay article measured: 0-shot, 40 % of the tokens (its Figure 4, Table 2; see arXiv:2407.20485)."""

    tasks: tuple[str, ...] = ("openbookqa", "winogrande", "arc_easy", "arc_challenge", "piqa")
    """Tasks of lm-evaluation-harness by name, or the paths of task files (.yaml)."""
    policies: tuple[CachePolicy, ...] = (H2O(),)
    """Policies beside the full cache and the values of alpha."""
    alphas: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    """Decay factors: each adds Decay with this alpha and no recent part."""
    budget: Budget = 0.4
    """Share of each request's own length (float) or entries (int)."""
    leading_token: bool = False
    """Put the begin-of-text token in front of every context. The published runs had none; later releases of the harness
    leave it to the tokenizer, and the first token being the attention sink, pruning results move."""
    limit: Count | None = None
    """First examples of each task; none means all."""
    batch: Count = 16
    """Sequences per forward pass; padding takes no part, so it changes nothing but rounding."""

    def arms(self) -> list[Configuration]:
        """Return the full cache and every policy, each once."""
        return PruneSweep(policies=self.policies, alphas=self.alphas).configurations((self.budget,))


def read_sweep(path: Path | None, **changes: Any) -> QuestionSweep:
    """Return the sweep of a YAML file (none: the published one) with some fields changed, those that are not none."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8")) if path is not None else {}
        given = {key: value for key, value in changes.items() if value is not None}
        sweep = QuestionSweep.model_validate({**tree, **given})
    except OSError:
        raise UserError(f"{path}: no such file") from None
    except (yaml.YAMLError, TypeError) as error:
        raise UserError(f"{path}: not a mapping of YAML ({str(error).partition(chr(10))[0]})") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"sweep: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for name in sweep.tasks:
        _task(name)  # a file that is missing is named before a large model is loaded
    return sweep


def run_sweep(
    loaded: Loaded, sweep: QuestionSweep, out: Path, *, identity: dict[str, Any], online: bool = False
) -> list[dict[str, Cell]]:
    """Write prune_questions.csv and prune.json into `out`; return one row of means per policy.

    Pruning is simulated row by row, as if each sequence were fed token by token, with budgets of true lengths. What an
    arm gave is kept in `out/arms`, so that a sweep that was stopped goes on; it counts while the model (`identity`),
    what is asked and the code are the same.
    """
    tasks = load_tasks([_task(name) for name in sweep.tasks], offline=not online)
    about = {"model": identity, "versions": {"lm_eval": harness_version()}}
    rows: list[Sequence[Cell]] = []
    means: list[dict[str, Cell]] = []
    arms = sweep.arms()
    with Progress(len(arms), f"prune {out}", unit="policy") as progress:
        for arm in arms:
            own = _arm_rows(loaded, sweep, arm, tasks, out / "arms", about)
            rows += [(*arm.cells(), *row) for row in own]
            means.append(_means(arm, own))
            progress.advance()
    write_rows(out / "prune_questions.csv", QUESTION_COLUMNS, rows)
    write_json(out / "prune.json", {"schema": 1, **about, "sweep": sweep.plain()})
    return means


def answer(loaded: Loaded, sweep: QuestionSweep, *, online: bool = False) -> Rows:
    """Return the rows of zeroshot.csv: every metric of every example, without pruning."""
    tasks = load_tasks([_task(name) for name in sweep.tasks], offline=not online)
    return [list(score[:6]) for score in _ask(loaded, sweep, tasks, None)]


def _ask(loaded: Loaded, sweep: QuestionSweep, tasks: Any, attend_for: AttendFor | None) -> list[QuestionScore]:
    return evaluate_tasks(
        loaded.model,
        loaded.tokenizer,
        tasks,
        batch=sweep.batch,
        attend_for=attend_for,
        limit=sweep.limit,
        leading_token=sweep.leading_token,
        end_of_text=loaded.prefix,
    )


def _arm_rows(
    loaded: Loaded, sweep: QuestionSweep, arm: Configuration, tasks: Any, folder: Path, about: dict[str, Any]
) -> Rows:
    """Return (realised budget, task, version, example, metric, value, choices) of every example, from disk if there."""
    asked = sweep.limit, sweep.leading_token, [_task(name) for name in sweep.tasks]
    code = code_hash(
        "formerlab.integrations.huggingface.load", "formerlab.integrations.huggingface.sweep", specs=[arm.policy]
    )
    path = folder / f"{fingerprint([about, asked, arm.policy.plain(), arm.budget, code])}.json"
    if path.is_file():
        known: Rows = read_json(path)["rows"]
        return known
    answers = _ask(loaded, sweep, tasks, partial(arm.attend, position=loaded.model.position))
    rows: Rows = [[score.realised_budget, *score[:6]] for score in answers]
    write_json(path, {"policy": arm.policy.plain(), "budget": arm.budget, "rows": rows})
    return rows


def _means(arm: Configuration, rows: Rows) -> dict[str, Cell]:
    """Return the arm's name, its mean realised budget, and for each task and metric the mean over examples."""
    policy, alpha, _, budget = arm.cells()
    row: dict[str, Cell] = {"policy": policy, "alpha": alpha, "budget": budget}
    return row | {"realised": _mean([row[0] for row in rows])} | dict(task_means([row[1:] for row in rows]))


def task_means(rows: Sequence[Sequence[Cell]]) -> Iterator[tuple[str, float]]:
    """Yield (task metric, mean over examples) of rows under the columns of zeroshot.csv; exp(-mean) for perplexity."""
    for task, metric in dict.fromkeys((row[0], row[3]) for row in rows):
        mean = _mean([row[4] for row in rows if (row[0], row[3]) == (task, metric)])
        if metric in LOG_PROBABILITIES:
            yield f"{task} perplexity", math.exp(-mean)
        else:
            yield f"{task} {metric}", mean


def _mean(values: Sequence[Cell]) -> float:
    numbers = [float(value) for value in values if value is not None]
    return sum(numbers) / len(numbers)


def _task(name: str) -> str | dict[str, Any]:
    """Return a task's name, or the content of its file."""
    if not name.endswith((".yaml", ".yml")):
        return name
    try:
        config: dict[str, Any] = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"{name}: no such task file") from None
    except yaml.YAMLError as error:  # among them tags such as !function
        raise UserError(f"{name}: not plain YAML ({str(error).partition(chr(10))[0]})") from None
    return config
