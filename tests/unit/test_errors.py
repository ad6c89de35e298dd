"""The tree of exceptions that `errors.py` draws is the one that the code has."""

from __future__ import annotations

import ast
import builtins
import pickle
import re
from pathlib import Path

import pytest

import shoal
from shoal import errors

PACKAGE = Path(shoal.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
OWN = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BaseException)}
PYTHONS = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)}


def drawn() -> dict[str, str]:
    """Every class of the drawing with the one that it hangs below."""
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.fullmatch(r"((?:│   |    )*(?:[├└]── ))?(\w+)(?: {2,}\S.*)?", line)
        if found is None:
            continue
        depth = len(found[1] or "") // 4
        above[depth:] = [found[2]]
        if depth:
            parents[found[2]] = above[depth - 1]
    return parents


def test_the_drawing_is_the_tree() -> None:
    bases = {name: kind.__bases__[0].__name__ for name, kind in OWN.items() if kind is not errors.ShoalError}
    assert drawn() == bases
    assert all(len(kind.__bases__) == 1 for kind in OWN.values())


def test_no_other_module_defines_an_exception() -> None:
    found = []
    for file in MODULES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and file != PACKAGE / "errors.py":
                names = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                if names & (PYTHONS | set(OWN)) or any(name.endswith(("Error", "Exception")) for name in names):
                    found.append(f"{file.relative_to(PACKAGE)}: {node.name}")
    assert not found, "they belong into errors.py"


def test_no_exit_code_is_set_on_an_instance() -> None:
    found = []
    for file in MODULES:
        for node in ast.walk(ast.parse(file.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(target, ast.Attribute) and target.attr == "exit_code" for target in targets):
                found.append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    assert not found, "a class of its own says it"


@pytest.mark.parametrize("name", OWN)
def test_each_survives_the_way_to_another_process(name: str) -> None:
    error = OWN[name]("what failed, and what to do")
    if isinstance(error, errors.FolderGone):
        error.moved_to, error.is_there = Path("elsewhere"), True
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is OWN[name]
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_who_must_type_something_else_ends_with_2() -> None:
    ending = {name for name, kind in OWN.items() if getattr(kind, "exit_code", None) == 2}
    assert ending == {
        "ConfigError",
        "ModuleMissing",
        "AttributeMissing",
        "MissingMetric",
        "NotTrusted",
        "EnvStartError",
    }
