"""A decoder as a model of lm-evaluation-harness.

This is the one module that imports lm_eval when it is loaded, because it subclasses its model; import it only inside
functions (`zeroshot.py` does).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer
from torch import Tensor

from formerlab.errors import UserError
from formerlab.evaluation.language.generate import end_of_text_id, sample
from formerlab.evaluation.language.journal import Journal
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.tasks.scoring import AttendFor, evaluating, score

Pair = tuple[str, str] | None
Encoded = tuple[Pair, list[int], list[int]]
Question = tuple[str | None, int | None]  # task and example
MOST_NEW_TOKENS = 256  # of generate_until, where a task does not say


class Answer(NamedTuple):
    """What the model says about one request."""

    log_prob: float
    """Sum over the continuation's tokens, nats."""
    greedy: bool
    """Whether each of them is the most probable one."""
    realised_budget: float
    """Share of keys and values still held at the end."""


class Input(NamedTuple):
    """One sequence to score."""

    request: int
    tokens: list[int]
    """Context and continuation; all but the last are fed to the model."""
    scored: int
    """Number of tokens at the end whose log-probabilities are summed."""


class Encoder(TemplateLM):  # type: ignore[misc]
    """Divides texts into the tokens of context and continuation as the harness does.

    The prefix token, which ends documents, stands for an empty context (as in `acc_mutual_info`) and, with
    `leading_token`, in front of every context.
    """

    def __init__(self, tokenizer: Tokenizer, end_of_text: int | None = None, *, leading_token: bool = False) -> None:
        """Encode with a tokenizer; `end_of_text` is the prefix token (none: the id of `<|endoftext|>`)."""
        super().__init__()
        self.tokenizer, self.leading_token = tokenizer, leading_token
        self.end_of_text = end_of_text_id(tokenizer) if end_of_text is None else end_of_text

    @property
    def eot_token_id(self) -> int:
        """Id of the token that ends a document; also the prefix of an empty context."""
        return self.end_of_text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return token ids; `add_special_tokens` False never adds the leading token."""
        ids: list[int] = self.tokenizer.encode(string, add_special_tokens=False).ids
        return [self.eot_token_id, *ids] if self.leading_token and add_special_tokens is not False else ids

    def encode(self, requests: list[Instance]) -> list[Encoded]:
        """Return the tokens of context and continuation of each request."""
        return self._divided(requests)

    def _divided(self, requests: list[Instance]) -> list[Any]:
        """Return what `_loglikelihood_tokens` makes of the requests' tokens, each with at least one to score."""
        try:
            return list(TemplateLM.loglikelihood(self, requests, disable_tqdm=True))
        except IndexError:  # where there is no context, the harness looks at the answer's first token
            raise UserError("an answer without a context has no token; leave its question out") from None

    def _loglikelihood_tokens(self, requests: Sequence[Encoded], **_: Any) -> list[Any]:
        check_endings(requests)
        return list(requests)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Refuse: this only encodes."""
        raise NotImplementedError

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Refuse: this only encodes."""
        raise NotImplementedError


