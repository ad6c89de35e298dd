"""Memory is what the narrowest limit leaves."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from shoal.machine import memory
from shoal.machine.memory import VERSIONS, available_memory, memory_limits, total_memory


def test_this_machine_has_some() -> None:
    assert 0 < available_memory() <= psutil.virtual_memory().total
    assert available_memory() <= total_memory() <= psutil.virtual_memory().total


@pytest.mark.parametrize("files", VERSIONS, ids=["version 2", "version 1"])
def test_a_control_group_leaves_its_limit_less_its_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: memory.Files
) -> None:
    (tmp_path / "listing").write_text("0::/\n")
    (tmp_path / files.limit).write_text("max\n")
    assert not list(memory_limits(tmp_path, tmp_path / "listing"))
    (tmp_path / files.limit).write_text("1000000\n")
    (tmp_path / files.usage).write_text("400000\n")
    (tmp_path / "memory.stat").write_text(f"anon 300000\n{files.cache} 50000\n")
    found = list(memory_limits(tmp_path, tmp_path / "listing"))
    monkeypatch.setattr(memory, "memory_limits", lambda: iter(found))
    assert (total_memory(), available_memory()) == (1_000_000, 650_000)
