"""The stage `decode`: speed and memory of decoding by context length, with full and pruned caches.

Each repetition measures all caches in turn: a prompt of random tokens in one forward pass, then a few tokens one by
one. The model of a run has initial weights, because trained weights do not change the speed. Released models are
loaded.
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
from formerlab.evaluation.pruning.windows import Configuration, policy_name
from formerlab.evaluation.timing.timing import Timing, feed_tokens, interleaved, random_tokens, seconds
from formerlab.layers.shapes import AnyHeads
from formerlab.models.decoder import Decoder, DecoderModel
from formerlab.progress import Progress
from formerlab.spec import Count, Size
from formerlab.training.any_run import AnyRun, Pretrained
from formerlab.training.step import precision


class DecodeSettings(Timing):
    """Settings of `decode`: lengths, batch sizes and caches."""

    depends_on: ClassVar[tuple[str, ...]] = ("model", "precision", "dtype")
    lengths: Annotated[tuple[Size, ...], Field(min_length=1)] = (128, 256, 512, 1024, 2048)
    """Prompt lengths in tokens."""
    batches: Annotated[tuple[Size, ...], Field(min_length=1)] = (1, 8)
    """Batch sizes: sequences that are decoded together."""
    policies: tuple[CachePolicy, ...] = (Local(), H2O(), Decay())
    """Policies of the pruned caches; each policy must be able to evict step by step. The full cache and, if
    transformers is installed, its DynamicCache are always measured."""
    budgets: Annotated[tuple[Budget, ...], Field(min_length=1)] = (0.2, 0.4)
    """Budgets of the pruned caches: fractions of the prompt length (float) or numbers of keys (int)."""
    tokens: Count = 16
    """Decoded tokens per repetition."""

    @model_validator(mode="after")
    def _check(self) -> "DecodeSettings":
        for policy in self.policies:
            if isinstance(policy, Full) or not policy.layer_policy.is_online:
                problem = f"{policy_name(policy)} cannot evict from a cache after every token"
                raise ValueError(f"policies: {problem}; remove it")
        return self

    def memory_bytes(self, runs: Sequence[AnyRun]) -> int:
        """Estimate the bytes of a model, two caches, and (as a margin) logits of all positions, at the longest length.

        Raises UserError if a released model's context is too short.
        """
        estimates, time = [], max(self.lengths) + self.tokens
        for run in runs:
            model = run.model
            assert isinstance(model, Decoder | Pretrained)
            if isinstance(model, Pretrained) and time > model.context:
                lengths = f"{max(self.lengths)} plus {self.tokens} decoded tokens"
                limit = f"the context of run {run.name!r}, {model.context} tokens"
                raise UserError(f"{run.study}.decode.lengths: {lengths} exceed {limit}; lower them")
            sequence_bytes = 4 * time * model.vocabulary + 2 * model.kv_bytes(time)
            estimates.append(4 * model.params() + max(self.batches) * sequence_bytes)
        return max(estimates)


Variant = tuple[Row, Callable[[DecoderModel, int], Any]]
"""The cells of a cache (policy, alpha, recent, budget), and a function that returns an empty cache for a model and a
prompt length."""
Load = Callable[[AnyRun, torch.device], DecoderModel]


def measure(
    runs: Sequence[AnyRun], settings: DecodeSettings, device: torch.device, load: Load | None = None
) -> tuple[Rows, dict[str, str]]:
    """Return one row per run, batch size, length, repetition and cache, and an empty dict of record entries.

    A row has the seconds of one step (one token of every sequence), the bytes of the retained keys and values after the
    last step, the bytes of a pruned cache's scores and positions including empty slots, and the seconds of the prompt.
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
                    for repetition, position, (cells, make) in interleaved(variants, settings.repetitions):
                        cache = make(model, length)
                        prompt_s = seconds(partial(model, tokens[:, :length], attend=cache, last=1), device)
                        step_s = seconds(partial(feed_tokens, model, cache, tokens, length), device) / settings.tokens
                        metadata = cache.metadata_bytes() if isinstance(cache, PrunedCache) else 0
                        if repetition:
                            keys = [length, sequences, repetition, position]
                            rows.append([run.name, *cells, *keys, step_s, cache.bytes(), metadata, prompt_s])
                        progress.advance()
    return rows, {}


def variants_of(settings: DecodeSettings) -> list[Variant]:
    """Return the full cache, transformers' DynamicCache if it is installed, and each policy at each budget."""
    full = Configuration(Full(), 1.0).cells()
    variants: list[Variant] = [(full, lambda model, length: KVCache(capacity=length + settings.tokens))]
    if find_spec("transformers") is not None:
        variants.append((("dynamic_cache", *full[1:]), lambda model, length: DynamicKVCache()))

    def evicting(pruned: Configuration) -> Variant:
        return pruned.cells(), lambda model, length: PrunedCache(*pruned, model.position, length=length)

    return variants + [evicting(Configuration(*pruned)) for pruned in product(settings.policies, settings.budgets)]


def model_of(run: AnyRun, context: int, device: torch.device, load: Load | None = None) -> DecoderModel:
    """Return the run's model with initial weights and this context, or the released model, in evaluation mode."""
    if isinstance(run.model, Decoder):
        return run.model.model_copy(update={"context": context}).build(run.seed).to(device).eval()
    assert load is not None
    return load(run, device)


class DynamicKVCache(KVCache):
    """A cache that stores keys and values in transformers' DynamicCache, which allocates memory for every token."""

    def __init__(self) -> None:
        from transformers import DynamicCache

        super().__init__()
        self._cache = DynamicCache()

    def append(self, layer: int, k: AnyHeads, v: AnyHeads) -> tuple[AnyHeads, AnyHeads]:
        keys, values = self._cache.update(k, v, layer)
        return keys, values

    def bytes(self) -> int:
        return sum(bytes_of(layer.keys, layer.values) for layer in self._cache.layers)
