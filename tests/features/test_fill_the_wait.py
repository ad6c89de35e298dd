"""Off-policy learning beside sampling: what `sample_async` and `training_intensity: auto` do for DQN and SAC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal.config.dqn import DQNConfig
from shoal.config.sac import SACConfig
from shoal.errors import ConfigError

PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"
CONFIG: dict[str, Any] = {
    "num_workers": 2,
    "num_envs_per_worker": 2,
    "num_cpus_per_worker": 0.5,
    "sample_async": True,
    "train_batch_size": 16,
    "timesteps_per_iteration": 96,
    "learning_starts": 300,
    "observation_filter": "MeanStdFilter",
    "replay_buffer_config": {"capacity": 500, "prioritized_replay": True},
    "model": {"fcnet_hiddens": [8]},
    "seed": 11,
}


@pytest.mark.repeats(1)
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(("run", "name"), [("DQN", "Masked"), ("SAC", "WalkInBox")])
def test_updates_follow_the_intensity_however_workers_come(start_trainer, caplog, tmp_path, run, name) -> None:
    config = {**CONFIG, "training_intensity": 8.0}
    trainer = start_trainer(run, f"{PROBES}:{name}", config)
    results = [trainer.train() for _ in range(8)]
    assert "neither repeated nor resumed" in caplog.text
    assert results[0]["learner"]["num_updates"] == 0
    last = results[-1]
    assert last["timesteps_total"] >= 8 * 96
    assert last["simulator_calls_total"] == last["timesteps_total"] + last["episodes_total"]
    updates = sum(result["learner"]["num_updates"] for result in results)
    learned_from = last["timesteps_total"] - 300
    assert (learned_from - 128) * 8 / 16 <= updates <= (learned_from + 128) * 8 / 16
    assert last["learner"]["replay_size"] == 500
    assert last["staleness"] >= 0
    assert 0 <= last["timers"]["wait_share"] <= 1
    assert "overfit_ratio" not in last["learner"]
    path = trainer.save(tmp_path)
    saved = trainer.get_policy().network.params.copy()
    trainer.train()
    trainer.restore(path)
    np.testing.assert_array_equal(trainer.get_policy().network.params, saved)
    assert trainer.train()["training_iteration"] == 9


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
@pytest.mark.parametrize(("run", "name"), [("DQN", "SlowWalk"), ("SAC", "SlowWalkInBox")])
def test_auto_learns_at_least_as_often_and_tells_how_it_judges(start_trainer, tmp_path, run, name) -> None:
    config = {**CONFIG, "training_intensity": "auto", "learning_starts": 100}
    trainer = start_trainer(run, f"{PROBES}:{name}", config)
    least = trainer.config.least_intensity
    for _ in range(5):
        result = trainer.train()
    assert result["learner"]["training_intensity"] > 0.5 * least
    assert result["learner"]["overfit_ratio"] > 0
    held = len(trainer.learner.held_out)
    assert 32 <= held <= 256
    assert len(trainer.learner.replay) == min(500, result["timesteps_total"] - held)
    path = trainer.save(tmp_path)
    trainer.restore(path)
    assert len(trainer.learner.held_out) == held


class StubbornHeldOut:
    """Always overfitted by the same ratio."""

    ratio = least = 1.5
    can_tell = True

    def measure(self, replay, errors_of) -> float:
        del replay, errors_of
        return self.ratio


@pytest.mark.parametrize(("most", "due"), [(1.25, 0), (1.75, 16), (None, 16)])
def test_more_is_due_than_is_owed_until_it_overfits(most, due) -> None:
    from shoal.algorithms.dqn import DQNLearner
    from shoal.models.build import build_policy

    settings = {"training_intensity": "auto", "sample_async": True, "num_workers": 2, "max_overfit_ratio": most}
    config = DQNConfig(**settings, train_batch_size=16)
    policy = build_policy(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2), config)
    learner = DQNLearner(config, policy)
    assert learner._updates_due() == (16 if most is None else 0), "nothing can be told yet"
    learner.held_out = StubbornHeldOut()
    assert learner._updates_due() == due
    learner.owed = 40.0
    assert learner._updates_due() == 2, "what is owed is paid in any case"


REFUSED = "config.training_intensity: auto learns while workers sample; set sample_async: true and num_workers above 0"


@pytest.mark.parametrize("kind", [DQNConfig, SACConfig])
@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"num_workers": 0, "sample_async": True}])
def test_auto_needs_workers_that_sample_meanwhile(kind, settings) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(training_intensity="auto", **settings)
    assert REFUSED in str(caught.value)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("much", "must be a number, or auto (got 'much')"),
        (0, "must be more than 0 (got 0)"),
        (True, "must be a number"),
    ],
)
def test_other_intensities_are_refused(value, sentence) -> None:
    with pytest.raises(ConfigError) as caught:
        SACConfig(training_intensity=value)
    assert f"config.training_intensity: {sentence}" in str(caught.value)


def test_many_updates_are_also_the_least_of_auto() -> None:
    settings = {"training_intensity": "auto", "sample_async": True, "num_workers": 2}
    assert SACConfig(**settings).least_intensity == 256
    assert SACConfig(**settings, high_update_ratio=True).least_intensity == 8 * 256
    assert SACConfig().least_intensity == 256
    assert shoal.SAC.get_default_config()["training_intensity"] == 256
