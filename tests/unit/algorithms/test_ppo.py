"""PPO against the textbook: its whole update, minibatch by minibatch, by torch's autograd in double precision."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from walks import Walk, copied

from shoal.algorithms.on_policy import explained_variance
from shoal.algorithms.ppo import PPOLearner
from shoal.algorithms.rewards import clipped_rewards
from shoal.config.ppo import PPOConfig
from shoal.data.batch import Batch
from shoal.data.state import State
from shoal.envs.vector import PythonVector
from shoal.errors import ConfigError
from shoal.models.build import build_policy
from shoal.parallel.group import Alone
from shoal.sampling.sampler import Sampler

pytestmark = pytest.mark.usefixtures("compiled_kernels")
T, N, FEATURES = 16, 4, 3


class WalkInBox(Walk):
    action_space = spaces.Box(-1, 1, (2,), np.float32)


def config_of(**changes) -> PPOConfig:
    standard = {"train_batch_size": T * N, "sgd_minibatch_size": 16, "num_sgd_iter": 1, "num_envs_per_worker": N}
    return PPOConfig(**{**standard, "model": {"fcnet_hiddens": [8, 8]}, "seed": 3, **changes})


def learner_and_batch(kind=Walk, iterations=1, **changes) -> tuple[PPOLearner, Batch]:
    """A learner, after `iterations - 1` updates, and the batch that its policy sampled last."""
    config = config_of(**changes)
    policy = build_policy(kind.observation_space, kind.action_space, config)
    rng = np.random.default_rng(0)
    policy.network.params[:] += 0.2 * rng.standard_normal(len(policy.network.params)).astype(np.float32)
    vector = PythonVector(lambda _: (kind(), None), N, policy.obs_spec, policy.action_spec, seed=3)
    sampler, learner = Sampler(policy, vector, 3), PPOLearner(config, policy)
    for _ in range(iterations - 1):
        learner.update(sampler.sample(T).batch, 0)
    return learner, copied(sampler.sample(T).batch)


def double(array):
    return torch.tensor(np.asarray(array), dtype=torch.float64)


class Textbook:
    """The PPO paper's algorithm with classic RLlib's KL penalty and value clipping, in the plainest torch."""

    def __init__(self, learner: PPOLearner) -> None:
        self.learner, self.c = learner, learner.config
        network = learner.policy.network
        self.shapes = [(name, view.shape) for name, view in network.named_params().items()]
        self.params = {name: double(view).requires_grad_() for name, view in network.named_params().items()}
        self.optimizer = torch.optim.Adam(
            self.params.values(), lr=self.c.lr, betas=self.c.optimizer.betas, eps=self.c.optimizer.eps
        )

    def net(self, x, which):
        p = self.params
        for layer in range(2):
            x = torch.tanh(x @ p[f"{which}.hidden{layer}.weight"] + p[f"{which}.hidden{layer}.bias"])
        return x @ p[f"{which}.weight"] + p[f"{which}.bias"]

    def distribution(self, x):
        out = self.net(x, "policy")
        if "log_std" in self.params:
            return Independent(Normal(out, self.params["log_std"].exp().expand_as(out)), 1)
        return Categorical(logits=out)

    def from_inputs(self, inputs):
        if "log_std" in self.params:
            mean, log_std = inputs.chunk(2, dim=1)
            return Independent(Normal(mean, log_std.exp()), 1)
        return Categorical(logits=inputs)

    def encode(self, raw):
        return double(self.learner.policy.encoder.encode(np.ascontiguousarray(raw)))

    def reward_scale(self, b: Batch, rewards):
        """The standard deviation of the discounted sums of each episode's rewards, in a batch that is the first."""
        sums = []
        for n in range(N):
            begin = 0
            for t in range(T):
                sums.append(sum(self.c.gamma ** (t - k) * float(rewards[k, n]) for k in range(begin, t + 1)))
                if b.terminated[t, n] or b.truncated[t, n]:
                    begin = t + 1
        return max(np.std(sums), 0.1 * abs(np.mean(sums)))

    def advantages(self, b: Batch):
        c = self.c
        rewards = double(b.rewards)
        if c.clip_rewards is True:
            rewards = rewards.sign()
        elif c.clip_rewards:
            rewards = rewards.clamp(-c.clip_rewards, c.clip_rewards)
        if c.normalize_rewards:
            rewards = rewards / self.reward_scale(b, rewards)
        with torch.no_grad():
            values = self.net(self.encode(b.obs[0].reshape(T * N, -1)), "value").reshape(T, N)
            finals = self.net(self.encode(b.final_obs[0]), "value")[:, 0]
        if not c.use_critic:
            values, finals = torch.zeros_like(values), torch.zeros_like(finals)
        lambda_ = c.lambda_ if c.use_gae else 1.0
        final = {tuple(at): finals[k] for k, at in enumerate(b.final_at.tolist())}
        advantages = torch.zeros(T, N, dtype=torch.float64)
        for n in range(N):
            running = 0.0
            for t in reversed(range(T)):
                after = final.get((t, n), values[t + 1, n] if t + 1 < T else None)
                bootstrap = 0.0 if b.terminated[t, n] else after
                delta = rewards[t, n] + c.gamma * bootstrap - values[t, n]
                if b.terminated[t, n] or b.truncated[t, n]:
                    running = 0.0
                running = delta + c.gamma * lambda_ * running
                advantages[t, n] = running
        targets = advantages + values
        return advantages.reshape(-1), targets.reshape(-1)

    def loss(self, b: Batch, rows, advantages, targets, entropy_coeff):
        c = self.c
        x = self.encode(b.obs[0].reshape(T * N, -1)[rows])
        now = self.distribution(x)
        actions = double(b.actions.reshape(T * N, -1)[rows])
        actions = actions if "log_std" in self.params else actions[:, 0]
        ratio = (now.log_prob(actions) - double(b.log_probs.reshape(-1)[rows])).exp()
        a = advantages[rows]
        a = (a - a.mean()) / (a.std(correction=0) + 1e-8)
        loss = -torch.minimum(ratio * a, ratio.clamp(1 - c.clip_param, 1 + c.clip_param) * a).mean()
        loss = loss - entropy_coeff * now.entropy().mean()
        if self.learner.kl_coeff:
            old = self.from_inputs(double(b.dist_inputs.reshape(T * N, -1)[rows]))
            loss = loss + self.learner.kl_coeff * kl_divergence(old, now).mean()
        if c.use_critic:
            squared = (self.net(x, "value")[:, 0] - targets[rows]) ** 2
            if c.vf_clip_param is not None:
                squared = squared.clamp(0, c.vf_clip_param)
            loss = loss + c.vf_loss_coeff * squared.mean()
        return loss, ratio

    def update(self, b: Batch, minibatches, entropy_coeff=None):
        """Learn from these minibatches; returns each one's gradient norm and ratios."""
        advantages, targets = self.advantages(b)
        seen = []
        for rows in minibatches:
            entropy = self.c.entropy_coeff if entropy_coeff is None else entropy_coeff
            loss, ratio = self.loss(b, rows, advantages, targets, entropy)
            self.optimizer.zero_grad()
            loss.backward()
            for p in self.params.values():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            limit = np.inf if self.c.grad_clip is None else self.c.grad_clip
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.params.values()])
            for is_of_values in (True, False):
                part = [p for name, p in self.params.items() if name.startswith("value.") is is_of_values]
                torch.nn.utils.clip_grad_norm_(part, limit)
            self.optimizer.step()
            seen.append((norm.item(), ratio.detach()))
        return seen

    def assert_same_weights(self) -> None:
        for name, view in self.learner.policy.network.named_params().items():
            np.testing.assert_allclose(view, self.params[name].detach(), rtol=1e-3, atol=2e-5, err_msg=name)


