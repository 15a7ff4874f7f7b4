"""The stage `answers` and the command `answer-tasks`: generative tasks under cache policies.

Both write one row per metric of each example.
"""

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field

from formerlab.cache import H2O, Budget, CachePolicy, Decay
from formerlab.data.manifest import files_state
from formerlab.data.text.tokenizer import load_transformers_tokenizer
from formerlab.errors import UserError
from formerlab.evaluation.language.questions import load_suites
from formerlab.evaluation.language.suites import HarnessSuite, find_definition
from formerlab.evaluation.measurement import MeasuredRun, Measurement, Rows, StoredRows
from formerlab.evaluation.pruning import long_context
from formerlab.evaluation.pruning.prune import configurations
from formerlab.plan.code import code_hash
from formerlab.progress import Progress
from formerlab.released import ReleasedModel, source_path
from formerlab.results.stages import TABLES
from formerlab.results.write import write_rows
from formerlab.spec import AnyCount, Count, Seed, Size
from formerlab.training.any_run import AnyRun

COLUMNS = TABLES["answers.csv"].names


class GenerativeTasks(Measurement):
    """Tasks, policies and budgets; the full cache is always included."""

    cached: ClassVar[bool] = True
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] = tuple(long_context.TASKS)
    """Long-context tasks (`long_context.TASKS`), or names of generative tasks and groups of lm-evaluation-harness."""
    policies: tuple[CachePolicy, ...] = (H2O(), Decay(alpha=0.2))
    """Policies to compare with the full cache."""
    budgets: tuple[Budget, ...] = (0.4,)
    """Cache budgets: fractions of each prompt (float) or numbers of keys (int)."""
    lengths: Annotated[tuple[Size, ...], Field(min_length=1)] = (1024, 2048, 4096)
    """Lengths in tokens: of the long-context tasks, including the answer, and of harness groups that generate their
    prompts, such as `ruler`."""
    examples: Count = 20
    """Number of examples of each task and length."""
    seed: Seed = 0
    """Seed of the long-context tasks."""
    text: str | None = None
    """File with the text of the long-context tasks; by default documentation of Python's standard library."""
    shots: AnyCount = 0
    """Number of few-shot examples per question (lm-evaluation-harness tasks)."""
    chat_template: bool = False
    """Whether to wrap each prompt in the chat template of the model's tokenizer."""
    batch: Count = 1
    """Number of prompts that are answered together."""

    def settings_for_run(self, run: AnyRun, *, questions: bool) -> Self:
        self.check_lengths(int(getattr(run.model, "context", 0)))
        return self

    def check_lengths(self, context: int) -> None:
        """Raise UserError if a long-context task exceeds the model's context."""
        if not long_context.TASKS.keys().isdisjoint(self.tasks) and max(self.lengths) > context:
            raise UserError(f"lengths: {max(self.lengths)} exceeds the model's context of {context} tokens; lower it")

    def tokens_read(self, run: AnyRun, questions: int) -> int | None:
        if not long_context.TASKS.keys() >= set(self.tasks):
            return None  # the lengths of other tasks are unknown
        prompts = len(configurations(self.policies, self.budgets)) * self.examples * len(self.tasks)
        return prompts * sum(self.lengths)


def measure(run: MeasuredRun, settings: GenerativeTasks) -> None:
    """Write answers.csv."""
    stored = StoredRows(run.folder / ".answers", *run.input_hashes, code_hash=run.code_hash)
    source = run.spec.model.source
    rows, digests = answer_rows(run.model.model, source, settings, stored, device=run.device, label=run.label)
    run.notes.update(versions=_versions(), examples_sha256=digests)
    run.write("answers.csv", rows)
    stored.remove_unused()


def measure_tasks(source: ReleasedModel, settings: GenerativeTasks, out: Path, *, device: str) -> Rows:
    """Write the rows of all tasks under all configurations to the CSV file `out` (COLUMNS), and return the rows.

    Finished tasks are stored in the folder `<out>.rows`, so a stopped run continues after its last finished task. Rows
    are computed again if the weights, the examples, the code or the versions of lm_eval, transformers and torch
    changed. `device` is a torch device such as "cuda". Raises UserError before generation starts for an unsupported
    model, task, length, policy or prompt.
    """
    import torch

    from formerlab.integrations.huggingface.load import load_causal_lm

    arguments, dtype = source.arguments(), source.dtype and getattr(torch, source.dtype)
    model = load_causal_lm(arguments, device=device, dtype=dtype)
    stored = StoredRows(Path(f"{out}.rows"), files_state(source), source.to_dict(), code_hash=_code_hash)
    rows, _ = answer_rows(model, source, settings, stored, device=device, label=source_path(arguments))
    write_rows(out, COLUMNS, rows)
    stored.remove_unused()
    return rows


