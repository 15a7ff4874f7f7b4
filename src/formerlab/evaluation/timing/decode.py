"""The stage `decode`: speed and memory of decoding against the length of the text, with whole and pruned caches.

Every repetition takes all caches in turn: each reads a prompt of random tokens at once, and then takes in
a few more tokens one by one. Nothing learned matters to either, so the model of a run is one of its shape with its
initial values, with room for the longest text; a released model is itself.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, model_validator

from formerlab.cache import H2O, Budget, CachePolicy, Decay, Full, KVCache, Local, PrunedCache
from formerlab.cache.kv import bytes_of
from formerlab.errors import UserError
from formerlab.evaluation.measurement import Row, Rows
from formerlab.evaluation.pruning.windows import Configuration
from formerlab.evaluation.timing.timing import Timing, random_tokens, seconds, take_in, turns
from formerlab.layers.shapes import AnyHeads
from formerlab.models.decoder import Decoder, DecoderModel
from formerlab.progress import Progress
from formerlab.spec import Count, Size
from formerlab.training.any_run import AnyRun, Pretrained
from formerlab.training.step import precision


class DecodeSettings(Timing):
    """The decoders of a study whose decoding is measured, the lengths, and the caches."""

    decides: ClassVar[tuple[str, ...]] = ("model", "precision", "dtype")
    lengths: Annotated[tuple[Size, ...], Field(min_length=1)] = (128, 256, 512, 1024, 2048)
    """Tokens in front of those that are timed."""
    batches: Annotated[tuple[Size, ...], Field(min_length=1)] = (1, 8)
    """Sequences that are decoded together."""
    policies: tuple[CachePolicy, ...] = (Local(), H2O(), Decay())
    """Policies of the pruned caches, which must be able to evict; the whole cache, and transformers' DynamicCache where
    it is installed, are always measured."""
    budgets: Annotated[tuple[Budget, ...], Field(min_length=1)] = (0.2, 0.4)
    """Budgets of the pruned caches: shares of the length, or counts of entries."""
    tokens: Count = 16
    """Tokens that are timed in a repetition."""

    @model_validator(mode="after")
    def _check(self) -> "DecodeSettings":
        for policy in self.policies:
            if isinstance(policy, Full) or not policy.is_online:
                raise ValueError(f"policies: kind={policy.kind} cannot evict from a cache; remove it")
        return self

    def memory_bytes(self, runs: Sequence[AnyRun]) -> int:
        """Return about the bytes of a model, of the logits of its longest prompt, and of two caches of that length."""
        found, time = [], max(self.lengths) + self.tokens
        for run in runs:
            model = run.model
            assert isinstance(model, Decoder | Pretrained)
            if isinstance(model, Pretrained) and time > model.context:
                asked = f"{run.study}.decode.lengths: {max(self.lengths)} and the {self.tokens} tokens behind"
                raise UserError(f"{asked} exceed the context of run {run.name!r}, {model.context} tokens; lower them")
            row = 4 * time * model.vocabulary + 2 * model.kv_bytes(time)
            found.append(4 * model.params() + max(self.batches) * row)
        return max(found)


Variant = tuple[Row, Callable[[DecoderModel, int], Any]]
"""The cells of a kind of cache (policy, alpha, recent share, budget), and a function that makes an empty one, which
knows its `bytes()`, for a model and a prompt of so many tokens."""
Load = Callable[[AnyRun, torch.device], DecoderModel]


def measure(
    runs: Sequence[AnyRun], settings: DecodeSettings, device: torch.device, load: Load | None = None
) -> tuple[Rows, dict[str, str]]:
    """Return a row per repetition, cache, length and number of sequences of each run; `load` gives released models.

    Seconds are those of a step, which takes in one token of every sequence, and those of the prompt; bytes those of the
    keys and values held after the last step, and of a pruned cache's scores and positions, empty slots included.
    """
    rows = Rows()
    variants = variants_of(settings)
    points = list(product(settings.batches, settings.lengths))
    total = len(runs) * len(points) * len(variants) * (settings.repetitions + 1)
    with Progress(total, f"decode {runs[0].study}", unit="prompt") as progress:
        for run in runs:
            model = model_of(run, max(settings.lengths) + settings.tokens, device, load)
            for sequences, length in points:
                tokens = random_tokens(model, sequences, length + settings.tokens, run.seed)
                with torch.no_grad(), precision(run, device):
                    for repetition, place, (cells, make) in turns(variants, settings.repetitions):
                        cache = make(model, length)
                        read = seconds(partial(model, tokens[:, :length], attend=cache, last=1), device)
                        step = seconds(partial(take_in, model, cache, tokens, length), device) / settings.tokens
                        metadata = cache.metadata_bytes() if isinstance(cache, PrunedCache) else 0
                        if repetition:
                            where = [length, sequences, repetition, place]
                            rows.append([run.name, *cells, *where, step, cache.bytes(), metadata, read])
                        progress.advance()
    return rows, {}


def variants_of(settings: DecodeSettings) -> list[Variant]:
    """Return the whole cache, transformers' where it is installed, and each policy under each budget."""
    whole = Configuration(Full(), 1.0).cells()
    found: list[Variant] = [(whole, lambda model, length: KVCache(capacity=length + settings.tokens))]
    if find_spec("transformers") is not None:
        found.append((("dynamic_cache", *whole[1:]), lambda model, length: DynamicAttend()))

    def evicting(pruned: Configuration) -> Variant:
        return pruned.cells(), lambda model, length: PrunedCache(*pruned, model.position, length=length)

    return found + [evicting(Configuration(*pruned)) for pruned in product(settings.policies, settings.budgets)]


def model_of(run: AnyRun, context: int, device: torch.device, load: Load | None = None) -> DecoderModel:
    """Return a model with room for `context` tokens, ready to evaluate: untrained in the run's shape, or as loaded."""
    if isinstance(run.model, Decoder):
        return run.model.model_copy(update={"context": context}).build(run.seed).to(device).eval()
    assert load is not None
    return load(run, device)


class DynamicAttend(KVCache):
    """An `attend` that keeps all keys and values in a DynamicCache, which takes new memory for every token."""

    def __init__(self) -> None:
        from transformers import DynamicCache

        super().__init__()
        self._cache = DynamicCache()

    def take(self, layer: int, k: AnyHeads, v: AnyHeads) -> tuple[AnyHeads, AnyHeads]:
        keys, values = self._cache.update(k, v, layer)
        return keys, values

    def bytes(self) -> int:
        return sum(bytes_of(layer.keys, layer.values) for layer in self._cache.layers)
