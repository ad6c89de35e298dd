"""DQN against the textbook: its whole update, minibatch by minibatch, by torch's autograd in double precision."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from walks import Walk

from shoal.algorithms import off_policy
from shoal.algorithms.dqn import DQNLearner
from shoal.algorithms.off_policy import UpdateStatistics
from shoal.config.changing import unchecked
from shoal.config.dqn import DQNConfig
from shoal.data.batch import Sample
from shoal.data.replay import DrawnTransitions, Transitions
from shoal.data.state import State
from shoal.envs.vector import PythonVector
from shoal.errors import ConfigError, EnvError
from shoal.models.build import build_policy
from shoal.models.exploration import EpsilonGreedy
from shoal.sampling.sampler import Sampler

FEATURES, ACTIONS, SIZE = 3, 4, 8
OBS = spaces.Box(-100, 100, (FEATURES,), np.float32)


def learner_of(lr=1e-2, **changes) -> DQNLearner:
    standard = {"train_batch_size": SIZE, "model": {"fcnet_hiddens": [8, 6]}, "seed": 3, "grad_clip": None}
    config = unchecked(DQNConfig(**{**standard, **changes}), lr=lr)  # also one that nobody may set
    policy = build_policy(OBS, spaces.Discrete(ACTIONS), config)
    rng = np.random.default_rng(0)
    learner = DQNLearner(config, policy)
    policy.network.params[:] += 0.3 * rng.standard_normal(len(policy.network.params)).astype(np.float32)
    learner.target[:] += 0.3 * rng.standard_normal(len(learner.target)).astype(np.float32)
    return learner


def drawn(count: int, weighted: bool = False) -> DrawnTransitions:
    rng = np.random.default_rng(1)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    transitions = Transitions(
        (normal(count, FEATURES),),
        rng.integers(0, ACTIONS, count).astype(np.int32),
        2 * normal(count),
        (normal(count, FEATURES),),
        (0.9 * (rng.random(count) < 0.7)).astype(np.float32),
    )
    weights = rng.random(count).astype(np.float32) if weighted else None
    return DrawnTransitions(transitions, np.arange(count), weights)


def double(array) -> torch.Tensor:
    return torch.tensor(np.asarray(array), dtype=torch.float64)


class Textbook:
    """The papers' losses in the plainest torch."""

    def __init__(self, learner: DQNLearner) -> None:
        self.learner, self.c = learner, learner.config
        network = learner.policy.network
        self.params = {name: double(view).requires_grad_() for name, view in network.named_params().items()}
        now = network.params.copy()
        network.params[:] = learner.target
        self.target = {name: double(view) for name, view in network.named_params().items()}
        network.params[:] = now
        self.optimizer = torch.optim.Adam(self.params.values(), lr=self.c.lr, eps=self.c.optimizer.eps)

    def top(self, p, x, which):
        which = "shared" if self.c.model.vf_share_layers else which
        for layer in range(2):
            x = torch.relu(x @ p[f"{which}.hidden{layer}.weight"] + p[f"{which}.hidden{layer}.bias"])
        return x

    def q(self, p, raw):
        x = double(self.learner.policy.encoder.encode(raw))
        advantages = self.top(p, x, "policy") @ p["policy.weight"] + p["policy.bias"]
        if not self.c.dueling:
            return advantages
        values = self.top(p, x, "value") @ p["value.weight"] + p["value.bias"]
        return values + advantages - advantages.mean(dim=1, keepdim=True)

    def update(self, given: DrawnTransitions) -> list[float]:
        """Every update; the norms of their gradients."""
        norms, t = [], given.transitions
        for begin in range(0, len(t.actions), SIZE):
            part = slice(begin, begin + SIZE)
            with torch.no_grad():
                later = self.q(self.target, t.next_obs[0][part])
                chooser = self.q(self.params, t.next_obs[0][part]) if self.c.double_q else later
                best = later.gather(1, chooser.argmax(dim=1, keepdim=True))[:, 0]
                targets = double(t.returns[part]) + double(t.discounts[part]) * best
            actions = torch.tensor(t.actions[part].astype(np.int64))[:, None]
            q = self.q(self.params, t.obs[0][part]).gather(1, actions)[:, 0]
            huber = torch.nn.functional.smooth_l1_loss(q, targets, reduction="none")
            losses = huber if self.c.td_error_loss_fn == "huber" else (q - targets) ** 2 / 2
            if given.weights is not None:
                losses = losses * double(given.weights[part])
            self.optimizer.zero_grad()
            losses.mean().backward()
            used = [p for p in self.params.values() if p.grad is not None]
            most = self.c.grad_clip if self.c.grad_clip is not None else float("inf")
            norms.append(float(torch.nn.utils.clip_grad_norm_(used, most)))
            self.optimizer.step()
        return norms


