"""Mutants of a few modules, and whether the tests notice: a small mutator of our own.

Each mutant changes one thing: a comparison, `and` for `or`, a condition or a number, a call whose result nobody takes
is left out, a result is None. Texts are left alone. The tests of a module run in a process that is forked after what
takes long was imported; a mutant is caught if one fails, or if they do not end.

python benchmarks/mutants.py                          all modules: the score, and who survives
python benchmarks/mutants.py control_connection --only 12 --show
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

ROOT = Path(__file__).resolve().parent.parent
MOST_S = 60.0  # for the tests of a module, times what they take unmutated
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A module, and the tests that should notice what is wrong with it."""

    module: str  # below src/shoal
    tests: tuple[str, ...]


TARGETS = {
    "checkpoints": Target(
        "runs/checkpoints.py",
        ("tests/unit/runs/test_checkpoints.py", "tests/faults/test_checkpoints.py", "tests/unit/runs/test_links.py"),
    ),
    "atomic_files": Target(
        "runs/atomic_files.py",
        ("tests/unit/runs/test_atomic_files.py", "tests/unit/runs/test_links.py"),
    ),
    "appended_file": Target(
        "runs/appended_file.py", ("tests/unit/runs/test_appended_file.py", "tests/unit/runs/test_chain.py")
    ),
    "control_connection": Target(
        "cluster/control_connection.py",
        ("tests/unit/cluster/test_control_connection.py", "tests/unit/cluster/test_agents.py"),
    ),
    "proofs": Target("machine/proofs.py", ("tests/unit/machine/test_proofs.py",)),
}


class _Mutating(ast.NodeTransformer):
    """Changes the place of one number; with none, counts the places."""

    def __init__(self, wanted: int | None) -> None:
        self.wanted, self.count = wanted, 0
        self.told = ""

    def _is_here(self, node: ast.AST, what: str) -> bool:
        self.count += 1
        if self.wanted != self.count - 1:
            return False
        self.told = f"line {getattr(node, 'lineno', '?')}: {what}"
        return True

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for index, each in enumerate(node.ops):
            other = SWAPS.get(type(each))
            if other is not None and self._is_here(node, f"{type(each).__name__} -> {other.__name__}"):
                node.ops[index] = other()  # type: ignore[assignment]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        other = SWAPS[type(node.op)]
        if self._is_here(node, f"{type(node.op).__name__} -> {other.__name__}"):
            node.op = other()  # type: ignore[assignment]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if _is_annotation(node):
            return node
        self.generic_visit(node)
        other = SWAPS.get(type(node.op))
        if other is not None and self._is_here(node, f"{type(node.op).__name__} -> {other.__name__}"):
            node.op = other()  # type: ignore[assignment]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and self._is_here(node, "not left out"):
            return node.operand
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if self._is_here(node, "the condition is reversed"):
            node.test = ast.UnaryOp(ast.Not(), node.test)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            if self._is_here(node, f"{node.value} -> {not node.value}"):
                return ast.copy_location(ast.Constant(not node.value), node)
        elif isinstance(node.value, int | float) and self._is_here(node, f"{node.value} -> {node.value + 1}"):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        is_call = isinstance(node.value, ast.Call) or (
            isinstance(node.value, ast.Await) and isinstance(node.value.value, ast.Call)
        )
        if is_call and self._is_here(node, f"left out: {ast.unparse(node)[:60]}"):
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
            return node
        if self._is_here(node, f"returns None: {ast.unparse(node)[:60]}"):
            node.value = ast.Constant(None)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node


def _is_annotation(node: ast.BinOp) -> bool:
    """`int | None` in an alias of a type."""
    return isinstance(node.op, ast.BitOr) and any(
        isinstance(side, ast.Constant) and side.value is None for side in (node.left, node.right)
    )


def places(source: str) -> int:
    """How many mutants there are of a module."""
    counting = _Mutating(None)
    counting.visit(_tree(source))
    return counting.count


def mutated(source: str, number: int) -> tuple[str, str]:
    """The source of a mutant, and what is wrong with it."""
    mutating = _Mutating(number)
    tree = mutating.visit(copy.deepcopy(_tree(source)))
    return ast.unparse(ast.fix_missing_locations(tree)), mutating.told


def _tree(source: str) -> ast.Module:
    """Without annotations of functions, which nobody runs."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
    return tree


class Overlay:
    """A copy of the sources in which one module at a time is a mutant."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("__pycache__"))

    def survives(self, target: Target, text: str, most_s: float) -> bool:
        """Whether all tests of the module pass with this text."""
        path = self.source / "shoal" / target.module
        whole = path.read_text()
        path.write_text(text)
        try:
            return _passes(self.source, target.tests, most_s)
        finally:
            path.write_text(whole)


def _passes(source: Path, tests: tuple[str, ...], most_s: float) -> bool:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os._exit(_child(source, tests))
    until = monotonic() + most_s
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        if monotonic() > until:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return False
        sleep(0.01)


def _child(source: Path, tests: tuple[str, ...]) -> int:
    import pytest

    os.environ["PYTHONPATH"] = str(source)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(source))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.chdir(ROOT)
    here = [test for test in tests if (ROOT / test).exists()]
    words = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *here, "-k", "not kill_9 and not harm"]
    return int(pytest.main(words))


def _import_what_takes_long() -> None:
    """But nothing of shoal's, which is imported anew for each mutant."""
    import asyncio  # noqa: F401

    import gymnasium  # noqa: F401
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import psutil  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import safetensors.numpy  # noqa: F401


def survivors(names: list[str], most: int, only: int | None = None) -> Iterator[tuple[str, str, bool]]:
    """Every mutant, or `most` of each module: which it is, what is wrong with it, and whether it survives."""
    _import_what_takes_long()
    with tempfile.TemporaryDirectory(prefix="shoal-mutants-") as folder:
        overlay = Overlay(Path(folder))
        for name in names:
            target = TARGETS[name]
            text = (ROOT / "src" / "shoal" / target.module).read_text()
            started = monotonic()
            if not overlay.survives(target, text, 600.0):
                raise SystemExit(f"{name}: its tests do not even pass without a mutation")
            most_s = MOST_S + 5 * (monotonic() - started)
            numbers = list(range(places(text)))
            if only is not None:
                numbers = [only]
            elif len(numbers) > most:
                numbers = sorted(random.Random(17).sample(numbers, most))
            for number in numbers:
                changed, told = mutated(text, number)
                yield f"{name} {number}", told, overlay.survives(target, changed, most_s)


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", choices=[[], *TARGETS], help="all without a word")
    parser.add_argument("--most", type=int, default=10_000, help="mutants of each module, chosen at random")
    parser.add_argument("--only", type=int, help="the mutant of this number alone")
    given = parser.parse_args()
    count = caught = 0
    for name, told, is_alive in survivors(given.modules or list(TARGETS), given.most, given.only):
        count += 1
        caught += not is_alive
        if is_alive:
            print(f"{name} survives: {told}", flush=True)
    print(f"{caught} of {count} caught: {100 * caught / max(count, 1):.0f} %")


if __name__ == "__main__":
    main()
