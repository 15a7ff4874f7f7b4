"""Evaluation and decoding on a fake GPU: tensors are on it, rows match the CPU, and few operations synchronise."""

import csv
import math
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from fixtures.fake_device import DEVICE, fake_device
from fixtures.separate_process import separate_process

from formerlab.cache import (
    H2O,
    TOVA,
    Decay,
    ExpectedAttention,
    Ideal,
    KeyDiff,
    Knorm,
    KVCache,
    Local,
    PrunedCache,
    Random,
    SnapKV,
    SpAtten,
    StreamingLLM,
)
from formerlab.data.pairs.streams import PairStream
from formerlab.evaluation.language.flow import Flow, flow
from formerlab.evaluation.language.generate import sample
from formerlab.evaluation.pruning.prune import COLUMNS, PruneSweep, prune
from formerlab.evaluation.pruning.windows import Configuration
from formerlab.evaluation.timing.timing import feed_tokens
from formerlab.evaluation.translation import beam
from formerlab.evaluation.translation.translate import Decoding, attention_maps, decode
from formerlab.layers import DepthWeightedAverage, Rotary
from formerlab.models import Decoder, Translator
from formerlab.tasks import LanguageModeling, scoring
from formerlab.tasks.translation import sentence_batch
from formerlab.tasks.window_losses import window_losses

SIZES = {"vocabulary": 30, "layers": 2, "width": 16, "heads": 2, "context": 16, "embedding_std": 0.5}
SPEC = Decoder(**SIZES, position=Rotary(), depth=DepthWeightedAverage())
STREAM = np.random.default_rng(2).integers(0, 30, 80).astype(np.uint16)
STREAMING = StreamingLLM(sink=2, positions="reindexed")
STEPWISE = Local(), STREAMING, H2O(), Decay(recent=0.5, sink=1), TOVA(), Knorm(), KeyDiff(), Random()
MASKS = H2O(variant="local_statistics"), H2O(variant="global_statistics"), SpAtten(), Ideal()
COUNTS = {"windows": 2, "context": 10, "mask_windows": 1, "calibration_windows": 1, "score_windows": 1}
ONE_SHOT = {"one_shot": (SnapKV(window=4), ExpectedAttention(), Knorm(), Decay()), "one_shot_budgets": (0.4,)}
POLICIES = {"policies": (*STEPWISE, *MASKS), "alphas": (0.0, 0.2), "budgets": (0.4,)}
SWEEP = PruneSweep(**POLICIES, **COUNTS, **ONE_SHOT, mask_dump_tokens=8)


@pytest.fixture(scope="module")
def on_device():
    """Return a function that calls test functions in a process with the fake device."""
    with separate_process(fake_device) as call:
        yield call


def model_on(device, spec=SPEC):
    """Return a model whose attention is so uneven that pruning changes its output."""
    model = spec.build(seed=1).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights *= 8 if weights.dim() > 1 and weights.shape[0] != spec.vocabulary else 1
    return model.to(device)


def assert_rows_close(rows, expected_rows):
    """Compare rows of cells. Numbers may differ in the last digits."""
    for row, expected_row in zip(rows, expected_rows, strict=True):
        for cell, expected in zip(row, expected_row, strict=True):
            if cell != expected:
                assert math.isclose(float(cell), float(expected), rel_tol=1e-4, abs_tol=1e-5), (row, expected_row)