VARIANTS = {
    "plain": {"double_q": False, "dueling": False},
    "double": {"double_q": True, "dueling": False},
    "dueling": {"double_q": False, "dueling": True},
    "both": {},
    "huber": {"td_error_loss_fn": "huber"},
    "separate nets": {"model": {"fcnet_hiddens": [8, 6], "vf_share_layers": False}},
    "clipped": {"grad_clip": 0.05},
    "filter": {"observation_filter": "MeanStdFilter"},
}


@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_updates_are_those_of_the_papers(changes, weighted) -> None:
    learner = learner_of(**changes)
    if learner.policy.filter is not None:
        learner.policy.filter.update(3 * np.random.default_rng(5).standard_normal((50, FEATURES)) + 1)
    given, textbook, totals = drawn(5 * SIZE, weighted), Textbook(learner), UpdateStatistics()
    target = learner.target.copy()
    learner.update(given, learner.config.lr, totals)
    norms = textbook.update(given)
    for name, value in learner.policy.network.named_params().items():
        np.testing.assert_allclose(value, textbook.params[name].detach(), rtol=2e-4, atol=2e-5, err_msg=name)
    np.testing.assert_array_equal(learner.target, target)
    assert totals.updates == 5
    assert totals.means()["grad_gnorm"] == pytest.approx(np.mean(norms), rel=1e-3)


@pytest.mark.parametrize("loss_fn", ["mse", "huber"])
def test_errors_are_those_before_each_update(loss_fn) -> None:
    learner = learner_of(double_q=False, td_error_loss_fn=loss_fn)
    given, textbook, totals = drawn(SIZE), Textbook(learner), UpdateStatistics()
    errors = learner.update(given, learner.config.lr, totals)
    t = given.transitions
    with torch.no_grad():
        targets = double(t.returns) + double(t.discounts) * textbook.q(textbook.target, t.next_obs[0]).max(dim=1).values
        q = textbook.q(textbook.params, t.obs[0]).numpy()[np.arange(SIZE), t.actions]
    np.testing.assert_allclose(errors, q - targets.numpy(), rtol=1e-4, atol=1e-5)
    stats = totals.means()
    assert stats["mean_q"] == pytest.approx(q.mean(), rel=1e-4)
    assert stats["mean_td_error"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    loss = torch.nn.functional.smooth_l1_loss(double(q), targets) if loss_fn == "huber" else (errors**2 / 2).mean()
    assert stats["total_loss"] == pytest.approx(float(loss), rel=1e-4)


def test_a_torch_network_learns_the_same() -> None:
    """The same weights in both backends, and the same updates."""
    one, two = learner_of(), learner_of(framework="torch")
    ours = one.policy.network.named_params()
    theirs = two.policy.network.named_params()
    assert sum(view.size for view in ours.values()) == sum(view.size for view in theirs.values())
    by_shape = {}
    for view in theirs.values():
        by_shape.setdefault(tuple(sorted(view.shape)), []).append(view)
    for view in ours.values():
        match = by_shape[tuple(sorted(view.shape))].pop(0)
        match[...] = view if match.shape == view.shape else view.T
    two.policy.network.sync()
    one.target[:], two.target[:] = one.policy.network.params, two.policy.network.params
    given = drawn(4 * SIZE, weighted=True)
    first, second = (learner.update(given, 1e-2, UpdateStatistics()) for learner in (one, two))
    np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-4)


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    learner, totals = learner_of(), UpdateStatistics()
    before = learner.policy.network.params.copy()
    given = drawn(2 * SIZE)
    given.transitions.returns[:SIZE] = np.nan
    errors = learner.update(given, 1e-2, totals)
    assert learner.optimizer.refused == 1
    assert np.isfinite(errors).all()
    assert np.isfinite(learner.policy.network.params).all()
    assert not np.array_equal(learner.policy.network.params, before)


class OneWorker:
    """As much of a set of workers as a learner needs."""

    def __init__(self, learner: DQNLearner) -> None:
        policy = learner.policy
        num_envs = learner.config.num_envs
        vector = PythonVector(
            lambda _: (Walk(spaces.Discrete(ACTIONS)), None), num_envs, policy.obs_spec, policy.action_spec, seed=3
        )
        self.policy, self.sampler, self.epsilons = policy, Sampler(policy, vector, 3), []

    def sample(self, steps: int) -> Sample:
        assert isinstance(self.policy.distribution, EpsilonGreedy)
        self.epsilons.append(self.policy.distribution.epsilon)
        return self.sampler.sample(steps)


