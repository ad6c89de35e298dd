"""Mutants of a few modules, and whether the tests notice: a small mutator of our own.

Each mutant changes one thing: a comparison, `and` for `or`, a condition or a number, a call whose result nobody takes
is left out, a result is None. Texts are left alone. The tests of a module run in a process that is forked after what
takes long was imported; a mutant is caught if one fails, or if they do not end.

python benchmarks/mutants.py                          all modules: the score, and who survives
python benchmarks/mutants.py control_connection --only 12
"""

from __future__ import annotations

import argparse
import ast
import compileall
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

from reliability_figures import Pieces, digest_of

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
        (
            "tests/unit/runs/test_checkpoint_care.py",
            "tests/unit/runs/test_checkpoints.py",
            "tests/faults/test_checkpoints.py",
            "tests/faults/test_formats.py",
            "tests/unit/runs/test_run_folder.py",
        ),
    ),
    "row_segments": Target(
        "runs/row_segments.py",
        (
            "tests/unit/runs/test_row_segments.py",
            "tests/unit/runs/test_forged_rows.py",
            "tests/unit/runs/test_frames_in_segments.py",
            "tests/unit/runs/test_run_folder.py",
            "tests/unit/runs/test_checkpoint_care.py",
            "tests/faults/test_formats.py",
            "tests/faults/test_checkpoints.py",
        ),
    ),
    "background_writer": Target(
        "runs/background_writer.py",
        ("tests/unit/runs/test_background_writer.py", "tests/unit/runs/test_run_folder.py"),
    ),
    "run_folder": Target(
        "runs/run_folder.py",
        (
            "tests/unit/runs/test_run_folder.py",
            "tests/unit/runs/test_run_folder_care.py",
            "tests/unit/runs/test_lost_run_folders.py",
            "tests/unit/runs/test_checkpoint_care.py",
            "tests/unit/runs/test_chain.py",
        ),
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
        compileall.compile_dir(self.source, quiet=1)  # what is no mutant is not compiled for each of them

    def outcome(self, target: Target, text: str, most_s: float) -> str:
        """What the tests of the module say of this text: "passed", which test failed, or "late" if they did not end."""
        path = self.source / "shoal" / target.module
        whole = path.read_text()
        path.write_text(text)
        try:
            return _outcome(self.source, target.tests, most_s)
        finally:
            path.write_text(whole)


def _outcome(source: Path, tests: tuple[str, ...], most_s: float) -> str:
    said = source.parent / "said"
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setpgid(0, 0)
            code = _child(source, tests, said)
        finally:
            os._exit(code)
    waited_s, before = 0.0, monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            if os.waitstatus_to_exitcode(status) == 0:
                return "passed"
            lines = [
                line for line in said.read_text(errors="replace").splitlines() if line.startswith(("FAILED", "ERROR"))
            ]
            return lines[0][:200] if lines else "failed"
        now = monotonic()
        waited_s, before = waited_s + min(now - before, 1.0), now  # not while both were stopped
        if waited_s > most_s:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "late"
        sleep(0.01)


def _child(source: Path, tests: tuple[str, ...], said: Path) -> int:
    import pytest

    ours = (str(ROOT / "src"), str(ROOT / "tests"))
    for name in [name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).startswith(ours)]:
        del sys.modules[name]  # what the parent has imported is no mutant
    os.environ["PYTHONPATH"] = str(source)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(source))
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(ROOT)
    words = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", "-k", "not kill_9 and not harm"]
    code = 0
    for test in tests:  # most mutants are caught by the first, and the others are not even collected
        code = code or int(pytest.main([*words, test]))
    assert all(
        str(module.__file__).startswith(str(source))
        for name, module in sys.modules.items()
        if name.startswith("shoal.runs") or name.startswith("shoal.cluster")
    )
    return code


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


def survivors(
    names: list[str], most: int, only: int | None = None, kept: Path | None = None
) -> Iterator[tuple[str, str, bool]]:
    """Every mutant, or `most` of each module: which it is, what is wrong with it, and whether it survives.

    In the folder `kept`, what was found is written down and not tried again while the module stands: who survives
    until there are other tests, who was caught for good, so that tests may be added one after another.
    """
    _import_what_takes_long()
    with tempfile.TemporaryDirectory(prefix="shoal-mutants-") as folder:
        overlay = Overlay(Path(folder))
        for name in names:
            target = TARGETS[name]
            path = ROOT / "src" / "shoal" / target.module
            text = path.read_text()
            pieces = Pieces((kept or Path(folder)) / f"mutants-{name}.jsonl", [path])
            tests = digest_of(ROOT / test for test in target.tests)
            numbers = list(range(places(text)))
            if only is not None:
                numbers = [only]
            elif len(numbers) > most:
                numbers = sorted(random.Random(17).sample(numbers, most))
            most_s = MOST_S
            todo = {number for number in numbers if _is_open(pieces.found.get(str(number)), tests)}
            if todo:
                started = monotonic()
                if overlay.outcome(target, text, 600.0) != "passed":
                    raise SystemExit(f"{name}: its tests do not even pass without a mutation")
                most_s += 5 * (monotonic() - started)
            for number in numbers:
                changed, told = mutated(text, number)
                if number in todo:
                    pieces.keep(str(number), {"outcome": overlay.outcome(target, changed, most_s), "tests": tests})
                yield f"{name} {number}", told, pieces.found[str(number)]["outcome"] == "passed"


def _is_open(found: dict[str, str] | None, tests: str) -> bool:
    """Whether a mutant is still to be tried."""
    return found is None or (found["outcome"] == "passed" and found["tests"] != tests)


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", choices=[[], *TARGETS], help="all without a word")
    parser.add_argument("--most", type=int, default=10_000, help="mutants of each module, chosen at random")
    parser.add_argument("--only", type=int, help="the mutant of this number alone")
    parser.add_argument("--folder", type=Path, help="where to note what was found, and go on")
    given = parser.parse_args()
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
    count = caught = 0
    for name, told, is_alive in survivors(given.modules or list(TARGETS), given.most, given.only, given.folder):
        count += 1
        caught += not is_alive
        if is_alive:
            print(f"{name} survives: {told}", flush=True)
    print(f"{caught} of {count} caught: {100 * caught / max(count, 1):.0f} %")


if __name__ == "__main__":
    main()
