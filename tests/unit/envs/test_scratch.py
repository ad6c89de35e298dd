"""A folder and a port of an environment's own, in the worker's process and in one of its own."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal.envs.context import EnvContext, NoSuchItem


class Writer(gym.Env[Any, Any]):
    """Writes its number into its folder."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: EnvContext) -> None:
        self.folder, self.port = config.scratch_dir, config.port
        assert os.listdir(self.folder) == []
        Path(self.folder, "index").write_text(str(config.env_index))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_each_has_its_own_and_nothing_is_left(isolation: str) -> None:
    with shoal.PPO(env=Writer, config={"num_envs_per_worker": 3, "env_isolation": isolation}) as trainer:
        told = trainer.workers.foreach_env(lambda env: (env.folder, env.port))
        assert [Path(folder, "index").read_text() for folder, _ in told] == ["0", "1", "2"]
    assert len({port for _, port in told}) == 3
    assert not any(os.path.exists(folder) for folder, _ in told)


def test_they_are_attributes_and_made_when_asked_for(tmp_path: Path) -> None:
    ctx = EnvContext({"a": 1}, env_index=4, scratch=str(tmp_path))
    assert dict(ctx) == {"a": 1}
    assert list(tmp_path.iterdir()) == []
    again = pickle.loads(pickle.dumps(ctx))
    assert Path(again.scratch_dir).parent == tmp_path
    assert again.scratch_dir == again.scratch_dir
    again.remove_scratch()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NoSuchItem, match=r"type config\.port"):
        ctx["port"]
