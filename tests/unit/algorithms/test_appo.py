"""APPO against PPO, against its objective by autograd, and with workers of different pace in a fixed order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical
from walks import Walk, copied

from shoal.algorithms.appo import APPOLearner
from shoal.algorithms.network_inputs import batch_inputs
from shoal.algorithms.ppo import PPOLearner
from shoal.config.appo import APPOConfig
from shoal.config.ppo import PPOConfig
from shoal.data.batch import Batch, Sample
from shoal.envs.vector import PythonVector
from shoal.errors import ConfigError
from shoal.models.build import build_policy
from shoal.models.policy import Policy
from shoal.sampling.sampler import Sampler

T, N = 16, 4
STANDARD = {
    "train_batch_size": T * N,
    "sgd_minibatch_size": 16,
    "num_sgd_iter": 1,
    "num_envs_per_worker": N,
    "model": {"fcnet_hiddens": [8, 8]},
    "seed": 3,
}


def policy_of(config: PPOConfig) -> Policy:
    policy = build_policy(Walk.observation_space, Walk.action_space, config)
    rng = np.random.default_rng(0)
    policy.network.params[:] += 0.2 * rng.standard_normal(len(policy.network.params)).astype(np.float32)
    policy.network.sync()
    return policy


def sampler_of(policy: Policy, first: int = 0, num_envs: int = N) -> Sampler:
    spec = policy.obs_spec, policy.action_spec
    return Sampler(policy, PythonVector(lambda _: (Walk(), None), num_envs, *spec, seed=3, first_index=first), 3, first)


def seen(learner: APPOLearner, batch: Batch) -> Batch:
    """A batch that the scale of rewards has seen, as it is when a fragment arrives."""
    learner.rewards.remembered(batch, N)
    return batch


def test_what_the_present_policy_has_sampled_is_learned_as_by_ppo() -> None:
    mine, theirs = policy_of(PPOConfig(**STANDARD)), policy_of(APPOConfig(**STANDARD))
    ppo, appo = PPOLearner(PPOConfig(**STANDARD), mine), APPOLearner(APPOConfig(**STANDARD), theirs)
    one, two = sampler_of(mine), sampler_of(theirs)
    for _ in range(3):
        told = ppo.update(one.sample(T).batch, 0)
        told_by_appo = appo.update(seen(appo, two.sample(T).batch), 0)
        np.testing.assert_allclose(theirs.network.params, mine.network.params, rtol=1e-4, atol=1e-5)
        assert told_by_appo == pytest.approx(told, rel=1e-3, abs=1e-5)
    assert appo.mean_rho == pytest.approx(1, abs=1e-5)


def stale(config: APPOConfig) -> tuple[APPOLearner, Batch]:
    """A learner, and a batch that an older policy of it sampled."""
    policy = policy_of(config)
    learner, sampler = APPOLearner(config, policy), sampler_of(policy)
    old = policy.network.params.copy()
    policy.network.params[:] += 0.3 * np.random.default_rng(1).standard_normal(len(old)).astype(np.float32)
    now = policy.network.params.copy()
    policy.network.params[:] = old
    batch = copied(sampler.sample(T).batch)
    policy.network.params[:] = now
    policy.network.sync()
    return learner, seen(learner, batch)


def test_weights_and_ratios_are_those_of_three_policies() -> None:
    learner, batch = stale(APPOConfig(**STANDARD))
    inputs = batch_inputs(learner.policy, batch)
    values, steps = learner.estimates(batch, inputs)
    outputs, valued, _ = learner.policy.network.forward(inputs.take(np.arange(T * N)))
    now = Categorical(logits=torch.tensor(outputs)).log_prob(torch.tensor(batch.actions.reshape(-1))).numpy()
    np.testing.assert_allclose(steps.log_probs, now, rtol=1e-4, atol=1e-5)  # of the policy that the update starts from
    ratios = np.exp(now - batch.log_probs.reshape(-1))
    assert np.abs(ratios - 1).max() > 0.1, "the policies differ"
    np.testing.assert_allclose(steps.weights, np.minimum(ratios, 1), rtol=1e-3)
    np.testing.assert_allclose(values.reshape(-1), valued, rtol=1e-5)


@pytest.mark.parametrize("clip", [0.5, 3.0])
def test_the_gradient_is_that_of_the_objective(clip: float) -> None:
    config = APPOConfig(**{**STANDARD, "vtrace_clip_pg_rho_threshold": clip, "sgd_minibatch_size": T * N})
    learner, batch = stale(config)
    policy = learner.policy
    inputs = batch_inputs(policy, batch)
    _, steps = learner.estimates(batch, inputs)
    (epoch,) = [next(learner.minibatches.epochs(batch.valid, learner.group))]
    ordered = steps.ordered(epoch, learner.group, with_dist_inputs=False)
    # One step away from where the update starts, so that ratios differ from 1 and some are clipped.
    policy.network.params[:] += 0.2
    policy.network.sync()
    outputs, values, _ = policy.network.forward(inputs.take(epoch.rows))
    terms = learner.objective(outputs, values, ordered, learner._coefficients(0))
    d_outputs, _ = learner.gradient(terms, learner._coefficients(0), np.float32(1 / (T * N)))

    logits = torch.tensor(outputs, dtype=torch.float64, requires_grad=True)
    rows = epoch.rows
    log_prob = Categorical(logits=logits).log_prob(torch.tensor(batch.actions.reshape(-1)[rows]))
    ratio = (log_prob - torch.tensor(steps.log_probs[rows])).exp()
    advantages = torch.tensor(steps.advantages[rows], dtype=torch.float64)
    advantages = (advantages - advantages.mean()) / advantages.std(unbiased=False)
    rho = torch.tensor(steps.weights[rows], dtype=torch.float64)
    (-(rho * torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)).mean()).backward()
    np.testing.assert_allclose(d_outputs, logits.grad.numpy(), rtol=1e-3, atol=1e-6)


class TwoPaces:
    """Two workers in this process: a fragment of the second is finished after so many of the first."""

    def __init__(self, policy: Policy, pace: int) -> None:
        self.policy, self.pace = policy, pace
        self.samplers = [sampler_of(policy, 0, N // 2), sampler_of(policy, N // 2, N // 2)]
        self.begun: dict[int, tuple[int, Sample]] = {}
        self.left = pace
        self.sent: list[tuple[int, int]] = []  # worker and version

    @property
    def oldest_pending_version(self) -> int | None:
        return min((version for version, _ in self.begun.values()), default=None)

    def begin_fragments(self, steps: int, version: int) -> None:
        for worker, sampler in enumerate(self.samplers):
            if worker not in self.begun:
                sample = sampler.sample(steps)
                columns = np.arange(N // 2) + worker * (N // 2)
                batch = replace(copied(sample.batch), columns=columns)
                self.begun[worker] = version, replace(sample, batch=batch, weights_version=version)
                self.sent.append((worker, version))

    def finished_fragments(self, wait: bool = True) -> list[Sample]:
        if not wait:
            return []
        if 0 in self.begun and self.left:
            self.left -= 1
            return [self.begun.pop(0)[1]]
        self.left = self.pace
        return [self.begun.pop(1)[1]]


def trained_with(pace: int, updates: int = 12, **changes: Any) -> tuple[TwoPaces, APPOLearner, list[Any]]:
    config = APPOConfig(**{**STANDARD, "num_workers": 2, "num_envs_per_worker": N // 2, **changes})
    policy = policy_of(config)
    workers, learner = TwoPaces(policy, pace), APPOLearner(config, policy)
    return workers, learner, [learner.training_step(workers, 0) for _ in range(updates)]


def test_nobody_waits_for_a_slow_worker_within_the_bound() -> None:
    workers, learner, steps = trained_with(pace=8, max_staleness=16)
    assert learner.version == 12
    assert {step.timesteps for step in steps} == {T * N}
    assert sorted({step.staleness for step in steps})[-1] == 4  # eight fragments of the first are four batches
    assert all(np.isfinite(list(step.stats.values())).all() for step in steps)
    # Who gives a fragment begins the next with the weights of the last update.
    versions = [version for worker, version in workers.sent if worker == 0]
    assert versions == sorted(versions)
    assert versions[-1] == 11


@pytest.mark.parametrize("bound", [1, 2])
def test_what_would_become_too_old_is_waited_for_and_nothing_is_thrown_away(bound: int) -> None:
    workers, _, steps = trained_with(pace=8, max_staleness=bound)
    assert max(step.staleness for step in steps) == bound
    assert max(step.timesteps for step in steps) > T * N, "what others gave meanwhile is learned from too"
    given = sum(1 for _ in workers.sent) - len(workers.begun)
    assert sum(step.timesteps for step in steps) == given * T * N // 2


def test_a_step_that_is_not_finite_is_refused_and_training_goes_on() -> None:
    learner, batch = stale(APPOConfig(**STANDARD))
    rewards = batch.rewards.copy()
    rewards[0, 0] = np.inf
    before = learner.policy.network.params.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        stats = learner.update(replace(batch, rewards=rewards), 0)
    assert stats["refused_minibatches"] > 0
    assert np.isfinite(learner.policy.network.params).all()
    learner.update(batch, 0)
    assert not np.array_equal(learner.policy.network.params, before)


REFUSED = [
    ({"sample_async": False}, "config.sample_async: APPO's workers never wait; leave it out, or set run: PPO"),
    (
        {"num_learners": 2, "num_workers": 2},
        "config.num_learners: APPO learns in one process; leave it at 1, or set run: PPO or TRPO",
    ),
    ({"max_staleness": 0}, "config.max_staleness: must be at least 1 (got 0)"),
    ({"vtrace_clip_rho_threshold": 0.0}, "config.vtrace_clip_rho_threshold: must be more than 0 (got 0)"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED, ids=[next(iter(changes)) for changes, _ in REFUSED])
def test_what_it_cannot_take_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        APPOConfig(**changes)
    assert str(caught.value) == sentence


def test_what_depends_on_time_is_said() -> None:
    assert APPOConfig(num_workers=0).timing_notes() == []
    (note,) = APPOConfig(num_workers=2).timing_notes()
    assert "neither repeated nor resumed" in note
    assert PPOConfig(num_workers=2).timing_notes() == []
    assert PPOConfig(num_workers=2, sample_async=True).timing_notes()
