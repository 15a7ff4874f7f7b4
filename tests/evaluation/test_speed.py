"""The rows of the stage `speed`, counted memory, and the time ratio of equal-time runs."""

import pytest
import torch

from formerlab.errors import UserError
from formerlab.evaluation.timing.speed import EqualTime, Speed, measure
from formerlab.evaluation.timing.timing import peak_bytes
from formerlab.layers import DepthWeightedAverage
from formerlab.models import Decoder
from formerlab.results.schema import DECODE, FORWARD, TRAINING
from formerlab.results.stages import TABLES
from formerlab.results.write import write_rows
from formerlab.tasks import LanguageModeling
from formerlab.training.run import Run

CPU = torch.device("cpu")
SPEED = Speed(repetitions=5, training_steps=1, forward_sequences=3, decoded_tokens=4)
MODEL = Decoder(vocabulary=64, layers=2, width=16, heads=2, context=8)
PLAIN = Run(study="study", name="plain", model=MODEL, task=LanguageModeling(context=8, batch=4))
DENSE = PLAIN.model_copy(
    update={"name": "dense", "model": MODEL.model_copy(update={"depth": DepthWeightedAverage()}), "seed": 1}
)


@pytest.fixture(scope="module")
def rows():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    measured, _ = measure([PLAIN, DENSE], SPEED, CPU)
    torch.set_num_threads(threads)
    return [dict(zip(TABLES["speed.csv"].names, row, strict=True)) for row in measured]


def test_every_repetition_measures_every_run(rows):
    keys = {(row["run"], row["measure"], row["repetition"]) for row in rows}
    assert keys == {
        (run, measure, repetition)
        for run in ("plain", "dense")
        for measure in (TRAINING, FORWARD, DECODE)
        for repetition in range(1, 6)
    }
    assert len(rows) == len(keys)
    assert all(row["time_s"] > 0 for row in rows)


def test_batch_sizes_and_tokens_of_each_measure(rows):
    units = {(row["measure"], row["sequences"], row["tokens"]) for row in rows}
    assert units == {(TRAINING, 4, 32), (FORWARD, 3, 24), (DECODE, 1, 1)}


def test_memory_includes_weights_gradients_and_moments(rows):
    peaks = {(row["run"], row["measure"]): row["memory_bytes"] for row in rows}
    weights = 4 * MODEL.params()
    assert peaks["plain", TRAINING] > 4 * weights
    assert weights < peaks["plain", DECODE] < peaks["plain", TRAINING]
    assert peaks["dense", TRAINING] > peaks["plain", TRAINING]


def test_peak_counts_tensors_that_exist_together():
    def work():
        first = torch.zeros(1000)
        second = first + 1
        del first
        third = second[:500] + 1
        return third

    assert 2 * 4000 <= peak_bytes(work, CPU) < 2 * 4000 + 100  # scalars next to tensors take a few bytes
    assert peak_bytes(lambda: None, CPU) == 0


def times(path, *pairs):
    rows = []
    for repetition, pair in enumerate(pairs, start=1):
        for position, (run, seconds) in enumerate(zip(("plain", "dense"), pair, strict=True)):
            rows += [
                (run, TRAINING, repetition, position, 1, 1, seconds, 0),
                (run, FORWARD, repetition, position, 1, 1, 9.0, 0),
            ]
    write_rows(path, TABLES["speed.csv"].names, rows)
    return path


def test_the_ratio_is_the_median_within_repetitions_and_missing_times_are_refused(tmp_path):
    path = times(tmp_path / "speed.csv", (1.0, 1.1), (2.0, 2.1), (3.0, 9.0))
    assert EqualTime(arm="dense", reference="plain").ratio(path) == pytest.approx(1.1)
    for arm, file in (("dense", "none.csv"), ("other", "speed.csv")):
        with pytest.raises(UserError, match=rf"{file}: no step times of {arm} and plain"):
            EqualTime(arm=arm, reference="plain").ratio(tmp_path / file)
