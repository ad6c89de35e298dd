"""Explorations and schedules in training: shown in results, the same for any layout, and right after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same_training import assert_restored_exactly

import shoal

PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"
SMALL = {"num_envs_per_worker": 4, "model": {"fcnet_hiddens": [8]}, "seed": 11}
ON_POLICY = {**SMALL, "train_batch_size": 200, "sgd_minibatch_size": 50, "num_sgd_iter": 2}
REPLAY = {"timesteps_per_iteration": 96, "learning_starts": 100, "replay_buffer_config": {"capacity": 200}}
OU = {"type": "OrnsteinUhlenbeckNoise", "ou_theta": 0.1}
SPREAD = {"type": "GaussianNoise", "stddev_schedule": [[0, 0.5], [800, 0.1]]}
STEPPED = {"type": "step", "endpoints": [[0, 0.9], [200, 0.1]]}
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "correlated": ("PPO", "WalkInBox", {"exploration_config": OU}),
    "correlated in TRPO": ("TRPO", "WalkInBox", {"exploration_config": OU}),
    "given spread": ("PPO", "WalkInBox", {"exploration_config": SPREAD}),
    "given spread in TRPO": ("TRPO", "WalkInBox", {"exploration_config": SPREAD}),
    "schedules": (
        "PPO",
        "Walk",
        {
            "lr_schedule": {"type": "cosine", "initial": 1e-2, "final": 1e-4, "timesteps": 800},
            "entropy_coeff_schedule": [[0, 0.1], [800, 0.0]],
            "clip_param_schedule": {"type": "exponential", "initial": 0.4, "final": 0.1, "timesteps": 800},
        },
    ),
    "softmax": ("DQN", "Walk", {"exploration_config": {"type": "SoftQ", "temperature": 0.5}}),
    "scheduled epsilon": ("DQN", "Walk", {"exploration_config": {"epsilon_schedule": STEPPED}}),
}


@pytest.fixture
def trainer_of(start_trainer):
    def make(variant: str, **changes: Any) -> shoal.Trainer:
        algorithm, env, config = VARIANTS[variant]
        common = {**SMALL, **REPLAY} if algorithm == "DQN" else ON_POLICY
        return start_trainer(algorithm, f"{PROBES}:{env}", {**common, **config, **changes})

    return make


@pytest.mark.parametrize("variant", VARIANTS)
def test_k_save_load_k_is_two_k(trainer_of, tmp_path, variant) -> None:
    assert_restored_exactly(lambda: trainer_of(variant), tmp_path, 2)


def test_schedules_are_shown_in_results(trainer_of) -> None:
    trainer = trainer_of("schedules")
    first = trainer.train()["learner"]
    assert (first["cur_lr"], first["entropy_coeff"], first["clip_param"]) == pytest.approx((1e-2, 0.1, 0.4))
    for _ in range(4):
        last = trainer.train()["learner"]
    assert (last["cur_lr"], last["entropy_coeff"], last["clip_param"]) == pytest.approx((1e-4, 0.0, 0.1))


def test_a_scheduled_epsilon_is_shown_and_softmax_has_none(trainer_of) -> None:
    greedy, soft = trainer_of("scheduled epsilon"), trainer_of("softmax")
    seen = [greedy.train()["learner"]["cur_epsilon"] for _ in range(3)]
    assert seen == [0.9, 0.9, 0.1]
    assert "cur_epsilon" not in soft.train()["learner"]


@pytest.mark.parametrize("variant", ["given spread", "given spread in TRPO"])
def test_a_given_spread_is_that_of_the_policy(trainer_of, variant) -> None:
    trainer = trainer_of(variant)
    for wanted in (0.5, 0.4, 0.3):
        result = trainer.train()
        assert result["learner"]["cur_stddev"] == pytest.approx(wanted)
        assert np.exp(trainer.get_policy().get_weights()["log_std"]) == pytest.approx(wanted, rel=1e-6)


def test_correlated_noise_correlates_actions(trainer_of) -> None:
    trainer = trainer_of("correlated", train_batch_size=4000)
    batch = trainer.workers.sample(1000).batch
    mean, log_std = batch.dist_inputs[..., :2], batch.dist_inputs[..., 2:]
    z = (batch.actions - mean) / np.exp(log_std)
    assert z.std() == pytest.approx(1, abs=0.1)
    assert np.mean(z[1:] * z[:-1]) == pytest.approx(0.9, abs=0.1)


@pytest.mark.repeats(1)
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("variant", ["correlated", pytest.param("given spread", marks=pytest.mark.slow), "softmax"])
def test_two_workers_sample_and_learn_the_same(trainer_of, variant) -> None:
    alone, shared = trainer_of(variant), trainer_of(variant, num_workers=2, num_envs_per_worker=2)
    for _ in range(3):
        one, two = alone.train(), shared.train()
        assert one["episode_reward_mean"] == pytest.approx(two["episode_reward_mean"], rel=1e-3)
        assert one["learner"] == pytest.approx(two["learner"], rel=1e-2, abs=1e-4)
    mine, theirs = (trainer.get_policy().network.params for trainer in (alone, shared))
    np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)
