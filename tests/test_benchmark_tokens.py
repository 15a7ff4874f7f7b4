"""The GPU benchmarks count the tokens of a step without padding."""

import numpy as np
import pytest
from gpu_steps import mean_tokens

from formerlab.data.pairs.streams import PairStream
from formerlab.models import Decoder, Translator
from formerlab.tasks import Translation
from formerlab.training.run import Run


def test_the_tokens_of_a_translation_step_exclude_padding():
    lengths = np.random.default_rng(0).integers(2, 9, 200)
    stream = np.concatenate([[1] * length + [0] for length in lengths]).astype(np.uint16)
    model = Translator(vocabulary=8, layers=1, width=8, heads=2, context=16)
    run = Run(study="benchmark", name="base", model=model, task=Translation(tokens=100))
    pairs = PairStream(stream, 0)
    batches = [run.task.step_batches(pairs, run.seed, step)[0] for step in (2, 3, 4)]
    assert mean_tokens(run, pairs, range(2, 5)) == pytest.approx(sum(batch.tokens for batch in batches) / 3)
    assert mean_tokens(run, pairs, range(2, 5)) < max(batch.target_in.numel() for batch in batches) <= 100


def test_the_tokens_of_a_language_step_are_its_windows():
    model = Decoder(vocabulary=8, layers=1, width=8, heads=2, context=16)
    run = Run(study="benchmark", name="plain", model=model, task={"context": 16, "batch": 4})
    assert mean_tokens(run, None, range(2, 5)) == 64
