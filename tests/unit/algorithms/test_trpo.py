"""TRPO against the paper: its vectors by autograd and finite differences, its promises on every kind of action."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from threading import Lock

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from walks import Walk, copied

from shoal.algorithms import trpo
from shoal.algorithms.network_inputs import batch_inputs
from shoal.algorithms.trpo import TRPOLearner, TrustRegion, conjugate_gradient
from shoal.config.trpo import TRPOConfig
from shoal.data.batch import Batch
from shoal.data.state import State
from shoal.envs.vector import PythonVector
from shoal.errors import ConfigError
from shoal.models.build import build_policy
from shoal.models.torch_models import TorchModelV2
from shoal.parallel.group import Alone
from shoal.sampling.sampler import Sampler

T, N, FEATURES = 16, 4, 3
BOX = spaces.Box(-1, 1, (2,), np.float32)
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "multi_discrete": spaces.MultiDiscrete([3, 2, 4]),
    "multi_binary": spaces.MultiBinary(3),
    "box": BOX,
    "composite": spaces.Dict({"a": spaces.Discrete(3), "b": BOX, "c": spaces.MultiBinary(2)}),
}


class Film(gym.Env):
    """Small pictures, whose brightness says what to do."""

    observation_space = spaces.Box(0, 255, (8, 8, 1), np.uint8)

    def __init__(self, action_space: spaces.Space) -> None:
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.see(), {}

    def step(self, action):
        return self.see(), float(np.sum(action)), bool(self.np_random.random() < 0.1), False, {}

    def see(self):
        return self.np_random.integers(0, 255, (8, 8, 1)).astype(np.uint8)


NO_CRITIC = {"use_critic": False, "use_gae": False}


def config_of(**changes) -> TRPOConfig:
    standard = {"train_batch_size": T * N, "num_envs_per_worker": N, "model": {"fcnet_hiddens": [8, 8]}, "seed": 3}
    fit = {"sgd_minibatch_size": 16, "num_sgd_iter": 2} if changes.get("use_critic", True) else {}
    return TRPOConfig(**{**standard, **fit, **changes})


def moved_policy(config: TRPOConfig, action_space=ACTIONS["discrete"], kind=Walk):
    """A policy some way from where it began: biases and spreads start at 0, where some mistakes do not show."""
    policy = build_policy(kind.observation_space, action_space, config)
    rng = np.random.default_rng(0)
    policy.network.params[:] += 0.2 * rng.standard_normal(len(policy.network.params)).astype(np.float32)
    policy.network.sync()
    return policy


def learner_and_batch(action_space=ACTIONS["discrete"], kind=Walk, **changes) -> tuple[TRPOLearner, Batch]:
    config = config_of(**changes)
    policy = moved_policy(config, action_space, kind)
    vector = PythonVector(lambda _: (kind(action_space), None), N, policy.obs_spec, policy.action_spec, seed=3)
    return TRPOLearner(config, policy), copied(Sampler(policy, vector, 3).sample(T).batch)


def columns(batch: Batch, first: int, end: int) -> Batch:
    """The part of a batch that belongs to some of its environments."""
    arrays = {
        name: getattr(batch, name)[:, first:end]
        for name in ("actions", "rewards", "terminated", "truncated", "valid", "log_probs", "dist_inputs")
    }
    mine = (batch.final_at[:, 1] >= first) & (batch.final_at[:, 1] < end)
    return Batch(
        obs=tuple(part[:, first:end] for part in batch.obs),
        final_obs=tuple(part[mine] for part in batch.final_obs),
        final_at=batch.final_at[mine] - np.array([0, first]),
        columns=np.arange(first, end),
        **arrays,
    )


def region_of(learner: TRPOLearner, batch: Batch, subsample: int = 1, group=None) -> TrustRegion:
    advantages = np.random.default_rng(5).standard_normal(batch.rewards.shape).astype(np.float32)
    seen = batch_inputs(learner.policy, batch)
    return TrustRegion(learner.policy, group or Alone(), batch, seen, advantages, subsample)


def encoded(policy, batch):
    return batch_inputs(policy, batch).take(np.arange(batch.valid.size))


def outputs_now(learner: TRPOLearner, batch: Batch) -> np.ndarray:
    return learner.policy.network.act(encoded(learner.policy, batch)).copy()


def kl_between(learner: TRPOLearner, batch: Batch, old: np.ndarray, new: np.ndarray) -> float:
    actions = batch.actions.reshape(T * N, -1)
    kl = learner.policy.distribution.evaluate(new, actions, old).kl
    return float(kl[batch.valid.reshape(-1)].mean(dtype=np.float64))


@pytest.mark.parametrize("action_space", ACTIONS.values(), ids=ACTIONS)
def test_the_gradient_of_the_surrogate_agrees_with_finite_differences(action_space) -> None:
    learner, batch = learner_and_batch(action_space)
    region, params = region_of(learner, batch), learner.policy.network.params
    start, gradient = region.gradient()
    before, rng = params.copy(), np.random.default_rng(1)
    assert region.measured().surrogate == pytest.approx(start.surrogate, abs=1e-6)
    for _ in range(5):
        v = rng.standard_normal(len(params))
        ends = []
        for side in (1, -1):
            params[:] = before + side * 1e-2 * v / np.linalg.norm(v)
            ends.append(region.measured().surrogate)
        slope = (ends[0] - ends[1]) / 2e-2
        assert slope == pytest.approx(gradient @ v / np.linalg.norm(v), rel=0.02, abs=2e-4)


@pytest.mark.parametrize("changes", [{}, {"vf_share_layers": True}, {"fcnet_hiddens": []}], ids=str)
@pytest.mark.parametrize("action_space", ACTIONS.values(), ids=ACTIONS)
def test_fisher_vector_products_are_the_curvature_of_the_kl(action_space, changes) -> None:
    """KL(theta, theta + e v) = e^2 v'Fv / 2, by finite differences of the true KL."""
    learner, batch = learner_and_batch(action_space, model={"fcnet_hiddens": [8, 8], **changes})
    region, params = region_of(learner, batch), learner.policy.network.params
    region.gradient()
    before, rng = params.copy(), np.random.default_rng(2)
    for _ in range(5):
        v = rng.standard_normal(len(params))
        v /= np.linalg.norm(v)
        kls = []
        for side in (1, -1):
            params[:] = before + side * 0.03 * v
            kls.append(region.measured().kl)
        params[:] = before
        # The sum of both sides has no cubic term.
        assert (kls[0] + kls[1]) / 0.03**2 == pytest.approx(v @ region.fisher_product(v), rel=0.03, abs=1e-4)


