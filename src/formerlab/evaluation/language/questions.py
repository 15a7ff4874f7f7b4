"""Questions with their tokens, which can be asked repeatedly; answers are scored in batches of true lengths."""

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
from formerlab.evaluation.measurement import Measured
from formerlab.files import read_json
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.tasks.scoring import AttendFor, evaluating, score


class QuestionScore(NamedTuple):
    """One metric of one example."""

    task: str
    task_version: str
    example: str | int
    """The example's own id, or its number in the task where it has none."""
    metric: str
    """acc, acc_norm (log-probability per character), acc_mutual_info (log-probability gained by the context), log_prob
    (nats)."""
    value: float
    choices: int | None
    """Number of answers to choose from; None where the answer is free."""
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
    """All examples of some tasks of the harness (what it calls a TaskDict), ready to be answered.

    Contexts and continuations are those of lm-evaluation-harness, and so are the metrics. `limit` keeps the first
    examples of a task; `leading` names the tasks whose contexts begin with the token `end_of_text` (none: the id of
    `<|endoftext|>`), which also stands for an empty context. Raises UserError for a task that is not answered by
    log-probabilities: `lm_eval --model hf` asks such tasks of an exported folder.
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
        from formerlab.evaluation.language.harness import Encoder, prepared

        end = end_of_text_id(tokenizer) if end_of_text is None else end_of_text
        self.questions: list[Question] = []
        self.encoded: list[Any] = []
        for name, task in prepared(tasks, limit).items():
            first, closed = len(self.encoded), task.OUTPUT_TYPE == "multiple_choice"
            for doc_id, group in groupby(task.instances, key=lambda instance: instance.doc_id):
                instances = list(group)
                doc = instances[0].doc
                requests = range(first, first := first + len(instances))
                choices = len(task.doc_to_choice(doc)) if closed else None
                self.questions.append(Question(task, doc.get("id", doc_id), doc, requests, choices))
            self.encoded += Encoder(tokenizer, end, leading_token=name in leading).encode(task.instances)

    def cut(self, context: int) -> dict[str, int]:
        """Return, by task, how many requests are longer than a model's context and lose their beginning."""
        counts: Counter[str] = Counter()
        for question in self.questions:
            lengths = [sum(map(len, self.encoded[request][1:])) for request in question.requests]
            counts[question.task.config.task] += sum(length > context + 1 for length in lengths)
        return dict(+counts)

    def answers(self, model: DecoderModel, **options: Any) -> Iterator[QuestionScore]:
        """Yield every metric of every example; `options` are those of the function `answers`."""
        found = answers(model, self.encoded, **options)
        for question in self.questions:
            task, mine = question.task, [found[request] for request in question.requests]
            held = fmean(answer.realised_budget for answer in mine)
            for metric, value in task.process_results(question.doc, [answer[:2] for answer in mine]).items():
                if isinstance(value, int | float):  # corpus metrics give tuples: no value of one example
                    name = "log_prob" if metric == "perplexity" else metric  # exp(-mean) over examples is one
                    about = task.config.task, str(task.VERSION), question.example, name
                    yield QuestionScore(*about, float(value), question.choices, held)


class Answer(NamedTuple):
    """The model's answer to one request."""

    log_prob: float
    """Sum over the continuation's tokens, nats."""
    greedy: bool
    """Whether each of them is the most probable one."""
    realised_budget: float
    """Share of keys and values still held at the end."""


def answers(
    model: DecoderModel,
    requests: Sequence[tuple[Any, list[int], list[int]]],
    *,
    batch: int = 16,
    batch_tokens: int | None = None,
    attend_for: AttendFor | None = None,
    progress: Progress | None = None,
) -> list[Answer]:
    """Return the model's answer to each request, which is its text and the tokens of context and continuation.

    There is one forward pass per request. `batch` sequences are scored at a time, of `batch_tokens` tokens at most
    where given, padding counted. What exceeds the model's context is cut from the left, as the harness does for Hugging
    Face models; of a continuation longer than the context its last tokens alone are scored.
    """
    found: dict[int, Answer] = {}
    tokens = [(context + ending)[-(model.spec.context + 1) :] for _, context, ending in requests]
    scored = [min(len(ending), len(own) - 1) for own, (_, _, ending) in zip(tokens, requests, strict=True)]
    left = sorted(range(len(requests)), key=lambda request: -len(tokens[request]))  # a batch has similar lengths
    with evaluating(model):
        while left:
            fit = batch if batch_tokens is None else min(batch, max(1, batch_tokens // len(tokens[left[0]])))
            group, left = left[:fit], left[fit:]
            own = _scored(model, [tokens[i] for i in group], [scored[i] for i in group], attend_for)
            found |= dict(zip(group, own, strict=True))
            if progress is not None:
                progress.advance(len(group))
    return [found[request] for request in range(len(requests))]


def _scored(
    model: DecoderModel, rows: Sequence[list[int]], counts: Sequence[int], attend_for: AttendFor | None
) -> Iterator[Answer]:
    """Yield the answers to the requests of a batch: of each row so many tokens at the end are scored."""
    tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) - 1 for row in rows])
    first = int((lengths - torch.tensor(counts)).min())  # column from which on one is scored
    scores = score(model, tokens, lengths, attend_for, last=max(1, tokens.shape[1] - 1 - first))
    for row, (length, count) in enumerate(zip(lengths.tolist(), counts, strict=True)):
        scored = slice(length - count - first, length - first)
        log_prob, greedy = scores.log_probs[row, scored].double().sum().item(), bool(scores.greedy[row, scored].all())
        yield Answer(log_prob, greedy, scores.realised_budget[row].item())


def questions_of(run: Measured, limit: int | None = None) -> Questions:
    """Load the embedded questions of a run's data set and the suites that are asked."""
    for name, (suite, planned) in run.suites.items():
        if suite.state() not in (None, planned):
            raise UserError(f"{run.label}: suite {name} has changed since it was planned; plan and start it again")
    suites = {name: suite for name, (suite, _) in run.suites.items()}
    tasks = load_suites(suites, embedded_tasks(run.data))
    leading = [name for name, suite in suites.items() if suite.leading_token]
    end_of_text = int(read_json(run.data / "manifest.json")["tokenizer"]["end_of_text"])
    return Questions(tasks, load_tokenizer(run.data), end_of_text=end_of_text, limit=limit, leading=leading)


def load_suites(suites: Mapping[str, Suite], others: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    """Load the tasks of all suites, behind those of `others`, which are configurations. The network is asked only where
    a suite of the harness names no local copies.
    """
    from formerlab.evaluation.language.harness import check_copy, load_tasks

    online = any(isinstance(suite, HarnessSuite) and not suite.paths for suite in suites.values())
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        configs = [*others, *(suite.config(name, Path(folder)) for name, suite in suites.items())]
        tasks = load_tasks(configs, offline=not online)
        for name, suite in suites.items():
            if isinstance(suite, HarnessSuite) and suite.paths:
                check_copy(name, tasks["tasks"][name])
        return tasks
