"""Several networks in one pass: the numbers of each by itself, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.models.mlp import MLP
from shoal.models.stacked_mlp import StackedMLP, why_not_stacked


@pytest.mark.parametrize("rows", [1, 8, 63, 64])
@pytest.mark.parametrize(
    ("activation", "shared", "free"),
    [("tanh", False, None), ("silu", True, [1]), ("relu", False, [2, 3]), ("gelu", True, [])],
)
def test_each_network_computes_what_it_computes_alone(
    activation: str, shared: bool, free: list[int] | None, rows: int
) -> None:
    free_outputs = None if free is None else np.array(free, np.int64)
    networks = [MLP(5, 4, (16, 16), activation, shared, free_outputs, seed=seed) for seed in range(3)]
    rng = np.random.default_rng(0)
    for network in networks:
        network.params += rng.normal(0, 0.1, len(network.params)).astype(np.float32)
    stacked = StackedMLP(networks)
    x, d_outputs = rng.normal(size=(3, rows, 5)).astype(np.float32), rng.normal(size=(3, rows, 4)).astype(np.float32)
    d_values = rng.normal(size=(3, rows)).astype(np.float32)
    outputs, values, tape = stacked.forward(x)
    gradients = stacked.vjp(tape, d_outputs, d_values)
    actions = stacked.act(x)
    for row, network in enumerate(networks):
        own_outputs, own_values, own_tape = network.forward((x[row],))
        np.testing.assert_array_equal(outputs[row], own_outputs)
        np.testing.assert_array_equal(values[row], own_values)
        np.testing.assert_array_equal(actions[row], network.act((x[row],)))
        # The sum over rows of a bias is BLAS's, whose order may follow from where numbers lie.
        own = network.vjp(own_tape, d_outputs[row], d_values[row])
        np.testing.assert_allclose(gradients[row], own, rtol=1e-5, atol=1e-5)


def test_parameters_go_there_and_back() -> None:
    networks = [MLP(2, 2, (4,), seed=seed) for seed in range(2)]
    stacked = StackedMLP(networks)
    np.testing.assert_array_equal(stacked.params[1], networks[1].params)
    stacked.params += 1
    before = networks[0].params.copy()
    stacked.store()
    np.testing.assert_array_equal(networks[0].params, before + 1)
    stacked.params += 1
    stacked.load()
    np.testing.assert_array_equal(stacked.params[0], networks[0].params)


def test_what_cannot_be_stacked_is_said() -> None:
    assert why_not_stacked(MLP(2, 2, (4,))) is None
    assert "layer norm" in (why_not_stacked(MLP(2, 2, (4,), layer_norm=True)) or "")
    assert "no hidden layers" in (why_not_stacked(MLP(2, 2, ())) or "")