@pytest.mark.parametrize("action_space", [ACTIONS["discrete"], BOX], ids=["discrete", "box"])
def test_the_fisher_matrix_is_the_hessian_of_the_kl_by_autograd(action_space) -> None:
    learner, batch = learner_and_batch(action_space, model={"fcnet_hiddens": [4, 3]})
    network = learner.policy.network
    x = torch.tensor(batch.obs[0].reshape(T * N, -1), dtype=torch.float64)
    base = network.params.__array_interface__["data"][0]

    def distribution(flat):
        p = {}
        for name, view in network.named_params().items():
            at = (view.__array_interface__["data"][0] - base) // 4
            p[name] = flat[at : at + view.size].reshape(view.shape)
        h = x
        for layer in range(2):
            h = torch.tanh(h @ p[f"policy.hidden{layer}.weight"] + p[f"policy.hidden{layer}.bias"])
        out = h @ p["policy.weight"] + p["policy.bias"]
        if "log_std" in p:
            return Independent(Normal(out, p["log_std"].exp().expand_as(out)), 1)
        return Categorical(logits=out)

    flat = torch.tensor(network.params, dtype=torch.float64)
    now = distribution(flat)
    hessian = torch.autograd.functional.hessian(lambda p: kl_divergence(now, distribution(p)).mean(), flat).numpy()
    region = region_of(learner, batch)
    gradient = region.gradient()[1]
    rng = np.random.default_rng(3)
    for _ in range(4):
        v = rng.standard_normal(len(flat))
        wanted = hessian @ v
        np.testing.assert_allclose(region.fisher_product(v), wanted, atol=1e-4 * np.abs(wanted).max())
    direction, curvature = conjugate_gradient(region.fisher_product, gradient, 500, 0.1)
    dense = np.linalg.solve(hessian + 0.1 * np.eye(len(flat)), gradient)
    np.testing.assert_allclose(direction, dense, atol=2e-3 * np.abs(dense).max())
    assert curvature == pytest.approx(dense @ hessian @ dense, rel=1e-2)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12), st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.1, 3.0]), st.sampled_from([1e-6, 1, 1e6])
)
def test_conjugate_gradient_agrees_with_a_dense_solve(size, seed, damping, scale) -> None:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((size, size))
    matrix, b = root @ root.T, scale * rng.standard_normal(size)
    x, curvature = conjugate_gradient(lambda v: matrix @ v, b, 10 * size, damping)
    exact = np.linalg.solve(matrix + damping * np.eye(size), b)
    np.testing.assert_allclose(x, exact, atol=2e-3 * np.abs(exact).max())
    assert curvature == pytest.approx(x @ matrix @ x, rel=1e-6, abs=1e-6 * scale**2)


