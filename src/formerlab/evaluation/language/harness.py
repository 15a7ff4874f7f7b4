"""Load tasks of lm-evaluation-harness and tokenize their requests.

Import this module only inside functions, because it imports lm_eval.
"""

import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import meta
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import env as templates
from tokenizers import Tokenizer

from formerlab.errors import UserError, reason, short_repr

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
        if constants := sys.modules.get(
            "huggingface_hub.constants"
        ):  # huggingface_hub reads the variable only when it is imported
            constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    tasks: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
    with quiet():
        manager = TaskManager(include_defaults=False)  # the index of the default tasks takes long to build
        for config in configs:
            name = config["task"] if isinstance(config, dict) else Path(config).stem
            try:
                loaded: dict[str, Any] = manager.load([config])
            except Exception as error:  # the harness, datasets, the hub and file readers may raise any exception
                remedy = "prepare the data set again, or set paths of complete local copies"
                raise UserError(f"suite {name}: the questions cannot be loaded ({_cause(error)}); {remedy}") from error
            tasks = {kind: earlier | loaded[kind] for kind, earlier in tasks.items()}
    return tasks


def load_group(name: str, path: Path, shots: int, metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Load a group of the harness that the file `path` defines; return one result as of `load_tasks` for each task.

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


def check_copy(name: str, task: Any) -> None:
    """Raise UserError if a row of a local copy is not a valid question of a task. The harness does not check this."""
    with quiet():
        fields, solved_examples = _fields(task), task.fewshot_docs() if task.config.num_fewshot else ()
        questions = ((f"row {number}", row) for number, row in enumerate(task.task_docs, 1))
        solved = ((f"row {number} of the solved examples", row) for number, row in enumerate(solved_examples, 1))
        for row_name, row in chain(questions, solved):
            location = f"suites.{name}.paths: {row_name}"
            if missing := sorted(fields - row.keys()):
                raise UserError(
                    f"{location}: no field '{missing[0]}' among {', '.join(row)}; use the hub's field names"
                )
            if nulls := [field for field in sorted(fields) if _contains_null(row[field])]:
                raise UserError(f"{location}: field '{nulls[0]}' contains a null; correct or remove the row")
            try:
                fault = _label_fault(task, row)
            except Exception as error:  # templates and functions of the harness may raise any exception
                fault = reason(error)
            if fault:
                raise UserError(f"{location}: the question is invalid ({fault}); correct or remove the row")


def _fields(task: Any) -> set[str]:
    """Return the fields in a task's definition, which are variables of a template or plain field names."""
    fields = set[str]()
    for template in (task.config.doc_to_text, task.config.doc_to_target, task.config.doc_to_choice):
        if isinstance(template, str):
            variables = meta.find_undeclared_variables(templates.parse(template))
            fields |= variables or ({template} if template.isidentifier() else set())
    return fields


def _contains_null(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_contains_null, value.values() if isinstance(value, dict) else value))
    return value is None or value != value  # pandas writes a missing number as NaN


def _label_fault(task: Any, row: dict[str, Any]) -> str | None:
    """Return a description of invalid choices or an invalid label of a row, or None if they are valid."""
    if task.OUTPUT_TYPE != "multiple_choice":
        return None
    choices = task.doc_to_choice(row)
    if not isinstance(choices, list) or not all(isinstance(choice, str) and choice.strip() for choice in choices):
        return f"choices {short_repr(choices)} are not a list of non-empty strings"
    gold = task.doc_to_text(row) if task.multiple_input else task.doc_to_target(row)
    for label in gold if isinstance(gold, list) else [gold]:
        if label not in (range(len(choices)) if isinstance(label, int) else choices):
            return f"label {short_repr(label)} is not among the {len(choices)} choices"
    return None


def build_requests(tasks: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """Build the requests of every task, with the same few-shot examples in every call; return the tasks by name.

    Raises UserError for a task that is not scored by log-probabilities, and for an invalid row.
    """
    by_name: dict[str, Any] = tasks["tasks"]
    with quiet():
        for name, task in by_name.items():
            if task.OUTPUT_TYPE not in ("multiple_choice", "loglikelihood"):
                raise UserError(
                    f"task '{name}' has type {task.OUTPUT_TYPE}; only multiple_choice and loglikelihood are supported,"
                    " remove the task"
                )
            task.set_fewshot_seed(FEWSHOT_SEED)
            try:
                task.build_all_requests(limit=limit)
            except Exception as error:  # templates and functions of the harness may raise any exception
                remedy = "set the path of a complete local copy"
                raise UserError(f"suite {name}: a row is invalid ({reason(error)}); {remedy}") from error
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

        Raises UserError for an answer without tokens of its own, because its probability would always be 1.
        """
        try:
            encoded: list[Encoded] = TemplateLM.loglikelihood(self, requests, disable_tqdm=True)
        except IndexError:  # the harness takes the first token of an answer without a context
            raise UserError("an answer without a context encodes to no tokens; remove its question") from None
        for pair, _, continuation in encoded:
            if pair is not None and not continuation:
                raise UserError(
                    f"the answer {pair[1]!r} adds no token to its context, because the tokenizer merges the answer with"
                    f" the end of the context ({pair[0][-30:]!r}); begin answers with a space (the suite's delimiter),"
                    " or remove the question"
                )
        return encoded

    def _loglikelihood_tokens(self, requests: Sequence[Encoded], **_: Any) -> list[Encoded]:
        return list(requests)

    loglikelihood_rolling = generate_until = NotImplemented  # this class only encodes
