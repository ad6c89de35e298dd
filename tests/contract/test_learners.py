"""Several learners learn what one would, and survive the loss of one of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import shoal

PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"
NUM_ENVS = 4

pytestmark = pytest.mark.usefixtures("compiled_kernels", "ray_session")
NUM_CPUS = 8


def trainer_with(num_workers: int, num_learners: int, name: str = "Walk", run: str = "PPO", **changes):
    standard = {
        "num_workers": num_workers,
        "num_learners": num_learners,
        "num_envs_per_worker": NUM_ENVS // max(num_workers, 1),
        "train_batch_size": 16 * NUM_ENVS,
        "sgd_minibatch_size": 24,
        "num_sgd_iter": 3,
        "observation_filter": "MeanStdFilter",
        "model": {"fcnet_hiddens": [8]},
        "seed": 4,
    }
    return getattr(shoal, run)(env=f"{PROBES}:{name}", config={**standard, **changes})


def learned(iterations: int, *layout, **changes) -> tuple[np.ndarray, dict]:
    with trainer_with(*layout, **changes) as trainer:
        result = [trainer.train() for _ in range(iterations)][-1]
        return trainer.get_policy().network.params.copy(), result


@pytest.mark.repeats(1, slow=2)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param(
            {"name": "WalkInBox", "kl_coeff": 0.2, "sample_async": True}, id="penalty, ahead", marks=pytest.mark.slow
        ),
        pytest.param({"name": "FailingNowAndThen"}, id="failing", marks=pytest.mark.slow),
        pytest.param({"run": "TRPO"}, id="TRPO"),
        pytest.param({"kernel": "compiled"}, id="compiled", marks=pytest.mark.slow),
    ],
)
def test_two_learners_learn_what_one_learns(changes) -> None:
    one, told = learned(5, 2, 1, **changes)
    two, told_by_two = learned(5, 2, 2, **changes)
    np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-5)
    assert told_by_two["learner"] == pytest.approx(told["learner"], rel=1e-3, abs=1e-5)
    assert told_by_two["timesteps_total"] == told["timesteps_total"]


def learner_pids(trainer) -> list[int]:
    import ray

    return ray.get([actor.__ray_call__.remote(lambda self: os.getpid()) for actor in trainer.learner._actors])


@pytest.mark.slow
def test_a_killed_learner_costs_nothing_but_time(caplog) -> None:
    calm, _ = learned(4, 2, 2)
    with trainer_with(2, 2) as trainer:
        trainer.train()
        os.kill(learner_pids(trainer)[1], signal.SIGKILL)
        trainer.train()
        os.kill(learner_pids(trainer)[0], signal.SIGKILL)
        trainer.train()
        trainer.train()
        np.testing.assert_array_equal(trainer.get_policy().network.params, calm)
    assert caplog.text.count("all are restarted") == 2


@pytest.mark.slow
def test_a_learner_without_experience_keeps_in_step() -> None:
    with trainer_with(2, 2, recreate_failed_workers=False, ignore_worker_failures=True) as trainer:
        trainer.train()
        os.kill(trainer.workers.foreach_worker(lambda worker: os.getpid())[0], signal.SIGKILL)
        result = trainer.train()
        assert result["timesteps_this_iter"] == 8 * NUM_ENVS
        assert result["num_healthy_workers"] == 1
        assert trainer.train()["timesteps_total"] == 32 * NUM_ENVS


@pytest.mark.slow
def test_save_and_restore_with_learners(tmp_path) -> None:
    whole, _ = learned(4, 2, 2)
    with trainer_with(2, 2) as trainer:
        trainer.train()
        trainer.train()
        saved = trainer.save(tmp_path)
    with trainer_with(2, 2) as trainer:
        trainer.train()
        trainer.restore(saved)
        trainer.train()
        trainer.train()
        np.testing.assert_array_equal(trainer.get_policy().network.params, whole)


@pytest.mark.slow
def test_weights_set_in_the_driver_reach_the_learners() -> None:
    with trainer_with(2, 2, lr=1e-30) as trainer:
        trainer.train()
        bias = trainer.get_policy().get_weights()["policy.bias"] + 1
        trainer.get_policy().set_weights({"policy.bias": bias})
        trainer.train()
        np.testing.assert_allclose(trainer.get_policy().get_weights()["policy.bias"], bias)
