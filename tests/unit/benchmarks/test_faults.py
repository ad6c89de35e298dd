"""`benchmarks/faults.py`: which incident came of which fault."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import faults

    return faults


def at(env_index: int, seed: int, steps: int, **more: Any) -> dict[str, Any]:
    return {"env_index": env_index, "seed": seed, "steps_since_seed": steps, **more}


def test_each_incident_has_the_fault_that_was_written_down(faults: Any, tmp_path: Path) -> None:
    happened = [
        at(0, 7, 3, kind="log_flood"),
        at(0, 7, 9, kind="nan"),
        at(1, 7, 3, kind="leak"),
        at(2, 8, 4, kind="stop"),
        at(3, 9, 5, kind="log_flood"),
        at(4, 1, 2, kind="exit"),
    ]
    lines = [json.dumps(fault) for fault in happened]
    file = tmp_path / "faults.jsonl"
    file.write_text("\n".join([*lines, lines[1]]) + "\n")  # once more in a run that was resumed
    found = faults.Faults(file)
    assert found.kinds.total() == len(happened)
    nan, leak = at(0, 7, 9, kind="error"), at(1, 7, 5, kind="memory")
    stop, flood = at(2, 8, 4, kind="hang"), at(3, 9, 5, kind="hang")
    slow = at(5, 1, 8, kind="hang")
    kept = [nan, leak, stop, flood, slow]
    kinds = [found.kind_of(entry) for entry in kept]
    assert kinds == ["nan", "leak", "stop", "log_flood", faults.NO_FAULT]
    late = [faults.has_timed_out(entry, kind) for entry, kind in zip(kept, kinds, strict=True)]
    assert late == [False, False, False, True, True]
    assert found.unnoticed(kept) == 1  # the exit
    assert found.unnoticed([*kept, at(4, 1, 2, kind="exit")]) == 0
