"""The stage `prune`: compare cache policies on one model, on the same windows and questions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, ClassVar, Self

from jaxtyping import Float, Int
from pydantic import AfterValidator, Field
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache import H2O, Budget, CachePolicy, CompressedCache, Decay, Full, KVCache, Local, Simulation
from formerlab.cache.budget import resolve_budget
from formerlab.cache.policies.policy import Policy, check_configuration
from formerlab.data import load_stream
from formerlab.data.manifest import MANIFEST
from formerlab.errors import UserError, near_misses
from formerlab.evaluation.language.questions import Questions, load_questions
from formerlab.evaluation.measurement import QUESTION_TOKENS, MeasuredRun, Measurement, Row, Rows, StoredRows
from formerlab.evaluation.pruning.calibration import calibrate
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

COLUMNS = {file: table.names for file, table in STAGES["prune"].tables.items()}
"""Columns of each file of the stage; the files of disabled measurements have no rows."""


def configurations(policies: Iterable[Policy], budgets: Iterable[Budget]) -> list[Configuration]:
    """Return the full cache and every policy at every budget, without duplicates."""
    pruned = [policy for policy in dict.fromkeys(policies) if not isinstance(policy, Full)]
    cells = [Configuration(policy, budget) for budget in dict.fromkeys(budgets) for policy in pruned]
    return [Configuration(Full(), 1.0), *cells]


def _accepted_by(check: Callable[[Policy], object]) -> AfterValidator:
    def validate(policy: Policy) -> Policy:
        try:
            check(policy)
        except UserError as error:
            raise ValueError(str(error)) from None
        return policy

    return AfterValidator(validate)


Stepwise = Annotated[CachePolicy, _accepted_by(lambda policy: check_configuration(policy, 1.0))]
"""A policy that can be simulated over a whole text: every policy except one-shot policies."""
Compressing = Annotated[CachePolicy, _accepted_by(lambda policy: CompressedCache(policy, 1.0, PositionEncoding()))]
"""A policy that can compress a prompt once."""


class PruneSweep(Measurement):
    """Settings of `prune`: every policy is measured at every budget; the full cache is always included."""

    cached: ClassVar[bool] = True
    policies: tuple[Stepwise, ...] = (Local(), H2O(), Decay())
    """Policies to compare."""
    alphas: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = ()
    """Decay factors; each adds Decay with this alpha and without recent keys."""
    budgets: tuple[Budget, ...] = (0.2, 0.4)
    """Cache budgets: fractions of each sequence's length (float) or numbers of keys (int)."""
    windows: Count = 96
    """Number of windows, evenly spaced over the held-out text."""
    batch: Count = 64
    """Number of sequences per forward pass; padding is masked, so the batch size changes results only by rounding."""
    batch_tokens: Count | None = None
    """Maximum number of tokens per forward pass, including padding, for large models; null means no limit."""
    context: Size | None = None
    """Number of predicted tokens per window; null means the model's context."""
    mask_windows: AnyCount = 8
    """Number of evenly spaced windows for the measurement of retained keys; 0 disables the measurement."""
    questions: bool = True
    """Answer the embedded questions and the suites under every policy."""
    suites: tuple[str, ...] = ("*",)
    """Name patterns of the suites that the model answers."""
    question_budgets: tuple[Budget, ...] = (0.4,)
    """Cache budgets for the questions."""
    question_limit: Count | None = None
    """Maximum number of examples per task, from the start; null means all."""
    calibration_windows: AnyCount = 0
    """Number of validation windows on which `calibrate` chooses from `alphas`; 0 or empty `alphas` disables it."""
    calibration_budgets: tuple[Budget, ...] = (0.2,)
    """Cache budgets of the calibration."""
    score_windows: AnyCount = 0
    """Number of windows for score trajectories (Decay article, Fig. 5); 0 disables the measurement."""
    mask_dump_tokens: AnyCount = 0
    """Number of tokens of the window with plotted masks (Decay article, Fig. 3); 0 disables the measurement."""
    mask_dump_budgets: tuple[Budget, ...] = (0.2,)
    """Cache budgets of the plotted masks."""
    one_shot: tuple[Compressing, ...] = ()
    """Policies for one-shot compression of a prompt (the first half of a window); losses are in prune_one_shot.csv."""
    one_shot_budgets: tuple[Budget, ...] = (0.2, 0.4)
    """Cache budgets of one-shot compression: fractions of the prompt (float) or numbers of keys (int)."""
    every_token: tuple[Stepwise, ...] = ()
    """Policies to compare with one-shot compression at the same budgets: they evict after every token of the prompt and
    after it, as `prune` does in `generate`. Their names in prune_one_shot.csv have the form `every_token(h2o)`."""

    def batch_of(self, context: int) -> int:
        """Return the number of windows per forward pass, for windows of `context` tokens."""
        return self.batch if self.batch_tokens is None else min(self.batch, max(1, self.batch_tokens // context))

    def configurations(self, budgets: Iterable[Budget]) -> list[Configuration]:
        """Return the full cache, and all policies and a Decay policy for each alpha at every budget."""
        return configurations((*self.policies, *(Decay(alpha=alpha) for alpha in self.alphas)), budgets)

    def settings_for_run(self, run: AnyRun, *, questions: bool) -> Self:
        context = int(getattr(run.model, "context", 0))
        if self.context is not None and self.context > context:
            raise UserError(f"context: {self.context} exceeds model.context={context} of run {run.name!r}; lower it")
        return self.model_copy(update={"questions": self.questions and questions})

    def tokens_read(self, run: AnyRun, questions: int) -> int:
        context = self.context or int(getattr(run.model, "context", 0))
        tokens = len(self.configurations(self.budgets)) * self.windows * context
        if self.questions:
            count = self.question_limit or questions
            tokens += len(self.configurations(self.question_budgets)) * count * QUESTION_TOKENS
        return tokens

    def suite_names(self, suites: Sequence[str]) -> list[str]:
        for pattern in self.suites:
            if pattern != "*" and not any(fnmatchcase(name, pattern) for name in suites):
                raise UserError(f"suites: no suite matches {pattern!r}{near_misses(pattern, list(suites))}")
        patterns = self.suites if self.questions else ()
        return [name for name in suites if any(fnmatchcase(name, pattern) for pattern in patterns)]


def measure(run: MeasuredRun, settings: PruneSweep) -> None:
    """Write the files of the stage into the run's folder."""
    questions = load_questions(run, settings.question_limit) if settings.questions else None
    cut = questions.truncated(run.model.spec.context) if questions is not None else {}
    run.notes.update(versions={"lm_eval": version("lm_eval")}, cut=cut)
    streams = {split: load_stream(run.data, split) for split in ("valid", "test")}
    stored = StoredRows(run.folder / ".prune", *run.input_hashes, code_hash=run.code_hash)
    end = read_json(run.data / MANIFEST)["tokenizer"]["end_of_text"]
    documents = window_documents(streams["test"], settings.context or run.model.spec.context, end).tolist()
    prune(run.model, streams, questions, settings, run.folder, label=run.label, stored=stored, documents=documents)


def prune(
    model: DecoderModel,
    streams: Mapping[str, Stream],
    questions: Questions | None,
    sweep: PruneSweep,
    out: Path,
    *,
    label: str = "prune",
    stored: StoredRows | None = None,
    documents: Sequence[int] = (),
) -> None:
    """Write the files of the stage into `out`.

    Pruning is simulated on the stream `test` from the first token, as if every sequence were fed token by token. Alphas
    are calibrated on the stream `valid`. Rows in `stored` are not computed again. Windows must not exceed the model's
    context. `documents` has the document index of each window of `test`, or is empty.
    """
    stored, context = stored or StoredRows(), sweep.context or model.spec.context
    stream, batch, rows = streams["test"], sweep.batch_of(context), Rows()
    indices, compared = spread_windows(stream, context, sweep.windows), sweep.configurations(sweep.budgets)
    with Progress(len(compared) * len(indices), label, unit="window") as progress:
        windows = Windows(model, stream, context, indices, batch, progress)
        for done, configuration in enumerate(compared, 1):
            compute_losses = partial(windows.losses, partial(configuration.attend, position=model.position))
            losses = stored.rows(compute_losses, *configuration.row_key(sweep), "windows", indices, context, batch)
            for index, (*loss, cache_size) in zip(indices, losses, strict=True):
                rows.append((*configuration.cells(), cache_size, *loss, documents[index] if documents else None))
            progress.reach(done * len(indices))
    write_rows(out / "prune.csv", COLUMNS["prune.csv"], rows)
    rows = question_rows(model, questions, sweep, stored, label) if questions is not None else []
    write_rows(out / "prune_questions.csv", COLUMNS["prune_questions.csv"], rows)
    for name, make_rows in _row_functions(model, streams, context, sweep, label, documents).items():
        write_rows(out / name, COLUMNS[name], stored.rows(make_rows, sweep, sweep.to_dict(), name))
    stored.remove_unused()


def question_rows(model: DecoderModel, questions: Questions, sweep: PruneSweep, stored: StoredRows, label: str) -> Rows:
    """Return the rows of prune_questions.csv: every metric of every question under every configuration."""
    compared, rows = sweep.configurations(sweep.question_budgets), Rows()
    batches = {"batch": sweep.batch, "batch_tokens": sweep.batch_tokens}
    with Progress(len(compared) * len(questions.encoded), label, unit="answer") as progress:
        for done, configuration in enumerate(compared, 1):
            attend_for = partial(configuration.attend, position=model.position)
            answer_all = partial(questions.scores, model, **batches, attend_for=attend_for, progress=progress)
            settings, *inputs = configuration.row_key(sweep)
            scores = stored.rows(answer_all, settings, *inputs, "questions", sweep.question_limit, *batches.values())
            rows += [(*configuration.cells(), cache_size, *score) for *score, cache_size in scores]
            progress.reach(done * len(questions.encoded))
    return rows


def _row_functions(
    model: DecoderModel,
    streams: Mapping[str, Stream],
    context: int,
    sweep: PruneSweep,
    label: str,
    documents: Sequence[int],
) -> dict[str, Callable[[], Iterable[Row]]]:
    """Return the functions that compute rows, by file, for all files except prune.csv and prune_questions.csv."""
    batch, test_indices = sweep.batch_of(context), spread_windows(streams["test"], context, sweep.windows)
    compared = [Configuration(policy, budget) for budget in sweep.one_shot_budgets for policy in sweep.one_shot]

    def window_rows(name: str, count: int, batch: int, make_rows: Callable[[Windows], Iterator[Row]]) -> Iterator[Row]:
        indices = spread_windows(streams["test"], context, count)
        with Progress(len(indices), f"{label}, {name}", unit="window") as progress:
            yield from make_rows(Windows(model, streams["test"], context, indices, batch, progress))

    def dump_masks() -> Iterable[Row]:
        tokens = min(sweep.mask_dump_tokens, context)
        return mask_dumps(Windows(model, streams["test"], tokens, [0]), sweep.mask_dump_budgets) if tokens else ()

    @cache
    def calibrate_all() -> tuple[Rows, Rows]:
        indices = spread_windows(streams["valid"], context, sweep.calibration_windows)
        budgets = sweep.calibration_budgets if indices and sweep.alphas else ()
        total = len(budgets) * ((len(sweep.alphas) + 1) * len(indices) + 3 * len(test_indices))
        with Progress(total, f"{label}, alpha per head", unit="window") as progress:
            valid = Windows(model, streams["valid"], context, indices, batch, progress)
            test = Windows(model, streams["test"], context, test_indices, batch, progress)
            results = [calibrate(valid, test, sweep.alphas, budget) for budget in budgets]
        return [row for chosen, _ in results for row in chosen], [row for _, losses in results for row in losses]

    measures = partial(mask_measures, configurations=sweep.configurations(sweep.budgets)[1:], documents=documents)
    every_token = [Configuration(policy, budget) for budget in sweep.one_shot_budgets for policy in sweep.every_token]
    one_shot = partial(one_shot_losses, compared, every_token=every_token)
    return {
        "prune_masks.csv": partial(window_rows, "masks", sweep.mask_windows, min(batch, 16), measures),
        "prune_alphas.csv": lambda: calibrate_all()[0],
        "prune_calibrated.csv": lambda: calibrate_all()[1],
        "prune_mask_dumps.csv": dump_masks,
        "prune_score_trajectories.csv": partial(window_rows, "scores", sweep.score_windows, batch, score_trajectories),
        "prune_one_shot.csv": partial(
            window_rows, "one shot", sweep.windows * bool(compared + every_token), batch, one_shot
        ),
    }


def one_shot_losses(
    configurations: Sequence[Configuration], windows: Windows, every_token: Sequence[Configuration] = ()
) -> Iterator[Row]:
    """Yield the rows of prune_one_shot.csv: the loss on the second half of windows, given the compressed first half.

    The full cache comes first, as the baseline. The configurations `every_token` evict after every token instead.
    """
    model, half = windows.model, windows.context // 2
    for indices, tokens in windows.batches():
        if tokens.shape[1] <= windows.context:
            continue  # the second half of a partial window is shorter
        targets = tokens[:, half + 1 :]
        for configuration in (Configuration(Full(), 1.0), *configurations):
            full = isinstance(configuration.policy, Full)
            cache = KVCache() if full else CompressedCache(*configuration, position=model.position)
            with evaluating(model):
                model(tokens[:, :half], attend=cache, last=1)
                losses = _mean_losses(model(tokens[:, half:-1], attend=cache, start=half), targets)
            retained = float(cache.mean_retained) / half if isinstance(cache, CompressedCache) else 1.0
            for window, loss in zip(indices, losses, strict=True):
                yield *configuration.cells(), retained, half, window, targets.shape[1], loss
        for configuration in every_token:
            keys = max(1, resolve_budget(configuration.budget, half))
            simulation = Simulation(configuration.policy, keys, position=model.position, prompt=half)
            with evaluating(model):
                losses = _mean_losses(model(tokens[:, :-1], attend=simulation, last=targets.shape[1]), targets)
            policy, *others = configuration.cells()
            for window, loss in zip(indices, losses, strict=True):
                yield f"every_token({policy})", *others, keys / half, half, window, targets.shape[1], loss


def _mean_losses(logits: Float[Tensor, "batch time vocabulary"], targets: Int[Tensor, "batch time"]) -> list[float]:
    losses = F.cross_entropy(logits.transpose(1, 2).float(), targets, reduction="none")
    means: list[float] = losses.double().mean(1).tolist()
    return means
