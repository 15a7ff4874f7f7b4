"""The language of criteria: arithmetic, comparisons and `and`, `or`, `not` over named quantities, by simpleeval.

Nothing of Python can be reached from it: names, functions and operators are those listed, and attributes have no form.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from simpleeval import InvalidExpression, SimpleEval

from formerlab.errors import UserError

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.USub: operator.neg, ast.Not: operator.not_},
}
FORMS = ("Expr", "Constant", "Name", "BinOp", "UnaryOp", "BoolOp", "Compare", "Call")


def evaluate(expression: str, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]], claim: str) -> Any:
    """Return the value of an expression. Raises UserError, beginning with the claim, for what it lacks."""
    language = SimpleEval(operators=OPERATORS, functions=dict(functions), names=dict(names))
    language.nodes = {form: visit for form, visit in language.nodes.items() if form.__name__ in FORMS}
    try:
        return language.eval(expression)
    except (InvalidExpression, SyntaxError, TypeError) as error:
        raise UserError(f"{claim}: {expression!r}: {error}; see protocol.functions in claims.yaml") from None
