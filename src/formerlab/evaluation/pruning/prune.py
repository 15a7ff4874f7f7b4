"""All cache policies of one model, on the same windows and the same questions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field
from torch.nn import functional as F

from formerlab.cache import H2O, Budget, CachePolicy, CompressedCache, Decay, Full, KVCache, Local
from formerlab.cache.policies.policy import Policy, check_configuration
from formerlab.data import load_stream
from formerlab.data.manifest import MANIFEST
from formerlab.errors import UserError, near_misses
from formerlab.evaluation.language.questions import Questions, questions_of
from formerlab.evaluation.measurement import QUESTION_TOKENS, Kept, Measured, Measurement, Row, Rows
from formerlab.evaluation.pruning.calibration import calibrated
from formerlab.evaluation.pruning.masks import mask_dumps, mask_measures, score_trajectories
from formerlab.evaluation.pruning.windows import Configuration, Windows
from formerlab.files import read_json
from formerlab.layers.position import PositionEncoding
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.results.stages import STAGES
from formerlab.results.write import write_rows
from formerlab.spec import AnyCount, Count, Size
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.window_losses import Stream, spread_windows, window_documents
from formerlab.training.any_run import AnyRun

FILES = {file: table.names for file, table in STAGES["prune"].tables.items()}
"""Every file of a sweep, with its columns; parts that are not asked for have no rows."""


def configurations(policies: Iterable[Policy], budgets: Iterable[Budget]) -> list[Configuration]:
    """Return the full cache, and every policy at every budget, each once."""
    pruned = [policy for policy in dict.fromkeys(policies) if not isinstance(policy, Full)]
    cells = [Configuration(policy, budget) for budget in dict.fromkeys(budgets) for policy in pruned]
    return [Configuration(Full(), 1.0), *cells]


def _accepted(check: Callable[[Policy], object], policy: Policy) -> Policy:
    try:
        check(policy)
    except UserError as error:
        raise ValueError(str(error)) from None
    return policy


Stepwise = Annotated[CachePolicy, AfterValidator(partial(_accepted, lambda policy: check_configuration(policy, 1)))]
"""A policy that does not choose once after a prompt: that is another mode, with a table of its own."""
Compressing = Annotated[
    CachePolicy, AfterValidator(partial(_accepted, lambda policy: CompressedCache(policy, 1, PositionEncoding())))
]
"""A policy that can compress a prompt."""


class PruneSweep(Measurement):
    """Every policy at every budget, always beside the full cache."""

    cached: ClassVar[bool] = True
    policies: tuple[Stepwise, ...] = (Local(), H2O(), Decay())
    """Policies to compare."""
    alphas: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = ()
    """Decay factors: each adds Decay with this alpha and no recent part."""
    budgets: tuple[Budget, ...] = (0.2, 0.4)
    """Shares of a sequence's own length (float) or entries (int)."""
    windows: Count = 96
    """Windows, evenly spread over the held-out text."""
    batch: Count = 64
    """Sequences per forward pass; padding takes no part, so it changes nothing but rounding."""
    batch_tokens: Count | None = None
    """Tokens per forward pass at most, padding counted, so that large models and vocabularies fit; none: no limit."""
    context: Size | None = None
    """Tokens predicted per window; none means the model's context."""
    mask_windows: AnyCount = 8
    """Windows, evenly spread as well, whose kept keys are measured; 0 means none."""
    questions: bool = True
    """Answer the embedded questions and the suites under every policy."""
    suites: tuple[str, ...] = ("*",)
    """Patterns of the names of the suites that are asked."""
    question_budgets: tuple[Budget, ...] = (0.4,)
    """Budgets on the questions."""
    question_limit: Count | None = None
    """First examples of each task; none means all."""
    calibration_windows: AnyCount = 0
    """Windows of the validation stream on which alpha is chosen, per layer and head and for all; 0 means none."""
    calibration_budgets: tuple[Budget, ...] = (0.2,)
    """Budgets at which it is chosen; the alphas to choose from are those of `alphas`."""
    score_windows: AnyCount = 0
    """Windows in which scores are followed from query to query (Fig. 5 of the Decay article); 0 means none."""
    mask_dump_tokens: AnyCount = 0
    """Tokens of the window whose masks are drawn (its Fig. 3); 0 means none."""
    mask_dump_budgets: tuple[Budget, ...] = (0.2,)
    """Budgets of these masks."""
    one_shot: tuple[Compressing, ...] = ()
    """Policies that compress a prompt once, the first half of each window: another mode, in a file of its own."""
    one_shot_budgets: tuple[Budget, ...] = (0.2, 0.4)
    """Their budgets, shares of the prompt."""

    def batch_of(self, context: int) -> int:
        """Return how many windows of so many tokens are read at once."""
        return self.batch if self.batch_tokens is None else min(self.batch, max(1, self.batch_tokens // context))

    def configurations(self, budgets: Iterable[Budget]) -> list[Configuration]:
        """Return the full cache, and every policy and Decay of every alpha at every budget, each once."""
        return configurations((*self.policies, *(Decay(alpha=alpha) for alpha in self.alphas)), budgets)

    def of(self, run: AnyRun, *, questions: bool) -> Self:
        context = int(getattr(run.model, "context", 0))
        if self.context is not None and self.context > context:
            raise UserError(f"context: {self.context} exceeds model.context={context} of run {run.name!r}; lower it")
        return self.model_copy(update={"questions": self.questions and questions})

    def reading(self, run: AnyRun, questions: int) -> int:
        context = self.context or int(getattr(run.model, "context", 0))
        tokens = len(self.configurations(self.budgets)) * self.windows * context
        if self.questions:
            asked = self.question_limit or questions
            tokens += len(self.configurations(self.question_budgets)) * asked * QUESTION_TOKENS
        return tokens

    def asked(self, suites: Sequence[str]) -> list[str]:
        for pattern in self.suites:
            if pattern != "*" and not any(fnmatchcase(name, pattern) for name in suites):
                raise UserError(f"suites: no suite fits {pattern!r}{near_misses(pattern, list(suites))}")
        wanted = self.suites if self.questions else ()
        return [name for name in suites if any(fnmatchcase(name, pattern) for pattern in wanted)]


def measure(run: Measured, settings: PruneSweep) -> None:
    """Write FILES into the folder of the run."""
    questions = questions_of(run, settings.question_limit) if settings.questions else None
    cut = questions.cut(run.model.spec.context) if questions is not None else {}
    run.notes.update(versions={"lm_eval": version("lm_eval")}, cut=cut)
    streams = {split: load_stream(run.data, split) for split in ("valid", "test")}
    kept = Kept(run.folder / ".prune", *run.belongs_to, code_of=run.code_of)
    end = read_json(run.data / MANIFEST)["tokenizer"]["end_of_text"]
    documents = window_documents(streams["test"], settings.context or run.model.spec.context, end).tolist()
    prune(run.model, streams, questions, settings, run.folder, label=run.label, kept=kept, documents=documents)


def prune(
    model: DecoderModel,
    streams: Mapping[str, Stream],
    questions: Questions | None,
    sweep: PruneSweep,
    out: Path,
    *,
    label: str = "prune",
    kept: Kept | None = None,
    documents: Sequence[int] = (),
) -> None:
    """Write FILES into `out`.

    Pruning is simulated, on the stream `test`: it acts from the first token on, as if every sequence were fed token by
    token. The rows of one window, or of one question, differ in nothing but the policy. Choices are made on the stream
    `valid`. Parts in `kept` are not computed again. Windows must fit the model's context. `documents` are those of the
    windows of `test`, where they are known.
    """
    kept, context = kept or Kept(), sweep.context or model.spec.context
    stream, batch, rows = streams["test"], sweep.batch_of(context), Rows()
    numbers, compared = spread_windows(stream, context, sweep.windows), sweep.configurations(sweep.budgets)
    with Progress(len(compared) * len(numbers), label, unit="window") as progress:
        windows = Windows(model, stream, context, numbers, batch, progress)
        for done, configuration in enumerate(compared, 1):
            read = partial(windows.losses, partial(configuration.attend, position=model.position))
            found = kept.rows(read, *configuration.alone(sweep), "windows", numbers, context, batch)
            for number, (*loss, realised) in zip(numbers, found, strict=True):
                rows.append((*configuration.cells(), realised, *loss, documents[number] if documents else None))
            progress.reach(done * len(numbers))
    write_rows(out / "prune.csv", FILES["prune.csv"], rows)
    rows = answers(model, questions, sweep, kept, label) if questions is not None else []
    write_rows(out / "prune_questions.csv", FILES["prune_questions.csv"], rows)
    for name, rows_of in _extras(model, streams, context, sweep, label, documents).items():
        write_rows(out / name, FILES[name], kept.rows(rows_of, sweep, sweep.to_dict(), name))
    kept.tidy()


# Windows, questions and the rest are shown apart: a mean speed over such different work predicts nothing.


def answers(model: DecoderModel, questions: Questions, sweep: PruneSweep, kept: Kept, label: str) -> Rows:
    """Return every metric of every question under every configuration, in the columns of prune_questions.csv."""
    compared, rows = sweep.configurations(sweep.question_budgets), Rows()
    batches = {"batch": sweep.batch, "batch_tokens": sweep.batch_tokens}
    with Progress(len(compared) * len(questions.encoded), label, unit="answer") as progress:
        for done, configuration in enumerate(compared, 1):
            attend_for = partial(configuration.attend, position=model.position)
            ask = partial(questions.answers, model, **batches, attend_for=attend_for, progress=progress)
            found = kept.rows(ask, *configuration.alone(sweep), "questions", sweep.question_limit, *batches.values())
            rows += [(*configuration.cells(), realised, *answer) for *answer, realised in found]
            progress.reach(done * len(questions.encoded))
    return rows


def _extras(
    model: DecoderModel,
    streams: Mapping[str, Stream],
    context: int,
    sweep: PruneSweep,
    label: str,
    documents: Sequence[int],
) -> dict[str, Callable[[], Iterable[Row]]]:
    """Return, by file, the functions that make the other rows, each on its own number of windows."""
    batch, test = sweep.batch_of(context), spread_windows(streams["test"], context, sweep.windows)
    compared = [Configuration(policy, budget) for budget in sweep.one_shot_budgets for policy in sweep.one_shot]

    def read(part: str, count: int, batch: int, rows_of: Callable[[Windows], Iterator[Row]]) -> Iterator[Row]:
        numbers = spread_windows(streams["test"], context, count)
        with Progress(len(numbers), f"{label}, {part}", unit="window") as progress:
            yield from rows_of(Windows(model, streams["test"], context, numbers, batch, progress))

    def dumped() -> Iterable[Row]:
        tokens = min(sweep.mask_dump_tokens, context)
        return mask_dumps(Windows(model, streams["test"], tokens, [0]), sweep.mask_dump_budgets) if tokens else ()

    @cache
    def of_heads() -> tuple[Rows, Rows]:
        numbers = spread_windows(streams["valid"], context, sweep.calibration_windows)
        budgets = sweep.calibration_budgets if numbers and sweep.alphas else ()
        total = len(budgets) * ((len(sweep.alphas) + 1) * len(numbers) + 3 * len(test))
        with Progress(total, f"{label}, alpha per head", unit="window") as progress:
            valid = Windows(model, streams["valid"], context, numbers, batch, progress)
            tested = Windows(model, streams["test"], context, test, batch, progress)
            found = [calibrated(valid, tested, sweep.alphas, budget) for budget in budgets]
        return [row for chosen, _ in found for row in chosen], [row for _, losses in found for row in losses]

    measures = partial(mask_measures, configurations=sweep.configurations(sweep.budgets)[1:], documents=documents)
    one_shot = partial(one_shot_losses, compared)
    return {
        "prune_masks.csv": partial(read, "masks", sweep.mask_windows, min(batch, 16), measures),
        "prune_alphas.csv": lambda: of_heads()[0],
        "prune_calibrated.csv": lambda: of_heads()[1],
        "prune_mask_dumps.csv": dumped,
        "prune_score_trajectories.csv": partial(read, "scores", sweep.score_windows, batch, score_trajectories),
        "prune_one_shot.csv": partial(read, "one shot", sweep.windows if compared else 0, batch, one_shot),
    }


def one_shot_losses(configurations: Sequence[Configuration], windows: Windows) -> Iterator[Row]:
    """Yield the cells of prune_one_shot.csv: the loss on the second half of windows, given the compressed first half.

    The first half is the prompt; budgets are shares of it. A full cache, for comparison, comes first.
    """
    model, half = windows.model, windows.context // 2
    for numbers, tokens in windows.batches():
        if tokens.shape[1] <= windows.context:
            continue  # a partial window has no second half of the same length
        for configuration in (Configuration(Full(), 1.0), *configurations):
            whole = isinstance(configuration.policy, Full)
            cache = KVCache() if whole else CompressedCache(*configuration, position=model.position)
            with evaluating(model):
                model(tokens[:, :half], attend=cache, last=1)
                logits = model(tokens[:, half:-1], attend=cache, start=half)
            targets = tokens[:, half + 1 :]
            found = F.cross_entropy(logits.transpose(1, 2).float(), targets, reduction="none").double().mean(1)
            held = cache.kept(0).shape[-1] / half if isinstance(cache, CompressedCache) else 1.0
            for window, loss in zip(numbers, found.tolist(), strict=True):
                yield *configuration.cells(), held, half, window, targets.shape[1], loss
