"""Cache policies on any model folder: the published experiment, on questions and texts that its user names."""

import json
import math
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import yaml
from pandas import DataFrame
from pydantic import Field, field_validator

from formerlab.cache import H2O, Budget, CachePolicy
from formerlab.data.splitting import Seen
from formerlab.data.text.embedded import Embedded, read_modules
from formerlab.data.text.questions import TASKS, make_questions, means
from formerlab.data.workers import Workers
from formerlab.errors import UserError
from formerlab.evaluation.language.questions import Questions
from formerlab.evaluation.language.suites import Suite, check_names
from formerlab.evaluation.measurement import Kept, Row, Rows
from formerlab.evaluation.pruning.prune import FILES, PolicySweep, answers, losses
from formerlab.evaluation.pruning.windows import Configuration
from formerlab.files import write_json, write_text
from formerlab.integrations.huggingface.load import Loaded
from formerlab.plan.code import code_hash
from formerlab.plan.layers import Tree, merge, parse
from formerlab.results.write import Cell, write_rows
from formerlab.spec import Count, Size, fingerprint
from formerlab.yaml_files import read_yaml


class QuestionSweep(PolicySweep):
    """What the Decay article measured: 0-shot, 40 % of the tokens (its Figure 4, Table 2; see arXiv:2407.20485)."""

    tasks: tuple[str, ...] = ("openbookqa", "winogrande", "arc_easy", "arc_challenge", "piqa")
    """Tasks of lm-evaluation-harness by name, or the paths of task files (.yaml)."""
    suites: dict[str, Suite] = {}
    """Questions from files, or tasks of the harness from local copies or with solved examples in front (`shots`), as
    the scales name them."""
    policies: tuple[CachePolicy, ...] = (H2O(),)
    alphas: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    budgets: tuple[Budget, ...] = (0.4,)
    leading_token: bool = False
    """Put the begin-of-text token in front of every context. The published runs had none; later releases of the harness
    leave it to the tokenizer, and the first token being the attention sink, pruning results move."""
    limit: Count | None = None
    """First examples of each task; by default all."""
    texts: tuple[str, ...] = ()
    """Files of plain text on whose windows the loss is measured."""
    windows: Count = 64
    contexts: tuple[Size, ...] = (512,)
    """Tokens predicted in a window; each length is a measurement of its own."""
    batch_tokens: Count | None = 4096

    @field_validator("suites")
    @classmethod
    def _named(cls, suites: dict[str, Suite]) -> dict[str, Suite]:
        for name, suite in suites.items():
            if suite.leading_token:
                raise ValueError(f"{name}: leading_token is one for all here; set that of the sweep")
        return check_names(suites)

    def questions(self, loaded: Loaded, *, online: bool = False) -> Questions:
        """Load the questions in the tokens of a model; only `online` asks the network."""
        from formerlab.evaluation.language.harness import load_tasks

        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            suites = (suite.config(name, Path(folder)) for name, suite in self.suites.items())
            configs = [*map(_task, self.tasks), *suites]
            tasks = load_tasks(configs, offline=not online)
        leading = list(tasks["tasks"]) if self.leading_token else ()
        return Questions(tasks, loaded.tokenizer, end_of_text=loaded.prefix, limit=self.limit, leading=leading)


