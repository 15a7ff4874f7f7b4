"""docs/formulas.md matches the docstrings and has every variant."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import write_formulas  # noqa: E402

from formerlab.cache import CachePolicy  # noqa: E402
from formerlab.layers.depth.union import DepthMixer  # noqa: E402
from formerlab.layers.norm import Norm  # noqa: E402
from formerlab.layers.position import Position  # noqa: E402
from formerlab.layers.projection import FeedForward, Projection  # noqa: E402
from formerlab.layers.score import SCORES  # noqa: E402
from formerlab.spec import variants  # noqa: E402
from formerlab.training.optimizer import Optimizer  # noqa: E402
from formerlab.training.schedule import Schedule  # noqa: E402

FORMULAS = [formula for topic in write_formulas.TOPICS for formula in write_formulas.formulas(topic)]
NAMES = {formula.name for formula in FORMULAS}


def test_the_page_matches_the_docstrings():
    assert write_formulas.PAGE.read_text() == write_formulas.page(), "run scripts/write_formulas.py"


def test_every_listed_file_and_folder_has_a_formula():
    for names in write_formulas.TOPICS.values():
        for name in names:
            path = write_formulas.PACKAGE / name
            assert any(formula.path == path or path in formula.path.parents for formula in FORMULAS), name


VARIANTS = {score.__name__ for score in SCORES.values()} | {
    variant.__name__
    for union in (CachePolicy, DepthMixer, FeedForward, Norm, Optimizer, Position, Projection, Schedule)
    for variant in variants(union)
}


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_variant_states_its_formula_and_source(name):
    assert name in NAMES
