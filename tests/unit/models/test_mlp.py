"""The hand-written derivatives of the NumPy network, with torch's autograd in double precision as the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shoal.models.compiled_mlp import CompiledMLP, mlp_for
from shoal.models.mlp import ACTIVATIONS, MLP, orthogonal

pytestmark = pytest.mark.usefixtures("compiled_kernels")

TORCH = {
    "linear": lambda z: z,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": torch.nn.functional.elu,
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "gelu": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
    "softplus": torch.nn.functional.softplus,
}
FREE = np.array([1, 3])
SHAPES = [
    {"hiddens": (16, 12), "share_layers": False},
    {"hiddens": (16, 12), "share_layers": True},
    {"hiddens": (16, 12), "share_layers": False, "free_outputs": FREE},
    {"hiddens": (16,), "share_layers": True, "free_outputs": FREE},
    {"hiddens": (), "share_layers": False},
    {"hiddens": (), "share_layers": True, "free_outputs": FREE},
    {"hiddens": (16, 12), "share_layers": False, "layer_norm": True},
]
COMPILED_SHAPES = [
    *(shape for shape in SHAPES if shape["hiddens"] and "layer_norm" not in shape),
    {"hiddens": (40, 7, 19), "share_layers": False, "free_outputs": FREE},  # of which no vector is full
]
CASES = [(activation, shape, "numpy") for activation in sorted(ACTIVATIONS) for shape in SHAPES] + [
    (activation, shape, "compiled") for activation in ("linear", "relu", "tanh") for shape in COMPILED_SHAPES
]


def network(activation="tanh", kernel="numpy", **shape) -> MLP:
    mlp, _ = mlp_for(kernel, 5, 4, activation=activation, seed=3, **shape)
    assert isinstance(mlp, CompiledMLP) == (kernel == "compiled")
    # Biases and spreads start at 0, where some mistakes do not show.
    mlp.params[:] += 0.3 * np.random.default_rng(0).standard_normal(len(mlp.params)).astype(np.float32)
    return mlp


def oracle(mlp: MLP, params: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same network, written naively from its named parameters in double precision."""
    places = {}
    flat = mlp.params
    for name, view in mlp.named_params().items():
        offset = (view.__array_interface__["data"][0] - flat.__array_interface__["data"][0]) // flat.itemsize
        places[name] = params[offset : offset + view.size].reshape(view.shape)

    def trunk(net: str) -> torch.Tensor:
        h = x
        for layer in range(len(mlp.hiddens)):
            h = h @ places[f"{net}.hidden{layer}.weight"] + places[f"{net}.hidden{layer}.bias"]
            if mlp.layer_norm:
                h = torch.nn.functional.layer_norm(h, h.shape[-1:])
            h = TORCH[mlp.activation_name](h)
        return h

    shared = mlp.groups == 1
    top = trunk("shared" if shared else "policy")
    computed = top @ places["policy.weight"] + places["policy.bias"]
    outputs = computed
    if "log_std" in places:
        outputs = torch.empty(len(x), mlp.num_outputs, dtype=x.dtype)
        rest = [k for k in range(mlp.num_outputs) if k not in FREE]
        outputs = torch.zeros(len(x), mlp.num_outputs, dtype=x.dtype)
        outputs = outputs.index_copy(1, torch.tensor(rest), computed)
        outputs = outputs.index_copy(1, torch.tensor(FREE), places["log_std"].expand(len(x), -1))
    values = (trunk("shared" if shared else "value") @ places["value.weight"] + places["value.bias"])[:, 0]
    return outputs, values


def assert_close(got, wanted: torch.Tensor) -> None:
    wanted = wanted.detach().numpy()
    scale = max(np.abs(wanted).max(), 0.1)  # what sums of terms of about 1 lose does not shrink where they cancel
    assert got.dtype == np.float32
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("batch", [1, 33])
@pytest.mark.parametrize(("activation", "shape", "kernel"), CASES, ids=str)
def test_forward_vjp_and_jvp_agree_with_autograd(activation, shape, kernel, batch) -> None:
    mlp = network(activation, kernel, **shape)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((batch, 5)).astype(np.float32)
    d_outputs = rng.standard_normal((batch, 4)).astype(np.float32)
    d_values = rng.standard_normal(batch).astype(np.float32)
    tangent = rng.standard_normal(len(mlp.params)).astype(np.float32)

    params = torch.tensor(mlp.params, dtype=torch.float64, requires_grad=True)
    wanted, wanted_values = oracle(mlp, params, torch.tensor(x, dtype=torch.float64))
    total = (wanted * torch.tensor(d_outputs)).sum() + (wanted_values * torch.tensor(d_values)).sum()
    (wanted_gradient,) = torch.autograd.grad(total, params)
    _, (moved, _) = torch.autograd.functional.jvp(
        lambda p: oracle(mlp, p, torch.tensor(x, dtype=torch.float64)), params, torch.tensor(tangent).double()
    )

    outputs, values, tape = mlp.forward((x,))
    assert_close(outputs, wanted)
    assert_close(values, wanted_values)
    assert_close(mlp.jvp(tape, tangent), moved)
    assert_close(mlp.vjp(tape, d_outputs, d_values), wanted_gradient)
    assert_close(mlp.jvp(tape, tangent), moved)


