"""The rows of the stage `decode`. DynamicKVCache gives the logits of KVCache."""

from itertools import product

import pytest
import torch
from pydantic import ValidationError

from formerlab.cache import Decay, Full, Ideal, KVCache, Local, Pyramid, SnapKV, SpAtten
from formerlab.errors import UserError
from formerlab.evaluation.timing.decode import DecodeSettings, DynamicKVCache, measure, model_of
from formerlab.evaluation.timing.timing import interleaved
from formerlab.layers import Rotary
from formerlab.models import Decoder
from formerlab.results.stages import TABLES
from formerlab.training.any_run import Pretrained, ReleasedRun
from formerlab.training.run import Run

CPU = torch.device("cpu")
MODEL = Decoder(vocabulary=64, layers=2, width=16, heads=2, context=8, position=Rotary())
RUN = Run(study="study", name="plain", model=MODEL, task={"context": 8})
SIZES = {"layers": 2, "width": 16, "vocabulary": 64, "parameters": 5000}
SETTINGS = DecodeSettings(
    lengths=(6, 20), batches=(1, 3), policies=(Local(), Decay()), budgets=(0.25, 4), tokens=2, repetitions=5
)


def measured(*arguments):
    rows, _ = measure(*arguments)
    return [dict(zip(TABLES["decode.csv"].names, row, strict=True)) for row in rows]


@pytest.fixture(scope="module")
def rows():
    return measured([RUN], SETTINGS, CPU)


def test_every_cache_is_measured_at_every_length_in_every_repetition(rows):
    caches = [("full", 1.0), ("dynamic_cache", 1.0), *product(("local", "decay"), (0.25, 4))]
    keys = ("length", "sequences", "repetition")
    cases = {((row["policy"], row["budget"]), *(row[key] for key in keys)) for row in rows}
    assert cases == set(product(caches, (6, 20), (1, 3), range(1, 6)))
    assert len(rows) == len(cases)
    assert all(row["time_s"] > 0 and row["prompt_s"] > 0 for row in rows)


def test_bytes_count_the_retained_tokens(rows):
    token = MODEL.kv_bytes(1)
    for row in rows:
        length = row["length"]
        retained = {1.0: length + 2, 0.25: {6: 2, 20: 5}[length], 4: 4}[row["budget"]]
        assert row["cache_bytes"] == retained * token * row["sequences"]
        assert (row["metadata_bytes"] > 0) == (row["policy"] in ("local", "decay"))


@pytest.mark.parametrize("lengths", [(5, 1, 1), (1, 1, 1)])
def test_dynamic_cache_gives_equal_logits(lengths):
    model = model_of(RUN, 8, CPU)
    tokens = torch.arange(2 * sum(lengths)).reshape(2, -1) % 64
    caches, start = (KVCache(), DynamicKVCache()), 0
    for chunk in tokens.split(lengths, 1):
        with torch.no_grad():
            torch.testing.assert_close(*(model(chunk, attend=cache, start=start) for cache in caches))
        start += chunk.shape[1]
    assert len({cache.bytes() for cache in caches}) == 1


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (SpAtten(), "spatten"),
        (Ideal(), "ideal"),
        (Full(), "full"),
        (SnapKV(), "snapkv"),
        (Pyramid(policy=SnapKV(), layers=2), r"pyramid\(snapkv\) layers=2"),
    ],
)
def test_policies_that_cannot_evict_step_by_step_are_refused(policy, name):
    with pytest.raises(ValidationError, match=f"policies: {name} cannot evict from a cache after every token"):
        DecodeSettings(policies=(policy,))


def test_a_budget_per_layer_is_measured():
    policy = Pyramid(policy=Decay(), layers=2, last=0.5)
    settings = SETTINGS.model_copy(update={"policies": (policy,), "lengths": (20,), "budgets": (4,), "batches": (1,)})
    rows = [row for row in measured([RUN], DecodeSettings(**settings.to_dict()), CPU) if row["budget"] == 4]
    assert {row["policy"] for row in rows} == {"pyramid(decay) layers=2 last=0.5"}
    assert {row["cache_bytes"] for row in rows} == {4 * MODEL.kv_bytes(1)}


def released(context: int) -> ReleasedRun:
    model = Pretrained(name="tiny", source={"kind": "folder", "path": "tiny"}, context=context, **SIZES)
    return ReleasedRun(study="study", name="released-tiny", released="tiny", model=model)


def test_a_released_model_is_measured_like_a_trained_model():
    """One of our decoders replaces the released model, which has the same interface."""
    model, calls = MODEL.model_copy(update={"context": 22}).build(1).eval(), []

    def load(run, device):
        calls.append((run.name, device))
        return model

    settings = SETTINGS.model_copy(update={"batches": (1,), "budgets": (0.25,)})
    rows = measured([released(22), RUN], settings, CPU, load)
    assert calls == [("released-tiny", CPU)]
    keys = ("policy", "budget", "length", "repetition", "cache_bytes")
    released_rows, trained_rows = (
        [[row[key] for key in keys] for row in rows if row["run"] == name] for name in ("released-tiny", "plain")
    )
    assert released_rows == trained_rows


def test_a_text_beyond_the_context_of_a_released_model_is_refused():
    logits_and_caches = 3 * 22 * (4 * 64 + 2 * MODEL.kv_bytes(1))
    assert SETTINGS.memory_bytes([RUN]) == 4 * MODEL.params() + logits_and_caches
    assert SETTINGS.memory_bytes([released(22)]) > 0
    with pytest.raises(UserError, match=r"study\.decode\.lengths: 20 plus 2 decoded tokens exceed .* 21 tokens"):
        SETTINGS.memory_bytes([released(21)])


@pytest.mark.parametrize("items", ["a", "abc"])
def test_every_repetition_measures_all_items_in_rotated_order(items):
    turns = list(interleaved(items, 4))
    for repetition in range(5):
        positions, order = zip(*(turn[1:] for turn in turns if turn[0] == repetition), strict=True)
        assert positions == tuple(range(1, len(items) + 1))
        assert sorted(order) == sorted(items)
        assert order[0] == items[repetition % len(items)]
