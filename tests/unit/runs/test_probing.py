"""Every symptom that only play shows: found in an environment or a policy made to have it, and in no healthy one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.config.algorithms import ALGORITHMS
from shoal.data.findings import Finding
from shoal.data.played import Played
from shoal.reports.diagnosis import diagnosis
from shoal.reports.run_facts import RunFacts
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.probing import probe
from shoal.runs.resuming import experiment_of

ENVS = Path(__file__).with_name("unlearnable_envs.py")
CONFIG = {"num_envs_per_worker": 4, "train_batch_size": 64, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}}
FLAT = [{"episode_reward_mean": value, "timesteps_total": 64} for value in (1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0)]
WITHOUT_SCALE = {"normalize_rewards": False} if "normalize_rewards" in ALGORITHMS["PPO"].model_fields else {}


FOLLOWS = {"Uneven": {"same answer"}, "Loud": {"reward outliers"}}
"""What else an environment's illness brings about: saturated units, and rewards that are rare among all."""


def played(folder: Path, env: str, weights: dict[str, Any] | None = None, **config: Any) -> tuple[Played, RunFacts]:
    """What a policy that has learned nothing sees, in a run whose return does not rise."""
    name = env if "-v" in env else f"{ENVS}:{env}"
    trainer = shoal.PPO(env=name, config={**CONFIG, **config})
    try:
        trainer.get_policy().set_weights(weights or {})
        checkpoint = read_checkpoint(trainer.save(folder))
    finally:
        trainer.stop()
    experiment, _ = experiment_of(checkpoint.experiment_tree)
    seen = probe(checkpoint, episodes=30, max_steps=2000, budget_s=60)
    return seen, RunFacts("PPO", env, experiment.config, FLAT)


def found(folder: Path, env: str, weights: dict[str, Any] | None = None, **config: Any) -> list[Finding]:
    """What play adds to a diagnosis."""
    seen, facts = played(folder, env, weights, **config)
    read = diagnosis(facts)
    return [finding for finding in diagnosis(facts, seen) if finding not in read]


@pytest.mark.parametrize(
    ("env", "config", "name", "remedy"),
    [
        ("Blind", {}, "same observation", "return what reset() and step() see"),
        ("HalfBlind", {}, "same observation", "leave out of observations"),
        ("Uneven", {}, "observation scale", "config.observation_filter=MeanStdFilter"),
        ("Unseeded", {}, "seeding", "np_random"),
        ("Limited", {}, "time limit", "config.horizon=40"),
        ("Loud", {}, "one dominates", "env_index"),
        ("Masked", {}, "constant mask", "leave these actions out"),
        ("Unmasked", {}, "constant mask", "leave it out"),
        ("Rare", WITHOUT_SCALE, "reward outliers", "rewards"),
        ("Positive", {"clip_rewards": True}, "rewards clipped", "config.clip_rewards=null"),
    ],
)
def test_an_illness_of_the_environment(
    tmp_path: Path, env: str, config: dict[str, Any], name: str, remedy: str
) -> None:
    remedies = {finding.check: finding.remedy for finding in found(tmp_path, env, **config)}
    assert remedy in remedies[name]
    assert set(remedies) - FOLLOWS.get(env, set()) == {name}


def test_actions_that_change_nothing(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "Deaf")
    assert (finding.check, finding.verdict) == ("no effect", "problem")


def test_random_actions_that_break_the_environment(tmp_path: Path) -> None:
    weights = {"policy.weight": np.zeros((8, 3)), "policy.bias": np.array([0.0, 0.0, -60.0])}
    texts = {finding.check: finding.text for finding in found(tmp_path, "Fragile", weights)}
    assert "RuntimeError: the solver diverged" in texts["random actions"]


def test_actions_beyond_their_bounds(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "Continuous", {"log_std": np.full(1, 3.0)})
    assert (finding.check, finding.remedy) == ("actions clipped", "--set config.squash_actions=true")
    assert found(tmp_path, "Continuous", {"log_std": np.full(1, 3.0)}, squash_actions=True) == []


def test_an_action_that_is_never_taken(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "Healthy", {"policy.bias": np.array([0.0, 0.0, -60.0])})
    assert finding.check == "unused actions"
    assert finding.text.startswith("1 of 3 actions")
    assert finding.text.endswith(": 2")


def test_a_policy_that_does_the_same_always(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "Healthy", {"policy.weight": np.zeros((8, 3))})
    assert (finding.check, finding.verdict) == ("same answer", "problem")


@pytest.mark.parametrize("env", ["Healthy", "Continuous", "WellMasked", "CartPole-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_a_healthy_one_has_nothing_suspicious(tmp_path: Path, env: str) -> None:
    assert found(tmp_path, env) == []


def test_the_outputs_of_a_learner_from_replay_are_seen_too(tmp_path: Path) -> None:
    config = {"num_envs_per_worker": 2, "model": {"fcnet_hiddens": [8]}}
    with shoal.SAC(env="Pendulum-v1", config=config) as trainer:
        checkpoint = read_checkpoint(trainer.save(tmp_path))
    seen = probe(checkpoint, episodes=1, max_steps=64, budget_s=60)
    assert seen.outputs.shape[1] == 2
    assert np.ptp(seen.outputs[seen.valid], axis=0).max() > 0


def test_play_is_as_long_as_was_asked_for(tmp_path: Path) -> None:
    seen, _ = played(tmp_path, "Healthy")
    assert len(seen.episodes) >= 30
    assert seen.num_steps <= 2000 + 4 * 50
    assert seen.columns == ("obs[0]", "obs[1]")
    assert {episode.env_index for episode in seen.episodes} == {0, 1, 2, 3}
