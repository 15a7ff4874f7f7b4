"""Split, deduplicate and cut documents."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formerlab.data.splitting import SPLITS, Digests, SplitFractions, digest
from formerlab.data.text.readers import split_text

FRACTIONS = SplitFractions(valid=0.1, test=0.2)


def test_split_fractions_are_reached():
    splits = [FRACTIONS.split(digest(str(number)), SPLITS) for number in range(20_000)]
    assert splits.count("test") / 20_000 == pytest.approx(0.2, abs=0.01)
    assert splits.count("valid") / 20_000 == pytest.approx(0.1, abs=0.01)


@given(st.integers(0, 2**64 - 1))
def test_the_test_split_does_not_change_if_the_validation_split_has_separate_files(mark):
    everything = FRACTIONS.split(mark, SPLITS)
    without_valid = FRACTIONS.split(mark, ("train", "test"))
    assert (everything == "test") == (without_valid == "test")
    assert FRACTIONS.split(mark, ("valid",)) == "valid"


def test_white_space_does_not_make_a_document_new():
    assert digest("a  b\n\tc ") == digest("abc\r\n") != digest("abd")


def test_digest_is_the_same_on_every_machine():
    assert digest("formerlab") == 0xE3EC9C7768A5433D


@given(st.lists(st.integers(0, 40)), st.integers(1, 5))
def test_digests_equal_a_set(values, recent):
    digests, reference = Digests(recent), set()
    for value in values:
        high = value * (2**58 + 1)  # values up to 2**63.3 exceed int64 and are not exact as float64
        assert digests.add(high) == (high not in reference)
        reference.add(high)
        assert not digests.add(high)


@given(st.text(alphabet="ab \n", max_size=200), st.integers(1, 20))
def test_texts_are_split_before_white_space(text, limit):
    pieces = list(split_text(text, limit))
    assert "".join(pieces) == text
    assert all(len(piece) <= limit for piece in pieces)
    for left, right in pairwise(pieces):
        cut_before_white_space = right[0].isspace() and not left[-1].isspace()
        cut_positions = [
            position
            for position in range(1, len(left))
            if left[position].isspace() and not left[position - 1].isspace()
        ]
        assert cut_before_white_space or not cut_positions
