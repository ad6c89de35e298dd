"""What `import shoal` offers: one list, where each name comes from, what type checkers see, and what documents name."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import shoal
import shoal.tune
from shoal.config.algorithms import BUILT_IN

ROOT = Path(shoal.__file__).parents[2]
PUBLIC: dict[str, ModuleType] = {"shoal": shoal, "shoal.tune": shoal.tune}
DOCUMENTS = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *(
        path
        for where in ("docs", "docs/seeds", "docs/start", "examples", "examples/theta", "examples/learning-ray")
        for path in sorted((ROOT / where).glob("*.*"))
        if path.suffix != ".png"
    ),
]
OPTIONAL = {"torch"}  # without which some names cannot be had
NO_NAMES = {
    "NAME": "stands for a name",
    "A2C": "is what the recipe for an algorithm makes",
    "config.a2c": "is what the recipe for an algorithm makes",
    "schedulers": "is a group of entry points",
    "loggers": "is a group of entry points",
    "env_formats": "is a group of entry points",
    "progress": "is a logger",
    "f90": "is a file in Fortran",
    "sif": "is an image of Apptainer",
    "def": "is the recipe of that image",
}
"""What documents write after `shoal.` that nobody can import."""


def seen_by_type_checkers(module: ModuleType) -> dict[str, str]:
    """Name to home, `envs.context:EnvContext`, of what a module imports for type checkers alone and for everybody."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    blocks = [block.body for block in tree.body if isinstance(block, ast.If)]
    (checked,) = [body for body in blocks if isinstance(body[0], ast.ImportFrom)]
    imports = [line for line in (*tree.body, *checked) if isinstance(line, ast.ImportFrom) and line.module]
    return {
        alias.asname or alias.name: f"{line.module}:{alias.name}"
        for line in imports
        for alias in line.names
        if str(line.module).startswith("shoal")
    }


def homes(module: ModuleType) -> dict[str, str]:
    """The same, of what the module looks up when somebody asks."""
    found = {}
    for name, home in module._HOMES.items():
        place, _, own_name = home.partition(":")
        found[name] = f"shoal.{place}:{own_name or name}"
    found |= {name: f"{module.__name__}:{name}" for name in module._MODULES}
    if module is shoal:
        found |= {name: f"shoal.runs.trainer:{name}" for name in BUILT_IN}
    return found


@pytest.mark.parametrize("module", PUBLIC.values(), ids=PUBLIC)
def test_the_list_is_sorted_and_has_every_name_once(module: Any) -> None:
    assert len(module.__all__) == len(set(module.__all__))
    assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize("module", PUBLIC.values(), ids=PUBLIC)
def test_the_list_its_homes_and_what_type_checkers_see_agree(module: Any) -> None:
    seen, lazy = seen_by_type_checkers(module), homes(module)
    assert set(module.__all__) == set(seen)
    assert {name: seen[name] for name in lazy} == lazy
    at_once = set(seen) - set(lazy)
    assert at_once <= set(vars(module)), "what is looked up by nobody must be there from the beginning"


@pytest.mark.parametrize(
    ("module", "name"), [(name, each) for name, module in PUBLIC.items() for each in module.__all__]
)
def test_every_name_is_what_its_home_has(module: str, name: str) -> None:
    home, _, own_name = seen_by_type_checkers(PUBLIC[module])[name].partition(":")
    try:
        found = getattr(PUBLIC[module], name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"{name} needs {error.name}")
    assert found is getattr(importlib.import_module(home), own_name)


@pytest.mark.parametrize("module", PUBLIC.values(), ids=PUBLIC)
def test_nothing_public_stands_beside_the_list(module: Any) -> None:
    """What is there beside it has a leading underscore, or is a room or a tool of the module itself."""
    others = {name for name in vars(module) if not name.startswith("_")} - set(module.__all__)
    tools = {"annotations", "import_module", "sys", "TYPE_CHECKING", "Any"}
    assert {name for name in others - tools if not isinstance(vars(module)[name], ModuleType)} == set()


def test_documents_name_only_what_is_there() -> None:
    """`shoal.X` in a document is a name of the list, or a module and what it has."""
    written: dict[str, set[str]] = {}
    for document in DOCUMENTS:
        for name in re.findall(r"(?<![\w./-])shoal((?:\.[A-Za-z_]\w*)+)", document.read_text()):
            written.setdefault(name[1:], set()).add(document.name)
    assert {"PPO", "register_env"} <= set(written)
    assert {name: places for name, places in written.items() if not is_there(name.split("."))}.keys() <= set(NO_NAMES)


@pytest.mark.parametrize("module", PUBLIC.values(), ids=PUBLIC)
def test_every_name_is_in_a_document(module: Any) -> None:
    text = "".join(document.read_text() for document in DOCUMENTS if document.suffix == ".md")
    names = set(module.__all__) - {"__version__"}
    assert {name for name in names if re.search(rf"\b{name}\b", text) is None} == set()


def is_there(names: list[str]) -> bool:
    """Whether `shoal.a.b.c` can be had, as an attribute of what is before it or as a module."""
    found: Any = shoal
    for place, name in enumerate(names):
        try:
            found = getattr(found, name)
        except AttributeError:
            try:
                found = importlib.import_module(".".join(["shoal", *names[: place + 1]]))
            except ModuleNotFoundError:
                return False
    return True
