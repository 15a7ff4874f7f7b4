import re

import pytest
from variation import settings

from formerlab.layers import DepthMixer, FeedForward, Norm, Position, Projection
from formerlab.spec import variants

UNIONS = [Projection, FeedForward, DepthMixer, Norm, Position]
EVERY_VARIANT = [variant for union in UNIONS for variant in variants(union)]


@pytest.mark.parametrize("variant", EVERY_VARIANT)
def test_the_docstring_names_its_source(variant):
    assert re.search(r"arXiv:\d{4}\.\d{4,5}", variant.__doc__)


@pytest.mark.parametrize("variant", EVERY_VARIANT)
def test_every_field_is_described(variant):
    undescribed = [name for name, field in variant.model_fields.items() if name != "kind" and not field.description]
    assert undescribed == []


@pytest.mark.parametrize("union", UNIONS)
def test_fingerprints_tell_settings_apart(union):
    specs = settings(union)
    assert len({spec.fingerprint() for spec in specs}) == len(specs)
