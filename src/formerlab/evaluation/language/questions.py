"""Tokenized questions for several models and policies, and the scoring of answers in batches."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pad_sequence

from formerlab.data import load_tokenizer
from formerlab.errors import UserError
from formerlab.evaluation.language.generate import end_of_text_id
from formerlab.evaluation.language.suites import HarnessSuite, Suite, embedded_tasks
from formerlab.evaluation.measurement import MeasuredRun
from formerlab.files import read_json
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.tasks.scoring import AttendFor, evaluating, score


class QuestionScore(NamedTuple):
    """One metric of one example."""

    task: str
    task_version: str
    example: str | int
    """The example's id, or its index in the task if it has no id."""
    metric: str
    """acc, acc_norm or acc_mutual_info: 1 if the correct choice has the largest log-probability, log-probability per
    character, or increase of log-probability by the context; otherwise 0. Without choices, acc is 1 if each token of
    the answer is the most probable token. log_prob is in nats."""
    value: float
    choices: int | None
    """Number of choices; None if the question has no choices."""
    realised_budget: float = 1.0
    """Fraction of keys and values that are retained at the end, as the mean over the example's requests."""


class Question(NamedTuple):
    """An example of a task, and the indices of its requests."""

    task: Any
    example: str | int
    doc: Mapping[str, Any]
    requests: range
    choices: int | None


class Questions:
    """The first `limit` examples of each task of lm-evaluation-harness, with tokenized requests.

    `tasks` is the result of `load_tasks`. `end_of_text` (default: the id of `<|endoftext|>`) replaces an empty context,
    and it precedes every context of the tasks in `leading`. Raises UserError for a task that is not scored by
    log-probabilities; `lm_eval --model hf` can run such a task on an exported folder.
    """

    def __init__(
        self,
        tasks: dict[str, Any],
        tokenizer: Tokenizer,
        *,
        end_of_text: int | None = None,
        limit: int | None = None,
        leading: Sequence[str] = (),
    ) -> None:
        from formerlab.evaluation.language.harness import Encoder, build_requests

        end = end_of_text_id(tokenizer) if end_of_text is None else end_of_text
        self.questions: list[Question] = []
        self.encoded: list[Any] = []
        for name, task in build_requests(tasks, limit).items():
            first, has_choices = len(self.encoded), task.OUTPUT_TYPE == "multiple_choice"
            for doc_id, group in groupby(task.instances, key=lambda instance: instance.doc_id):
                instances = list(group)
                doc = instances[0].doc
                requests = range(first, first := first + len(instances))
                choices = len(task.doc_to_choice(doc)) if has_choices else None
                self.questions.append(Question(task, doc.get("id", doc_id), doc, requests, choices))
            self.encoded += Encoder(tokenizer, end, leading_token=name in leading).encode(task.instances)

    def truncated(self, context: int) -> dict[str, int]:
        """Count the requests of each task that exceed a model's context and are truncated from the left."""
        counts: Counter[str] = Counter()
        for question in self.questions:
            lengths = [sum(map(len, self.encoded[request][1:])) for request in question.requests]
            counts[question.task.config.task] += sum(length > context + 1 for length in lengths)
        return dict(+counts)

    def scores(self, model: DecoderModel, **options: Any) -> Iterator[QuestionScore]:
        """Yield every metric of every example; `options` are passed to `answer_requests`."""
        answers = answer_requests(model, self.encoded, **options)
        for question in self.questions:
            task, question_answers = question.task, [answers[request] for request in question.requests]
            cache_size = fmean(answer.realised_budget for answer in question_answers)
            results = task.process_results(question.doc, [answer[:2] for answer in question_answers])
            for metric, value in results.items():
                if isinstance(value, int | float):  # corpus metrics return tuples instead of a value per example
                    name = "log_prob" if metric == "perplexity" else metric  # perplexity is exp(-mean) over examples
                    keys = task.config.task, str(task.VERSION), question.example, name
                    yield QuestionScore(*keys, float(value), question.choices, cache_size)


