"""Sampling keeps outputs and log-probabilities of actions for those who learn from them, and for nobody else."""

from __future__ import annotations

from typing import Any

import pytest

import shoal


@pytest.mark.parametrize(("run", "kept"), [("PPO", 2), ("SAC", 0)])
def test_only_who_learns_by_probability_pays_for_it(run: str, kept: int) -> None:
    trainer: Any = getattr(shoal, run)(env="Pendulum-v1", config={"num_envs_per_worker": 2, "seed": 3})
    with trainer:
        batch = trainer.workers.sample(4).batch
    assert batch.dist_inputs.shape == (4, 2, kept)
    assert batch.log_probs.any() == bool(kept)
    assert batch.actions.any(), "actions are sampled all the same"
