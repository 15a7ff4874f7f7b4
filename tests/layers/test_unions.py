import re

import pytest
from pydantic import TypeAdapter, ValidationError
from variation import defaults, label, settings

from formerlab.layers import DepthMixer, FeedForward, Norm, Position, Projection
from formerlab.spec import variants

UNIONS = [Projection, FeedForward, DepthMixer, Norm, Position]
EVERY_SETTING = [(union, spec) for union in UNIONS for spec in settings(union)]
EVERY_VARIANT = [variant for union in UNIONS for variant in variants(union)]


@pytest.mark.parametrize(("union", "spec"), EVERY_SETTING, ids=label)
def test_plain_values_give_the_spec_back(union, spec):
    assert TypeAdapter(union).validate_python(spec.to_dict()) == spec


@pytest.mark.parametrize("variant", EVERY_VARIANT)
def test_the_docstring_names_its_source(variant):
    assert re.search(r"arXiv:\d{4}\.\d{4,5}", variant.__doc__)


@pytest.mark.parametrize("variant", EVERY_VARIANT)
def test_every_field_is_described(variant):
    undescribed = [name for name, field in variant.model_fields.items() if name != "kind" and not field.description]
    assert undescribed == []


@pytest.mark.parametrize("union", UNIONS)
def test_an_unknown_kind_is_answered_with_the_choices(union):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(union).validate_python({"kind": "nonsense"})
    for spec in defaults(union):
        assert f"'{spec.kind}'" in str(caught.value)


@pytest.mark.parametrize("union", UNIONS)
def test_an_unknown_key_is_named(union):
    for spec in defaults(union):
        with pytest.raises(ValidationError, match=r"nonsense\n.*Extra inputs are not permitted"):
            TypeAdapter(union).validate_python({"kind": spec.kind, "nonsense": 1})


@pytest.mark.parametrize("variant", EVERY_VARIANT)
def test_specs_are_values(variant):
    assert variant() == variant()
    assert hash(variant()) == hash(variant())
    with pytest.raises(ValidationError, match="frozen"):
        variant().kind = "other"


@pytest.mark.parametrize("union", UNIONS)
def test_fingerprints_tell_settings_apart(union):
    specs = settings(union)
    assert len({spec.fingerprint() for spec in specs}) == len(specs)
