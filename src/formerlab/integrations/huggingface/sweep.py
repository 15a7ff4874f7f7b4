"""Cache policies on any model folder: the published experiment, on questions and texts that its user names."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import Field, field_validator

from formerlab.cache import H2O, Budget, CachePolicy
from formerlab.errors import UserError
from formerlab.evaluation.kept import Kept
from formerlab.evaluation.language.questions import Questions, harness_version, load_tasks
from formerlab.evaluation.language.suite_tasks import suite_configs
from formerlab.evaluation.language.suites import Suite, check_names
from formerlab.evaluation.pruning.configuration import Configuration
from formerlab.evaluation.pruning.prune import QUESTION_COLUMNS, WINDOW_COLUMNS, PruneSweep, Work, answers, losses
from formerlab.files import write_json
from formerlab.integrations.huggingface.load import Loaded
from formerlab.plan.code import code_hash
from formerlab.plan.layers import Tree, merge
from formerlab.plan.read import parse
from formerlab.results.write import Cell, write_rows
from formerlab.spec import Count, Size, Spec, fingerprint
from formerlab.tasks.window_losses import Stream
from formerlab.yaml_files import read_yaml

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
        return [self.limit, self.leading_token, [_task(name) for name in self.tasks], suites]

    def of_model(self) -> PruneSweep:
        """Return the sweep in the form in which that of a run is."""
        shared = {name: getattr(self, name) for name in ("policies", "alphas", "budgets", "windows", "batch")}
        more = {"question_budgets": self.budgets, "question_limit": self.limit, "batch_tokens": self.batch_tokens}
        return PruneSweep(**shared, **more)

    def questions(self, loaded: Loaded, *, online: bool = False) -> Questions:
        """Load what is asked, in the tokens of a model; only `online` asks the network."""
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            configs = [*map(_task, self.tasks), *suite_configs(self.suites, Path(folder))]
            tasks = load_tasks(configs, offline=not online)
        leading = list(tasks["tasks"]) if self.leading_token else ()
        return Questions(tasks, loaded.tokenizer, end_of_text=loaded.prefix, limit=self.limit, leading=leading)


def read_sweep(path: Path | None, **changes: Any) -> QuestionSweep:
    """Return the sweep of a YAML file (none: the published one) with some fields changed, those that are not none.

    A file that names questions or texts of its own asks the published tasks only where it names them too.
    """
    tree = read_yaml(Path(), str(path)) if path is not None else {}
    given = {key: value for key, value in changes.items() if value is not None}
    if {"suites", "texts"} & tree.keys() and "tasks" not in tree | given:
        tree["tasks"] = []
    sweep = parse(QuestionSweep, merge(Tree(tree, str(path or "sweep")), Tree(given, "command line")))
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
    about = {"model": identity, "versions": {"lm_eval": harness_version()}}
    pruned, kept = sweep.of_model(), Kept(out / "configurations")
    modules = "formerlab.integrations.huggingface.load", "formerlab.evaluation.pruning.prune"
    work = Work(kept, (about,), lambda settings: code_hash(*modules, specs=[settings]))
    rows: list[tuple[Cell, ...]] = []
    cut: dict[str, int] = {}
    if sweep.tasks or sweep.suites:
        questions = sweep.questions(loaded, online=online)
        cut = questions.cut(loaded.model.spec.context)
        of_questions = work._replace(belongs_to=(about, sweep.asked()))
        rows = answers(loaded.model, questions, pruned, of_questions, "questions")
    measured: list[tuple[Cell, ...]] = []
    for text, context in product(sweep.texts, sweep.contexts):
        stream, name = _encoded(loaded, text), Path(text).stem
        of_text = work._replace(belongs_to=(about, text, fingerprint(stream.tolist())))
        found = losses(loaded.model, stream, context, pruned, of_text, f"{name}, {context} tokens")
        measured += [(name, context, *row) for row in found]
    write_rows(out / "prune_questions.csv", QUESTION_COLUMNS, rows)
    write_rows(out / "prune_texts.csv", ("text", "context", *WINDOW_COLUMNS), measured)
    write_json(out / "prune.json", {"schema": 1, **about, "cut": cut, "sweep": sweep.to_dict()})
    return [_means(configuration, rows, measured) for configuration in pruned.configurations(sweep.budgets)]


def _encoded(loaded: Loaded, text: str) -> Stream:
    """Return the tokens of a text; a window has no token in front of it."""
    content = Path(text).read_text(encoding="utf-8")
    return np.array(loaded.tokenizer.encode(content, add_special_tokens=False).ids, dtype=np.int64)


def _means(
    configuration: Configuration, answered: Sequence[Sequence[Cell]], measured: Sequence[Sequence[Cell]]
) -> dict[str, Cell]:
    """Return the configuration's name, its mean realised budget, and the means of metrics and losses."""
    policy, alpha, _, budget = cells = configuration.cells()
    rows = [row[4:] for row in answered if tuple(row[:4]) == cells]
    windows = [(f"{row[0]} {row[1]} loss", row[6], row[9]) for row in measured if tuple(row[2:6]) == cells]
    found: dict[str, Cell] = {"policy": policy, "alpha": alpha, "budget": budget}
    found |= {"realised": _mean([row[0] for row in rows] or [row[1] for row in windows])}
    found |= dict(task_means([row[1:] for row in rows]))
    for name in dict.fromkeys(row[0] for row in windows):
        found[name] = _mean([row[2] for row in windows if row[0] == name])
    return found


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
