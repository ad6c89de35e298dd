"""The code reads one idea at a time: where people read to learn, no statement nests what could be two.

Counted are comprehensions, ternaries and walruses. Complexity is counted more strictly than ruff does: every branch,
and also each `and`, `or`, ternary and comprehension, for these are branches that a reader has to follow too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "shoal"
READ_TO_LEARN = ("algorithms", "models", "sampling")
MOST_COMPLEX = 20

CLEVER = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.NamedExpr)
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)
BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def own_expressions(node: ast.AST) -> Iterator[ast.AST]:
    """What a statement consists of, without the statements in its block."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, BLOCKS):
            yield child
            yield from own_expressions(child)


def num_clever(statement: ast.stmt) -> int:
    return sum(isinstance(node, CLEVER) for node in own_expressions(statement))


def complexity(function: Function) -> int:
    total = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
    return total


def modules(*rooms: str) -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        if not rooms or name.startswith(rooms):
            yield name, ast.parse(file.read_text())


@pytest.mark.parametrize("room", READ_TO_LEARN)
def test_a_statement_holds_one_comprehension_ternary_or_walrus(room: str) -> None:
    nested = []
    for name, tree in modules(f"{room}/"):
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and num_clever(node) > 1:
                nested.append(f"{name}:{node.lineno}")
    assert not nested, "write these as several steps or a plain loop"


def test_no_function_is_too_complex() -> None:
    found = {}
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, Function) and complexity(node) > MOST_COMPLEX:
                found[f"{name}: {node.name}"] = complexity(node)
    assert not found, "make several functions of these"


def test_a_class_name_has_one_meaning() -> None:
    homes: dict[str, list[str]] = {}
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name)
    assert not {name: files for name, files in homes.items() if len(files) > 1}


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("x = 1", 0),
        ("x = [i for i in y]", 1),
        ("x = a if b else c", 1),
        ("x = a if b else c if d else e", 2),
        ("x = [[j for j in i] for i in y]", 2),
        ("f((y := 1), [y])", 1),
        ("if (y := f()):\n    z = [i for i in y]", 1),
        ("for i in (a if b else c):\n    pass", 1),
        ("x = lambda: [a if b else c for a in d]", 2),
    ],
)
def test_what_a_statement_holds(code: str, count: int) -> None:
    assert num_clever(ast.parse(code).body[0]) == count


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("pass", 1),
        ("if a: pass\n elif b: pass\n else: pass", 3),
        ("if a and b or c: pass", 4),
        ("for i in a:\n  while b: pass", 3),
        ("try: pass\n except ValueError: pass", 2),
        ("return [i for i in a if i if b]", 4),
        ("return a if b else c", 2),
        ("def inner():\n  if a: pass", 2),
    ],
)
def test_what_makes_a_function_complex(body: str, expected: int) -> None:
    function = ast.parse(f"def f():\n {body}").body[0]
    assert isinstance(function, ast.FunctionDef)
    assert complexity(function) == expected