class Answer(NamedTuple):
    """The model's answer to one request."""

    log_prob: float
    """Log-probability of the continuation, in nats."""
    greedy: bool
    """Whether each token of the continuation is the most probable token."""
    realised_budget: float
    """Fraction of keys and values that are retained at the end."""


def answer_requests(
    model: DecoderModel,
    requests: Sequence[tuple[Any, list[int], list[int]]],
    *,
    batch: int = 16,
    batch_tokens: int | None = None,
    attend_for: AttendFor | None = None,
    progress: Progress | None = None,
) -> list[Answer]:
    """Return the model's answer to each request (text, tokens of the context, tokens of the continuation).

    A forward pass scores `batch` sequences, or fewer if they have more than `batch_tokens` tokens including padding.
    Requests that exceed the model's context are truncated from the left, as the harness does for Hugging Face models;
    if the continuation alone is longer than the context, only its last tokens are scored.
    """
    scores: dict[int, Answer] = {}
    tokens = [(context + ending)[-(model.spec.context + 1) :] for _, context, ending in requests]
    counts = [min(len(ending), len(row) - 1) for row, (_, _, ending) in zip(tokens, requests, strict=True)]
    pending = sorted(range(len(requests)), key=lambda request: -len(tokens[request]))  # similar lengths per batch
    with evaluating(model):
        while pending:
            size = batch if batch_tokens is None else min(batch, max(1, batch_tokens // len(tokens[pending[0]])))
            group, pending = pending[:size], pending[size:]
            batch_answers = _score_batch(model, [tokens[i] for i in group], [counts[i] for i in group], attend_for)
            scores |= dict(zip(group, batch_answers, strict=True))
            if progress is not None:
                progress.advance(len(group))
    return [scores[request] for request in range(len(requests))]


def _score_batch(
    model: DecoderModel, rows: Sequence[list[int]], counts: Sequence[int], attend_for: AttendFor | None
) -> Iterator[Answer]:
    """Yield the answer to each row of tokens; `counts` are the numbers of scored tokens at the end of the rows."""
    tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) - 1 for row in rows])
    first = int((lengths - torch.tensor(counts)).min())  # first column that is scored in any row
    scores = score(model, tokens, lengths, attend_for, last=max(1, tokens.shape[1] - 1 - first))
    for row, (length, count) in enumerate(zip(lengths.tolist(), counts, strict=True)):
        scored = slice(length - count - first, length - first)
        log_prob, greedy = scores.log_probs[row, scored].double().sum().item(), bool(scores.greedy[row, scored].all())
        yield Answer(log_prob, greedy, scores.realised_budget[row].item())


def load_questions(run: MeasuredRun, limit: int | None = None) -> Questions:
    """Load the embedded questions of a run's data set and the run's suites. Raises UserError if a suite has changed."""
    for name, (suite, planned) in run.suites.items():
        if suite.state() not in (None, planned):
            raise UserError(f"{run.label}: suite {name} has changed since the plan was made; start snakemake again")
    suites = {name: suite for name, (suite, _) in run.suites.items()}
    tasks = load_suites(suites, embedded_tasks(run.data))
    leading = [name for name, suite in suites.items() if suite.leading_token]
    end_of_text = int(read_json(run.data / "manifest.json")["tokenizer"]["end_of_text"])
    return Questions(tasks, load_tokenizer(run.data), end_of_text=end_of_text, limit=limit, leading=leading)


def load_suites(suites: Mapping[str, Suite], task_configs: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    """Load tasks from `task_configs`, then the tasks of all suites.

    The network is accessed only for suites of the harness.
    """
    from formerlab.evaluation.language.harness import load_tasks

    online = any(isinstance(suite, HarnessSuite) for suite in suites.values())
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        configs = [*task_configs, *(suite.config(name, Path(folder)) for name, suite in suites.items())]
        return load_tasks(configs, offline=not online)
