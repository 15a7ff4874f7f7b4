"""The language of criteria knows what the protocol lists, and nothing else."""

import pytest

from formerlab.errors import UserError
from formerlab.report.claims.expression import evaluate

FUNCTIONS = {"abs": abs, "max": max}


def value(expression, **names):
    return evaluate(expression, names, FUNCTIONS, "some-claim")


def test_arithmetic_and_logic_are_those_of_python():
    assert value("8 * 12 * 3600 * 9.5e12") == 8 * 12 * 3600 * 9.5e12
    assert value("abs(a / 3 - 1) <= 0.5 and not b > 2", a=4.0, b=1.0)
    assert not value("0 < a < 1 or max(a, b) == 0", a=2.0, b=-1.0)
    assert value("-a + 1", a=3) == -2


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("gap", "'gap' is not defined"),
        ("open('x')", "Function 'open' not defined"),
        ("a.real", "Attribute"),
        ("[a]", "List"),
        ("(lambda: 1)()", "Lambda"),
        ("a if a else a", "IfExp"),
        ("a ** a", "Pow"),
        ("abs(x=1)", "keyword is not available"),
        ("a <", "invalid syntax"),
    ],
)
def test_all_else_is_refused_with_the_id_of_the_claim(expression, message):
    with pytest.raises(UserError, match=r"^some-claim: ") as error:
        value(expression, a=1.0)
    assert message in str(error.value)