def test_conjugate_gradient_stands_still_where_there_is_nothing_to_do() -> None:
    assert conjugate_gradient(lambda v: v, np.zeros(3), 10, 0.0)[1] == 0
    x, curvature = conjugate_gradient(lambda v: 0 * v, np.ones(3), 10, 0.0)
    assert not x.any()
    assert curvature == 0


def test_a_subsample_uses_every_nth_step_of_each_environment() -> None:
    learner, batch = learner_and_batch()
    thin = Batch(
        **{
            name: tuple(part[::4] for part in getattr(batch, name)) if name == "obs" else getattr(batch, name)[::4]
            for name in ("obs", "actions", "rewards", "terminated", "truncated", "valid", "log_probs", "dist_inputs")
        },
        final_obs=batch.final_obs,
        final_at=batch.final_at,
    )
    v = np.random.default_rng(0).standard_normal(len(learner.policy.network.params))
    product = region_of(learner, batch, subsample=4).fisher_product(v)
    np.testing.assert_allclose(product, region_of(learner, thin).fisher_product(v), rtol=1e-4, atol=1e-7)
    assert not np.allclose(product, region_of(learner, batch).fisher_product(v), rtol=1e-2)
    learner, batch = learner_and_batch(fisher_subsample=100)  # longer than the batch: its first steps
    assert learner.update(batch, 0)["step_fraction"] > 0


@pytest.mark.parametrize("changes", [{}, {"fisher_subsample": 3}, {"framework": "torch"}], ids=str)
def test_several_passes_are_one(monkeypatch, changes) -> None:
    """What does not fit into memory at once is gone through in parts."""
    results = []
    for rows in (10**6, 13):
        monkeypatch.setattr(trpo, "TAPE_ROWS", rows)
        learner, batch = learner_and_batch(**changes)
        stats = learner.update(batch, 0)
        results.append((learner.policy.network.params.copy(), stats))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-4, atol=1e-5)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-3, abs=1e-5)


