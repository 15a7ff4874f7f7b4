"""The stage `translate`: translate held-out sentences, and count the n-grams of the translations for BLEU."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from tokenizers import Tokenizer
from torch import Tensor, nn

from formerlab.data import load_tokenizer
from formerlab.data.pairs.streams import PairStream, load_pairs
from formerlab.evaluation.measurement import MeasuredRun, Measurement
from formerlab.evaluation.translation.beam import Hypothesis, beam_search
from formerlab.evaluation.translation.bleu import METRICS, signature, statistics
from formerlab.files import write_text
from formerlab.models.multi_head import MultiHead
from formerlab.models.translator import TranslatorModel
from formerlab.progress import Progress
from formerlab.spec import AnyCount, Count, Size
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.translation import SentenceBatch, sentence_batch

AttentionMap = tuple[str, int, Tensor]
"""Kind of attention (encoder, decoder, cross), layer, and attention probabilities of shape (heads, queries, keys)."""


class Decoding(Measurement):
    """Beam search for held-out sentences; the defaults are from the paper (arXiv:1706.03762, section 6.1)."""

    splits: tuple[Literal["valid", "test"], ...] = ("test",)
    """Splits that are translated."""
    sentences: Count | None = None
    """Maximum number of sentences of each split, from the start; null means all."""
    beam: Size = 4
    """Beam size; 1 is greedy decoding."""
    alpha: float = Field(default=0.6, ge=0.0, le=10.0)
    """Exponent of the length penalty."""
    extra: AnyCount = 50
    """Maximum number of tokens of a translation in addition to the length of its source."""
    batch_tokens: Count = 4096
    """Maximum number of source tokens and of target tokens per batch, including padding. If the longest sentence of the
    split has more tokens, its length is the limit."""
    attention_sentences: AnyCount = 0
    """Number of test sentences whose attention probabilities are written to attention.csv."""


def measure(run: MeasuredRun, settings: Decoding) -> None:
    """Write translations.tsv, translate.csv (one row per sentence), bleu.csv (counts) and attention.csv."""
    run.notes["signatures"] = {metric: signature(metric) for metric in METRICS}
    tokenizer, lines = load_tokenizer(run.data), list[str]()
    sentence_rows: list[Sequence[Any]] = []
    bleu_rows: list[Sequence[Any]] = []
    for split in settings.splits:
        pairs = load_pairs(run.data, split)
        for number, hypothesis in enumerate(decode(run.model, pairs, settings, f"{run.label} {split}")):
            reference = pairs.sentence(number, 1)[:-1].tolist()
            sizes = (int(pairs.source_lengths[number]), len(reference) + 1, len(hypothesis.tokens) + 1)
            exact = int(hypothesis.tokens == reference)
            sentence_rows.append((split, number, *sizes, hypothesis.score, exact))
            text, expected = (tokenizer.decode(tokens) for tokens in (hypothesis.tokens, reference))
            for metric in METRICS:
                bleu_rows.append((split, number, metric, *statistics(metric, text, expected)))
            lines.append(f"{split}\t{number}\t{' '.join(text.split())}\n")
    run.write("translate.csv", sentence_rows)
    run.write("bleu.csv", bleu_rows)
    run.write("attention.csv", _attention(run.model, run.data, tokenizer, settings))
    write_text(run.folder / "translations.tsv", "".join(lines))


def decode(model: TranslatorModel, pairs: PairStream, decoding: Decoding, label: str) -> list[Hypothesis]:
    """Return the translations of the first `decoding.sentences` source sentences, in the order of the data."""
    count = min(len(pairs), decoding.sentences or len(pairs))
    translations: dict[int, Hypothesis] = {}
    device, longest = model.embedding.device, model.spec.context - 1
    with Progress(count, label, unit="sentence") as progress:
        for numbers in pairs.batches(max(decoding.batch_tokens, pairs.longest)):
            chosen = [int(number) for number in numbers if number < count]
            if not chosen:
                continue
            batch = sentence_batch(pairs, chosen).to(device)
            limits = [min(longest, int(pairs.source_lengths[number]) + decoding.extra) for number in chosen]
            inputs = batch.source, batch.source_mask, limits, pairs.end
            translated = beam_search(model, *inputs, beam=decoding.beam, alpha=decoding.alpha)
            translations |= dict(zip(chosen, translated, strict=True))
            progress.advance(len(chosen))
    return [translations[number] for number in range(count)]


def _attention(model: TranslatorModel, data: Path, tokenizer: Tokenizer, decoding: Decoding) -> Iterator[list[Any]]:
    """Yield one row per unmasked attention probability, with the texts of the query and key tokens."""
    pairs = load_pairs(data, "test")
    for number in range(min(decoding.attention_sentences, len(pairs))):
        batch = sentence_batch(pairs, [number]).to(model.embedding.device)
        source, target = (
            [tokenizer.decode([token], skip_special_tokens=False) for token in ids[0].tolist()]
            for ids in (batch.source, batch.target_in)
        )
        texts = {"encoder": (source, source), "cross": (target, source), "decoder": (target, target)}
        for kind, layer, weights in attention_maps(model, batch):
            queries, keys = texts[kind]
            for (head, q, k), weight in np.ndenumerate(weights.numpy()):
                if kind != "decoder" or k <= q:
                    yield [number, kind, layer, head, q, k, queries[q], keys[k], float(weight)]


def attention_maps(model: TranslatorModel, batch: SentenceBatch) -> list[AttentionMap]:
    """Return the attention probabilities of every layer on a batch of one pair, without dropout."""
    maps: list[AttentionMap] = []
    kinds: dict[nn.Module, tuple[str, int]] = {}
    for layer, (encoder_block, decoder_block) in enumerate(zip(model.encoder, model.decoder, strict=True)):
        kinds[encoder_block.get_submodule("attention")] = ("encoder", layer)
        kinds[decoder_block.get_submodule("attention")] = ("decoder", layer)
        kinds[decoder_block.get_submodule("cross")] = ("cross", layer)

    def record(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        assert isinstance(module, MultiHead)
        q, (k, _), *optional = arguments
        mask = optional[0] if optional else None
        if options.get("causal"):
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()[None, None]
        maps.append((*kinds[module], module.weights(q, k, mask)[0].cpu()))

    with evaluating(model), ExitStack() as hooks:
        for module in kinds:
            hooks.enter_context(module.register_forward_pre_hook(record, with_kwargs=True))
        model(batch.source, batch.source_mask, batch.target_in)
    return maps
