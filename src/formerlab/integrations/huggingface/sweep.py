"""Zero-shot accuracy under cache policies: the published experiment on any model folder."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import Field, field_validator

from formerlab.cache import H2O, Budget, CachePolicy, Decay, Full
from formerlab.errors import UserError
from formerlab.evaluation.language.questions import QuestionScore, Tasks
from formerlab.evaluation.language.suite_tasks import suite_configs
from formerlab.evaluation.language.suites import Suite, check_names
from formerlab.evaluation.language.zeroshot import evaluate_tasks, harness_version, load_tasks
from formerlab.evaluation.pruning.configuration import Configuration
from formerlab.evaluation.pruning.prune import QUESTION_COLUMNS, WINDOW_COLUMNS, PruneSweep
from formerlab.files import read_json, write_json
from formerlab.integrations.huggingface.load import Loaded
from formerlab.plan.code import code_hash
from formerlab.plan.layers import Layer
from formerlab.plan.read import parse
from formerlab.progress import Progress
from formerlab.results.write import Cell, write_rows
from formerlab.spec import Count, Size, Spec, fingerprint
from formerlab.tasks.scoring import AttendFor
from formerlab.tasks.window_losses import Stream, spread_windows, window_losses
from formerlab.yaml_files import read_yaml

Rows = list[list[Cell]]

LOG_PROBABILITIES = ("perplexity", "log_prob")
"""Names under which an example's log-probability goes; their perplexity is exp(-mean)."""


class QuestionSweep(Spec):
    """What the Decay article measured: 0-shot, 40 % of the tokens (its Figure 4, Table 2; see arXiv:2407.20485)."""

    tasks: tuple[str, ...] = ("openbookqa", "winogrande", "arc_easy", "arc_challenge", "piqa")
    """Tasks of lm-evaluation-harness by name, or the paths of task files (.yaml)."""
    suites: dict[str, Suite] = {}
    """Questions from files, or tasks of the harness from local copies or with solved examples in front (`shots`), as
    the scales name them."""
    policies: tuple[CachePolicy, ...] = (H2O(),)
    """Policies beside the full cache and the values of alpha."""
    alphas: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    """Decay factors: each adds Decay with this alpha and no recent part."""
    budgets: tuple[Budget, ...] = (0.4,)
    """Shares of each request's, or window's, own length (float) or entries (int)."""
    leading_token: bool = False
    """Put the begin-of-text token in front of every context. The published runs had none; later releases of the harness
    leave it to the tokenizer, and the first token being the attention sink, pruning results move."""
    limit: Count | None = None
    """First examples of each task; none means all."""
    texts: tuple[str, ...] = ()
    """Files of plain text on whose windows the loss is measured."""
    windows: Count = 64
    """Windows of each text, evenly spread."""
    contexts: tuple[Size, ...] = (512,)
    """Tokens predicted in a window; each length is a measurement of its own."""
    batch: Count = 64
    """Sequences per forward pass; padding takes no part, so it changes nothing but rounding."""
    batch_tokens: Count = 4096
    """Tokens per forward pass, padding counted: long sequences come in smaller batches."""

    @field_validator("suites")
    @classmethod
    def _named(cls, suites: dict[str, Suite]) -> dict[str, Suite]:
        for name, suite in suites.items():
            if suite.leading_token:
                raise ValueError(f"{name}: leading_token is one for all here; set that of the sweep")
        return check_names(suites)

    def asked(self) -> list[Any]:
        """Return what tells these questions from others."""
        suites = [[name, suite.state() or suite.to_dict()] for name, suite in sorted(self.suites.items())]
        return [self.limit, self.leading_token, [_task(name) for name in self.tasks], *([suites] if suites else [])]

    def configurations(self) -> list[Configuration]:
        """Return the full cache and every policy, each once."""
        return PruneSweep(policies=self.policies, alphas=self.alphas).configurations(self.budgets)


