"""BLEU from n-gram counts of sentences equals the corpus score, and each metric preprocesses text as documented."""

import numpy as np
import pytest
import sacrebleu

from formerlab.evaluation.translation.bleu import METRICS, corpus_bleu, signature, statistics

TRANSLATIONS = ["The well-known cat sat on the mat.", "A dog runs in the park!", "Two men, one ball", ""]
REFERENCES = ["The well known cat sat on a mat.", "A dog is running in the park.", "Two men and one ball", "Nothing."]


def score(metric):
    counts = [statistics(metric, *pair) for pair in zip(TRANSLATIONS, REFERENCES, strict=True)]
    return corpus_bleu(np.array(counts, dtype=float).sum(axis=0))


def test_the_score_of_summed_rows_equals_sacrebleu():
    bleu = sacrebleu.BLEU()
    expected = bleu.corpus_score(TRANSLATIONS, [REFERENCES])
    assert score("sacrebleu") == pytest.approx(expected.score)
    assert set(signature("sacrebleu").split("|")) == set(str(bleu.get_signature()).split("|"))


def test_scores_of_many_corpora_equal_sacrebleu():
    random = np.random.default_rng(0)
    total = np.sort(random.integers(0, 6, (400, 4)), axis=1)[:, ::-1]
    correct = np.sort(random.integers(0, total + 1), axis=1)[:, ::-1]
    lengths = np.stack([total[:, 0], random.integers(1, 8, 400)], axis=1)
    sums = np.concatenate([correct, total, lengths], axis=1)
    expected = [
        sacrebleu.BLEU.compute_bleu(list(map(int, c)), list(map(int, t)), int(n), int(r), smooth_method="exp").score
        for c, t, (n, r) in zip(correct, total, lengths, strict=True)
    ]
    assert 50 < sum(score > 0 for score in expected) < 350
    np.testing.assert_allclose(corpus_bleu(sums.astype(float)), expected, rtol=1e-9)


def test_the_parts_of_split_compounds_are_matched():
    texts = "a well-known cat sat", "a well-read cat sat"
    unsplit, split = (statistics(metric, *texts) for metric in ("sacrebleu", "compound_split"))
    assert (unsplit[0], unsplit[4]) == (3, 4)
    assert (split[0], split[4]) == (5, 6)  # five of six tokens match: a, well, @-@, cat, sat
    assert statistics("compound_split", "- 3 - 4 -", "- 3 - 4 -")[4] == 5  # single dashes are not split


def test_lower_case_ignores_only_case():
    assert statistics("tokenized_lowercase", "The Cat, sat", "the cat, SAT")[0] == 4
    assert statistics("compound_split", "The Cat, sat", "the cat, SAT")[0] == 1
    expected = sacrebleu.BLEU(lowercase=True).corpus_score(TRANSLATIONS, [REFERENCES])
    assert score("tokenized_lowercase") == pytest.approx(expected.score)


def test_every_metric_has_a_different_signature():
    assert len({signature(metric) for metric in METRICS}) == len(METRICS)
