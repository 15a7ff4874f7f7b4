"""Load tasks of lm-evaluation-harness and tokenize their requests.

Import this module only inside functions, because it imports lm_eval.
"""

import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer

from formerlab.errors import UserError, reason

FEWSHOT_SEED = 1234
"""Seed of the few-shot examples, the default of the harness."""
Encoded = tuple[tuple[str, str] | None, list[int], list[int]]
"""Context and continuation as text, the tokens of the context, and the tokens of the continuation."""


def load_tasks(configs: Sequence[dict[str, Any] | str], *, offline: bool = True) -> dict[str, Any]:
    """Load tasks; return a dict with the keys tasks, groups and group_map.

    A config is a task configuration of the harness: a dictionary with the keys of a task's YAML file, or the path of
    such a file. `offline` sets environment variables of this process, so that data sets of the hub are read from the
    local cache. Raises UserError if a task cannot be loaded.
    """
    if offline:
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
        # huggingface_hub reads the variable only when it is imported
        if constants := sys.modules.get("huggingface_hub.constants"):
            constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    tasks: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
    with quiet():
        manager = TaskManager(include_defaults=False)  # the index of the default tasks takes long to build
        for config in configs:
            name = config["task"] if isinstance(config, dict) else Path(config).stem
            try:
                loaded: dict[str, Any] = manager.load([config])
            except Exception as error:  # the harness, datasets, the hub and file readers may raise any exception
                remedy = "prepare the data set again, or fetch the task's data set from the hub again"
                raise UserError(f"suite {name}: the questions cannot be loaded ({_cause(error)}); {remedy}") from error
            tasks = {kind: earlier | loaded[kind] for kind, earlier in tasks.items()}
    return tasks


def load_group(name: str, path: Path, shots: int, metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Load the group of the harness that the file `path` defines; return one `load_tasks` result per task.

    The tasks of the group must be defined in the folder of the file. `metadata` is passed to tasks that generate their
    questions, such as `ruler`. Raises UserError if a task cannot be loaded.
    """
    with quiet():
        try:
            manager = TaskManager(include_path=str(path.parent), include_defaults=False, metadata=metadata)
            tasks: dict[str, Any] = manager.load([name])["tasks"]
        except Exception as error:  # the harness, datasets, the hub and file readers may raise any exception
            raise UserError(f"group {name}: its tasks cannot be loaded ({_cause(error)})") from error
    for task in tasks.values():
        task.set_config("num_fewshot", shots)
    return [{"tasks": {task_name: task}, "groups": {}, "group_map": {}} for task_name, task in tasks.items()]


def _cause(error: BaseException) -> str:
    return reason(error) if error.__cause__ is None else _cause(error.__cause__)


def build_requests(tasks: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """Build the requests of every task, with the same few-shot examples in every call; return the tasks by name.

    Raises UserError for a task that is not scored by log-probabilities, and for an invalid row.
    """
    by_name: dict[str, Any] = tasks["tasks"]
    with quiet():
        for name, task in by_name.items():
            if task.OUTPUT_TYPE not in ("multiple_choice", "loglikelihood"):
                supported = "only multiple_choice and loglikelihood are supported"
                raise UserError(f"task '{name}' has type {task.OUTPUT_TYPE}; {supported}, remove the task")
            task.set_fewshot_seed(FEWSHOT_SEED)
            try:
                task.build_all_requests(limit=limit)
            except Exception as error:  # templates and functions of the harness may raise any exception
                raise UserError(f"suite {name}: a row is invalid ({reason(error)}); remove the task") from error
    return by_name


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the harness's log messages below errors, and its progress bars, which no option disables."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with redirect_stderr(io.StringIO()):
        yield


class Encoder(TemplateLM):  # type: ignore[misc]
    """A model interface of the harness that tokenizes contexts and continuations and computes no probabilities.

    The token `end_of_text` replaces an empty context (for `acc_mutual_info`); with `leading_token` it also begins every
    context.
    """

    def __init__(self, tokenizer: Tokenizer, end_of_text: int, *, leading_token: bool = False) -> None:
        super().__init__()
        self.tokenizer, self.end_of_text, self.leading_token = tokenizer, end_of_text, leading_token

    @property
    def eot_token_id(self) -> int:
        return self.end_of_text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return token ids, with the leading token unless `add_special_tokens` is False."""
        ids: list[int] = self.tokenizer.encode(string, add_special_tokens=False).ids
        return [self.eot_token_id, *ids] if self.leading_token and add_special_tokens is not False else ids

    def encode(self, requests: list[Instance]) -> list[Encoded]:
        """Return the tokens of context and continuation of each request.

        Raises UserError for an answer that adds no token to its context, because its probability would always be 1.
        """
        try:
            encoded: list[Encoded] = TemplateLM.loglikelihood(self, requests, disable_tqdm=True)
        except IndexError:  # the harness takes the first token of an answer without a context
            raise UserError("an answer without a context encodes to no tokens; remove its question") from None
        for pair, _, continuation in encoded:
            if pair is not None and not continuation:
                cause = f"the tokenizer merges it with the end of the context ({pair[0][-30:]!r})"
                remedy = "begin answers with a space (the suite's delimiter), or remove the question"
                raise UserError(f"the answer {pair[1]!r} adds no token to its context, because {cause}; {remedy}")
        return encoded

    def _loglikelihood_tokens(self, requests: Sequence[Encoded], **_: Any) -> list[Encoded]:
        return list(requests)

    loglikelihood_rolling = generate_until = NotImplemented  # this class only encodes
