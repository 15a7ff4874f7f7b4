"""Questions with their tokens, asked again and again; contexts and continuations scored in batches of true lengths."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor

from formerlab.evaluation.kept import Journal
from formerlab.evaluation.language.generate import end_of_text_id
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.tasks.scoring import AttendFor, evaluating, score

Tasks = dict[str, Any]
"""What the harness calls a TaskDict: its tasks by name."""


def load_tasks(configs: Sequence[Mapping[str, Any] | str], *, offline: bool = True) -> Tasks:
    """Load tasks once, for any number of evaluations.

    A config is the harness's own: a dictionary like a task's YAML, the path of one, or the name of a task it comes
    with. `offline` forbids the hub; tasks that are not embedded then must be in the local cache. Raises UserError where
    a task is not found.
    """
    from formerlab.evaluation.language import harness

    return harness.load(configs, offline=offline)


def harness_version() -> str:
    """Return the version of lm-evaluation-harness, which belongs beside every number it gave."""
    return version("lm_eval")


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
    examples of a task; `leading` names the tasks whose contexts begin with the token `end_of_text` (none: the id of
    `<|endoftext|>`), which also stands for an empty context. Raises UserError for a task that is not answered by
    log-probabilities: `lm_eval --model hf` asks such tasks of an exported folder.
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

    def __len__(self) -> int:
        """Return how many examples there are."""
        return len(self.questions)

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
        owners = [number for number, question in enumerate(self.questions) for _ in question.requests]
        left = [len(question.requests) for question in self.questions]

        def told(requests: Sequence[int], known: bool) -> None:
            """Count the questions all of whose requests are answered."""
            for request in requests:
                left[owners[request]] -= 1
            if progress is not None:
                count = progress.skip if known else progress.advance
                count(sum(left[owner] == 0 for owner in {owners[request] for request in requests}))

        options: dict[str, Any] = {"batch": batch, "batch_tokens": batch_tokens, "attend_for": attend_for}
        found = answers(model, self.encoded, journal=journal, told=told, **options)
        for question in self.questions:
            mine = [found[request] for request in question.requests]
            held = fmean(answer.realised_budget for answer in mine)
            task = question.task
            for metric, value in task.process_results(question.doc, [answer[:2] for answer in mine]).items():
                if isinstance(value, int | float):  # corpus metrics give tuples: no value of one example
                    name = "log_prob" if metric == "perplexity" else metric  # exp(-mean) over examples is one
                    release, choices = str(task.VERSION), question.choices
                    yield QuestionScore(task.config.task, release, question.example, name, float(value), choices, held)


class Answer(NamedTuple):
    """What the model says about one request."""

    log_prob: float
    """Sum over the continuation's tokens, nats."""
    greedy: bool
    """Whether each of them is the most probable one."""
    realised_budget: float
    """Share of keys and values still held at the end."""


class Input(NamedTuple):
    """One sequence to score: context and continuation, all but the last of which are fed to the model."""

    request: int
    tokens: list[int]
    scored: int
    """Number of tokens at the end whose log-probabilities are summed."""


def answers(
    model: DecoderModel,
    requests: Sequence[tuple[Any, list[int], list[int]]],
    *,
    batch: int = 16,
    batch_tokens: int | None = None,
    attend_for: AttendFor | None = None,
    journal: Journal | None = None,
    told: Callable[[Sequence[int], bool], None] = lambda requests, known: None,
) -> list[Answer]:
    """Return what the model says about each request: its text, and the tokens of context and continuation.

    `batch` sequences are scored at a time, of `batch_tokens` tokens at most where given, padding counted. What exceeds
    the model's context is cut from the left, as the harness does for Hugging Face models; of a continuation longer than
    the context its last tokens alone are scored. A batch that the `journal` knows is not asked again; `told` hears
    which requests are answered, and whether they were before.
    """
    journal, inputs = journal or Journal(), []
    for number, (_, context, ending) in enumerate(requests):
        tokens = (context + ending)[-(model.spec.context + 1) :]
        inputs.append(Input(number, tokens, min(len(ending), len(tokens) - 1)))
    inputs.sort(key=lambda item: -len(item.tokens))  # rows of a batch are of similar length, the longest come first
    first = 0
    with evaluating(model):
        while first < len(inputs):
            widest = len(inputs[first].tokens)
            fit = batch if batch_tokens is None else min(batch, max(1, batch_tokens // widest))
            group, first = inputs[first : first + fit], first + fit
            known = all(item.request in journal.known for item in group)
            if not known:
                journal.add(_scored(model, group, attend_for))
            told([item.request for item in group], known)
    return [Answer(*journal.known[request]) for request in range(len(requests))]


def _scored(model: DecoderModel, group: Sequence[Input], attend_for: AttendFor | None) -> dict[int, Answer]:
    """Return the answers to the requests of a batch."""
    tokens, lengths = padded(group)
    first = min(len(item.tokens) - 1 - item.scored for item in group)  # column from which on one is scored
    scores = score(model, tokens, lengths, attend_for, last=max(1, tokens.shape[1] - 1 - first))
    found = {}
    for row, item in enumerate(group):
        scored = slice(len(item.tokens) - 1 - item.scored - first, len(item.tokens) - 1 - first)
        log_prob = scores.log_probs[row, scored].double().sum().item()
        greedy = bool(scores.greedy[row, scored].all())
        found[item.request] = Answer(log_prob, greedy, scores.realised_budget[row].item())
    return found


def padded(group: Sequence[Input]) -> tuple[Int[Tensor, "batch time_plus_1"], Int[Tensor, " batch"]]:
    """Return the tokens of a batch, padded with 0 on the right, and the true lengths of its inputs."""
    tokens = torch.zeros(len(group), max(len(item.tokens) for item in group), dtype=torch.int64)
    for row, item in enumerate(group):
        tokens[row, : len(item.tokens)] = torch.tensor(item.tokens)
    return tokens, torch.tensor([len(item.tokens) - 1 for item in group])
