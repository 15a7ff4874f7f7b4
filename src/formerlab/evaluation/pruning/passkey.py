"""The stage `passkey`: whether a model with a pruned cache still finds a number that it read long ago.

A number stands once in a long, dull text (passkey retrieval, arXiv:2305.16300); at the end it is asked
for. Pruning acts from the first token on, as everywhere here, so a policy has to keep the number before it knows that
it will be asked for.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Annotated, Self

import numpy as np
import torch
from pydantic import Field
from tokenizers import Tokenizer

from formerlab.cache import H2O, Budget, CachePolicy, Decay, Local
from formerlab.data import load_tokenizer
from formerlab.errors import UserError
from formerlab.evaluation.kept import Kept
from formerlab.evaluation.measurement import Measured, Measurement, Reading
from formerlab.evaluation.pruning.prune import Work, configurations
from formerlab.evaluation.pruning.windows import Configuration, Row
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.results.write import Cell
from formerlab.spec import Count, Size
from formerlab.tasks.scoring import evaluating, score
from formerlab.training.any_run import AnyRun

KEPT = ".passkey"
"""Folder beside a run in which the answers that are there wait for the others."""
TASK = "There is a pass key hidden in a long text. Find it and remember it.\n\n"
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
HIDDEN = "The pass key is {key}. Remember it. {key} is the pass key.\n"
QUESTION = "\nWhat is the pass key? The pass key is"


class Passkey(Measurement):
    """Which policies are asked, behind texts of which lengths."""

    policies: tuple[CachePolicy, ...] = (Local(), H2O(), Decay(alpha=0.2))
    """Policies to compare, beside the whole cache."""
    budgets: tuple[Budget, ...] = (0.4,)
    """Shares of the text's length, or entries."""
    lengths: tuple[Size, ...] = (1024, 2048, 4096)
    """Tokens of the text, the question and the number included."""
    depths: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    """Where the number stands, as shares of the text."""
    numbers: Count = 2
    """Numbers at each depth."""

    def of(self, run: AnyRun, *, questions: bool) -> Self:
        """Refuse texts longer than the model's context."""
        del questions
        context = int(getattr(run.model, "context", 0))
        if max(self.lengths) > context:
            raise UserError(
                f"lengths: {max(self.lengths)} exceeds model.context={context} of run {run.name!r}; lower it"
            )
        return self

    def reading(self, run: AnyRun, questions: int) -> Reading:
        """Return the tokens of all texts, each read once under every configuration."""
        del run, questions
        tokens = len(configurations(self.policies, self.budgets)) * sum(self.lengths) * len(self.depths) * self.numbers
        return Reading(tokens, cached=tokens)


def measure(run: Measured, settings: Passkey) -> None:
    """Write passkey.csv."""
    work = Work(Kept(run.folder / KEPT), run.belongs_to, run.code_of)
    run.write("passkey.csv", rows(run.model, load_tokenizer(run.data), settings, label=run.label, work=work))
    work.kept.tidy()


def rows(
    model: DecoderModel, tokenizer: Tokenizer, settings: Passkey, *, label: str = "passkey", work: Work | None = None
) -> list[Sequence[Cell]]:
    """Return a row per configuration, length, depth and number: whether every token of it is the most probable.

    What `work` keeps of a configuration and a length is not read again.
    """
    work, found = work or Work(), list[Sequence[Cell]]()
    places = list(product(settings.depths, range(settings.numbers)))
    texts = {length: [make_text(tokenizer, length, *place) for place in places] for length in settings.lengths}
    compared = configurations(settings.policies, settings.budgets)
    with Progress(len(compared) * len(texts) * len(places), label, unit="text") as progress, evaluating(model):

        def answered(configuration: Configuration, length: int) -> Iterator[Row]:
            attend_for = partial(configuration.attend, position=model.position)
            for place, (tokens, answer) in zip(places, texts[length], strict=True):
                said = score(model, torch.tensor([tokens]), torch.tensor([len(tokens) - 1]), attend_for, last=answer)
                right, log_prob = bool(said.greedy.all()), said.log_probs.double().sum().item()
                yield *configuration.cells(), said.realised_budget.item(), length, *place, int(right), log_prob
                progress.advance()

        for configuration, length in product(compared, texts):
            about = work.of(settings, configuration, length, settings.depths, settings.numbers)
            if work.kept.has(*about):
                progress.skip(len(places))
            found += work.kept.rows(partial(answered, configuration, length), *about)
    return found


def make_text(tokenizer: Tokenizer, length: int, depth: float, number: int) -> tuple[list[int], int]:
    """Return a text of at most `length` tokens with a number in it and the question behind it, and how many answer it.

    Whole sentences of filler stand before and behind the number, which is drawn from (length, depth, number). Raises
    UserError where not even the question fits.
    """
    key = int(np.random.default_rng([length, round(1000 * depth), number]).integers(10000, 100000))

    def encoded(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    task, filler, hidden = encoded(TASK), encoded(FILLER), encoded(HIDDEN.format(key=key))
    question, answer = encoded(QUESTION), encoded(f" {key}")
    room = length - len(task) - len(hidden) - len(question) - len(answer)
    if room < len(filler):
        raise UserError(f"lengths: {length} tokens hold no text around the question; give more")
    lines = room // len(filler)
    before = round(depth * lines)
    return [*task, *filler * before, *hidden, *filler * (lines - before), *question, *answer], len(answer)
