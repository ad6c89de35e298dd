"""How many threads torch gets: one for small networks, the cores of the process for large images."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from shoal.config.ppo import PPOConfig
from shoal.machine.threads import THREAD_VARIABLES
from shoal.models.build import build_policy

torch = pytest.importorskip("torch")

CONFIG = PPOConfig.model_validate({"framework": "torch"})


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def threads_for(*shape: int) -> int:
    torch.set_num_threads(3)
    build_policy(gymnasium.spaces.Box(0, 255, shape, np.uint8), gymnasium.spaces.Discrete(2), CONFIG)
    return int(torch.get_num_threads())


@pytest.mark.slow
def test_large_images_take_the_cores_unless_somebody_has_said_how_many(monkeypatch) -> None:
    monkeypatch.setattr("shoal.models.build.cores", lambda: 2)
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert threads_for(84, 84, 4) == 2
    assert threads_for(16, 16, 1) == 1
    assert threads_for(6) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_for(84, 84, 4) == 3
