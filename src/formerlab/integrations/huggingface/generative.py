"""Run generative tasks on a released model under cache policies; write one row per metric of each example."""

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from formerlab.cache import H2O, Budget, CachePolicy, Decay
from formerlab.data.manifest import files_state
from formerlab.data.text.tokenizer import load_transformers_tokenizer
from formerlab.errors import UserError
from formerlab.evaluation.language.questions import load_suites
from formerlab.evaluation.language.suites import HarnessSuite
from formerlab.evaluation.measurement import Measurement, Rows, StoredRows
from formerlab.evaluation.pruning import long_context
from formerlab.evaluation.pruning.prune import configurations
from formerlab.integrations.huggingface.load import load_causal_lm
from formerlab.integrations.huggingface.pruning import prune
from formerlab.plan.code import code_hash
from formerlab.progress import Progress
from formerlab.released import ReleasedModel, source_path
from formerlab.results.write import write_rows
from formerlab.spec import AnyCount, Count, Seed, Size
from formerlab.statistics import over_examples

COLUMNS = ("policy", "alpha", "recent", "budget", "task", "task_version", "example", "metric", "value")


class GenerativeTasks(Measurement):
    """Tasks, policies and budgets; the full cache is always included."""

    tasks: Annotated[tuple[str, ...], Field(min_length=1)] = tuple(long_context.TASKS)
    """Long-context tasks (`long_context.TASKS`) or names of generative tasks of lm-evaluation-harness."""
    policies: tuple[CachePolicy, ...] = (H2O(), Decay(alpha=0.2))
    """Policies to compare with the full cache."""
    budgets: tuple[Budget, ...] = (0.4,)
    """Cache budgets: fractions of each prompt (float) or numbers of keys (int)."""
    lengths: Annotated[tuple[Size, ...], Field(min_length=1)] = (1024, 2048, 4096)
    """Lengths of the long-context tasks in tokens, including the answer."""
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


def measure_tasks(source: ReleasedModel, settings: GenerativeTasks, out: Path, *, batch: int, device: str) -> Rows:
    """Write the rows of all tasks under all configurations to the CSV file `out` (COLUMNS), and return the rows.

    Finished tasks are stored in the folder `<out>.rows`, so a stopped run continues after its last finished task. Rows
    are computed again if the weights, the examples, the code or the versions of lm_eval, transformers and torch
    changed. `batch` is the number of prompts in a forward pass, and `device` is a torch device such as "cuda". Raises
    UserError before generation starts for an unsupported model, task, length, policy or prompt.
    """
    from formerlab.integrations.huggingface.pruned_lm import PrunedLM, check_requests, task_scores

    arguments, dtype = source.arguments(), source.dtype and getattr(torch, source.dtype)
    model = load_causal_lm(arguments, device=device, dtype=dtype)
    tokenizer = load_transformers_tokenizer(arguments)
    cache_configurations = configurations(settings.policies, settings.budgets)
    for configuration in cache_configurations:
        with prune(model, *configuration):  # raises UserError for a policy that cannot run in a cache
            pass
    context = PrunedLM(model, tokenizer, context=source.context).max_length
    suites = _load_tasks(settings, tokenizer, context)
    examples = [[*islice(task.eval_docs, settings.examples)] for suite in suites for task in suite["tasks"].values()]
    lms = [PrunedLM(model, tokenizer, *item, context=context, batch=batch) for item in cache_configurations]
    options: dict[str, Any] = {"limit": settings.examples, "chat_template": settings.chat_template}
    for suite in suites:
        check_requests(lms, suite, **options)
    digests = [sha256(repr(documents).encode()).hexdigest() for documents in examples]
    versions = version("lm_eval"), version("transformers"), torch.__version__
    inputs = source.to_dict(), device, batch, settings.shots, options
    stored = StoredRows(Path(f"{out}.rows"), files_state(source), *versions, *inputs, code_hash=_code_hash)
    rows, done = Rows(), 0
    with Progress(len(lms) * sum(map(len, examples)), source_path(arguments), unit="answer") as progress:
        for configuration, lm in zip(cache_configurations, lms, strict=True):
            lm.progress = progress
            for suite, documents, digest in zip(suites, examples, digests, strict=True):
                compute_scores = partial(task_scores, lm, suite, **options)
                scores = stored.rows(compute_scores, *configuration.row_key(settings), [*suite["tasks"]], digest)
                rows += [(*configuration.cells(), *score) for score in scores]
                progress.reach(done := done + len(documents))
    write_rows(out, COLUMNS, rows)
    stored.remove_unused()
    return rows


def _code_hash(settings: Measurement) -> str:
    """Return the hash of the code that answers and scores tasks under the policies of `settings`."""
    return code_hash(__name__, specs=[settings])


def _load_tasks(settings: GenerativeTasks, tokenizer: Any, context: int) -> list[dict[str, Any]]:
    """Load each task, and the long-context tasks at each length. Raises UserError for an invalid name, length or type
    of task.
    """
    long_tasks = [name for name in settings.tasks if name in long_context.TASKS]
    suites = {name: HarnessSuite(task=name, shots=settings.shots) for name in settings.tasks if name not in long_tasks}
    if long_tasks and max(settings.lengths) > context:
        raise UserError(f"lengths: {max(settings.lengths)} exceeds the model's context of {context} tokens; lower it")
    text = long_context.read_text(Path(settings.text) if settings.text else None) if long_tasks else None
    loaded_suites = [load_suites({name: suite}) for name, suite in suites.items()]
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
