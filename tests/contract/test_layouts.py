"""The number of workers changes neither what is sampled nor what is learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.config.experiment import experiment_from
from shoal.runs.chain import ChainLink, read_chain
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.run import Run

PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"
NUM_ENVS = 8
CHAIN_TOLERANCE = 1e-5  # of the largest weight, after three iterations: docs/same_result.md
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


def chained(results: Path, env: str, kernel: str, num_workers: int) -> tuple[list[ChainLink], np.ndarray]:
    """The chain of receipts of a run of three iterations, and its last weights."""
    config = {
        "num_workers": num_workers,
        "num_envs_per_worker": NUM_ENVS // max(num_workers, 1),
        "num_cpus_per_worker": 0.5,
        "train_batch_size": 512,
        "observation_filter": "MeanStdFilter",
        "kernel": kernel,
        "seed": 11,
    }
    tree = {"env": env, "name": f"{env}-{kernel}-{num_workers}", "results_dir": str(results), "report": False}
    run = Run.open(experiment_from({**tree, "config": config, "stop": {"training_iteration": 3}}))
    list(run.results())
    chain = read_chain(run.folder)
    assert chain is not None
    assert not chain.problems
    (checkpoint,) = checkpoints_of(run.folder)
    return list(chain.links.values()), read_checkpoint(checkpoint).state.arrays["policy/params"]


@pytest.mark.parametrize("env", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow)])
def test_with_the_compiled_kernel_the_chain_is_the_same_to_the_last_bit(tmp_path: Path, env: str) -> None:
    links, weights = chained(tmp_path, env, "compiled", 0)
    assert [link.iteration for link in links] == [1, 2, 3]
    for num_workers in (1, 2, 4):
        others, other_weights = chained(tmp_path, env, "compiled", num_workers)
        assert others == links, f"{num_workers} workers"
        np.testing.assert_array_equal(other_weights, weights)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_with_numpy_counters_are_the_same_and_weights_within_the_tolerance(tmp_path: Path, env: str) -> None:
    links, weights = chained(tmp_path, env, "numpy", 0)
    again, _ = chained(tmp_path / "again", env, "numpy", 0)
    assert again == links, "the same layout gives the same bits"
    scale = np.abs(weights).max()
    for num_workers in (1, 2, 4):
        others, other_weights = chained(tmp_path, env, "numpy", num_workers)
        same = sum(mine == theirs for mine, theirs in zip(links, others, strict=True))
        largest = np.abs(other_weights - weights).max() / scale
        print(f"{env}, {num_workers} workers: {same} of {len(links)} links the same; weights differ by {largest:.1e}")
        if num_workers == 1:
            assert others == links, "one worker has the arrays of none, so that BLAS rounds as there"
        assert [(link.counters, link.timesteps_total) for link in others] == [
            (link.counters, link.timesteps_total) for link in links
        ]
        assert largest <= CHAIN_TOLERANCE


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
