"""The rooms that people read to learn have air: one idea per statement, and no function that nobody can follow."""

from __future__ import annotations

import ast
from pathlib import Path

import shoal

SOURCE = Path(shoal.__file__).parent
MOST_BRANCHES = 20
BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
STATEMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)


def complexity(function: ast.AST) -> int:
    """The number of ways through a function; unlike ruff's, with conditions and comprehensions."""
    found = 1
    for node in ast.walk(function):
        found += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            found += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            found += 1 + len(node.ifs)
    return found


def nodes(room: str, kinds: tuple[type[ast.AST], ...]) -> list[tuple[str, ast.AST]]:
    """Every node of these kinds in a room, with its place."""
    found = []
    for path in sorted((SOURCE / room).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kinds):
                found.append((f"{path.name}:{node.lineno}", node))
    return found


def test_no_function_of_algorithms_and_models_is_too_complex() -> None:
    functions = nodes("algorithms", (ast.FunctionDef,)) + nodes("models", (ast.FunctionDef,))
    assert not [place for place, function in functions if complexity(function) > MOST_BRANCHES]


def test_algorithms_have_one_comprehension_per_statement() -> None:
    for place, statement in nodes("algorithms", STATEMENTS):
        inside = [node for node in ast.walk(statement) if isinstance(node, COMPREHENSIONS)]
        assert len(inside) <= 1, place
