"""SAC against the textbook: its whole update, minibatch by minibatch, by torch's autograd in double precision."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from walks import Walk

from shoal.algorithms.off_policy import UpdateStatistics
from shoal.algorithms.sac import CHOICE_ENTROPY, SACLearner
from shoal.config.changing import unchecked
from shoal.config.sac import SACConfig
from shoal.data.replay import DrawnTransitions, Transitions
from shoal.data.state import State
from shoal.envs.vector import PythonVector
from shoal.errors import ConfigError
from shoal.models.build import build_policy
from shoal.sampling.sampler import Sampler

FEATURES, SIZE = 3, 8
OBS = spaces.Box(-100, 100, (FEATURES,), np.float32)
BOX = spaces.Box(-2, 2, (2,), np.float32)
SPACES = {
    "box": BOX,
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "half bounded": spaces.Box(np.float32([-1, 0]), np.float32([1, np.inf])),
    "discrete": spaces.Discrete(4),
    "choices": spaces.MultiDiscrete([3, 2]),
    "bits": spaces.MultiBinary(2),
    "mixed": spaces.Tuple([spaces.Discrete(3), BOX, spaces.MultiBinary(1)]),
}


def learner_of(space=BOX, obs=OBS, lr=1e-2, **changes) -> SACLearner:
    standard = {"train_batch_size": SIZE, "model": {"fcnet_hiddens": [8, 6]}, "seed": 3}
    small = {"replay_buffer_config": {"capacity": 60}, "initial_alpha": 0.3}
    config = unchecked(SACConfig(**{**standard, **small, **changes}), lr=lr)  # also one that nobody may set
    policy = build_policy(obs, space, config)
    learner, rng = SACLearner(config, policy), np.random.default_rng(0)
    for network in (policy.network, *learner.critics, *learner.targets):
        network.params[:] += 0.3 * rng.standard_normal(len(network.params)).astype(np.float32)
        network.sync()
    return learner


def drawn(learner: SACLearner, count: int, weighted: bool = False) -> DrawnTransitions:
    rng, spec = np.random.default_rng(1), learner.policy.action_spec

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    actions = normal(count, spec.size)
    for leaf in spec.leaves:
        if leaf.kind != "gaussian":
            most = leaf.choices if leaf.kind == "categorical" else (2,) * leaf.size
            actions[:, leaf.columns] = rng.integers(0, most, (count, leaf.size))
    if isinstance(spec.space, spaces.Discrete):
        actions = actions[:, 0].astype(np.int32)
    discounts = (0.9 * (rng.random(count) < 0.7)).astype(np.float32)
    transitions = Transitions(
        (normal(count, FEATURES),), actions, 2 * normal(count), (normal(count, FEATURES),), discounts
    )
    weights = rng.random(count).astype(np.float32) if weighted else None
    return DrawnTransitions(transitions, np.arange(count), weights)


def double(array) -> torch.Tensor:
    return torch.tensor(np.asarray(array), dtype=torch.float64)


class Textbook:
    """The papers' losses in the plainest torch, with torch's own distributions."""

    def __init__(self, learner: SACLearner) -> None:
        self.learner, self.c = learner, learner.config
        self.policy = self.parameters(learner.policy.network)
        self.critics = [self.parameters(critic) for critic in learner.critics]
        self.targets = [self.parameters(target) for target in learner.targets]
        self.log_alphas = double(learner.log_alphas).requires_grad_()
        moved = [self.policy, *self.critics]
        eps = self.c.optimizer.eps
        self.optimizers = [torch.optim.Adam(p.values(), lr=self.c.lr, eps=eps) for p in moved]
        self.optimizers.append(torch.optim.Adam([self.log_alphas], lr=self.c.lr, eps=eps))

    @staticmethod
    def parameters(network):
        return {name: double(view).requires_grad_() for name, view in network.named_params().items()}

    def net(self, p, x):
        for layer in range(2):
            x = torch.relu(x @ p[f"shared.hidden{layer}.weight"] + p[f"shared.hidden{layer}.bias"])
        return x @ p["policy.weight"] + p["policy.bias"]

    def lowest(self, critics, x, numbers):
        return torch.stack([self.net(p, torch.cat([x, numbers], dim=1)) for p in critics]).min(dim=0).values

    def acted(self, x, noise):
        """Sampled numbers, the probability of each combination of choices, and both entropies."""
        outputs, place, drawn_at = self.net(self.policy, x), 0, 0
        numbers, entropies = [], {}
        joint = torch.ones(len(x), 1, dtype=torch.float64)
        for leaf in self.learner.policy.action_spec.leaves:
            if leaf.kind == "gaussian":
                mean, log_std = outputs[:, place : place + 2 * leaf.size].split(leaf.size, dim=1)
                place += 2 * leaf.size
                u = mean + log_std.clamp(-20, 2).exp() * noise[:, drawn_at : drawn_at + leaf.size]
                drawn_at += leaf.size
                log_prob = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp()).log_prob(u)
                squashed = torch.tensor(leaf.squashed)
                log_prob = log_prob - torch.where(squashed, torch.log1p(-(torch.tanh(u) ** 2)), 0.0)
                numbers.append(torch.where(squashed, torch.tanh(u), u))
                entropies["numbers"] = entropies.get("numbers", 0) - log_prob.sum(dim=1)
                continue
            for size in leaf.choices or (1,) * leaf.size:
                logits = outputs[:, place : place + size]
                place += size
                if leaf.kind == "bernoulli":
                    logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
                choice = torch.distributions.Categorical(logits=logits)
                joint = (joint[:, :, None] * choice.probs[:, None, :]).flatten(1)
                entropies["choices"] = entropies.get("choices", 0) + choice.entropy()
        numbers = torch.cat([*numbers, torch.zeros(len(x), 0, dtype=torch.float64)], dim=1)
        return numbers, joint, torch.stack([entropies[kind] for kind in sorted(entropies, reverse=True)], dim=1)

    def update(self, given: DrawnTransitions, noise, next_noise) -> None:
        t, c = given.transitions, self.c
        numbers, combinations = (double(found) for found in self.learner.actions.taken(t.actions))
        for begin in range(0, len(t.returns), SIZE):
            part = slice(begin, begin + SIZE)
            obs, next_obs = double(t.obs[0][part]), double(t.next_obs[0][part])
            with torch.no_grad():
                alphas = self.log_alphas.exp()
                after, joint, entropies = self.acted(next_obs, double(next_noise[part]))
                value = (joint * self.lowest(self.targets, next_obs, after)).sum(dim=1) + entropies @ alphas
                goal = double(t.returns[part]) + double(t.discounts[part]) * value
                weights = torch.ones(SIZE) if given.weights is None else double(given.weights[part])
            for p, optimizer in zip(self.critics, self.optimizers[1:-1], strict=True):
                q = self.net(p, torch.cat([obs, numbers[part]], dim=1)).gather(1, combinations[part].long()[:, None])
                self.step(optimizer, (weights * (q[:, 0] - goal) ** 2 / 2).mean())
            now, joint, entropies = self.acted(obs, double(noise[part]))
            value = (joint * self.lowest(self.critics, obs, now)).sum(dim=1) + entropies @ alphas
            self.step(self.optimizers[0], -value.mean())
            surplus = entropies.detach().mean(dim=0) - double(self.targets_of_entropy())
            self.step(self.optimizers[-1], (self.log_alphas * surplus).sum())
            with torch.no_grad():
                for p, target in zip(self.critics, self.targets, strict=True):
                    for name, value in target.items():
                        value += c.tau * (p[name] - value)

    def targets_of_entropy(self):
        found, spec = [], self.learner.policy.action_spec
        if count := sum(leaf.size for leaf in spec.leaves if leaf.kind == "gaussian"):
            found.append(-count)
        logs = [np.log(n) for leaf in spec.leaves for n in leaf.choices]
        logs += [np.log(2)] * sum(leaf.size for leaf in spec.leaves if leaf.kind == "bernoulli")
        if logs:
            found.append(CHOICE_ENTROPY * sum(logs))
        return [self.c.target_entropy] if self.c.target_entropy != "auto" else found

    @staticmethod
    def step(optimizer, loss) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


CASES = {
    **{name: (space, {}) for name, space in SPACES.items()},
    "one critic": (BOX, {"twin_q": False}),
    "own target": (BOX, {"tau": 0.5, "target_entropy": -0.7}),
}


@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize(("space", "changes"), CASES.values(), ids=CASES)
def test_updates_are_those_of_the_papers(space, changes, weighted) -> None:
    learner = learner_of(space, **changes)
    given, textbook = drawn(learner, 4 * SIZE, weighted), Textbook(learner)
    rng = np.random.default_rng()
    rng.bit_generator.state = learner.rng.bit_generator.state
    noise = learner.actions.noise(rng, 8 * SIZE).reshape(2, 4 * SIZE, -1)
    totals = UpdateStatistics()
    learner.update(given, learner.config.lr, totals)
    textbook.update(given, *noise)
    pairs = [(learner.policy.network, textbook.policy), *zip(learner.critics, textbook.critics, strict=True)]
    for network, wanted in [*pairs, *zip(learner.targets, textbook.targets, strict=True)]:
        for name, value in network.named_params().items():
            np.testing.assert_allclose(value, wanted[name].detach(), rtol=1e-3, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(learner.log_alphas, textbook.log_alphas.detach(), rtol=1e-4)
    assert totals.updates == 4
    assert {"critic_loss", "policy_loss", "entropy", "mean_q", "mean_td_error", "grad_gnorm"} <= totals.means().keys()


def test_a_torch_network_learns_the_same() -> None:
    one, two = learner_of(), learner_of(framework="torch")
    pairs = zip((one.policy.network, *one.critics), (two.policy.network, *two.critics), strict=True)
    for ours, theirs in pairs:
        by_shape: dict = {}
        for view in theirs.named_params().values():
            by_shape.setdefault(tuple(sorted(view.shape)), []).append(view)
        for view in ours.named_params().values():
            match = by_shape[tuple(sorted(view.shape))].pop(0)
            match[...] = view if match.shape == view.shape else view.T
        theirs.sync()
    for learner in (one, two):
        for critic, target in zip(learner.critics, learner.targets, strict=True):
            target.params[:] = critic.params
            target.sync()
    given = drawn(one, 4 * SIZE, weighted=True)
    first, second = (learner.update(given, 1e-2, UpdateStatistics()) for learner in (one, two))
    np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(one.log_alphas, two.log_alphas, rtol=1e-4)


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    learner = learner_of()
    given = drawn(learner, 2 * SIZE)
    given.transitions.returns[:SIZE] = np.nan
    errors = learner.update(given, 1e-2, UpdateStatistics())
    assert [optimizer.refused for optimizer in learner.critic_optimizers] == [1, 1]
    for array in (errors, learner.policy.network.params, *(critic.params for critic in learner.critics)):
        assert np.isfinite(array).all()


MASKED_OBS = spaces.Dict(observations=OBS, action_mask=spaces.MultiBinary(4))


def test_masked_actions_count_neither_in_values_nor_in_the_entropy_that_is_aimed_at() -> None:
    learner = learner_of(spaces.Discrete(4), MASKED_OBS)
    plain = drawn(learner, SIZE).transitions
    mask = np.random.default_rng(2).random((2, SIZE, 4)) < 0.5
    mask[0] |= np.arange(4) == plain.actions[:, None]
    mask[1, 0] = False  # cut by a time limit where nothing could be done
    mask[1, 1] = [False, True, False, False]
    inputs = (plain.next_obs[0], mask[1])
    alphas = np.exp(learner.log_alphas)
    values = learner._next_values(inputs, np.zeros((SIZE, 0), np.float32), alphas)
    lowest = np.minimum(*(target.act((plain.next_obs[0],)) for target in learner.targets))
    assert values[0] == 0
    assert values[1] == pytest.approx(lowest[1, 1], rel=1e-5)
    now = learner.actions.sample(learner.policy.network.act(inputs), np.zeros((SIZE, 0), np.float32))
    wanted = CHOICE_ENTROPY * np.log(np.maximum(mask[1].sum(axis=1), 1)).mean()
    # Where nothing is allowed, all outputs are alike, and none of the options counts as ruled out.
    assert learner._target_entropies(now) == pytest.approx(wanted + CHOICE_ENTROPY * np.log(4) / SIZE, rel=1e-5)
    masked = replace(plain, obs=(plain.obs[0], mask[0]), next_obs=inputs)
    learner.update(DrawnTransitions(masked, np.arange(SIZE), None), 1e-2, UpdateStatistics())
    assert np.isfinite(learner.policy.network.params).all()


class OneWorker:
    """As much of a set of workers as a learner needs."""

    def __init__(self, learner: SACLearner) -> None:
        policy = learner.policy
        vector = PythonVector(
            lambda _: (Walk(BOX), None), learner.config.num_envs, policy.obs_spec, policy.action_spec, seed=3
        )
        self.sampler = Sampler(policy, vector, 3)

    def sample(self, steps: int):
        return self.sampler.sample(steps)


SMALL = {"num_envs_per_worker": 2, "timesteps_per_iteration": 20, "learning_starts": 10, "training_intensity": SIZE}


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_saved_learner_goes_on_bit_for_bit(prioritized) -> None:
    changes = {**SMALL, "replay_buffer_config": {"capacity": 60, "prioritized_replay": prioritized}}
    one, two = learner_of(**changes), learner_of(**changes, initial_alpha=2.0)
    workers = OneWorker(one)
    for k in range(4):
        stats = one.training_step(workers, 20 * k).stats
    assert stats["num_updates"] == 20
    assert stats["replay_size"] == 60
    state = one.get_state()
    then = State(json.loads(json.dumps(state.values)), {name: array.copy() for name, array in state.arrays.items()})
    two.policy.network.params[:] = one.policy.network.params
    two.set_state(then)
    for learner in (one, two):
        learner.learn(5, 200, UpdateStatistics())
    np.testing.assert_array_equal(one.policy.network.params, two.policy.network.params)
    for name, array in one.get_state().arrays.items():
        np.testing.assert_array_equal(array, two.get_state().arrays[name], err_msg=name)


def test_weights_out_of_bounds_go_back_to_the_iteration_before(caplog) -> None:
    learner = learner_of(**SMALL, lr=1e30)
    kept = [learner.policy.network.params.copy(), *(critic.params.copy() for critic in learner.critics)]
    stats = learner.training_step(OneWorker(learner), 0).stats
    assert stats["refused_minibatches"] > 0
    assert "diverged" in caplog.text
    for network, before in zip((learner.policy.network, *learner.critics), kept, strict=True):
        np.testing.assert_array_equal(network.params, before)


def test_what_sac_cannot_take_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match=r"59,049, more than 1,024.*set run: PPO"):
        learner_of(spaces.MultiDiscrete([3] * 10))
    with pytest.raises(ConfigError, match=r"target_entropy.*set it to auto"):
        learner_of(SPACES["mixed"], target_entropy=-1.0)
    for changes, words in (
        ({"squash_actions": False}, "run: PPO"),
        ({"model": {"custom_action_dist": "x"}}, "run: PPO"),
        ({"model": {"use_lstm": True}}, "run: PPO"),
        ({"model": {"vf_share_layers": False}}, "leave it out"),
        ({"exploration_config": {"type": "EpsilonGreedy"}}, "run: DQN"),
        ({"num_learners": 2, "num_workers": 2}, "learns in one process"),
        ({"target_entropy": "low"}, "a number, or auto"),
    ):
        with pytest.raises(ConfigError, match=words):
            SACConfig(**changes)


def test_many_updates_have_critics_with_layer_norm() -> None:
    config = SACConfig(high_update_ratio=True)
    assert config.training_intensity == 8 * 256
    assert SACConfig(high_update_ratio=True, training_intensity=512).training_intensity == 512
    assert SACConfig(**config.model_dump()).training_intensity == 8 * 256
    learner = learner_of(high_update_ratio=True)
    assert "layer norm" in learner.critics[0].summary()
    learner.update(drawn(learner, 4 * SIZE), 1e-2, UpdateStatistics())
    with pytest.raises(ConfigError, match="high_update_ratio: is for NumPy networks"):
        learner_of(high_update_ratio=True, framework="torch")


@pytest.mark.parametrize("space", ["box", "discrete", "mixed"])
def test_errors_without_learning_are_those_before_an_update(space) -> None:
    learner = learner_of(SPACES[space])
    given = drawn(learner, SIZE)
    asked = learner.errors_of(given.transitions)
    learner.actions.noise = lambda rng, rows: np.zeros((rows, learner.actions.num_numbers), np.float32)
    np.testing.assert_allclose(asked, learner.update(given, 1e-2, UpdateStatistics()), rtol=1e-4, atol=1e-5)
