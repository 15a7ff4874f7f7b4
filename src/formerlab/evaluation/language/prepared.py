"""Tasks of lm-evaluation-harness with their requests built."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

Tasks = dict[str, Any]
"""What the harness calls a TaskDict: its tasks by name."""
FEWSHOT_SEED = 1234  # the harness's own default


def prepare(tasks: Tasks, limit: int | None = None) -> dict[str, Any]:
    """Build the requests of every task; return the tasks by name. `limit` keeps the first examples of each."""
    by_name: dict[str, Any] = tasks["tasks"]
    seed_shots(tasks)
    with quiet():
        for task in by_name.values():
            task.build_all_requests(limit=limit)
    return by_name


def seed_shots(tasks: Tasks) -> None:
    """Have the next evaluation draw the same examples for its few-shot prompts as every other one."""
    for task in tasks["tasks"].values():
        task.set_fewshot_seed(FEWSHOT_SEED)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the harness: its log below errors, and progress bars that it offers no way to switch off."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with redirect_stderr(io.StringIO()):
        yield
