"""A small language for criteria: Python's arithmetic, comparisons and `and`, `or`, `not` over named quantities.

Nothing of Python can be reached from it: an expression is parsed, and only the nodes listed here mean something.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from formerlab.errors import UserError

ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def evaluate(expression: str, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]], place: str) -> Any:
    """Return the value of an expression. Raises UserError, beginning with `place`, for all that the language lacks."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError:
        raise UserError(
            f"{place}: {expression!r} is not an expression; see protocol.functions in claims.yaml"
        ) from None
    return _Evaluation(names, functions, f"{place}: {expression!r}").value(tree.body)


class _Evaluation:
    def __init__(self, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]], place: str) -> None:
        self.names, self.functions, self.place = names, functions, place

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
            return node.value
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            return ARITHMETIC[type(node.op)](self.value(node.left), self.value(node.right))
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BoolOp):
            values = (self._truth(part) for part in node.values)
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        raise UserError(
            f"{self.place}: {ast.unparse(node)!r} has no meaning here; see protocol.functions in claims.yaml"
        )

    def _named(self, name: str) -> Any:
        if name not in self.names:
            raise UserError(f"{self.place}: unknown name {name!r}; `let` defines {', '.join(self.names) or 'nothing'}")
        return self.names[name]

    def _unary(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.USub):
            return -self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return not self._truth(node.operand)
        raise UserError(f"{self.place}: {ast.unparse(node)!r} has no meaning here")

    def _truth(self, node: ast.expr) -> bool:
        value = self.value(node)
        if not isinstance(value, bool):
            raise UserError(f"{self.place}: {ast.unparse(node)!r} is neither true nor false")
        return value

    def _comparison(self, node: ast.Compare) -> bool:
        values = [self.value(part) for part in (node.left, *node.comparators)]
        for value in values:
            if not isinstance(value, int | float):
                raise UserError(f"{self.place}: only numbers are compared; take mean, lo or hi of a quantity first")
        pairs = zip(values, node.ops, values[1:], strict=False)
        return all(bool(COMPARISONS[type(sign)](left, right)) for left, sign, right in pairs)

    def _call(self, node: ast.Call) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in self.functions:
            raise UserError(f"{self.place}: unknown function {name!r}; there are {', '.join(self.functions)}")
        if node.keywords:
            raise UserError(f"{self.place}: {name} takes no keywords")
        return self.functions[name](*(self.value(argument) for argument in node.args))
