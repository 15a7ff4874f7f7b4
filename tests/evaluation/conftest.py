"""A small decoder, a small tokenizer, and questions as a task of lm-evaluation-harness."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from formerlab.data.text.tokenizer import BytePairs
from formerlab.evaluation.language.suites import task_config
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
    """Return an untrained model whose attention is so uneven that pruning changes its output."""
    model = spec.build(seed=1)
    with torch.no_grad():
        for weights in model.blocks.parameters():
            weights *= 20
    return model


@pytest.fixture(scope="session")
def stream() -> np.ndarray:
    return np.random.default_rng(2).integers(0, VOCABULARY, 200).astype(np.uint16)


@pytest.fixture(scope="session")
def configs() -> list[dict]:
    """Twelve questions with four choices of unequal length, in the format of a harness task."""
    random = np.random.default_rng(3)
    rows = [
        {
            "query": " ".join(random.choice(WORDS, random.integers(1, 9))),
            "choices": [" ".join(random.choice(WORDS, random.integers(1, 5))) for _ in range(4)],
            "gold": int(random.integers(4)),
        }
        for _ in range(12)
    ]
    return [task_config("next_words", {"test": rows}, "choices", " ", 1.0)]


def naive_log_prob(model, context, continuation) -> tuple[float, bool]:
    """Return the log-probability of a continuation and whether greedy decoding would generate it.

    Each token is scored by a separate forward pass.
    """
    total, greedy = 0.0, True
    for count, token in enumerate(continuation):
        with torch.no_grad():
            logits = model(torch.tensor([context + continuation[:count]]))[0, -1]
        total += logits.double().log_softmax(0)[token].item()
        greedy &= int(logits.argmax()) == token
    return total, greedy


@pytest.fixture(scope="session")
def harness_rows(model, tokenizer):
    """Return a function that evaluates tasks with lm_eval and returns rows (task, example, metric, value)."""
    import lm_eval
    from lm_eval.api.model import TemplateLM

    class Naive(TemplateLM):
        eot_token_id = 0
        generate_until = loglikelihood_rolling = None

        def tok_encode(self, string, **_):
            return tokenizer.encode(string).ids

        def _loglikelihood_tokens(self, requests, **_):
            return [naive_log_prob(model, context, target) for _, context, target in requests]

    def rows(tasks):
        Naive.__abstractmethods__ = frozenset()
        samples = lm_eval.evaluate(lm=Naive(), task_dict=tasks, bootstrap_iters=0, log_samples=True)["samples"]
        return [
            (name, sample["doc"].get("id", sample["doc_id"]), metric.replace("perplexity", "log_prob"), sample[metric])
            for name, of_task in samples.items()
            for sample in of_task
            for metric in sample["metrics"]
            if isinstance(sample[metric], int | float)
        ]

    return rows
