"""A small tokenizer."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from formerlab.data.tokenizer import BytePairs

TEXT = "the cat sat on a mat and the dog ran to an old house by the river where many birds sing"
WORDS = TEXT.split()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    random = np.random.default_rng(0)
    return BytePairs(vocabulary=290).train([" ".join(random.choice(WORDS, 30)) for _ in range(50)])