SETTINGS = {
    "plain": {},
    "wide": {"max_kl": 0.5},
    "narrow": {"max_kl": 1e-4},
    "no damping": {"cg_damping": 0.0},
    "one iteration": {"cg_iters": 1},
    "many value steps": {"num_sgd_iter": 20, "lr": 0.1, "grad_clip": None},
    "shared layers": {"model": {"fcnet_hiddens": [8, 8], "vf_share_layers": True}, "lr": 0.1},
    "spread by the network": {"model": {"fcnet_hiddens": [8], "free_log_std": False}},
    "subsample": {"fisher_subsample": 5, "max_kl": 0.1},
    "filter": {"observation_filter": "MeanStdFilter"},
    "torch": {"framework": "torch", "lr": 0.1},
    "torch, shared layers": {"framework": "torch", "model": {"vf_share_layers": True}, "lr": 0.1},
}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("action_space", ACTIONS.values(), ids=ACTIONS)
def test_the_kl_after_an_iteration_is_within_the_trust_region(action_space, changes) -> None:
    """Value fit included: by the batch, however far its Adam goes."""
    learner, batch = learner_and_batch(action_space, **changes)
    rng = np.random.default_rng(4)
    moves = 0
    for iteration in range(5):
        rewards = rng.standard_normal((T, N)).astype(np.float32) * 10.0 ** (iteration - 2)
        now = replace(batch, rewards=np.ascontiguousarray(rewards))
        inputs = encoded(learner.policy, batch)  # before the filter learns
        before, values = learner.policy.network.act(inputs).copy(), learner.policy.network.values(inputs).copy()
        stats = learner.update(now, 0)
        after = learner.policy.network.act(inputs).copy()
        kl = kl_between(learner, now, before, after)
        assert kl <= learner.max_kl * (1 + 1e-4) + 1e-7
        assert stats["kl"] == pytest.approx(kl, rel=1e-3, abs=1e-6)
        assert (stats["step_fraction"] > 0) == (not np.array_equal(before, after))
        assert not np.array_equal(values, learner.policy.network.values(inputs))
        moves += stats["step_fraction"] > 0
    assert moves >= 3


def test_the_region_is_around_the_present_policy_and_the_ratio_against_the_one_that_sampled() -> None:
    learner, batch = learner_and_batch()
    network = learner.policy.network
    network.params[:] += 0.1 * np.random.default_rng(8).standard_normal(len(network.params)).astype(np.float32)
    before = outputs_now(learner, batch)
    now = learner.policy.distribution.evaluate(before, batch.actions.reshape(T * N, -1))
    ratio = np.exp(now.log_prob - batch.log_probs.reshape(-1))
    assert np.abs(ratio - 1).max() > 0.05
    region = region_of(learner, batch)
    advantages = np.random.default_rng(5).standard_normal(T * N).astype(np.float32)
    advantages = (advantages - advantages.mean()) / advantages.std()
    start, _ = region.gradient()
    assert start.surrogate == pytest.approx(float((ratio * advantages).mean()), rel=1e-4)
    assert start.kl == region.measured().kl == 0
    stats = learner.update(batch, 0)
    assert stats["step_fraction"] > 0
    assert stats["kl"] == pytest.approx(kl_between(learner, batch, before, outputs_now(learner, batch)), rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [{}, {"fisher_subsample": 3}, {"observation_filter": "MeanStdFilter"}, {"framework": "torch"}],
    ids=str,
)
@pytest.mark.parametrize("cuts", [[0, 1, 4], [0, 0, 4], [0, 2, 2, 4]], ids=str)
@pytest.mark.parametrize("action_space", [ACTIONS["discrete"], ACTIONS["composite"]], ids=["discrete", "composite"])
def test_learners_with_parts_of_a_batch_make_the_step_of_one(in_threads, action_space, cuts, changes) -> None:
    alone, batch = learner_and_batch(action_space, **changes)
    holes = with_invalid_rows(batch, 0.0)
    wanted = [alone.update(b, 0) for b in (batch, holes)]
    policies = [moved_policy(alone.config, action_space) for _ in cuts[1:]]
    one_at_a_time = Lock()  # torch's forward derivatives know one thread; learners are processes

    for policy in policies:

        def jvp(*arguments, whole=policy.network.jvp):
            with one_at_a_time:
                return whole(*arguments)

        policy.network.jvp = jvp

    def work(group, share):
        rank, first, end = share
        learner = TRPOLearner(alone.config, policies[rank], group)
        return [learner.update(columns(b, first, end), 0) for b in (batch, holes)]

    found = in_threads(work, [(rank, cuts[rank], cuts[rank + 1]) for rank in range(len(cuts) - 1)])
    assert all(stats["step_fraction"] > 0 for stats in wanted)
    for policy, stats in zip(policies, found):
        for mine, theirs in zip(stats, wanted):
            assert mine == pytest.approx(theirs, rel=2e-4, abs=1e-5)
        np.testing.assert_allclose(policy.network.params, alone.policy.network.params, rtol=1e-5, atol=1e-5)
    for policy in policies[1:]:
        np.testing.assert_array_equal(policy.network.params, policies[0].network.params)


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


