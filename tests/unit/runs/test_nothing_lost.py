"""Runs and evaluations with the real trainer, where a short cut would lose or spend something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal.errors import EnvError

SMALL = {"train_batch_size": 64, "num_envs_per_worker": 4, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}}


class Counted(gym.Env[Any, Any]):
    """Counts how many there are of it, and who they are."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    indices: list[int] = []

    def __init__(self, config: Any) -> None:
        self.fails = config.get("fails", False)
        type(self).indices.append(config.env_index)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        if self.fails and self.time == 3:
            raise RuntimeError("the mesh is torn")
        return np.zeros(2, np.float32), 1.0, self.time == 5, False, {}


def test_a_finished_run_without_checkpoints_keeps_its_records(tmp_path: Path) -> None:
    tree = {
        "env": "CartPole-v1",
        "name": "bare",
        "results_dir": str(tmp_path),
        "checkpoint_freq": 0,
        "checkpoint_at_end": False,
        "config": SMALL,
    }
    assert len(list(shoal.run({**tree, "stop": {"training_iteration": 2}}))) == 2
    (first,) = (tmp_path / "bare").iterdir()
    assert len(list(shoal.run({**tree, "stop": {"training_iteration": 1}}))) == 1
    assert len((first / "result.json").read_text().splitlines()) == 2
    assert len(list((tmp_path / "bare").iterdir())) == 2


def test_evaluation_environments_have_indices_of_their_own() -> None:
    Counted.indices.clear()
    with shoal.PPO(env=Counted, config=SMALL) as trainer:
        trainer.train()
        assert sorted(Counted.indices) == [0, 1, 2, 3]
        trainer.evaluate(episodes=2)
    assert sorted(Counted.indices) == [0, 1, 2, 3, 4, 5]


def test_the_limit_of_failures_is_of_all_environments_together() -> None:
    with (
        shoal.PPO(env=Counted, config={**SMALL, "max_env_failures": 6, "env_config": {"fails": True}}) as trainer,
        pytest.raises(EnvError, match="the mesh is torn"),
    ):
        _ = [trainer.train() for _ in range(3)]


def test_a_checkpoint_remembers_where_its_module_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text(
        "import gymnasium as gym\n\n\ndef make():\n    return gym.make('CartPole-v1')\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    with shoal.PPO(env="beside:make", config=SMALL) as trainer:
        trainer.train()
        path = Path(trainer.save(tmp_path / "kept"))
    assert str(tmp_path) in (path / "experiment.json").read_text()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"kl_target": 0.02}, "config.kl_target: it has no effect"),
        ({"model": {"conv_filters": [[16, 3, 1]]}}, "config.model.conv_filters: it has no effect"),
        ({"model": {"post_fcnet_hiddens": [16]}}, "config.model.post_fcnet_hiddens: it has no effect"),
    ],
)
def test_a_key_that_nothing_would_read_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(shoal.ConfigError, match=words):
        shoal.PPO(env="CartPole-v1", config=config)


def test_images_of_wide_integers_are_scaled() -> None:
    from shoal.envs.observations import ObsSpec
    from shoal.models.encoder import Encoder

    spec = ObsSpec(gym.spaces.Box(0, 4095, (16, 16, 1), np.uint16))
    rows = spec.allocate(1)
    spec.put(np.full((16, 16, 1), 4095, np.uint16), rows, 0)
    (image,) = Encoder(spec)(rows)
    assert image.max() == pytest.approx(1)
