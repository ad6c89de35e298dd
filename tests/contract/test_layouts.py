"""The number of workers changes neither what is sampled nor what is learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shoal

PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"
NUM_ENVS = 8
ALGORITHMS = ["PPO", pytest.param("TRPO", marks=pytest.mark.slow)]

pytestmark = pytest.mark.usefixtures("compiled_kernels", "ray_session")


def trained(algorithm: str, env: str, iterations: int, num_workers: int, **changes) -> tuple[list, np.ndarray, dict]:
    """The trajectories of some iterations, the weights after them, and the filter."""
    config = {
        "num_workers": num_workers,
        "num_envs_per_worker": NUM_ENVS // max(num_workers, 1),
        "train_batch_size": 1024,
        "observation_filter": "MeanStdFilter",
        "seed": 11,
        **changes,
    }
    if num_workers:
        config["num_cpus_per_worker"] = 0.5
    with getattr(shoal, algorithm)(env=env, config=config) as trainer:
        seen = []
        sample = trainer.workers.sample

        def watched(steps):
            found = sample(steps)
            seen.append([np.array(x) for x in (found.batch.obs[0], found.batch.actions, found.batch.rewards)])
            return found

        trainer.workers.sample = watched
        for _ in range(iterations):
            trainer.train()
        return seen, trainer.get_policy().network.params.copy(), trainer.get_policy().filter.get_state().arrays


# BLAS rounds a row by how many others it is multiplied with. A pendulum's path magnifies the last bit; a choice of two
# actions swallows it, until the bit moves a ratio of probabilities over the edge where PPO clips it.
@pytest.mark.parametrize(
    ("env", "iterations", "tolerance"),
    [("CartPole-v1", 4, 1e-5), pytest.param("Pendulum-v1", 2, 1e-2, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_any_number_of_workers_learns_the_same(algorithm, env, iterations, tolerance) -> None:
    trajectories, weights, seen = trained(algorithm, env, iterations, 0)
    for num_workers in (1, 2, 4):
        others, other_weights, other_seen = trained(algorithm, env, iterations, num_workers)
        for mine, theirs in zip(trajectories, others, strict=True):
            for wanted, found in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
        scale = np.abs(weights).max()
        np.testing.assert_allclose(other_weights / scale, weights / scale, rtol=0, atol=tolerance)
        for name, wanted in seen.items():
            np.testing.assert_allclose(other_seen[name], wanted, rtol=tolerance)


@pytest.mark.slow
def test_the_compiled_kernel_gives_the_same_bits() -> None:
    trajectories, weights, _ = trained("PPO", "Pendulum-v1", 2, 0, kernel="compiled")
    others, other_weights, _ = trained("PPO", "Pendulum-v1", 2, 2, kernel="compiled")
    np.testing.assert_equal(others, trajectories)
    np.testing.assert_array_equal(other_weights, weights)


@pytest.mark.repeats(1)
@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        ("PPO", "Masked"),
        ("TRPO", "Masked"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("PPO", "Offers"), ("TRPO", "Crowd"))),
    ],
)
def test_masks_offers_and_crowds_are_the_same_in_any_layout(algorithm, name) -> None:
    env = f"{PROBES}:{name}"
    trajectories, weights, _ = trained(algorithm, env, 2, 0)
    for num_workers in (1, 2):
        others, other_weights, _ = trained(algorithm, env, 2, num_workers)
        for mine, theirs in zip(trajectories, others, strict=True):
            for wanted, found in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        scale = np.abs(weights).max()
        np.testing.assert_allclose(other_weights / scale, weights / scale, rtol=0, atol=1e-4)


@pytest.mark.repeats(1)
@pytest.mark.parametrize(
    "algorithm",
    ["ES", "CMAES", pytest.param("ARS", marks=pytest.mark.slow), pytest.param("CEM", marks=pytest.mark.slow)],
)
def test_candidates_have_the_same_returns_on_any_number_of_workers_to_the_last_bit(algorithm) -> None:
    def searched(num_workers: int) -> tuple[list, np.ndarray]:
        config = {
            "num_workers": num_workers,
            "num_envs_per_worker": 4 // max(num_workers, 1),
            "num_rollouts": 10,
            "seed": 7,
        }
        if num_workers:
            config["num_cpus_per_worker"] = 0.5
        with getattr(shoal, algorithm)(env=f"{PROBES}:WalkInBox", config=config) as trainer:
            results = [trainer.train() for _ in range(3)]
            stats = [(result["learner"], result["timesteps_total"]) for result in results]
            return stats, trainer.get_policy().network.params.copy()

    results, weights = searched(0)
    for num_workers in (1, 2):
        others, other_weights = searched(num_workers)
        assert others == results
        np.testing.assert_array_equal(other_weights, weights)
