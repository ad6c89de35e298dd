"""ES, ARS, CEM and CMAES: their updates by the formulas, the episodes that they ask for, and exact resume."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from design_env import BEST, Design
from gymnasium import spaces
from same_training import assert_restored_exactly
from walks import Walk

import shoal
from shoal.algorithms import cmaes
from shoal.algorithms.candidates import CandidateReturns, Candidates
from shoal.algorithms.es import centred_ranks
from shoal.config.algorithms import ALGORITHMS
from shoal.config.experiment import experiment_from
from shoal.errors import ConfigError
from shoal.models.build import build_policy
from shoal.sampling.worker import Worker

NAMES = ("ES", "ARS", "CEM", "CMAES")
SMALL = {"num_rollouts": 10, "num_envs_per_worker": 4, "seed": 5}


def learner_of(name: str, action_space=None, **changes):
    """A learner whose candidates get the returns of `returns_of`, without an environment."""
    from shoal.config.algorithms import load

    config = ALGORITHMS[name](**{**SMALL, **changes})
    space = spaces.Box(-1, 1, (3,), np.float32) if action_space is None else action_space
    policy = build_policy(spaces.Box(-1, 1, (2,), np.float32), space, config)
    return load(config.learner)(config, policy)


def taught(learner, returns_of):
    """One training step in which `returns_of(candidates)` stands for the episodes; the candidates and the result."""
    tried = []

    def try_out(workers, candidates):
        tried.append(candidates.copy())
        return CandidateReturns(returns_of(candidates), [])

    learner.candidates.try_out = try_out
    before = learner.candidates.centre
    step = learner.training_step(SimpleNamespace(), 0)
    return before, tried[0], step


def spiky(candidates):
    return np.sin(40 * candidates.astype(np.float64)).sum(axis=1)


def test_ranks_are_centred_and_equal_returns_share_theirs() -> None:
    np.testing.assert_allclose(centred_ranks(np.array([3.0, -1.0, 10.0])), [0, -0.5, 0.5])
    np.testing.assert_allclose(centred_ranks(np.array([2.0, 2.0, 2.0, 2.0])), 0)
    np.testing.assert_allclose(centred_ranks(np.array([1.0, 5.0, 5.0, 7.0, 0.0])), [-0.25, 0.125, 0.125, 0.5, -0.5])
    assert centred_ranks(np.array([4.0])).tolist() == [-0.5]


def test_es_steps_along_the_ranked_noise() -> None:
    learner = learner_of("ES", noise_stdev=0.2, lr=0.3, l2_coeff=0.1, model={"fcnet_hiddens": [4]})
    theta, tried, step = taught(learner, spiky)
    noise = (tried[:5] - theta) / 0.2
    np.testing.assert_allclose(tried[5:], theta - 0.2 * noise, atol=1e-6)
    ranks = np.argsort(np.argsort(spiky(tried))) / 9 - 0.5
    wanted = sum(rank * way for rank, way in zip(ranks, [*noise, *-noise], strict=True)) / (10 * 0.2) - 0.1 * theta
    # Adam's first step is lr times the sign of the gradient, but for its epsilon.
    np.testing.assert_allclose(learner.candidates.centre - theta, 0.3 * np.sign(wanted), rtol=1e-2)
    assert step.stats["return_max"] == pytest.approx(spiky(tried).max())


def test_ars_takes_the_best_pairs_in_units_of_their_spread() -> None:
    learner = learner_of("ARS", noise_stdev=0.5, lr=0.7, rollouts_used=4, observation_filter="NoFilter")
    theta, tried, _ = taught(learner, spiky)
    ways = (tried[:5] - theta) / 0.5
    plus, minus = spiky(tried)[:5], spiky(tried)[5:]
    best = sorted(range(5), key=lambda k: -max(plus[k], minus[k]))[:2]
    sigma = np.std([plus[k] for k in best] + [minus[k] for k in best])
    wanted = theta + 0.7 / (2 * sigma) * sum((plus[k] - minus[k]) * ways[k] for k in best)
    np.testing.assert_allclose(learner.candidates.centre, wanted, rtol=1e-4, atol=1e-5)


def test_ars_stays_where_all_returns_are_alike() -> None:
    learner = learner_of("ARS", observation_filter="NoFilter")
    theta, _, _ = taught(learner, lambda candidates: np.full(len(candidates), 7.0))
    np.testing.assert_array_equal(learner.candidates.centre, theta)


def test_cem_fits_a_gaussian_to_the_elite_and_widens_it_at_first() -> None:
    learner = learner_of("CEM", noise_stdev=0.3, elite_frac=0.3, extra_std=0.4, extra_decay_time=2)
    _theta, tried, step = taught(learner, spiky)
    assert step.stats["noise_stdev"] == pytest.approx(0.5)  # sqrt(0.3^2 + 0.4^2)
    elite = tried[np.argsort(-spiky(tried))[:3]]
    np.testing.assert_allclose(learner.candidates.centre, elite.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(learner.std, elite.std(axis=0), rtol=1e-5)
    for left in (0.5, 0, 0):
        std = np.sqrt(np.square(learner.std) + left * 0.16).mean()
        _, _, step = taught(learner, spiky)
        assert step.stats["noise_stdev"] == pytest.approx(std, rel=1e-5)


def test_cmaes_refuses_a_covariance_that_memory_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cmaes, "available_memory", lambda: 1000)
    with pytest.raises(ConfigError, match=r"max_full_covariance: 3 matrices of [\d,]+ x [\d,]+ parameters take"):
        learner_of("CMAES", max_full_covariance=2**31 - 1)
    learner_of("CMAES", max_full_covariance=1)


def test_cmaes_leaves_numpys_own_generator_alone_and_tells_it_what_to_look_for() -> None:
    np.random.seed(4)
    wanted = np.random.random(3)
    np.random.seed(4)
    learner = learner_of("CMAES")
    for _ in range(60):
        taught(learner, lambda candidates: -np.square(candidates - 0.25).sum(axis=1))
    np.testing.assert_array_equal(np.random.random(3), wanted)
    np.testing.assert_allclose(learner.candidates.centre, 0.25, atol=0.05)


def test_only_what_actions_depend_on_is_searched() -> None:
    config = ALGORITHMS["ES"](model={"fcnet_hiddens": [4]})
    policy = build_policy(Design.observation_space, Design.action_space, config)
    network = policy.network
    before = network.act((np.ones((1, 1), np.float32),)).copy()
    searched = Candidates(config, policy).columns
    assert 0 < len(searched) < len(network.params)
    network.params[np.setdiff1d(np.arange(len(network.params)), searched)] += 1
    mode = policy.distribution.mode
    np.testing.assert_array_equal(mode(network.act((np.ones((1, 1), np.float32),))), mode(before))
    sampled = Candidates(ALGORITHMS["ES"](explore=True, model={"fcnet_hiddens": [4]}), policy).columns
    assert len(sampled) == len(searched) + 3


@pytest.mark.parametrize("name", NAMES)
def test_a_design_of_one_step_is_found(name: str) -> None:
    config = {"num_envs_per_worker": 4, "num_rollouts": 16, "model": {"fcnet_hiddens": []}, "seed": 1}
    with getattr(shoal, name)(env=Design, config=config) as trainer:
        for _ in range(60):
            result = trainer.train()
        assert trainer.compute_single_action(np.ones(1, np.float32), explore=False) == pytest.approx(BEST, abs=0.12)
        assert result["episodes_this_iter"] == 16
        assert trainer.evaluate(episodes=2)["episode_reward_mean"] > -0.02


def widest_noise(candidates, count: int):
    """Numbers of which the squares, or sums of them, are out of single precision."""
    return np.float32(1e28) * Candidates.noise(candidates, count)


def far_off(candidates):
    """The farther off in one direction, the better: what makes a search widen until single precision ends."""
    return np.nan_to_num(candidates.astype(np.float64).sum(axis=1))


@pytest.mark.parametrize("name", NAMES)
def test_an_update_that_is_not_finite_is_taken_back(name: str, caplog: pytest.LogCaptureFixture) -> None:
    learner = learner_of(name, num_rollouts=20, noise_stdev=1e10 if name == "CMAES" else 1e-10)
    if name != "CMAES":  # which widens fast enough by itself
        learner.candidates.noise = partial(widest_noise, learner.candidates)
    refused = 0
    with caplog.at_level(logging.WARNING, "shoal"):
        for _ in range(500):
            with np.errstate(over="ignore", invalid="ignore"):
                before, _, step = taught(learner, far_off)
            now = learner.candidates.centre
            assert np.isfinite([now, before]).all()
            assert all(np.isfinite(array).all() for array in learner.get_state().arrays.values())
            assert all(np.isfinite(value) for value in step.stats.values())
            refused += step.stats["refused_steps"]
            if step.stats["refused_steps"]:
                np.testing.assert_array_equal(now, before)
                break
    assert refused
    assert "diverged" in caplog.text
    assert learner.candidates.iteration > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_search_goes_on_after_what_was_taken_back(name: str, tmp_path) -> None:
    """Policies overflow: no action, result or parameter is anything but a number, and resume is exact."""
    config = {**SMALL, "noise_stdev": 1e10, "model": {"fcnet_hiddens": [8, 8, 8, 8], "fcnet_activation": "relu"}}
    trainers = []

    def make():
        trainers.append(getattr(shoal, name)(env=Design, config=config))
        return trainers[-1]

    with np.errstate(over="ignore", invalid="ignore"):
        assert_restored_exactly(make, tmp_path, 3)
    for trainer in trainers:
        assert np.isfinite(trainer.get_policy().network.params).all()
        assert trainer.env_failures_total == 0


def test_cmaes_begins_where_a_warm_start_has_put_the_policy() -> None:
    learner = learner_of("CMAES", noise_stdev=1e-6)
    state = learner.get_state()  # of a search that has not begun
    wanted = learner.candidates.centre + 1
    learner.candidates.policy.network.params[learner.candidates.columns] = wanted
    learner.set_state(state)
    before, tried, _ = taught(learner, spiky)
    np.testing.assert_array_equal(before, wanted)
    np.testing.assert_allclose(tried, np.broadcast_to(wanted, tried.shape), atol=1e-4)
    np.testing.assert_allclose(learner.candidates.centre, wanted, atol=1e-4)


def test_cmaes_does_not_go_on_with_another_search_than_the_one_that_was_saved(caplog) -> None:
    """As where another version of the package, or of the linear algebra below it, computes something else."""
    learner = learner_of("CMAES")
    for _ in range(5):
        taught(learner, spiky)
    state = learner.get_state()
    centre = learner.candidates.centre
    again = learner_of("CMAES")
    again.candidates.policy.network.params[:] = learner.candidates.policy.network.params
    again.set_state(state)
    np.testing.assert_array_equal(again.search.mean, learner.search.mean)
    assert not caplog.text
    state.arrays["told"][2] *= -1
    with caplog.at_level(logging.WARNING, "shoal"):
        again.set_state(state)
    assert "begins anew" in caplog.text
    np.testing.assert_allclose(again.search.mean, centre, rtol=1e-6)
    _, tried, step = taught(again, spiky)
    assert step.stats["noise_stdev"] == pytest.approx(learner.stdev, rel=1e-3)
    assert np.abs(tried - centre).max() < 6 * learner.stdev


@pytest.mark.parametrize("name", NAMES)
def test_resume_is_exact(name: str, tmp_path) -> None:
    config = {**SMALL, "observation_filter": "MeanStdFilter"}
    assert_restored_exactly(lambda: getattr(shoal, name)(env=Walk, config=config), tmp_path, 2)


def worker_of(env, **changes) -> Worker:
    from shoal.envs.importing import INSTALLED
    from shoal.envs.making import env_maker

    config = ALGORITHMS["CEM"](env=env, **{**SMALL, **changes})
    return Worker(config, env_maker(env, INSTALLED, ()))


def with_biases(worker: Worker, biases) -> tuple[Candidates, np.ndarray]:
    """Candidates that choose the given numbers, whatever they see."""
    candidates = Candidates(worker.config, worker.policy)
    places = dict(worker.policy.network.named_params().items())
    made = []
    for bias in biases:
        worker.policy.network.params[:] = 0
        places["policy.bias"][:] = bias
        made.append(candidates.centre)
    worker.policy.network.params[:] = 0
    return candidates, np.array(made)


def test_every_candidate_gets_the_return_of_its_own_episodes() -> None:
    worker = worker_of(Design, episodes_per_rollout=3)
    numbers = np.linspace(-0.8, 0.8, 18).reshape(6, 3)
    candidates, vectors = with_biases(worker, numbers)
    trial = candidates.try_out(worker, vectors)
    np.testing.assert_allclose(trial.returns, -np.square(numbers - BEST).sum(axis=1), rtol=1e-5)
    assert len(trial.samples) == 5  # 18 episodes on four environments
    assert worker.policy.candidates is None
    worker.stop()


def test_a_candidate_whose_episode_was_lost_plays_again() -> None:
    worker = worker_of(Design)
    numbers = np.linspace(-0.8, 0.8, 18).reshape(6, 3)
    candidates, vectors = with_biases(worker, numbers)
    sample, rounds = worker.sample, []

    def lossy(steps):
        found = sample(steps)
        rounds.append(found)
        if len(rounds) == 1:  # as when the worker of two environments dies
            del found.episodes[1:3]
        return found

    worker.sample = lossy
    trial = candidates.try_out(worker, vectors)
    np.testing.assert_allclose(trial.returns, -np.square(numbers - BEST).sum(axis=1), rtol=1e-5)
    assert len(rounds) == 2
    worker.stop()


def test_a_failing_environment_costs_its_candidate_nothing() -> None:
    worker = worker_of(Design, env_config={"fails_at": 2})
    numbers = np.linspace(-0.8, 0.8, 18).reshape(6, 3)
    candidates, vectors = with_biases(worker, numbers)
    trial = candidates.try_out(worker, vectors)
    np.testing.assert_allclose(trial.returns, -np.square(numbers - BEST).sum(axis=1), rtol=1e-5)
    assert sum(len(sample.incidents) for sample in trial.samples) > 0
    worker.stop()


def test_the_filter_is_the_same_for_all_candidates_of_an_iteration() -> None:
    worker = worker_of(Walk, observation_filter="MeanStdFilter")
    candidates = Candidates(worker.config, worker.policy)
    sample, counts = worker.sample, []

    def watched(steps):
        counts.append(worker.policy.filter.count)
        return sample(steps)

    worker.sample = watched
    vectors = candidates.centre + candidates.noise(12)
    for _ in range(2):
        trial = candidates.try_out(worker, vectors)
    steps = sum(sample.num_steps for sample in trial.samples)
    assert counts[:3] == [0, 0, 0]
    assert counts[3] == counts[4] == counts[5] > 0
    assert worker.policy.filter.count == counts[3] + steps
    worker.stop()


REFUSED = [
    ("ES", {"num_rollouts": 7}, "num_rollouts: parameter vectors are tried in pairs; use an even number (got 7)"),
    ("ARS", {"rollouts_used": 5}, "rollouts_used: are whole pairs of the num_rollouts; use an even number up to 32"),
    ("ARS", {"rollouts_used": 40}, "use an even number up to 32 (got 40)"),
    ("CEM", {"elite_frac": 0.01}, "fewer than the two that a standard deviation needs"),
    ("CEM", {"lr": 0.5}, "CEM takes no steps by gradients"),
    ("CMAES", {"num_rollouts": 2}, "CMA-ES ranks at least 3 parameter vectors (got 2)"),
    ("ES", {"train_batch_size": 500}, "only the returns of whole episodes are learned from"),
    ("ES", {"batch_mode": "truncate_episodes"}, "judged by whole episodes"),
    ("ES", {"sample_async": True, "num_workers": 2}, "the next parameter vectors follow from these returns"),
    ("ES", {"num_learners": 2, "num_workers": 2}, "ES learns in one process; leave it at 1, or set run: PPO or TRPO"),
    (
        "CEM",
        {"model": {"use_lstm": True}},
        "without memory; leave it out, or set run: PPO, APPO or TRPO",
    ),
    ("ES", {"sgd_stepsize": 0.1}, "lr"),
    ("ES", {"exploration_config": {"type": "EpsilonGreedy"}}, "config.exploration_config: it has no effect"),
    ("CEM", {"noise_stdev": 1e30}, "config.noise_stdev: must be at most 1e+10"),
    ("CEM", {"extra_std": 1e30}, "config.extra_std: must be at most 1e+10"),
    ("ES", {"l2_coeff": 1e30}, "config.l2_coeff: must be at most"),
]


@pytest.mark.parametrize(("name", "config", "words"), REFUSED)
def test_what_cannot_be_is_refused(name: str, config: dict, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        experiment_from({"env": "CartPole-v1", "run": name, "config": config})
    assert words in str(error.value)
