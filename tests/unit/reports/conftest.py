"""What tests of sweeps share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_sweeps import BATCH, GAMMA, LR, NET, fill, sweep

from shoal.config.sweep import Setting


@pytest.fixture
def filled(tmp_path: Path) -> Callable[..., Path]:
    """A whole sweep over lr, gamma, batch size and net in a folder of its own."""

    def make(count: int = 20, settings: Sequence[Setting] = (LR, GAMMA, BATCH, NET), **keys: Any) -> Path:
        options = {name: keys.pop(name) for name in ("iterations", "early", "seed", "is_run") if name in keys}
        return fill(tmp_path / "sweep", sweep(*settings, **keys), count, **options)

    return make
