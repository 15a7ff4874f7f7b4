"""Tasks of lm-evaluation-harness: loaded, and their requests divided into tokens.

This is the one module that imports lm_eval when it is loaded; import it only inside functions.
"""

import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from jinja2 import meta
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import env as templates
from tokenizers import Tokenizer

from formerlab.errors import UserError, reason, shown

FEWSHOT_SEED = 1234  # the harness's own default
Encoded = tuple[tuple[str, str] | None, list[int], list[int]]
"""A context and its continuation as text, and the tokens of each."""


def load_tasks(configs: Sequence[dict[str, Any] | str], *, offline: bool = True) -> dict[str, Any]:
    """Load tasks once, for any number of evaluations.

    A config is the harness's own: a dictionary like a task's YAML, or the path of one. `offline` forbids the hub; tasks
    of the hub then must be in the local cache.
    """
    if offline:
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
        if constants := sys.modules.get("huggingface_hub.constants"):  # which read the variable when they were imported
            constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    tasks: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
    with quiet():
        manager = TaskManager(include_defaults=False)  # its index of names takes long to build
        for config in configs:
            name = config["task"] if isinstance(config, dict) else Path(config).stem
            try:
                loaded: dict[str, Any] = manager.load([config])
            except Exception as error:  # of the harness, of data sets, of the hub, of what reads files below them
                remedy = "prepare their data again, or name whole local copies"
                raise UserError(f"suite {name}: the questions cannot be loaded ({_cause(error)}); {remedy}") from error
            tasks = {kind: found | loaded[kind] for kind, found in tasks.items()}
    return tasks


def _cause(error: BaseException) -> str:
    return reason(error) if error.__cause__ is None else _cause(error.__cause__)


def check_copy(name: str, task: Any) -> None:
    """Check that a task asks every row of a local copy as its definition words it. Raises UserError naming the row.

    The harness asks the name of a missing field, writes a null as `None`, and counts a label of no choice as wrong.
    """
    with quiet():
        fields, solved = _fields(task), task.fewshot_docs() if task.config.num_fewshot else ()
        for number, row in enumerate([*task.task_docs, *solved], 1):
            where = f"suites.{name}.paths: row {number}" + " (of the solved examples)" * (number > len(task.task_docs))
            if missing := sorted(fields - row.keys()):
                raise UserError(f"{where}: no field '{missing[0]}' among {', '.join(row)}; give it the hub's name")
            if nulls := [field for field in sorted(fields) if _holds_null(row[field])]:
                raise UserError(f"{where}: field '{nulls[0]}' holds a null; correct or remove the row")
            try:
                wrong = _wrong_label(task, row)
            except Exception as error:  # of templates and functions of the harness
                wrong = reason(error)
            if wrong:
                raise UserError(f"{where}: it cannot be asked ({wrong}); correct or remove the row")


def _fields(task: Any) -> set[str]:
    """Return the fields that a task's definition names, in templates or as a whole."""
    found = set[str]()
    for wording in (task.config.doc_to_text, task.config.doc_to_target, task.config.doc_to_choice):
        if isinstance(wording, str):
            variables = meta.find_undeclared_variables(templates.parse(wording))
            found |= variables or ({wording} if wording.isidentifier() else set())
    return found


def _holds_null(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_holds_null, value.values() if isinstance(value, dict) else value))
    return value is None or value != value  # NaN, as pandas writes a missing number


def _wrong_label(task: Any, row: dict[str, Any]) -> str | None:
    """Say what is wrong with the choices and the label of a row, if anything is."""
    if task.OUTPUT_TYPE != "multiple_choice":
        return None
    choices = task.doc_to_choice(row)
    if not isinstance(choices, list) or not all(isinstance(choice, str) and choice.strip() for choice in choices):
        return f"choices {shown(choices)} are not texts"
    gold = task.doc_to_text(row) if task.multiple_input else task.doc_to_target(row)
    for label in gold if isinstance(gold, list) else [gold]:
        if label not in (range(len(choices)) if isinstance(label, int) else choices):
            return f"label {shown(label)} is none of {len(choices)} choices"
    return None


def prepared(tasks: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """Build the requests of every task, with the same solved examples each time; return the tasks by name."""
    by_name: dict[str, Any] = tasks["tasks"]
    with quiet():
        for name, task in by_name.items():
            if task.OUTPUT_TYPE not in ("multiple_choice", "loglikelihood"):
                raise UserError(f"task '{name}' is of type {task.OUTPUT_TYPE}, which no choice answers; leave it out")
            task.set_fewshot_seed(FEWSHOT_SEED)
            try:
                task.build_all_requests(limit=limit)
            except Exception as error:  # of templates and functions of the harness
                raise UserError(f"suite {name}: a row cannot be asked ({reason(error)}); name a whole copy") from error
    return by_name


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the harness: its log below errors, and progress bars that it offers no way to switch off."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with redirect_stderr(io.StringIO()):
        yield


class Encoder(TemplateLM):  # type: ignore[misc]
    """Divides texts into the tokens of context and continuation as the harness does. The token `end_of_text` stands for
    an empty context (as in `acc_mutual_info`) and, with `leading_token`, in front of every context.
    """

    def __init__(self, tokenizer: Tokenizer, end_of_text: int, *, leading_token: bool = False) -> None:
        super().__init__()
        self.tokenizer, self.end_of_text, self.leading_token = tokenizer, end_of_text, leading_token

    @property
    def eot_token_id(self) -> int:
        """Id of the token that ends a document; also the prefix of an empty context."""
        return self.end_of_text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return token ids; `add_special_tokens` False never adds the leading token."""
        ids: list[int] = self.tokenizer.encode(string, add_special_tokens=False).ids
        return [self.eot_token_id, *ids] if self.leading_token and add_special_tokens is not False else ids

    def encode(self, requests: list[Instance]) -> list[Encoded]:
        """Return the tokens of context and continuation of each request.

        Raises UserError for an answer that adds no token to its context: its probability would be 1 in any case.
        """
        try:
            encoded: list[Encoded] = TemplateLM.loglikelihood(self, requests, disable_tqdm=True)
        except IndexError:  # where there is no context, the harness looks at the answer's first token
            raise UserError("an answer without a context has no token; leave its question out") from None
        for pair, _, continuation in encoded:
            if pair is not None and not continuation:
                raise UserError(
                    f"the answer {pair[1]!r} adds no token to its context, which ends in {pair[0][-30:]!r}: they merge;"
                    " begin answers with a space (the suite's delimiter), or leave the question out"
                )
        return encoded

    def _loglikelihood_tokens(self, requests: Sequence[Encoded], **_: Any) -> list[Encoded]:
        return list(requests)

    loglikelihood_rolling = generate_until = NotImplemented  # this only encodes