def read_sweep(path: Path | None, **changes: Any) -> QuestionSweep:
    """Return the sweep of a YAML file (none: the published one) with some fields changed, those that are not none.

    A file that names questions or texts of its own asks the published tasks only where it names them too.
    """
    tree = read_yaml(Path(), str(path)) if path is not None else {}
    given = {key: value for key, value in changes.items() if value is not None}
    if {"suites", "texts"} & tree.keys() and "tasks" not in tree | given:
        tree["tasks"] = []
    sweep = parse(QuestionSweep, [Layer(str(path or "sweep"), tree), Layer("command line", given)])
    for name, suite in sweep.suites.items():
        suite.files(name)  # a file that is missing is named before a large model is loaded
    for name in sweep.tasks:
        _task(name)
    for text in sweep.texts:
        if not Path(text).is_file():
            raise UserError(f"texts: no file at '{text}'")
    return sweep


def run_sweep(
    loaded: Loaded, sweep: QuestionSweep, out: Path, *, identity: dict[str, Any], online: bool = False
) -> list[dict[str, Cell]]:
    """Write prune_questions.csv, prune_texts.csv and prune.json into `out`; return one row of means per configuration.

    Pruning is simulated row by row, as if each sequence were fed token by token, with budgets of true lengths. What a
    configuration gave is kept in `out/configurations`, so that a sweep that was stopped goes on; it counts while the
    model (`identity`), what is asked and the code are the same. Raises UserError where a window exceeds the context.
    """
    if sweep.texts and max(sweep.contexts) > (longest := loaded.model.spec.context):
        raise UserError(f"contexts: {max(sweep.contexts)} tokens exceed the model's context of {longest}")
    tasks = _load(sweep, online) if sweep.tasks or sweep.suites else None
    about = {"model": identity, "versions": {"lm_eval": harness_version()}}
    streams = {text: _encoded(loaded, text) for text in sweep.texts}
    rows: list[Sequence[Cell]] = []
    losses: list[Sequence[Cell]] = []
    means: list[dict[str, Cell]] = []
    configurations = sweep.configurations()
    for number, configuration in enumerate(configurations, start=1):
        label = f"{number} of {len(configurations)}: {named(configuration)}"
        kept = _Kept(out / "configurations", configuration, about)
        answers = kept.rows(
            sweep.asked(),
            lambda configuration=configuration, label=label: _answers(loaded, sweep, configuration, tasks, label),  # type: ignore[misc]
        )
        rows += [(*configuration.cells(), *row) for row in answers]
        measured: Rows = []
        for text, context in product(streams, sweep.contexts):
            measured += kept.rows(
                [text, fingerprint(streams[text].tolist()), sweep.windows, context],
                lambda configuration=configuration, label=label, text=text, context=context: _losses(  # type: ignore[misc]
                    loaded, sweep, configuration, text, streams[text], context, label
                ),
            )
        losses += [(*row[:2], *configuration.cells(), *row[2:]) for row in measured]
        means.append(_means(configuration, answers, measured))
    write_rows(out / "prune_questions.csv", QUESTION_COLUMNS, rows)
    write_rows(out / "prune_texts.csv", ("text", "context", *WINDOW_COLUMNS), losses)
    write_json(out / "prune.json", {"schema": 1, **about, "sweep": sweep.to_dict()})
    return means


def answer(loaded: Loaded, sweep: QuestionSweep, *, online: bool = False) -> Rows:
    """Return the rows of zeroshot.csv: every metric of every example, without pruning."""
    tasks = _load(sweep, online)
    return [list(score[:6]) for score in _ask(loaded, sweep, tasks, None)]


def _load(sweep: QuestionSweep, online: bool) -> Tasks:
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        configs = [*map(_task, sweep.tasks), *suite_configs(sweep.suites, Path(folder))]
        return load_tasks(configs, offline=not online)


def _ask(
    loaded: Loaded, sweep: QuestionSweep, tasks: Any, attend_for: AttendFor | None, progress: Progress | None = None
) -> list[QuestionScore]:
    return evaluate_tasks(
        loaded.model,
        loaded.tokenizer,
        tasks,
        batch=sweep.batch,
        batch_tokens=sweep.batch_tokens,
        attend_for=attend_for,
        progress=progress,
        limit=sweep.limit,
        leading_token=sweep.leading_token,
        end_of_text=loaded.prefix,
    )


