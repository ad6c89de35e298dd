"""Small formulas over named numbers, as a configuration writes them: `-(T - 20)**2 - 0.1*abs(u)`. Nothing else runs."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
FUNCTIONS: dict[str, Callable[..., float]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
}
_LONGEST = 1000


class Expression:
    """A formula that was read once; a ValueError says what is wrong with one that cannot be.

    With `takes_text` it may compare names with quoted text too: `env == "CartPole-v1"`. Where text and numbers meet in
    another way, it raises a TypeError when it is computed.
    """

    def __init__(self, text: str, names: Mapping[str, Any] | set[str], takes_text: bool = False) -> None:
        self.text = text
        self._constants: tuple[type, ...] = (int, float, str) if takes_text else (int, float)
        known = dict.fromkeys(names, 0)
        if len(text) > _LONGEST:
            raise ValueError(f"the formula is longer than {_LONGEST} letters")
        try:
            self._tree = ast.parse(_plain_names(text, known), mode="eval").body
        except (SyntaxError, RecursionError):
            raise ValueError(f"{text!r} is no formula") from None
        self._check(self._tree, set(known))
        self._raised = (TypeError,) if takes_text else ()

    @property
    def is_condition(self) -> bool:
        """Whether its value is true or false."""
        tree = self._tree
        return isinstance(tree, ast.Compare | ast.BoolOp) or (
            isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not)
        )

    def __call__(self, values: Mapping[str, float]) -> float:
        """The formula's value; NaN where it has none, as the root of a negative number."""
        try:
            return float(self._value(self._tree, {_plain(name): value for name, value in values.items()}))
        except self._raised:
            raise
        except (ZeroDivisionError, ValueError, OverflowError, TypeError):
            return math.nan

    def _check(self, node: ast.AST, names: set[str]) -> None:
        plain = {_plain(name) for name in names}
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id not in plain and part.id not in FUNCTIONS:
                raise ValueError(f"{self.text!r} has the unknown name {part.id}; there are {', '.join(sorted(names))}")
            if isinstance(part, ast.Call) and (not isinstance(part.func, ast.Name) or part.func.id not in FUNCTIONS):
                raise ValueError(f"{self.text!r} may use the functions {', '.join(FUNCTIONS)} alone")
            if isinstance(part, ast.Constant) and not isinstance(part.value, self._constants):
                raise ValueError(f"{self.text!r} may hold numbers alone")
            if not isinstance(part, _ALLOWED):
                raise ValueError(f"{self.text!r} is no formula of numbers, names, + - * / ** and comparisons")

    def _value(self, node: ast.AST, values: Mapping[str, float]) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return values[node.id]
        if isinstance(node, ast.UnaryOp):
            return _OPERATORS[type(node.op)](self._value(node.operand, values))
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left, values), self._value(node.right, values)
            # Whole numbers grow without bound under powers; floats overflow.
            return _OPERATORS[type(node.op)](float(left), float(right))
        if isinstance(node, ast.BoolOp):
            parts = [bool(self._value(part, values)) for part in node.values]
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        if isinstance(node, ast.Compare):
            places = [self._value(part, values) for part in (node.left, *node.comparators)]
            pairs = zip(node.ops, places[:-1], places[1:], strict=True)
            return all(_OPERATORS[type(op)](left, right) for op, left, right in pairs)
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        return FUNCTIONS[node.func.id](*(self._value(part, values) for part in node.args))


_ALLOWED = (
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.UnaryOp,
    ast.BinOp,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.Compare,
    ast.Call,
    *_OPERATORS,
)


def _plain_names(text: str, names: Mapping[str, Any]) -> str:
    """The formula with names such as `tank.level` or `x[1]` in letters that Python takes for one name."""
    for name in sorted(names, key=len, reverse=True):
        if not name.isidentifier():
            text = text.replace(name, _plain(name))
    return text


def _plain(name: str) -> str:
    return name if name.isidentifier() else "v_" + name.encode().hex()
