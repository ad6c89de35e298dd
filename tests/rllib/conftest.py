"""Tests with RLlib itself, which pins gymnasium: `make test-slow` runs them in .venvs/rllib-tests."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

NEEDED = ("torch", "lz4", "ormsgpack", "scipy", "tree", "PIL")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    reason = f"RLlib needs {', '.join(missing)}, not installed here; make test-rllib runs these in .venvs/rllib-tests"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            if missing:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A key of its own for every test, and nothing of anybody's in the home folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path  # type: ignore[return-value]