def named(configuration: Configuration) -> str:
    """Return a configuration as people speak of it, such as `decay 0.2 at 40 %`."""
    policy, alpha, recent, budget = configuration.cells()
    if isinstance(configuration.policy, Full):
        return "full"
    name = f"{policy} {alpha:g}" if isinstance(configuration.policy, Decay) and alpha is not None else str(policy)
    name += f", {recent:.0%} recent" if isinstance(configuration.policy, Decay) and recent else ""
    return f"{name} at {f'{budget:.0%}' if isinstance(budget, float) else f'{budget} entries'}"


class _Kept:
    """What a configuration gave, kept on disk while model, question and code are the same."""

    def __init__(self, folder: Path, configuration: Configuration, about: dict[str, Any]) -> None:
        modules = "formerlab.integrations.huggingface.load", "formerlab.integrations.huggingface.sweep"
        self.folder, self.configuration = folder, configuration
        self.known = [
            about,
            configuration.policy.to_dict(),
            configuration.budget,
            code_hash(*modules, specs=[configuration.policy]),
        ]

    def rows(self, asked: Any, make: Callable[[], Rows]) -> Rows:
        """Return the rows of what is asked, from disk if there."""
        path = self.folder / f"{fingerprint([self.known, asked])}.json"
        if path.is_file():
            known: Rows = read_json(path)["rows"]
            return known
        rows = make()
        write_json(
            path, {"policy": self.configuration.policy.to_dict(), "budget": self.configuration.budget, "rows": rows}
        )
        return rows


def _answers(loaded: Loaded, sweep: QuestionSweep, configuration: Configuration, tasks: Any, label: str) -> Rows:
    """Return (realised budget, task, version, example, metric, value, choices) of every example."""
    if tasks is None:
        return []
    attend_for = partial(configuration.attend, position=loaded.model.position)
    with Progress(None, label, unit="answer") as progress:
        scores = _ask(loaded, sweep, tasks, attend_for, progress)
    return [[score.realised_budget, *score[:6]] for score in scores]


def _losses(
    loaded: Loaded,
    sweep: QuestionSweep,
    configuration: Configuration,
    text: str,
    stream: Stream,
    context: int,
    label: str,
) -> Rows:
    """Return (text, context, realised budget, window, tokens, loss) of every window."""
    windows = spread_windows(stream, context, sweep.windows)
    with Progress(len(windows), label, unit="window") as progress:
        losses = window_losses(
            loaded.model,
            stream,
            context,
            batch=max(1, min(sweep.batch, sweep.batch_tokens // context)),
            attend_for=partial(configuration.attend, position=loaded.model.position),
            windows=windows,
            progress=progress,
        )
    return [[Path(text).stem, context, loss.realised_budget, *loss[:3]] for loss in losses]


def _encoded(loaded: Loaded, text: str) -> Stream:
    """Return the tokens of a text; a window has no token in front of it."""
    content = Path(text).read_text(encoding="utf-8")
    return np.array(loaded.tokenizer.encode(content, add_special_tokens=False).ids, dtype=np.int64)


def _means(configuration: Configuration, rows: Rows, losses: Rows) -> dict[str, Cell]:
    """Return the configuration's name, its mean realised budget, and the means of metrics and losses."""
    policy, alpha, _, budget = configuration.cells()
    row: dict[str, Cell] = {"policy": policy, "alpha": alpha, "budget": budget}
    row |= {"realised": _mean([row[0] for row in rows] or [row[2] for row in losses])}
    row |= dict(task_means([row[1:] for row in rows]))
    for text, context in dict.fromkeys((row[0], row[1]) for row in losses):
        row[f"{text} {context} loss"] = _mean([own[5] for own in losses if (own[0], own[1]) == (text, context)])
    return row


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
