from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from shoal.algorithms.adam import Adam
from shoal.data.state import State


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
