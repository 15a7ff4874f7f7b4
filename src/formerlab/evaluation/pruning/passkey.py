"""The stage `passkey`: passkey retrieval (arXiv:2305.16300) with pruned caches.

A long filler text contains a number, and the question at its end asks for the number. Pruning starts at the first
token, so a policy must retain the number before the model reads the question.
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
from formerlab.evaluation.language.questions import answer_requests
from formerlab.evaluation.measurement import MeasuredRun, Measurement, Rows, StoredRows
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
    """Settings of `passkey`: policies, budgets and texts."""

    cached: ClassVar[bool] = True
    policies: tuple[Stepwise, ...] = (Local(), H2O(), Decay(alpha=0.2))
    """Policies to compare with the full cache."""
    budgets: tuple[Budget, ...] = (0.4,)
    """Cache budgets: fractions of the text's length (float) or numbers of keys (int)."""
    lengths: Annotated[tuple[Size, ...], Field(min_length=1)] = (1024, 2048, 4096)
    """Lengths of the texts in tokens, including question and answer."""
    depths: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    """Positions of the number, as fractions of the text."""
    numbers: Count = 2
    """Number of texts at each length and depth, each with a different pass key."""

    def settings_for_run(self, run: AnyRun, *, questions: bool) -> Self:
        context, longest = int(getattr(run.model, "context", 0)), max(self.lengths)
        if longest > context:
            raise UserError(f"lengths: {longest} exceeds model.context={context} of run {run.name!r}; lower it")
        return self

    def tokens_read(self, run: AnyRun, questions: int) -> int:
        return len(configurations(self.policies, self.budgets)) * sum(self.lengths) * len(self.depths) * self.numbers


def measure(run: MeasuredRun, settings: Passkey) -> None:
    """Write passkey.csv."""
    stored = StoredRows(run.folder / ".passkey", *run.input_hashes, code_hash=run.code_hash)
    tokenizer = load_tokenizer(run.data)
    run.write("passkey.csv", passkey_rows(run.model, tokenizer, settings, label=run.label, stored=stored))
    stored.remove_unused()


def passkey_rows(
    model: DecoderModel,
    tokenizer: Tokenizer,
    settings: Passkey,
    *,
    label: str = "passkey",
    stored: StoredRows | None = None,
) -> Rows:
    """Return one row per configuration, length, depth and text.

    The last two columns are `found` (1 if each token of the answer is the most probable token, otherwise 0) and
    `log_prob` (the log-probability of the answer in nats). Answers in `stored` are not computed again.
    """
    stored, measured = stored or StoredRows(), Rows()
    cases = list(product(settings.depths, range(settings.numbers)))
    texts = {length: [make_text(tokenizer, length, *case) for case in cases] for length in settings.lengths}
    compared = configurations(settings.policies, settings.budgets)
    with Progress(len(compared) * len(texts) * len(cases), label, unit="text") as progress:
        for done, (configuration, length) in enumerate(product(compared, texts), 1):
            attend_for = partial(configuration.attend, position=model.position)
            answer = partial(answer_requests, model, texts[length], batch=1, progress=progress, attend_for=attend_for)
            inputs = (*configuration.row_key(settings), length, settings.depths, settings.numbers)
            answered = stored.rows(answer, *inputs)
            for case, (log_prob, greedy, realised) in zip(cases, answered, strict=True):
                measured.append((*configuration.cells(), realised, length, *case, int(bool(greedy)), log_prob))
            progress.reach(done * len(cases))
    return measured


def make_text(tokenizer: Tokenizer, length: int, depth: float, number: int) -> tuple[str, list[int], list[int]]:
    """Return the pass key, the token ids of the text with the question, and the token ids of the answer.

    Text and answer together have at most `length` tokens. The pass key is sampled with the seed (length, depth,
    number). Its line follows the fraction `depth` of the filler lines. Raises UserError if no filler line fits.
    """
    key = str(np.random.default_rng([length, round(1000 * depth), number]).integers(10000, 100000))
    segments = TASK, FILLER, HIDDEN.format(key=key), QUESTION, f" {key}"
    ids = [tokenizer.encode(segment, add_special_tokens=False).ids for segment in segments]
    task, filler, hidden, question, answer = ids
    lines = (length - len(task) - len(hidden) - len(question) - len(answer)) // len(filler)
    if lines < 1:
        raise UserError(f"lengths: {length} tokens leave no room for a filler line; give a larger length")
    lines_before = round(depth * lines)
    return key, [*task, *filler * lines_before, *hidden, *filler * (lines - lines_before), *question], answer