SMALL = {
    "num_envs_per_worker": 2,
    "rollout_fragment_length": 4,
    "n_step": 2,
    "timesteps_per_iteration": 40,
    "learning_starts": 30,
    "target_network_update_freq": 20,
    "exploration_config": {"epsilon_timesteps": 80, "final_epsilon": 0.2},
    "replay_buffer_config": {"capacity": 60},
}


def test_an_iteration_keeps_its_promises_to_the_step() -> None:
    learner = learner_of(**SMALL, training_intensity=3.0)
    workers = OneWorker(learner)
    first = learner.training_step(workers, 0)
    assert first.timesteps == 40
    # Learning starts with the fragment that reaches 30 steps: 2 rounds of 8 steps, 24 transitions each, 8 an update.
    assert first.stats["num_updates"] == 6
    assert workers.epsilons == pytest.approx([1 - 0.8 * step / 80 for step in (0, 8, 16, 24, 32)])
    second = learner.training_step(workers, 40)
    assert second.stats["num_updates"] == 15
    assert first.stats["replay_size"] == 40
    assert second.stats["replay_size"] == 60
    # At 32, 56 and 80 steps: the first round that is at least 20 steps after the last copy.
    assert second.stats["num_target_updates"] == 3
    third = learner.training_step(workers, 80)
    assert third.stats["cur_epsilon"] == pytest.approx(0.2)
    assert set(first.timers) == {"env", "policy", "communicate", "learn"}


def test_what_is_no_whole_minibatch_is_owed() -> None:
    learner = learner_of(**SMALL, training_intensity=0.75)
    learner.config = learner.config.model_copy(update={"learning_starts": 0})
    workers = OneWorker(learner)
    counts = [learner.training_step(workers, 40 * k).stats["num_updates"] for k in range(4)]
    assert sum(counts) == 15
    assert set(counts) == {3, 4}


def test_before_learning_starts_there_are_no_losses_to_report() -> None:
    learner = learner_of(**{**SMALL, "learning_starts": 1000})
    before = learner.policy.network.params.copy()
    stats = learner.training_step(OneWorker(learner), 0).stats
    assert "total_loss" not in stats
    assert stats["num_updates"] == 0
    np.testing.assert_array_equal(learner.policy.network.params, before)


def test_many_updates_are_drawn_in_pieces_that_fit(monkeypatch) -> None:
    learner = learner_of()
    assert list(learner._drawn_at_once(40)) == [16, 16, 8]
    assert list(learner._drawn_at_once(0)) == []
    monkeypatch.setattr(off_policy, "DRAWN_BYTES", 1)
    assert list(learner._drawn_at_once(3)) == [1, 1, 1]


def test_rewards_are_clipped_before_they_are_remembered() -> None:
    learner = learner_of(**{**SMALL, "n_step": 1}, clip_rewards=0.5)
    learner.training_step(OneWorker(learner), 0)
    returns = learner.replay.draw(4, 50).transitions.returns
    assert np.abs(returns).max() == 0.5


def test_weights_out_of_bounds_go_back_to_the_iteration_before(caplog) -> None:
    learner = learner_of(**{**SMALL, "lr": 1e30})
    kept = learner.policy.network.params.copy()
    stats = learner.training_step(OneWorker(learner), 0).stats
    assert stats["refused_minibatches"] > 0
    assert "diverged" in caplog.text
    np.testing.assert_array_equal(learner.policy.network.params, kept)


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_saved_learner_goes_on_bit_for_bit_and_its_state_outlives_an_iteration(prioritized) -> None:
    changes = {**SMALL, "replay_buffer_config": {"capacity": 60, "prioritized_replay": prioritized}}
    one, two = learner_of(**changes), learner_of(**changes, lr=0.5)
    workers = OneWorker(one)
    for k in range(4):
        one.training_step(workers, 40 * k)
    state = one.get_state()
    then = State(json.loads(json.dumps(state.values)), {name: array.copy() for name, array in state.arrays.items()})
    fragment = workers.sample(4).batch
    params = one.policy.network.params.copy()
    one.training_step(workers, 160)
    for name, array in then.arrays.items():
        np.testing.assert_array_equal(state.arrays[name], array, err_msg=name)
    del fragment
    two.set_state(then)
    one.policy.network.params[:] = two.policy.network.params[:] = params
    one.set_state(then)
    two.config = one.config
    for learner in (one, two):
        learner.learn(20, 200, UpdateStatistics())
    np.testing.assert_array_equal(one.policy.network.params, two.policy.network.params)
    for name, array in one.get_state().arrays.items():
        np.testing.assert_array_equal(array, two.get_state().arrays[name], err_msg=name)