def minibatches_of(learner: PPOLearner, batch: Batch) -> list:
    """The rows of each minibatch that the learner's next update will use, in order."""
    again = PPOLearner(learner.config, learner.policy).minibatches
    again.passes = learner.minibatches.passes
    epochs = again.epochs(batch.valid, Alone())
    return [epoch.rows[part] for _, epoch in zip(range(learner.config.num_sgd_iter), epochs) for part, _ in epoch]


SETTINGS = {
    "plain": {},
    "entropy": {"entropy_coeff": 0.1},
    "kl penalty": {"kl_coeff": 0.7},
    "value clip": {"vf_clip_param": 0.5},
    "tight clip": {"clip_param": 0.01, "lr": 3e-3},
    "slow": {"lr": 1e-4, "num_sgd_iter": 20},
    "all at once": {"entropy_coeff": 0.05, "kl_coeff": 0.3, "vf_clip_param": 2.0, "clip_param": 0.05, "lr": 1e-3},
    "no gradient clip": {"grad_clip": None},
    "tiny gradient clip": {"grad_clip": 1e-3},
    "rewards as they are": {"normalize_rewards": False},
    "sign of rewards": {"clip_rewards": True},
    "clipped rewards": {"clip_rewards": 0.5},
    "no gae": {"use_gae": False},
    "no critic": {"use_critic": False, "use_gae": False},
    "in order": {"shuffle_sequences": False},
    "filter": {"observation_filter": "MeanStdFilter"},
    "minibatches that do not divide": {"sgd_minibatch_size": 27},
}


