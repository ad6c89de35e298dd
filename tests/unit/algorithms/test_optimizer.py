from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from shoal.algorithms.optimizer import Adam, Optimizer
from shoal.config.ppo import PPOConfig
from shoal.data.state import State
from shoal.models.compiled_mlp import mlp_for

pytestmark = pytest.mark.usefixtures("compiled_kernels")
both_kernels = pytest.mark.parametrize("kernel", ["numpy", "compiled"])


@pytest.mark.parametrize(("betas", "eps"), [((0.9, 0.999), 1e-5), ((0.5, 0.9), 1e-8)])
def test_steps_agree_with_torch(betas, eps) -> None:
    rng = np.random.default_rng(0)
    params = rng.standard_normal(20).astype(np.float32)
    theirs = torch.tensor(params.copy(), requires_grad=True)
    reference = torch.optim.Adam([theirs], lr=1e-2, betas=betas, eps=eps)
    mine = Adam(20, betas, eps)
    for step in range(60):
        gradient = (rng.standard_normal(20) * 10.0 ** rng.integers(-6, 3, 20)).astype(np.float32)
        lr = 1e-2 / (1 + step)
        reference.param_groups[0]["lr"] = lr
        theirs.grad = torch.tensor(gradient)
        reference.step()
        mine.step(params, gradient, lr)
        np.testing.assert_allclose(params, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_the_gradient_is_left_alone() -> None:
    gradient = np.ones(3, np.float32)
    Adam(3).step(np.zeros(3, np.float32), gradient, 0.1)
    assert gradient.tolist() == [1, 1, 1]


def test_a_saved_optimiser_goes_on_the_same() -> None:
    rng = np.random.default_rng(0)
    first, second = Adam(4), Adam(4)
    a = np.zeros(4, np.float32)
    for _ in range(5):
        first.step(a, rng.standard_normal(4).astype(np.float32), 0.1)
    state = first.get_state()
    second.set_state(State(json.loads(json.dumps(state.values)), state.arrays))
    b, gradient = a.copy(), rng.standard_normal(4).astype(np.float32)
    first.step(a, gradient, 0.1)
    second.step(b, gradient, 0.1)
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(state.arrays["m"], first.m), "a state must not move with its optimiser"


class TwoLearners:
    """A group as the first of two learners with equal gradients sees it."""

    rank, size = 0, 2

    def sum(self, x):
        return x + x


def optimizer_of(group=None, grad_clip=None, lr=0.1, shared=False, kernel="numpy", **options):
    """A guarded optimiser over a small network."""
    network, _ = mlp_for(kernel, 2, 2, (19,), "tanh", shared, None, 0)
    return Optimizer(network, PPOConfig(grad_clip=grad_clip, lr=lr), group, **options), network


@both_kernels
def test_a_step_is_that_of_adam_by_the_clipped_sum_of_all_learners(kernel) -> None:
    optimizer, network = optimizer_of(TwoLearners(), grad_clip=0.5, clips_apart=False, kernel=kernel)
    gradient = np.linspace(-1, 1, len(network.params)).astype(np.float32)
    expected, total = network.params.copy(), 2 * gradient
    norm = float(np.linalg.norm(total))
    Adam(len(expected)).step(expected, total * np.float32(0.5 / (norm + 1e-6)), 0.1)
    assert optimizer.step(gradient, 0.1) == pytest.approx(norm)
    np.testing.assert_allclose(network.params, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared layers"])
@pytest.mark.parametrize("large", [1.0, 1e6])
@both_kernels
def test_large_errors_of_the_values_leave_the_policys_step_as_it_is(shared, large, kernel) -> None:
    optimizer, network = optimizer_of(grad_clip=0.5, shared=shared, kernel=kernel)
    of_values = network.value_params
    assert of_values.any()
    gradient = np.linspace(-1, 1, len(network.params)).astype(np.float32)
    gradient[of_values] *= np.float32(large)
    expected, clipped = network.params.copy(), gradient.copy()
    for part in (of_values, ~of_values):
        length = np.linalg.norm(gradient[part])
        assert length > 0.5
        clipped[part] *= np.float32(0.5 / (length + 1e-6))
    Adam(len(expected)).step(expected, clipped, 0.1)
    assert optimizer.step(gradient.copy(), 0.1) == pytest.approx(float(np.linalg.norm(gradient)))
    np.testing.assert_allclose(network.params, expected, rtol=1e-5, atol=1e-7)


@both_kernels
def test_a_part_that_is_short_enough_is_not_clipped(kernel) -> None:
    optimizer, network = optimizer_of(grad_clip=0.5, kernel=kernel)
    gradient = np.where(network.value_params, np.float32(10), np.float32(1e-3))
    expected, clipped = network.params.copy(), gradient.copy()
    clipped[network.value_params] *= np.float32(0.5 / (np.linalg.norm(gradient[network.value_params]) + 1e-6))
    Adam(len(expected)).step(expected, clipped, 0.1)
    optimizer.step(gradient, 0.1)
    np.testing.assert_allclose(network.params, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@both_kernels
def test_a_gradient_that_is_not_finite_is_refused(bad, kernel) -> None:
    optimizer, network = optimizer_of(kernel=kernel)
    before = network.params.copy()
    with optimizer.guarded(lambda: True):
        assert optimizer.step(np.full_like(before, bad), 0.1) is None
        assert optimizer.refused == 1
    np.testing.assert_array_equal(network.params, before)
    assert optimizer.adam.steps == 0
    with optimizer.guarded(lambda: True):
        assert optimizer.refused == 0


def test_steps_are_taken_back_only_if_one_was_refused_and_the_network_is_not_sound(caplog) -> None:
    optimizer, network = optimizer_of()
    beside = np.zeros(2, np.float32)
    ones, bad = np.ones_like(network.params), np.full_like(network.params, np.nan)
    for is_sound, gradients, is_kept in ((False, [ones], True), (True, [ones, bad], True), (False, [ones, bad], False)):
        before, steps = network.params.copy(), optimizer.adam.steps
        beside[:] = 0
        with optimizer.guarded(lambda answer=is_sound: answer, beside):
            beside[:] = 1
            for gradient in gradients:
                optimizer.step(gradient, 0.1)
        assert np.array_equal(network.params, before) != is_kept
        assert optimizer.adam.steps == steps + is_kept
        assert beside.tolist() == [is_kept] * 2
    assert caplog.messages == ["learning diverged (lr 0.1): the weights from before it are kept"]