@pytest.mark.parametrize("changes", [{}, {"observation_filter": "MeanStdFilter"}, {"fisher_subsample": 2}], ids=str)
def test_invalid_rows_have_no_influence(changes) -> None:
    results = []
    for garbage in (0.0, -50.0, 1e4):
        learner, batch = learner_and_batch(**changes)
        stats = learner.update(with_invalid_rows(batch, garbage), 0)
        results.append((learner.policy.get_state().arrays, stats))
    for state, stats in results[1:]:
        assert stats == results[0][1]
        for name, array in state.items():
            np.testing.assert_array_equal(array, results[0][0][name])


def test_a_step_that_is_not_finite_is_refused_and_the_policy_stays(caplog) -> None:
    learner, batch = learner_and_batch(normalize_rewards=False)
    before = learner.policy.network.params.copy()
    wild = replace(batch, rewards=np.full_like(batch.rewards, 3e38))
    with caplog.at_level(logging.WARNING, "shoal"):
        stats = learner.update(wild, 0)
    assert [record.message for record in caplog.records] == [
        "the policy's step is not finite: it is skipped, and the policy stays as it was"
    ]
    np.testing.assert_array_equal(learner.policy.network.params, before)
    assert not learner.optimizer.adam.m.any()
    assert (stats["refused_steps"], stats["step_fraction"], stats["kl"]) == (1, 0, 0)
    assert stats["refused_minibatches"] == 8
    caplog.clear()
    stats = learner.update(batch, 0)
    assert (stats["refused_steps"], stats["refused_minibatches"]) == (0, 0)
    assert stats["step_fraction"] > 0
    assert not caplog.records
    assert np.isfinite(learner.policy.network.params).all()


@pytest.mark.parametrize("where", ["vjp", "jvp"])
def test_a_derivative_that_is_not_finite_is_refused(monkeypatch, where) -> None:
    learner, batch = learner_and_batch(**NO_CRITIC)
    network = learner.policy.network
    before, whole = network.params.copy(), getattr(network, where)

    def broken(*arguments, **options):
        slopes = whole(*arguments, **options)
        slopes[..., 0] = np.nan
        return slopes

    monkeypatch.setattr(network, where, broken)
    assert learner.update(batch, 0)["refused_steps"] == 1
    np.testing.assert_array_equal(network.params, before)


def test_a_step_that_improves_nothing_is_not_taken() -> None:
    learner, batch = learner_and_batch(**NO_CRITIC, gamma=0.0)
    before = learner.policy.network.params.copy()
    stats = learner.update(replace(batch, rewards=np.ones_like(batch.rewards)), 0)
    assert (stats["step_fraction"], stats["refused_steps"]) == (0, 0)
    np.testing.assert_array_equal(learner.policy.network.params, before)


