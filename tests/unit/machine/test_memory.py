"""Memory is what the narrowest limit leaves."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from shoal.machine import memory
from shoal.machine.memory import VERSIONS, available_memory, bytes_text, memory_limits, total_memory


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


def test_bytes_for_people() -> None:
    found = [bytes_text(count) for count in (240, 4.8e4, 1.8e6, 5.12e8, 8e9, 6.3e10, 1.049e12)]
    assert found == ["0.2 kB", "48 kB", "1.8 MB", "512 MB", "8.0 GB", "63 GB", "1,049 GB"]
