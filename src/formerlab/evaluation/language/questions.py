"""Questions with their tokens, asked again and again: a study of many cache policies tokenises and checks them once."""

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from statistics import fmean
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from formerlab.errors import UserError
from formerlab.evaluation.language.generate import end_of_text_id
from formerlab.evaluation.language.journal import Journal
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.tasks.scoring import AttendFor

Tasks = dict[str, Any]
"""What the harness calls a TaskDict: its tasks by name."""
FEWSHOT_SEED = 1234  # the harness's own default
METRIC_NAMES = {"perplexity": "log_prob"}
"""Of an example the harness calls its log-probability perplexity; exp(-mean) over examples is one."""


class QuestionScore(NamedTuple):
    """One metric of one example."""

    task: str
    task_version: str
    example: str | int
    """The example's own id, or its place in the task where it has none."""
    metric: str
    """acc, acc_norm (log-probability per character), acc_mutual_info (log-probability gained by the context), log_prob
    (nats)."""
    value: float
    choices: int | None
    """Answers to choose from; none where the answer is free."""
    realised_budget: float = 1.0
    """Share of keys and values still held at the end, mean over the example's requests."""


class Question(NamedTuple):
    """An example of a task, and the requests that answer it."""

    task: Any
    example: str | int
    doc: Mapping[str, Any]
    requests: range
    choices: int | None


class Questions:
    """All examples of some tasks, ready to be answered.

    Contexts and continuations are those of lm-evaluation-harness, and so are the metrics. `limit` keeps the first
    examples of a task; `leading` names the tasks whose contexts begin with the token `end_of_text`, which also stands
    for an empty context. Raises UserError for a task that is not answered by log-probabilities.
    """

    def __init__(
        self,
        tasks: Tasks,
        tokenizer: Tokenizer,
        *,
        end_of_text: int | None = None,
        limit: int | None = None,
        leading: Sequence[str] = (),
    ) -> None:
        from formerlab.evaluation.language.harness import Encoder

        self.end_of_text = end_of_text_id(tokenizer) if end_of_text is None else end_of_text
        self.tokenizer = tokenizer
        self.questions: list[Question] = []
        self.encoded: list[Any] = []
        for name, task in prepare(tasks, limit).items():
            if task.OUTPUT_TYPE not in ("multiple_choice", "loglikelihood"):
                raise UserError(f"task '{name}' is of type {task.OUTPUT_TYPE}; leave it out of suites")
            closed = task.OUTPUT_TYPE == "multiple_choice"
            for doc_id, first, last in _groups(task.instances):
                doc = task.instances[first].doc
                requests = range(len(self.encoded) + first, len(self.encoded) + last)
                choices = len(task.doc_to_choice(doc)) if closed else None
                self.questions.append(Question(task, doc.get("id", doc_id), doc, requests, choices))
            encoder = Encoder(tokenizer, self.end_of_text, leading_token=name in leading)
            self.encoded += encoder.encode(task.instances)

    def __len__(self) -> int:
        """Return how many sequences one pass scores."""
        return len(self.encoded)

    def cut(self, context: int) -> dict[str, int]:
        """Return, by task, how many requests are longer than a model's context and lose their beginning."""
        counts: dict[str, int] = {}
        for question in self.questions:
            long = sum(len(self.encoded[i][1]) + len(self.encoded[i][2]) > context + 1 for i in question.requests)
            if long:
                counts[question.task.config.task] = counts.get(question.task.config.task, 0) + long
        return counts

    def answers(
        self,
        model: DecoderModel,
        *,
        batch: int = 16,
        batch_tokens: int | None = None,
        attend_for: AttendFor | None = None,
        progress: Progress | None = None,
        journal: Journal | None = None,
    ) -> Iterator[QuestionScore]:
        """Yield every metric of every example; one forward pass per context and choice, in batches of true lengths.

        What the `journal` knows is not asked again, and what is answered is written into it batch by batch.
        """
        from formerlab.evaluation.language.harness import HarnessModel

        adapter = HarnessModel(
            model,
            self.tokenizer,
            batch=batch,
            batch_tokens=batch_tokens,
            attend_for=attend_for,
            end_of_text=self.end_of_text,
            progress=progress,
        )
        answers = adapter.answers(self.encoded, journal)
        for question in self.questions:
            mine = [answers[request] for request in question.requests]
            held = fmean(answer.realised_budget for answer in mine)
            task = question.task
            for metric, value in task.process_results(question.doc, [answer[:2] for answer in mine]).items():
                if isinstance(value, int | float):  # corpus metrics give tuples: no value of one example
                    name = METRIC_NAMES.get(metric, metric)
                    version, choices = str(task.VERSION), question.choices
                    yield QuestionScore(task.config.task, version, question.example, name, float(value), choices, held)


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


def _groups(instances: Sequence[Any]) -> Iterator[tuple[int, int, int]]:
    """Yield (document, first, last + 1) of the consecutive requests of each document."""
    first = 0
    for place in range(1, len(instances) + 1):
        if place == len(instances) or instances[place].doc_id != instances[first].doc_id:
            yield instances[first].doc_id, first, place
            first = place
