"""Zero-shot questions, scored by lm-evaluation-harness."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer

from formerlab.errors import UserError
from formerlab.evaluation.language.questions import METRIC_NAMES, Questions, QuestionScore, Tasks, quiet, seed_shots
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.results.stages import TABLES
from formerlab.results.write import write_rows
from formerlab.tasks.scoring import AttendFor

TaskConfig = Mapping[str, Any]
COLUMNS = TABLES["zeroshot.csv"].names


def load_tasks(configs: Sequence[TaskConfig | str], *, offline: bool = True) -> Tasks:
    """Load tasks once, for any number of evaluations.

    A config is the harness's own: a dictionary like a task's YAML, the path of one, or the name of a task it comes
    with. `offline` forbids the hub; tasks that are not embedded then must be in the local cache. Raises UserError where
    a task is not found.
    """
    if offline:
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
        if constants := sys.modules.get("huggingface_hub.constants"):  # which read the variable when they were imported
            constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    with quiet(), TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_defaults=any(_is_name(config) for config in configs))
        try:
            tasks: Tasks = manager.load(
                [config if isinstance(config, str) else _local(config, cache) for config in configs]
            )
        except (OSError, KeyError, ValueError) as error:  # of the harness, of data sets, of the hub
            reason = str(error).strip().splitlines()[0]
            remedy = "prepare their data again, or name local copies"
            fetch = ", or let --online fetch them" if offline and "Offline" in reason else ""
            raise UserError(f"the questions cannot be loaded ({reason}); {remedy}{fetch}") from error
    return tasks


def evaluate_tasks(
    model: DecoderModel,
    tokenizer: Tokenizer,
    tasks: Tasks,
    *,
    batch: int = 16,
    batch_tokens: int | None = None,
    attend_for: AttendFor | None = None,
    limit: int | None = None,
    leading_token: bool = False,
    end_of_text: int | None = None,
    progress: Progress | None = None,
) -> list[QuestionScore]:
    """Return every metric of every example as the harness's own loop gives them, for tasks of any type.

    The stages ask `Questions`, which gives the same numbers and prepares them once. A context is never preceded by a
    special token unless `leading_token` says so; an empty one, as `acc_mutual_info` asks for, is the token
    `end_of_text` (none: the id of `<|endoftext|>`). `limit` keeps the first examples of a task.
    """
    import lm_eval

    from formerlab.evaluation.language.harness import HarnessModel

    adapter = HarnessModel(
        model,
        tokenizer,
        batch=batch,
        batch_tokens=batch_tokens,
        attend_for=attend_for,
        leading_token=leading_token,
        end_of_text=end_of_text,
        progress=progress,
    )
    seed_shots(tasks)
    with quiet():
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
    questions: Questions,
    path: Path,
    *,
    batch: int = 16,
    batch_tokens: int | None = None,
    label: str = "zeroshot",
) -> list[QuestionScore]:
    """Write zeroshot.csv and return its rows."""
    with Progress(len(questions), label, unit="request") as progress:
        rows = list(questions.answers(model, batch=batch, batch_tokens=batch_tokens, progress=progress))
    write_rows(path, COLUMNS, [row[: len(COLUMNS)] for row in rows])
    return rows


def harness_version() -> str:
    """Return the version of lm-evaluation-harness, which belongs beside every number it gave."""
    return version("lm_eval")


def _is_name(config: TaskConfig | str) -> bool:
    """Say whether the harness must look a task up in its index, which takes long to build."""
    return isinstance(config, str) and not config.endswith(".yaml")


def _local(config: TaskConfig, cache: str) -> dict[str, Any]:
    """Read local files into memory, not through the user's cache of data sets, which jobs share and nobody empties."""
    options = config.get("dataset_kwargs") or {}
    if "data_files" not in options:
        return dict(config)
    return {**config, "dataset_kwargs": {**options, "cache_dir": cache, "keep_in_memory": True}}


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
                if isinstance(value := sample[metric], int | float):  # corpus metrics give tuples
                    example, own = sample["doc"].get("id", sample["doc_id"]), METRIC_NAMES.get(metric, metric)
                    yield QuestionScore(name, version, example, own, float(value), choices, budget)