def test_the_line_search_gives_up_after_its_steps(monkeypatch) -> None:
    learner, batch = learner_and_batch(line_search_steps=4, **NO_CRITIC)
    before, tried = learner.policy.network.params.copy(), []
    whole = TrustRegion.measured

    def too_far(region):
        now = whole(region)
        tried.append(now.kl)
        return replace(now, kl=1.0)

    monkeypatch.setattr(TrustRegion, "measured", too_far)
    assert learner.update(batch, 0)["step_fraction"] == 0
    np.testing.assert_array_equal(learner.policy.network.params, before)
    assert len(tried) == 4
    shrinks = np.array(tried[1:]) / np.array(tried[:-1])
    np.testing.assert_allclose(shrinks, trpo.BACKTRACK**2, atol=0.1)  # the KL goes with the square


class TwoHeads(TorchModelV2):
    """Values from layers of their own on what the policy sees, as custom models often have it."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name) -> None:
        super().__init__(obs_space, action_space, num_outputs, model_config, name)
        self.shared = torch.nn.Linear(FEATURES, 8)
        self.policy = torch.nn.Linear(8, num_outputs)
        self.value = torch.nn.Linear(8, 1)

    def forward(self, input_dict, state, seq_lens):
        self.seen = torch.tanh(self.shared(input_dict["obs"]))
        return self.policy(self.seen), state

    def value_function(self):
        return self.value(self.seen)[:, 0]


class OneHead(TwoHeads):
    """The value is one of the policy layer's numbers."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name) -> None:
        super().__init__(obs_space, action_space, num_outputs + 1, model_config, name)
        del self.value

    def forward(self, input_dict, state, seq_lens):
        self.both, state = super().forward(input_dict, state, seq_lens)
        return self.both[:, 1:], state

    def value_function(self):
        return self.both[:, 0]


@pytest.mark.parametrize(
    ("kind", "model", "moves"),
    [
        (Walk, {"custom_model": TwoHeads}, ["model.value.weight", "model.value.bias"]),
        (Film, {"post_fcnet_hiddens": [8]}, ["dense.value."]),
        (Film, {"post_fcnet_hiddens": [8], "vf_share_layers": True}, ["dense.value.head."]),
        (Film, {"conv_filters": [[4, 3, 2], [8, 4, 1]]}, ["dense.value."]),
    ],
    ids=["custom model", "convolutions", "convolutions, shared layers", "own filters"],
)
def test_torch_models_train_and_the_value_fit_moves_only_what_is_the_values(kind, model, moves) -> None:
    learner, batch = learner_and_batch(kind=kind, model=model, max_kl=0.05, lr=0.01)
    network = learner.policy.network
    mine = {name for name in network.named_params() if name.startswith(tuple(moves))}
    flags = np.concatenate([np.full(view.size, name in mine) for name, view in network.named_params().items()])
    np.testing.assert_array_equal(network.value_params, flags)
    before = outputs_now(learner, batch)
    weights = learner.policy.get_weights()
    stats = learner.update(batch, 0)
    assert 0 < stats["kl"] <= 0.05
    assert kl_between(learner, batch, before, outputs_now(learner, batch)) == pytest.approx(stats["kl"], rel=1e-3)
    for name, now in learner.policy.get_weights().items():
        assert not np.array_equal(now, weights[name]), name
    _, tape = network.forward_value(encoded(learner.policy, batch))
    assert not network.vjp(tape, None, np.ones(T * N, np.float32))[~network.value_params].any()


def test_a_model_whose_values_have_nothing_of_their_own_is_refused_with_a_way_out() -> None:
    config = config_of(model={"custom_model": OneHead})
    policy = build_policy(Walk.observation_space, ACTIONS["discrete"], config)
    with pytest.raises(ConfigError, match="give it a value layer of its own, or set use_critic: false, use_gae: false"):
        TRPOLearner(config, policy)
    learner, batch = learner_and_batch(model={"custom_model": OneHead}, **NO_CRITIC)
    assert learner.update(batch, 0)["step_fraction"] > 0