@pytest.mark.parametrize("used", [33, 5, 0])
@pytest.mark.parametrize(
    ("activation", "shape", "kernel"), [case for case in CASES if case[0] in ("relu", "tanh", "gelu")], ids=str
)
def test_the_derivative_by_the_inputs_agrees_with_autograd(activation, shape, kernel, used) -> None:
    mlp = network(activation, kernel, **shape)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((33, 5)).astype(np.float32)
    d_outputs = rng.standard_normal((33, 4)).astype(np.float32)
    d_outputs[rng.permutation(33)[used:]] = 0  # rows that nobody asks about are gone around
    inputs = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    wanted, _ = oracle(mlp, torch.tensor(mlp.params, dtype=torch.float64), inputs)
    (gradient,) = torch.autograd.grad((wanted * torch.tensor(d_outputs)).sum(), inputs)
    outputs, tape = mlp.forward_inputs((x,))
    assert_close(outputs, wanted)
    assert_close(mlp.vjp_inputs(tape, d_outputs), gradient)


@pytest.mark.parametrize(("activation", "shape", "kernel"), CASES, ids=str)
def test_act_and_values_are_forward_without_the_tape(activation, shape, kernel) -> None:
    mlp = network(activation, kernel, **shape)
    for batch in (1, 7, 1, 2000):
        x = np.random.default_rng(batch).standard_normal((batch, 5)).astype(np.float32)
        acted = mlp.act((x,)).copy()
        values = mlp.values((x,)).copy()
        outputs, predicted, _ = mlp.forward((x,))
        np.testing.assert_allclose(acted, outputs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(values, predicted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("activation", "kernel"), [*((name, "numpy") for name in sorted(ACTIVATIONS)), ("tanh", "compiled")]
)
def test_enormous_inputs_saturate_without_a_warning(activation, kernel) -> None:
    mlp = network(activation, kernel, hiddens=(8, 8))
    x = np.array([[1e4, -1e4, 1e4, -1e4, 1e4]], np.float32)
    with np.errstate(invalid="raise", divide="raise"):
        outputs, values, tape = mlp.forward((x,))
        gradient = mlp.vjp(tape, np.ones((1, 4), np.float32), np.ones(1, np.float32))
    assert np.isfinite(outputs).all()
    assert np.isfinite(values).all()
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("kernel", ["numpy", "compiled"])
def test_many_batch_sizes_do_not_mix(kernel) -> None:
    mlp = network(kernel=kernel, hiddens=(8,))
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((40, 5)).astype(np.float32)
    wanted = mlp.forward((rows,))[0].copy()
    for size in [*range(1, 40), *range(39, 0, -1)]:
        np.testing.assert_allclose(mlp.forward((rows[:size],))[0], wanted[:size], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mlp.act((rows[:size],)), wanted[:size], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", ["numpy", "compiled"])
def test_parameters_are_live_views_of_one_vector(kernel) -> None:
    mlp = network(kernel=kernel, hiddens=(8,))
    x = np.ones((3, 5), np.float32)
    before = mlp.act((x,)).copy()
    mlp.params[:] = 0
    mlp.sync()
    assert not mlp.act((x,)).any()
    for view in mlp.named_params().values():
        assert np.shares_memory(view, mlp.params)
    mlp.named_params()["policy.bias"][:] = [1, 2, 3, 4]
    assert mlp.act((x,)).tolist() == [[1, 2, 3, 4]] * 3
    assert before.any()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_named_parameters_cover_the_vector_exactly_once(shape) -> None:
    mlp = network(**shape)
    mlp.params[:] = 0
    for view in mlp.named_params().values():
        view += 1
    assert (mlp.params == 1).all()


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (64, 1)])
def test_orthogonal_rows_or_columns(shape) -> None:
    m = orthogonal(np.random.default_rng(0), shape, 2.0)
    small = m.T @ m if shape[0] >= shape[1] else m @ m.T
    np.testing.assert_allclose(small, 4 * np.eye(min(shape)), atol=1e-12)


def test_a_fresh_network_is_nearly_uniform_and_its_layers_orthogonal() -> None:
    mlp = MLP(6, 3, (8, 8), seed=1)
    named = mlp.named_params()
    for net in ("policy", "value"):
        w = named[f"{net}.hidden0.weight"]
        np.testing.assert_allclose(w @ w.T, 2 * np.eye(6), atol=1e-5)
        assert not named[f"{net}.hidden0.bias"].any()
    np.testing.assert_allclose(named["policy.weight"].T @ named["policy.weight"], 1e-4 * np.eye(3), atol=1e-7)
    assert np.abs(mlp.act((np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32),))).max() < 0.1
    assert (MLP(6, 3, (8, 8), seed=1).params == mlp.params).all()
    assert (MLP(6, 3, (8, 8), seed=2).params != mlp.params).any()
    assert not np.array_equal(named["policy.hidden0.weight"], named["value.hidden0.weight"])


def test_the_summary_counts_every_parameter() -> None:
    mlp = network(hiddens=(16, 12), free_outputs=FREE)
    text = mlp.summary()
    assert "tanh" in text
    assert f"{len(mlp.params):,}" in text.splitlines()[-1]
    assert "log_std" in text


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_with_parameters_of_their_own(shape) -> None:
    mlp = network(**shape)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((7, 5)).astype(np.float32)
    params = mlp.params + 0.5 * rng.standard_normal((7, len(mlp.params))).astype(np.float32)
    outputs = mlp.act_with((x,), params)
    now = mlp.params.copy()
    for row in range(7):
        mlp.params[:] = params[row]
        np.testing.assert_allclose(outputs[row], mlp.act((x[row : row + 1],))[0], rtol=1e-5, atol=1e-6)
        # To the last bit, whoever is beside it.
        np.testing.assert_array_equal(outputs[row], mlp.act_with((x[row : row + 1],), params[row : row + 1])[0])
    mlp.params[:] = now