def test_a_batch_without_one_good_step_ends_with_its_cause() -> None:
    class Bad(OneWorker):
        def sample(self, steps):
            sample = super().sample(steps)
            sample.batch.valid[:] = False
            sample.batch.terminated[:] = True
            return replace(sample, num_steps=0)

    learner = learner_of(**SMALL)
    with pytest.raises(EnvError, match="Not one step"):
        learner.training_step(Bad(learner), 0)


def test_a_replay_that_does_not_fit_is_refused_with_the_arithmetic(monkeypatch, caplog) -> None:
    monkeypatch.setattr(off_policy, "available_memory", lambda: 1_000_000)
    with pytest.raises(ConfigError) as caught:
        learner_of(replay_buffer_config={"capacity": 50_000})
    (problem,) = caught.value.problems
    # 3 floats twice, action, return and discount; an iteration is 11 rounds of 12 steps of 8 environments.
    assert "(50,000 + 1,056 of one iteration) x 36 bytes = 1.8 MB, and 1.0 MB are available" in problem
    assert f"use at most {1_000_000 // 36 - 1056}" in problem
    with caplog.at_level("INFO", logger="shoal"):
        learner_of(replay_buffer_config={"capacity": 20_000})
    assert "x 36 bytes" in caplog.text


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2,), np.float32),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(2),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}),
    ],
    ids=lambda space: type(space).__name__,
)
def test_actions_that_are_no_single_choice_are_refused_with_a_way_out(space) -> None:
    with pytest.raises(ConfigError, match="set run: PPO"):
        build_policy(OBS, space, DQNConfig())


MASKED_OBS = spaces.Dict(observations=OBS, action_mask=spaces.MultiBinary(ACTIONS))


@pytest.mark.parametrize("dueling", [True, False], ids=["dueling", "plain"])
@pytest.mark.parametrize("double_q", [True, False], ids=["double", "single"])
def test_masked_actions_are_neither_the_best_nor_in_the_mean(dueling, double_q) -> None:
    config = DQNConfig(train_batch_size=SIZE, dueling=dueling, double_q=double_q, model={"fcnet_hiddens": [6]}, lr=1e-2)
    learner = DQNLearner(config, build_policy(MASKED_OBS, spaces.Discrete(ACTIONS), config))
    network, rng = learner.policy.network, np.random.default_rng(0)
    network.params[:] += 0.3 * rng.standard_normal(len(network.params)).astype(np.float32)
    learner.target[:] += 0.3 * rng.standard_normal(len(learner.target)).astype(np.float32)
    plain = drawn(SIZE).transitions
    mask, next_mask = (rng.random((2, SIZE, ACTIONS)) < 0.5) | (np.arange(ACTIONS) == plain.actions[:, None])
    next_mask[0] = False  # cut by a time limit where nothing could be done
    discounts = np.full(SIZE, 0.9, np.float32)
    masked = replace(plain, obs=(*plain.obs, mask), next_obs=(*plain.next_obs, next_mask), discounts=discounts)

    def q(obs, allowed, params):
        """Values of all actions by the plain network, those of masked ones minus infinity."""
        now = network.params.copy()
        network.params[:] = params
        outputs, values, _ = network.network.forward((obs,))
        network.params[:] = now
        outputs = np.where(allowed, outputs, -np.inf).astype(np.float64)
        if not dueling:
            return outputs
        mean = np.where(allowed, outputs, 0).sum(axis=1) / np.maximum(allowed.sum(axis=1), 1)
        return outputs + (values - mean)[:, None]

    rows = np.arange(SIZE)
    later = q(plain.next_obs[0], next_mask, learner.target)
    chooser = q(plain.next_obs[0], next_mask, network.params) if double_q else later
    best = np.where(next_mask.any(axis=1), later[rows, chooser.argmax(axis=1)], 0)
    wanted = q(plain.obs[0], mask, network.params)[rows, plain.actions] - (plain.returns + 0.9 * best)
    before = network.params.copy()
    errors = learner.update(DrawnTransitions(masked, rows, None), 1e-2, UpdateStatistics())
    np.testing.assert_allclose(errors, wanted, rtol=1e-4, atol=1e-4)
    assert np.isfinite(network.params).all()
    assert (network.params != before).any()


@pytest.mark.parametrize("changes", [{}, {"dueling": False, "double_q": False}], ids=["double, dueling", "plain"])
def test_errors_without_learning_are_those_before_an_update(changes) -> None:
    learner = learner_of(**changes)
    before = learner.policy.network.params.copy()
    asked = learner.errors_of(drawn(SIZE).transitions)
    np.testing.assert_array_equal(learner.policy.network.params, before)
    errors = learner.update(drawn(SIZE), 1e-2, UpdateStatistics())
    np.testing.assert_allclose(asked, np.abs(errors), rtol=1e-4, atol=1e-5)