@pytest.mark.parametrize("kernel", ["numpy", "compiled"])
@pytest.mark.parametrize("kind", [Walk, WalkInBox])
@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_the_update_is_the_textbooks(kind, changes, kernel) -> None:
    learner, batch = learner_and_batch(kind, **{"num_sgd_iter": 3, "kernel": kernel, **changes})
    assert (learner._compiled is not None) == (kernel == "compiled")
    assert batch.terminated.any()
    assert batch.truncated.any()
    book = Textbook(learner)
    minibatches = minibatches_of(learner, batch)
    seen = book.update(batch, minibatches)
    stats = learner.update(batch, 0)
    book.assert_same_weights()
    last_pass = seen[-(len(seen) // learner.config.num_sgd_iter) :]
    assert stats["grad_gnorm"] == pytest.approx(np.mean([norm for norm, _ in last_pass]), rel=1e-3)
    moved = max(float((ratio - 1).abs().max()) for _, ratio in seen)
    assert moved > 1e-3, "later minibatches must have seen ratios away from 1"


@pytest.mark.parametrize(("broken", "what"), [("ppo_gradient", "PPO's gradient by"), ("adam", "Adam's step")])
def test_a_kernel_that_differs_from_numpy_is_refused(monkeypatch, broken, what) -> None:
    learner, _ = learner_and_batch(kernel="compiled")
    network = learner.policy.network
    wrong = SimpleNamespace(**{**vars(network.kernel), broken: lambda *addresses: -1})
    monkeypatch.setattr(network, "kernel", wrong)
    with pytest.raises(ConfigError, match=f"the compiled kernel differs from NumPy in {what}.*; set kernel: numpy"):
        PPOLearner(learner.config, learner.policy)


@pytest.mark.parametrize("changes", [{}, {"observation_filter": "MeanStdFilter"}], ids=["no filter", "filter"])
@pytest.mark.parametrize("kind", [Walk, WalkInBox])
@pytest.mark.parametrize("iterations", [1, 3])
def test_the_ratio_is_one_on_the_first_minibatch(kind, changes, iterations) -> None:
    learner, batch = learner_and_batch(kind, iterations, sgd_minibatch_size=T * N, **changes)
    x = learner.policy.encoder((batch.obs[0].reshape(T * N, -1),))
    outputs, _, _ = learner.policy.network.forward(x)
    now = learner.policy.distribution.evaluate(outputs, batch.actions.reshape(T * N, -1))
    np.testing.assert_allclose(np.exp(now.log_prob - batch.log_probs.reshape(-1)), 1, atol=2e-5)
    stats = learner.update(batch, 0)
    assert stats["kl"] == pytest.approx(0, abs=1e-6)
    assert stats["clip_fraction"] == 0


def test_the_filter_learns_only_after_the_update() -> None:
    learner, batch = learner_and_batch(observation_filter="MeanStdFilter")
    assert learner.policy.filter.count == 0
    learner.update(batch, 0)
    assert learner.policy.filter.count == T * N
    np.testing.assert_allclose(learner.policy.filter.mean, batch.obs[0].reshape(T * N, -1).mean(axis=0), rtol=1e-4)


def with_invalid_rows(batch: Batch, garbage: float) -> Batch:
    """Two rows that are no transitions, as the sampler marks them, filled with whatever is at hand."""
    batch = copied(batch)
    for t, n in ((4, 1), (9, 2)):
        for array in (batch.obs[0], batch.rewards, batch.log_probs, batch.dist_inputs):
            array[t, n] = garbage
        batch.actions[t, n] = 0 if garbage < 0 else 1
        batch.valid[t, n], batch.terminated[t, n], batch.truncated[t, n] = False, True, False
        if not batch.terminated[t - 1, n]:
            batch.truncated[t - 1, n] = True
    listed = {(t, n) for t, n in batch.final_at.tolist()}
    extra = [(t, n) for t, n in ((3, 1), (8, 2)) if batch.truncated[t, n] and (t, n) not in listed]
    keep = [k for k, at in enumerate(batch.final_at.tolist()) if tuple(at) not in ((4, 1), (9, 2))]
    return replace(
        batch,
        final_at=np.concatenate([batch.final_at[keep], np.array(extra, np.int64).reshape(-1, 2)]),
        final_obs=(np.concatenate([batch.final_obs[0][keep], np.ones((len(extra), FEATURES), np.float32)]),),
    )


@pytest.mark.parametrize("observation_filter", ["NoFilter", "MeanStdFilter"])
def test_invalid_rows_have_no_influence(observation_filter) -> None:
    results = []
    for garbage in (0.0, -50.0, 1e4):
        learner, batch = learner_and_batch(observation_filter=observation_filter, num_sgd_iter=2, kl_coeff=0.2)
        stats = learner.update(with_invalid_rows(batch, garbage), 0)
        results.append((learner.policy.network.params.copy(), learner.policy.get_state().arrays, stats))
    for params, state, stats in results[1:]:
        np.testing.assert_array_equal(params, results[0][0])
        assert stats == results[0][2]
        for name, array in state.items():
            np.testing.assert_array_equal(array, results[0][1][name])


def test_a_gradient_that_is_not_finite_is_refused_and_the_policy_stays() -> None:
    learner, batch = learner_and_batch(num_sgd_iter=2, normalize_rewards=False)
    before, steps = learner.policy.network.params.copy(), learner.optimizer.adam.steps
    wild = replace(batch, rewards=np.full_like(batch.rewards, 3e38))
    with np.errstate(all="ignore"):
        stats = learner.update(wild, 0)
    np.testing.assert_array_equal(learner.policy.network.params, before)
    assert learner.optimizer.adam.steps == steps
    assert not learner.optimizer.adam.m.any()
    assert stats["refused_minibatches"] == 8
    assert learner.update(batch, 0)["refused_minibatches"] == 0
    assert np.isfinite(learner.policy.network.params).all()


@pytest.mark.parametrize(("target", "factor"), [(1e-9, 1.5), (1e3, 0.5)])
def test_the_kl_coefficient_follows_its_target(target, factor) -> None:
    learner, batch = learner_and_batch(kl_coeff=0.2, kl_target=target, lr=1e-2, num_sgd_iter=3)
    stats = learner.update(batch, 0)
    assert stats["cur_kl_coeff"] == 0.2
    assert learner.kl_coeff == pytest.approx(0.2 * factor)


def test_within_its_target_the_kl_coefficient_stays() -> None:
    learner, batch = learner_and_batch(kl_coeff=0.2, lr=1e-2, num_sgd_iter=3)
    kl = learner.update(batch, 0)["kl"]
    again, batch = learner_and_batch(kl_coeff=0.2, kl_target=kl, lr=1e-2, num_sgd_iter=3)
    again.update(batch, 0)
    assert again.kl_coeff == 0.2


def test_schedules_are_read_at_the_present_timestep() -> None:
    changes = {"lr_schedule": [[0, 1e-3], [1000, 0]], "entropy_coeff_schedule": [[0, 0.0], [1000, 0.1]]}
    learner, batch = learner_and_batch(**changes)
    before = learner.policy.network.params.copy()
    stats = learner.update(batch, 500)
    assert stats["cur_lr"] == pytest.approx(5e-4)
    assert stats["entropy_coeff"] == pytest.approx(0.05)
    assert not np.array_equal(learner.policy.network.params, before)
    after = learner.policy.network.params.copy()
    assert learner.update(batch, 10**6)["cur_lr"] == 0
    np.testing.assert_array_equal(learner.policy.network.params, after)


def test_without_a_critic_the_value_net_does_not_move() -> None:
    learner, batch = learner_and_batch(use_critic=False, use_gae=False)
    before = learner.policy.get_weights()
    learner.update(batch, 0)
    after = learner.policy.get_weights()
    for name in before:
        assert np.array_equal(before[name], after[name]) == name.startswith("value."), name


@pytest.mark.parametrize(
    ("clip", "wanted"), [(None, [-7, 0, 0.5]), (False, [-7, 0, 0.5]), (True, [-1, 0, 1]), (2.0, [-2, 0, 0.5])]
)
def test_rewards_as_the_learner_sees_them(clip, wanted) -> None:
    assert clipped_rewards(np.array([-7, 0, 0.5], np.float32), clip).tolist() == wanted


def test_statistics_are_all_there_and_finite() -> None:
    learner, batch = learner_and_batch(entropy_coeff=0.1, kl_coeff=0.1)
    stats = learner.update(batch, 0)
    assert all(isinstance(value, float) and np.isfinite(value) for value in stats.values())
    loss = stats["policy_loss"] + 0.5 * stats["vf_loss"] - 0.1 * stats["entropy"] + 0.1 * stats["kl"]
    assert stats["total_loss"] == pytest.approx(loss)


def test_a_saved_learner_goes_on_the_same() -> None:
    first, batch = learner_and_batch(kl_coeff=0.2, num_sgd_iter=2)
    second, _ = learner_and_batch(kl_coeff=0.9, num_sgd_iter=2)
    first.update(batch, 0)
    for mine, theirs in ((first, second), (first.policy, second.policy)):
        state = mine.get_state()
        theirs.set_state(State(json.loads(json.dumps(state.values)), state.arrays))
    assert first.update(batch, 64) == second.update(batch, 64)
    np.testing.assert_array_equal(first.policy.network.params, second.policy.network.params)


@pytest.mark.parametrize(("size", "count"), [(16, 4), (64, 1), (20, 4), (10, 7)])
def test_minibatches_are_at_most_their_size(size, count) -> None:
    learner, batch = learner_and_batch(sgd_minibatch_size=size)
    minibatches = minibatches_of(learner, batch)
    assert len(minibatches) == count
    assert max(map(len, minibatches)) - min(map(len, minibatches)) <= 1
    assert sorted(np.concatenate(minibatches).tolist()) == list(range(T * N))


def test_explained_variance() -> None:
    actual = np.array([1, 2, 3, 4], np.float32)
    assert explained_variance(actual, actual, Alone()) == 1
    assert explained_variance(np.full(4, 2.5, np.float32), actual, Alone()) == pytest.approx(0)
    assert explained_variance(-actual, actual, Alone()) < 0
    assert explained_variance(actual, np.ones(4, np.float32), Alone()) == 0
    assert explained_variance(actual[:0], actual[:0], Alone()) == 0


def test_a_target_for_the_kl_ends_the_passes_over_a_batch() -> None:
    free, batch = learner_and_batch(num_sgd_iter=8, lr=1e-2)
    stats = free.update(batch, 0)
    assert stats["num_passes"] == 8
    held, batch = learner_and_batch(num_sgd_iter=8, lr=1e-2, target_kl=stats["kl"] / 4)
    held_stats = held.update(batch, 0)
    assert 1 <= held_stats["num_passes"] < 8
    assert stats["kl"] / 4 < held_stats["kl"] / 1.5
    assert held.minibatches.passes == held_stats["num_passes"]
    alike, batch = learner_and_batch(num_sgd_iter=8, lr=1e-2, target_kl=1e6)
    alike.update(batch, 0)
    np.testing.assert_array_equal(alike.policy.network.params, free.policy.network.params)


def test_the_unit_of_rewards_changes_nothing() -> None:
    learned = []
    for unit in (1e-3, 1.0, 1e5):
        learner, batch = learner_and_batch(num_sgd_iter=3)
        batch = replace(batch, rewards=batch.rewards * np.float32(unit))
        for _ in range(2):
            stats = learner.update(batch, 0)
        learned.append((learner.policy.network.params, stats["reward_scale"] / unit))
    for params, scale in learned:
        np.testing.assert_allclose(params, learned[1][0], rtol=1e-3, atol=1e-4)
        assert scale == pytest.approx(learned[1][1], rel=1e-5)


def test_a_checkpoint_without_a_scale_goes_on_without_one(caplog) -> None:
    learner, batch = learner_and_batch()
    learner.update(batch, 0)
    state = learner.get_state()
    values = {key: value for key, value in state.values.items() if key != "rewards"}
    learner.set_state(State(values, state.arrays))
    assert caplog.messages == ["the checkpoint was trained without normalize_rewards, and goes on without"]
    assert learner.update(batch, 0)["reward_scale"] == 1
    again = PPOLearner(learner.config, learner.policy)
    again.set_state(learner.get_state())
    assert again.rewards.scale is None
