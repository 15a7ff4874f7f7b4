"""The stage `passkey`: whether a model with a pruned cache still finds a number that it read long ago.

A number stands once in a long, dull text (passkey retrieval, arXiv:2305.16300); at the end it is asked for. Pruning
acts from the first token on, so a policy has to keep the number before it knows of the question.
"""

from functools import partial
from itertools import product
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer

from formerlab.cache import H2O, Budget, Decay, Local
from formerlab.data import load_tokenizer
from formerlab.errors import UserError
from formerlab.evaluation.language.questions import answers
from formerlab.evaluation.measurement import Kept, Measured, Measurement, Rows
from formerlab.evaluation.pruning.prune import Stepwise, configurations
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.spec import Count, Size
from formerlab.training.any_run import AnyRun

TASK = "There is a pass key hidden in a long text. Find it and remember it.\n\n"
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
HIDDEN = "The pass key is {key}. Remember it. {key} is the pass key.\n"
QUESTION = "\nWhat is the pass key? The pass key is"


class Passkey(Measurement):
    """The policies, and the lengths of the texts."""

    cached: ClassVar[bool] = True
    policies: tuple[Stepwise, ...] = (Local(), H2O(), Decay(alpha=0.2))
    """Policies to compare, beside the whole cache."""
    budgets: tuple[Budget, ...] = (0.4,)
    """Shares of the text's length, or entries."""
    lengths: Annotated[tuple[Size, ...], Field(min_length=1)] = (1024, 2048, 4096)
    """Tokens of the text, the question and the number included."""
    depths: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    """Positions of the number, as shares of the text."""
    numbers: Count = 2
    """Numbers at each depth."""

    def of(self, run: AnyRun, *, questions: bool) -> Self:
        context, longest = int(getattr(run.model, "context", 0)), max(self.lengths)
        if longest > context:
            raise UserError(f"lengths: {longest} exceeds model.context={context} of run {run.name!r}; lower it")
        return self

    def reading(self, run: AnyRun, questions: int) -> int:
        return len(configurations(self.policies, self.budgets)) * sum(self.lengths) * len(self.depths) * self.numbers


def measure(run: Measured, settings: Passkey) -> None:
    """Write passkey.csv."""
    kept = Kept(run.folder / ".passkey", *run.belongs_to, code_of=run.code_of)
    run.write("passkey.csv", rows(run.model, load_tokenizer(run.data), settings, label=run.label, kept=kept))
    kept.tidy()


def rows(
    model: DecoderModel, tokenizer: Tokenizer, settings: Passkey, *, label: str = "passkey", kept: Kept | None = None
) -> Rows:
    """Return a row per configuration, length, depth and number: whether every token of it is the most probable.

    Texts whose answers are `kept` are not read again.
    """
    kept, found = kept or Kept(), Rows()
    places = list(product(settings.depths, range(settings.numbers)))
    texts = {length: [make_text(tokenizer, length, *place) for place in places] for length in settings.lengths}
    compared = configurations(settings.policies, settings.budgets)
    with Progress(len(compared) * len(texts) * len(places), label, unit="text") as progress:
        for done, (configuration, length) in enumerate(product(compared, texts), 1):
            attend_for = partial(configuration.attend, position=model.position)
            ask = partial(answers, model, texts[length], batch=1, progress=progress, attend_for=attend_for)
            said = kept.rows(ask, *configuration.alone(settings), length, settings.depths, settings.numbers)
            for place, (log_prob, greedy, realised) in zip(places, said, strict=True):
                found.append((*configuration.cells(), realised, length, *place, int(bool(greedy)), log_prob))
            progress.reach(done * len(places))
    return found


def make_text(tokenizer: Tokenizer, length: int, depth: float, number: int) -> tuple[str, list[int], list[int]]:
    """Return the number in a text of at most `length` tokens, the text with the question behind it, and the answer.

    Whole sentences of filler stand before and behind the number, which is drawn from (length, depth, number).
    """
    key = str(np.random.default_rng([length, round(1000 * depth), number]).integers(10000, 100000))
    parts = TASK, FILLER, HIDDEN.format(key=key), QUESTION, f" {key}"
    task, filler, hidden, question, answer = (tokenizer.encode(part, add_special_tokens=False).ids for part in parts)
    lines = (length - len(task) - len(hidden) - len(question) - len(answer)) // len(filler)
    if lines < 1:
        raise UserError(f"lengths: {length} tokens hold no text around the question; give more")
    before = round(depth * lines)
    return key, [*task, *filler * before, *hidden, *filler * (lines - before), *question], answer