def read_sweep(path: Path | None, **changes: Any) -> QuestionSweep:
    """Return the sweep of a YAML file (by default the published one), with the fields of `changes` that are not None.

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

    Pruning is simulated row by row, as if each sequence were fed token by token, with budgets of true lengths. Results
    of finished configurations are stored in `out/configurations`, so that a stopped sweep goes on; they count while the
    model (`identity`), the questions and the code are the same. Raises UserError where a window exceeds the context.
    """
    if sweep.texts and max(sweep.contexts) > (longest := loaded.model.spec.context):
        raise UserError(f"contexts: {max(sweep.contexts)} tokens exceed the model's context of {longest}")
    about = {"model": identity, "versions": {"lm_eval": version("lm_eval")}}
    modules = "formerlab.integrations.huggingface.load", "formerlab.evaluation.pruning.prune"

    kept = partial(Kept, out / "configurations", about, code_of=lambda settings: code_hash(*modules, specs=[settings]))
    rows = Rows()
    cut: dict[str, int] = {}
    if sweep.tasks or sweep.suites:
        questions = sweep.questions(loaded, online=online)
        cut = questions.cut(loaded.model.spec.context)
        suites = [[name, suite.state() or suite.to_dict()] for name, suite in sorted(sweep.suites.items())]
        asked = [sweep.limit, sweep.leading_token, [_task(name) for name in sweep.tasks], suites]
        rows = answers(loaded.model, questions, sweep, sweep.budgets, sweep.limit, kept(asked), "questions")
    measured = Rows()
    for text, context in product(sweep.texts, sweep.contexts):
        content, name = Path(text).read_text(encoding="utf-8"), Path(text).stem
        tokens = loaded.tokenizer.encode(content, add_special_tokens=False).ids  # with none in front of a window
        of_text, label = kept(text, fingerprint(tokens)), f"{name}, {context} tokens"
        found = losses(loaded.model, np.array(tokens, dtype=np.int64), context, sweep, of_text, label)
        measured += [(name, context, *row) for row in found]
    write_rows(out / "prune_questions.csv", FILES["prune_questions.csv"], rows)
    write_rows(out / "prune_texts.csv", ("text", "context", *FILES["prune.csv"]), measured)
    write_json(out / "prune.json", {"schema": 1, **about, "cut": cut, "sweep": sweep.to_dict()})
    return [_means(configuration, rows, measured) for configuration in sweep.configurations(sweep.budgets)]


def _means(configuration: Configuration, answered: Sequence[Row], measured: Sequence[Row]) -> dict[str, Cell]:
    """Return the configuration's name, its mean realised budget, and the means of metrics and losses."""
    policy, alpha, _, budget = cells = configuration.cells()
    own = [(row[4], f"{row[5]} {row[8]}", row[9]) for row in answered if row[:4] == cells]
    own += [(row[6], f"{row[0]} {row[1]} loss", row[9]) for row in measured if row[2:6] == cells]
    realised = means_by_name(("realised", row[0]) for row in own)
    return {"policy": policy, "alpha": alpha, "budget": budget, **realised, **means_by_name(row[1:] for row in own)}


def means_by_name(values: Iterable[tuple[str, Cell]]) -> dict[str, float]:
    """Return the mean of the values of each name; of a task's log_prob its perplexity, exp(-mean)."""
    found = dict[str, float]()
    for name, mean in DataFrame(values, columns=["name", "value"]).groupby("name", sort=False)["value"].mean().items():
        task, _, metric = str(name).rpartition(" ")
        found |= {f"{task} perplexity": math.exp(-mean)} if metric == "log_prob" else {str(name): mean}
    return found


def _task(name: str) -> str | dict[str, Any]:
    """Return a task's name, or the content of its file."""
    return read_yaml(Path(), name) if name.endswith((".yaml", ".yml")) else name


CHARACTERS = 400_000
"""Of the text, at most."""


def write_sample(folder: Path, questions: int) -> dict[str, tuple[str, ...]]:
    """Write the documentation of Python's standard library (PSF-2.0) as `tasks` and `texts` of a sweep; return those.

    A task is a kind of question, with so many `questions` of four choices. With the same Python they are the same on
    every machine. A model may have seen them while it was trained: they compare caches, and are no benchmark.
    """
    with Workers(1) as workers:
        modules = list(read_modules(Embedded(packages=()).located(), Seen(), workers))
    paths = []
    for task in TASKS:
        rows = make_questions(task, modules, questions)
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        file = (folder / f"{task.name}.jsonl").absolute()
        write_text(file, lines)
        # The harness caches data by the names of files: the name of the task tells one text from another.
        config = task.config(str(file)) | {"metric_list": means("acc"), "metadata": {"version": fingerprint(lines)[:8]}}
        path = file.with_suffix(".yaml")
        write_text(path, yaml.safe_dump(config, sort_keys=False))
        paths.append(str(path))
    text = folder / "python_docs.txt"
    write_text(text, "\n\n".join(module.render() for module in modules)[:CHARACTERS])
    return {"tasks": tuple(paths), "texts": (str(text),)}