def test_without_a_critic_the_value_net_does_not_move() -> None:
    learner, batch = learner_and_batch(**NO_CRITIC)
    before = learner.policy.get_weights()
    learner.update(batch, 0)
    for name, now in learner.policy.get_weights().items():
        assert np.array_equal(before[name], now) == name.startswith("value."), name


def test_the_learning_rate_is_read_at_the_present_timestep() -> None:
    learner, batch = learner_and_batch(lr_schedule=[[0, 1e-3], [1000, 0]])
    assert learner.update(batch, 500)["cur_lr"] == pytest.approx(5e-4)
    values = learner.policy.network.params[learner.policy.network.value_params].copy()
    stats = learner.update(batch, 10**6)
    assert stats["cur_lr"] == 0
    assert stats["step_fraction"] > 0, "the policy's step has no learning rate"
    np.testing.assert_array_equal(learner.policy.network.params[learner.policy.network.value_params], values)


def test_the_filter_learns_only_after_the_update() -> None:
    learner, batch = learner_and_batch(observation_filter="MeanStdFilter")
    learner.update(batch, 0)
    assert learner.policy.filter.count == T * N
    np.testing.assert_allclose(learner.policy.filter.mean, batch.obs[0].reshape(T * N, -1).mean(axis=0), rtol=1e-4)


def test_statistics_are_all_there_and_finite() -> None:
    from shoal.config.result_names import result_names

    learner, batch = learner_and_batch()
    stats = learner.update(batch, 0)
    assert all(isinstance(value, float) and np.isfinite(value) for value in stats.values())
    assert {f"learner/{name}" for name in stats} <= set(result_names())


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_saved_learner_goes_on_the_same(framework) -> None:
    first, batch = learner_and_batch(framework=framework)
    second, _ = learner_and_batch(framework=framework)
    first.update(batch, 0)
    for mine, theirs in ((first, second), (first.policy, second.policy)):
        state = mine.get_state()
        theirs.set_state(State(json.loads(json.dumps(state.values)), state.arrays))
    assert first.update(batch, 64) == second.update(batch, 64)
    np.testing.assert_array_equal(first.policy.network.params, second.policy.network.params)


@pytest.mark.parametrize(("kind", "numbers"), [("discrete", 1), ("multi_discrete", 3), ("multi_binary", 3)])
def test_the_trust_region_grows_with_the_numbers_of_an_action(kind, numbers) -> None:
    learner, batch = learner_and_batch(ACTIONS[kind])
    assert learner.update(batch, 0)["max_kl"] == pytest.approx(0.01 * numbers)
    learner, _ = learner_and_batch(ACTIONS[kind], max_kl=0.02)
    assert learner.max_kl == 0.02
    for wrong in (0, -0.1, True, "small"):
        with pytest.raises(ConfigError, match=r"config.max_kl: must be a number above 0, or auto"):
            config_of(max_kl=wrong)


@pytest.mark.parametrize(("kind", "numbers"), [("discrete", 1), ("multi_discrete", 3), ("box", 2)])
def test_the_damping_grows_with_the_numbers_of_an_action(kind, numbers) -> None:
    """So does the Fisher matrix: more of them make its diagonal larger."""
    by_default, batch = learner_and_batch(ACTIONS[kind])
    said, _ = learner_and_batch(ACTIONS[kind], cg_damping=0.1 * by_default.policy.action_spec.size)
    assert by_default.policy.action_spec.size == numbers
    assert by_default.cg_damping == said.cg_damping == pytest.approx(0.1 * numbers)
    by_default.update(batch, 0)
    said.update(batch, 0)
    np.testing.assert_array_equal(by_default.policy.network.params, said.policy.network.params)
    for wrong in (-0.1, True, "small"):
        with pytest.raises(ConfigError, match=r"config.cg_damping: must be a number of at least 0, or auto"):
            config_of(cg_damping=wrong)
