"""BLEU from the rows of sentences is the score of the corpus, and each metric does to the text what it says."""

import pytest
import sacrebleu

from formerlab.evaluation.bleu import METRICS, corpus_bleu, signature, statistics

TRANSLATIONS = ["The well-known cat sat on the mat.", "A dog runs in the park!", "Two men, one ball", ""]
REFERENCES = ["The well known cat sat on a mat.", "A dog is running in the park.", "Two men and one ball", "Nothing."]


def score(metric):
    found = [statistics(metric, *pair) for pair in zip(TRANSLATIONS, REFERENCES, strict=True)]
    return corpus_bleu([(*one.correct, *one.total, one.length, one.reference_length) for one in found])


def test_rows_add_up_to_sacrebleu():
    bleu = sacrebleu.BLEU()
    expected = bleu.corpus_score(TRANSLATIONS, [REFERENCES])
    assert score("sacrebleu") == pytest.approx(expected.score)
    parts = {part.split(":")[0]: part for part in str(bleu.get_signature()).split("|")}
    ours = {part.split(":")[0]: part for part in signature("sacrebleu").split("|")}
    assert ours == parts


def test_splitting_compounds_gives_their_halves_credit():
    one, other = "a well-known cat sat", "a well-read cat sat"
    whole, split = (statistics(metric, one, other) for metric in ("sacrebleu", "compound_split"))
    assert (whole.correct[0], whole.total[0]) == (3, 4)
    assert (split.correct[0], split.total[0]) == (5, 6)  # a, well, @-@, cat, sat of six
    assert statistics("compound_split", "- 3 - 4 -", "- 3 - 4 -").total[0] == 5  # lone dashes stay


def test_lower_case_ignores_case_alone():
    assert statistics("tokenized_lowercase", "The Cat, sat", "the cat, SAT").correct[0] == 4
    assert statistics("compound_split", "The Cat, sat", "the cat, SAT").correct[0] == 1
    expected = sacrebleu.BLEU(lowercase=True).corpus_score(TRANSLATIONS, [REFERENCES])
    assert score("tokenized_lowercase") == pytest.approx(expected.score)


def test_every_metric_has_a_signature_of_its_own():
    assert len({signature(metric) for metric in METRICS}) == len(METRICS)
    with pytest.raises(ValueError, match="no sentence"):
        corpus_bleu([])
