"""A small decoder, a small tokenizer and questions on disk."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from formerlab.data.text.tokenizer import BytePairs
from formerlab.models.decoder import Decoder, DecoderModel

TEXT = "the cat sat on a mat and the dog ran to an old house by the river where many birds sing"
WORDS = TEXT.split()
VOCABULARY = 290


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 30)) for _ in range(50)]
    return BytePairs(vocabulary=VOCABULARY).train(texts)


@pytest.fixture(scope="session")
def spec() -> Decoder:
    return Decoder(vocabulary=VOCABULARY, layers=2, width=16, heads=2, context=48, embedding_std=0.5)


@pytest.fixture(scope="session")
def model(spec: Decoder) -> DecoderModel:
    """Return an untrained model whose attention is uneven enough for pruning to matter."""
    model = spec.build(seed=1)
    with torch.no_grad():
        for weights in model.blocks.parameters():
            weights *= 20
    return model


@pytest.fixture(scope="session")
def stream() -> np.ndarray:
    return np.random.default_rng(2).integers(0, VOCABULARY, 200).astype(np.uint16)


@pytest.fixture(scope="session")
def configs(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """Twelve questions of four choices of unequal length, as a task of the harness."""
    folder: Path = tmp_path_factory.mktemp("questions")
    random = np.random.default_rng(3)
    lines = [
        {
            "query": " ".join(random.choice(WORDS, random.integers(1, 9))),
            "choices": [" ".join(random.choice(WORDS, random.integers(1, 5))) for _ in range(4)],
            "gold": int(random.integers(4)),
        }
        for _ in range(12)
    ]
    (folder / "next.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = [
        {"metric": name, "aggregation": "mean", "higher_is_better": True}
        for name in ("acc", "acc_norm", "acc_mutual_info")
    ]
    config = {
        "task": "next_words",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "next.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "query",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": metrics,
        "metadata": {"version": 1.0},
    }
    return [config]