def answer_rows(
    model: Any, source: ReleasedModel, settings: GenerativeTasks, stored: StoredRows, *, device: str, label: str
) -> tuple[Rows, dict[str, str]]:
    """Return the rows (COLUMNS) of all tasks under all configurations, and the hash of the examples of each task.

    `model` is a transformers model from `source`. Answers in `stored` are not generated again. Raises UserError before
    generation starts for an unsupported task, length, policy or prompt.
    """
    from formerlab.integrations.huggingface.pruned_lm import PrunedLM, check_requests, task_scores
    from formerlab.integrations.huggingface.pruning import prune

    tokenizer = load_transformers_tokenizer(source.arguments())
    cache_configurations = configurations(settings.policies, settings.budgets)
    for configuration in cache_configurations:
        with prune(model, *configuration):  # raises UserError for a policy that cannot run in a cache
            pass
    context = PrunedLM(model, tokenizer, context=source.context).max_length
    suites = _load_tasks(settings, tokenizer, context)
    examples = [[*islice(task.eval_docs, settings.examples)] for suite in suites for task in suite["tasks"].values()]
    make_lm = partial(PrunedLM, model, tokenizer, context=context, batch=settings.batch)
    lms = [make_lm(*configuration) for configuration in cache_configurations]
    options: dict[str, Any] = {"limit": settings.examples, "chat_template": settings.chat_template}
    for suite in suites:
        check_requests(lms, suite, **options)
    digests = [sha256(repr(documents).encode()).hexdigest() for documents in examples]
    inputs = *_versions().values(), device, settings.batch, settings.shots, options
    rows, done = Rows(), 0
    with Progress(len(lms) * sum(map(len, examples)), label, unit="answer") as progress:
        for configuration, lm in zip(cache_configurations, lms, strict=True):
            lm.progress = progress
            for suite, documents, digest in zip(suites, examples, digests, strict=True):
                compute_scores = partial(task_scores, lm, suite, **options)
                settings_key, *key = configuration.row_key(settings)
                scores = stored.rows(compute_scores, settings_key, *key, *inputs, [*suite["tasks"]], digest)
                rows += [(*configuration.cells(), *score) for score in scores]
                progress.reach(done := done + len(documents))
    return rows, dict(zip((name for suite in suites for name in suite["tasks"]), digests, strict=True))


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("lm_eval", "transformers", "torch")}


def _code_hash(settings: Measurement) -> str:
    """Return the hash of the code that answers and scores tasks under the policies of `settings`."""
    return code_hash(__name__, specs=[settings])


def _load_tasks(settings: GenerativeTasks, tokenizer: Any, context: int) -> list[dict[str, Any]]:
    """Return a list of `load_suites` results.

    The list has a result for each named task, each task of a named group, and each long-context task at each length.
    Raises UserError for an invalid name, length or type of task.
    """
    from formerlab.evaluation.language.harness import load_group

    settings.check_lengths(context)
    loaded_suites = list[dict[str, Any]]()
    for name in (name for name in settings.tasks if name not in long_context.TASKS):
        kind, path = find_definition(name)
        if kind == "group":
            metadata = {"pretrained": tokenizer.name_or_path, "max_seq_lengths": list(settings.lengths)}
            loaded_suites += load_group(name, path, settings.shots, metadata)
        else:
            loaded_suites.append(load_suites({name: HarnessSuite(task=name, shots=settings.shots)}))
    long_tasks = [name for name in settings.tasks if name in long_context.TASKS]
    text = long_context.read_text(Path(settings.text) if settings.text else None) if long_tasks else None
    for name in long_tasks:
        for length in settings.lengths:
            assert text is not None
            examples = long_context.examples(
                name, length, settings.examples, lambda string: len(tokenizer(string)["input_ids"]), text, settings.seed
            )
            loaded_suites.append(load_suites({}, [long_context.task_config(name, length, list(examples))]))
    for task in (task for suite in loaded_suites for task in suite["tasks"].values()):
        if task.OUTPUT_TYPE != "generate_until":
            raise UserError(f"task '{task.config.task}' has type {task.OUTPUT_TYPE}; use a task of type generate_until")
    return loaded_suites


def summary_table(rows: Rows) -> list[str]:
    """Return the lines of a Markdown table: mean of each metric, 95 % interval over examples, number of examples.

    The last column is "no" for a long-context task whose score with the full cache is below
    `long_context.MIN_FULL_SCORE`, because such a task cannot compare policies.
    """
    from formerlab.statistics import over_examples  # imports pandas, which planning does without

    labels = list(dict.fromkeys(_label(row) for row in rows))
    header = " | ".join(["task", "metric", "n", *labels, f"full cache >= {long_context.MIN_FULL_SCORE}"])
    lines = [f"| {header} |", "|---" * (len(labels) + 4) + "|"]
    task_and_metric = itemgetter(COLUMNS.index("task"), COLUMNS.index("metric"))
    for (task, metric), group in groupby(sorted(rows, key=task_and_metric), key=task_and_metric):
        values: dict[str, list[float]] = {}
        for row in group:
            values.setdefault(_label(row), []).append(float(row[8] or 0))
        means = {label: over_examples(np.array([values[label]])) for label in labels}
        is_long = task.rpartition("_")[0] in long_context.TASKS
        sufficient = "" if not is_long else "yes" if means[labels[0]].mean >= long_context.MIN_FULL_SCORE else "no"
        cells = " | ".join(map(str, means.values()))
        lines.append(f"| {task} | {metric} | {len(values[labels[0]])} | {cells} | {sufficient} |")
    return lines


def _label(row: Sequence[Any]) -> str:
    policy, alpha, recent, budget = row[:4]
    fields = {"alpha": alpha, "recent": recent or None}
    return " ".join([policy, *(f"{key}={value}" for key, value in fields.items() if value is not None), str(budget)])
