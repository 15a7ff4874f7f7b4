"""Zero-shot questions, scored by lm-evaluation-harness."""

import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from formerlab.errors import UserError
from formerlab.evaluation.scoring import AttendFor
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.rows import write_rows

TaskConfig = Mapping[str, Any]
Tasks = dict[str, Any]
"""What the harness calls a TaskDict: its tasks by name."""
FEWSHOT_SEED = 1234  # the harness's own default


class QuestionScore(NamedTuple):
    """One metric of one example."""

    task: str
    task_version: str
    example: int
    metric: str
    """acc, acc_norm (log-probability per character) or acc_mutual_info (log-probability gained by the context)."""
    value: float
    choices: int | None
    """Answers to choose from; none where the answer is free."""
    realised_budget: float = 1.0
    """Share of keys and values still held at the end, mean over the example's requests."""


COLUMNS = ("task", "task_version", "example", "metric", "value", "choices")


def load_tasks(configs: Sequence[TaskConfig | str], *, offline: bool = True) -> Tasks:
    """Load tasks once, for any number of evaluations.

    A config is the harness's own: a dictionary like a task's YAML, or the name of a task it comes with. `offline`
    forbids the hub; tasks that are not embedded then must be in the local cache. Raises UserError where a task is not
    found.
    """
    if offline:
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    with quiet(), TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_defaults=any(isinstance(config, str) for config in configs))
        try:
            tasks: Tasks = manager.load(
                [config if isinstance(config, str) else _local(config, cache) for config in configs]
            )
        except (OSError, KeyError, ValueError) as error:  # of the harness, of data sets, of the hub
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"the questions cannot be loaded ({reason}); prepare their data again") from error
    return tasks


def evaluate_tasks(
    model: DecoderModel,
    tokenizer: Tokenizer,
    tasks: Tasks,
    *,
    batch: int = 16,
    attend_for: AttendFor | None = None,
    limit: int | None = None,
    leading_token: bool = False,
    end_of_text: int | None = None,
    progress: Progress | None = None,
) -> list[QuestionScore]:
    """Return every metric of every example; one forward pass per context and choice, in batches of true lengths.

    A context is never preceded by a special token unless `leading_token` says so; an empty one, as `acc_mutual_info`
    asks for, is the token `end_of_text` (none: the id of `<|endoftext|>`). `limit` keeps the first examples of a task.
    """
    import lm_eval

    from formerlab.evaluation.harness import HarnessModel

    adapter = HarnessModel(
        model,
        tokenizer,
        batch=batch,
        attend_for=attend_for,
        leading_token=leading_token,
        end_of_text=end_of_text,
        progress=progress,
    )
    with quiet():
        _seed(tasks)
        results = lm_eval.evaluate(lm=adapter, task_dict=tasks, limit=limit, bootstrap_iters=0, log_samples=True)
    if adapter.cut:
        print(
            f"{adapter.cut} answers are longer than the model's context of {adapter.max_length} tokens: "
            "only their ends were scored",
            file=sys.stderr,
        )
    return list(_rows(results, tasks, adapter.realised_budgets()))


def zeroshot(
    model: DecoderModel,
    tokenizer: Tokenizer,
    tasks: Tasks,
    path: Path,
    *,
    batch: int = 16,
    limit: int | None = None,
    leading_token: bool = False,
    end_of_text: int | None = None,
    label: str = "zeroshot",
) -> list[QuestionScore]:
    """Write zeroshot.csv and return its rows."""
    with Progress(request_count(tasks, limit), label, unit="request") as progress:
        rows = evaluate_tasks(
            model,
            tokenizer,
            tasks,
            batch=batch,
            limit=limit,
            leading_token=leading_token,
            end_of_text=end_of_text,
            progress=progress,
        )
    write_rows(path, COLUMNS, [row[: len(COLUMNS)] for row in rows])
    return rows


def request_count(tasks: Tasks, limit: int | None = None) -> int:
    """Return how many sequences one evaluation scores."""
    with quiet():
        _seed(tasks)
        for task in tasks["tasks"].values():
            task.build_all_requests(limit=limit)
    return sum(len(task.instances) for task in tasks["tasks"].values())


def harness_version() -> str:
    """Return the version of lm-evaluation-harness, which belongs beside every number it gave."""
    return version("lm_eval")


def _seed(tasks: Tasks) -> None:
    """Have the next evaluation draw the same examples for its few-shot prompts as every other one."""
    for task in tasks["tasks"].values():
        task.set_fewshot_seed(FEWSHOT_SEED)


def _local(config: TaskConfig, cache: str) -> dict[str, Any]:
    """Read local files into memory, not through the user's cache of data sets, which jobs share and nobody empties."""
    options = config.get("dataset_kwargs") or {}
    if "data_files" not in options:
        return dict(config)
    return {**config, "dataset_kwargs": {**options, "cache_dir": cache, "keep_in_memory": True}}


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the harness: its log below errors, and progress bars that it offers no way to switch off."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with redirect_stderr(io.StringIO()):
        yield


def _rows(
    results: Mapping[str, Any], tasks: Tasks, realised: Mapping[tuple[str | None, int | None], float]
) -> Iterator[QuestionScore]:
    for name, samples in results["samples"].items():
        task, version = tasks["tasks"][name], str(results["versions"][name])
        closed = task.OUTPUT_TYPE == "multiple_choice"
        for sample in samples:
            choices = len(task.doc_to_choice(sample["doc"])) if closed else None
            budget = realised.get((name, sample["doc_id"]), 1.0)
            for metric in sample["metrics"]:
                if isinstance(sample[metric], int | float):  # corpus metrics give tuples: no value of one example
                    yield QuestionScore(name, version, sample["doc_id"], metric, float(sample[metric]), choices, budget)