def read(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def check_pruning(folder):
    streams, synchronisations = {"valid": STREAM[:40], "test": STREAM}, []
    for device in ("cpu", DEVICE):
        (folder / device).mkdir()
        with fake_device() as device_state:
            prune(model_on(device), streams, None, SWEEP, folder / device)
            synchronisations = device_state.synchronisations
    for name in COLUMNS:
        assert_rows_close(read(folder / "cpu" / name), read(folder / DEVICE / name))
    assert not [synchronisation for synchronisation in synchronisations if "/cache/" in synchronisation]
    # Losses are read in three synchronisations per batch, for each configuration, each alpha in the calibration, and
    # each of the three choices of alpha.
    losses = [synchronisation for synchronisation in synchronisations if "/scoring.py" in synchronisation]
    assert len(losses) == 3 * (len(SWEEP.configurations((0.4,))) + len(SWEEP.alphas) + 3)
    assert len(synchronisations) - len(losses) < 60, Counter(synchronisations)


def check_padded(folder):
    """Sequences have different lengths, so their cache budgets differ."""
    tokens, lengths = torch.from_numpy(STREAM[:34].astype(np.int64)).view(2, 17), torch.tensor([16, 9])
    results = {}
    for device in ("cpu", DEVICE):
        with fake_device() as device_state, torch.inference_mode():
            model = model_on(device)
            device_state.synchronisations.clear()
            configurations = [Configuration(policy, 0.4) for policy in (Decay(), H2O(), SpAtten(), STREAMING)]
            attends = [partial(configuration.attend, position=model.position) for configuration in configurations]
            results[device] = [scoring.score(model, tokens, lengths, attend_for) for attend_for in attends]
    assert len(device_state.synchronisations) == 3 * len(results[DEVICE]), device_state.synchronisations
    for expected, scores in zip(*results.values(), strict=True):
        assert torch.allclose(scores.realised_budget, expected.realised_budget)
        assert torch.allclose(scores.log_probs[0], expected.log_probs[0], atol=1e-4)
        assert torch.allclose(scores.log_probs[1, :9], expected.log_probs[1, :9], atol=1e-4)


def check_decoding(folder):
    """Feeding a token does not synchronise, for any number of keys in the cache."""
    tokens = torch.from_numpy(STREAM[:32].astype(np.int64)).view(2, 16)
    with fake_device() as device_state, torch.no_grad():
        model, tokens = model_on(DEVICE), tokens.to(DEVICE)
        device_state.synchronisations.clear()
        for policy in (None, *STEPWISE):
            cache = KVCache(4) if policy is None else PrunedCache(policy, 5, position=model.position)
            model(tokens[:, :8], attend=cache)
            feed_tokens(model, cache, tokens, start=8)
        assert device_state.synchronisations == []
        list(sample(model, [1, 2, 3], tokens=4, temperature=0, attend=PrunedCache(Decay(), 2)))
        assert len(device_state.synchronisations) == 4, "every sampled token is read on the host"


def check_a_model_of_transformers(folder):
    from formerlab import prune
    from tests.huggingface.tiny_models import build, tokens

    mask = torch.tensor([[0, 0, 0, *[1] * 9], [1] * 12])
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    results = {"cpu": [], DEVICE: []}
    for device, texts in results.items():
        with fake_device() as device_state:
            model, text = build("llama").to(device), tokens(2, 12).to(device)
            for policy, beams in ((Decay(), 1), (Decay(), 2), (SnapKV(window=4), 1)):
                with prune(model, policy, 0.4):
                    generated = model.generate(text, attention_mask=mask.to(device), num_beams=beams, **options)
                    texts.append(generated.cpu())
            with prune(model, Decay(), 0.4):
                cache = model(text, attention_mask=mask.to(device)).past_key_values
                device_state.synchronisations.clear()
                model(text[:, :1], past_key_values=cache)
                assert device_state.synchronisations == []
    assert all(map(torch.equal, *results.values()))


SENTENCES = Translator(vocabulary=12, layers=2, width=16, heads=2, context=40, embedding_std=0.7)


def pairs():
    random = np.random.default_rng(0)
    sentences = [[*random.integers(1, 12, random.integers(2, 9)), 0] for _ in range(16)]
    return PairStream(np.concatenate(sentences).astype(np.uint16), 0)


def check_translation(folder):
    results = {}
    for device in ("cpu", DEVICE):
        with fake_device() as device_state:
            model = SENTENCES.build(1).eval().to(device)
            device_state.synchronisations.clear()
            results[device] = decode(model, pairs(), Decoding(beam=3, extra=20), "elsewhere")
            beam_waits = [
                synchronisation for synchronisation in device_state.synchronisations if "/beam.py" in synchronisation
            ]
            maps = attention_maps(model, sentence_batch(pairs(), [0]).to(device))
            assert all(weights.device.type == "cpu" for *_, weights in maps)
    for expected, hypothesis in zip(*results.values(), strict=True):
        assert hypothesis.tokens == expected.tokens
        assert hypothesis.score == pytest.approx(expected.score, abs=1e-5)
    longest = max(len(hypothesis.tokens) for hypothesis in results[DEVICE])
    assert longest > 3 * beam.CHECK_EVERY
    assert len(beam_waits) == longest // beam.CHECK_EVERY + 2, "tokens and scores are read only at the end"


def check_flow(folder):
    task, settings, rows = LanguageModeling(context=16, batch=2), Flow(windows=3, shares=(0.0, 0.5)), []
    for device in ("cpu", DEVICE):
        with fake_device():
            rows.append(list(flow(model_on(device), task, STREAM, settings)))
            losses = window_losses(model_on(device), STREAM, 12, batch=2)
            assert losses[-1].tokens < 12, "the last window is shorter"
    assert_rows_close(*rows)


@pytest.mark.parametrize(
    "check", [check_pruning, check_padded, check_decoding, check_a_model_of_transformers, check_translation, check_flow]
)
def test_results_equal_the_cpu_with_few_synchronisations(on_device, tmp_path, check):
    on_device(check, tmp_path)
