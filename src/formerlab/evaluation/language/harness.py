"""Tasks of lm-evaluation-harness: loaded, and their requests divided into tokens.

This is the one module that imports lm_eval when it is loaded; import it only inside functions.
"""

import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer

from formerlab.errors import UserError, reason

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
    with quiet():
        manager = TaskManager(include_defaults=False)  # its index of names takes long to build
        try:
            tasks: dict[str, Any] = manager.load(list(configs))
        except (OSError, KeyError, ValueError) as error:  # of the harness, of data sets, of the hub
            remedy = "prepare their data again, or name local copies"
            raise UserError(f"the questions cannot be loaded ({reason(error)}); {remedy}") from error
    return tasks


def prepared(tasks: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """Build the requests of every task, with the same solved examples each time; return the tasks by name."""
    by_name: dict[str, Any] = tasks["tasks"]
    with quiet():
        for name, task in by_name.items():
            if task.OUTPUT_TYPE not in ("multiple_choice", "loglikelihood"):
                raise UserError(f"task '{name}' is of type {task.OUTPUT_TYPE}, which no choice answers; leave it out")
            task.set_fewshot_seed(FEWSHOT_SEED)
            task.build_all_requests(limit=limit)
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