class HarnessModel(Encoder):
    """Answers the harness's requests with a decoder, in batches of rows of true length.

    What exceeds the model's context is cut from the left, as the harness does for Hugging Face models; of a
    continuation longer than the context, its last tokens alone are scored, and `cut` counts such requests.
    """

    def __init__(
        self,
        model: DecoderModel,
        tokenizer: Tokenizer,
        *,
        batch: int = 16,
        batch_tokens: int | None = None,
        attend_for: AttendFor | None = None,
        leading_token: bool = False,
        end_of_text: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Score `batch` sequences at a time, of `batch_tokens` tokens at most where given, padding counted.

        `attend_for` makes the attention of a batch from its true lengths.
        """
        super().__init__(tokenizer, end_of_text, leading_token=leading_token)
        self.model, self.batch, self.batch_tokens, self.attend_for = model, batch, batch_tokens, attend_for
        self.progress = progress
        self.cut = 0
        self._realised: dict[Question, list[float]] = defaultdict(list)

    @property
    def max_length(self) -> int:
        """Longest input, in tokens."""
        return self.model.spec.context

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return (sum of log-probabilities, greedy) of each continuation; note what its question's cache held."""
        answers: list[Answer] = self._divided(requests)
        for request, answer in zip(requests, answers, strict=True):
            self._realised[request.task_name, request.doc_id].append(answer.realised_budget)
        return [answer[:2] for answer in answers]

    def realised_budgets(self) -> dict[Question, float]:
        """Return the share of keys and values still held at the end, mean over each question's requests."""
        return {question: fmean(budgets) for question, budgets in self._realised.items()}

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Return the log-probability of each whole string, in windows of the model's context."""
        windows, owners = [], []
        for owner, request in enumerate(requests):
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            for window in get_rolling_token_windows(ids, self.eot_token_id, self.max_length, context_len=1):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(owner)
        totals = [0.0] * len(requests)
        for owner, answer in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += answer.log_prob
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Return the most probable continuation of each context, up to the first stop string; without pruning only."""
        if self.attend_for is not None:
            raise UserError("a simulated cache cannot generate text; leave tasks of the type generate_until out")
        return [self._generate(*request.args) for request in requests]

    def _loglikelihood_tokens(self, requests: Sequence[Encoded], **_: Any) -> list[Answer]:
        check_endings(requests)
        return self.answers(requests)

    def answers(self, requests: Sequence[Encoded], journal: Journal | None = None) -> list[Answer]:
        """Return what the model says about each request; a batch that the `journal` knows is not asked again."""
        answers = [Answer(0.0, True, 1.0)] * len(requests)
        inputs = [self._input(request, context, target) for request, (_, context, target) in enumerate(requests)]
        inputs.sort(key=lambda item: -len(item.tokens))  # rows of a batch are of similar length, the longest come first
        with evaluating(self.model):
            for group in batches(inputs, self.batch, self.batch_tokens):
                if journal is not None and all(item.request in journal.known for item in group):
                    for item in group:
                        answers[item.request] = Answer(*journal.known[item.request])
                    if self.progress is not None:
                        self.progress.skip(len(group))
                    continue
                tokens, lengths = padded(group)
                first = min(len(item.tokens) - 1 - item.scored for item in group)  # column from which on one is scored
                scores = score(self.model, tokens, lengths, self.attend_for, last=max(1, tokens.shape[1] - 1 - first))
                for row, item in enumerate(group):
                    scored = slice(len(item.tokens) - 1 - item.scored - first, len(item.tokens) - 1 - first)
                    log_prob = scores.log_probs[row, scored].double().sum().item()
                    greedy = bool(scores.greedy[row, scored].all())
                    answers[item.request] = Answer(log_prob, greedy, scores.realised_budget[row].item())
                if journal is not None:
                    journal.add({item.request: answers[item.request] for item in group})
                if self.progress is not None:
                    self.progress.advance(len(group))
        return answers

    def _input(self, request: int, context: list[int], continuation: list[int]) -> Input:
        self.cut += len(continuation) > self.max_length
        tokens = (context + continuation)[-(self.max_length + 1) :]
        return Input(request, tokens, min(len(continuation), len(tokens) - 1))

    def _generate(self, context: str, options: dict[str, Any]) -> str:
        stops = options.get("until") or []
        stops = [stops] if isinstance(stops, str) else stops
        new = min(int(options.get("max_gen_toks", MOST_NEW_TOKENS)), self.max_length - 1)
        prompt = (self.tok_encode(context) or [self.eot_token_id])[-(self.max_length - new + 1) :]
        ids: list[int] = []
        text = ""
        for token in sample(self.model, prompt, tokens=new, temperature=float(options.get("temperature", 0.0))):
            if token == self.eot_token_id:
                break
            ids.append(token)
            text = self.tokenizer.decode(ids)
            if any(stop in text for stop in stops):
                break
        return min((text.split(stop)[0] for stop in stops), key=len, default=text)


def check_endings(requests: Sequence[Encoded]) -> None:
    """Raise UserError for an answer that adds no token to its context: it would be certain, whatever it says."""
    for pair, _, continuation in requests:
        if pair is not None and not continuation:
            raise UserError(
                f"the answer {pair[1]!r} adds no token to its context, which ends in {pair[0][-30:]!r}: they merge; "
                "begin answers with a space (the suite's delimiter), or leave the question out"
            )


def batches(inputs: Sequence[Input], size: int, tokens: int | None = None) -> Iterator[Sequence[Input]]:
    """Yield consecutive groups of at most `size` inputs; with `tokens` of at most so many, but for a single input.

    Inputs come longest first, so the first of a group says how wide it is.
    """
    first = 0
    while first < len(inputs):
        fit = size if tokens is None else min(size, max(1, tokens // len(inputs[first].tokens)))
        yield inputs[first : first + fit]
        first += fit


def padded(group: Sequence[Input]) -> tuple[Int[Tensor, "batch time_plus_1"], Int[Tensor, " batch"]]:
    """Return the tokens of a batch, padded with 0 on the right, and the true lengths of its inputs."""
    longest = max(len(item.tokens) for item in group)
    tokens = torch.zeros(len(group), longest, dtype=torch.int64)
    for row, item in enumerate(group):
        tokens[row, : len(item.tokens)] = torch.tensor(item.tokens)
    return tokens, torch.tensor([len(item.tokens) - 1 for item in group])
