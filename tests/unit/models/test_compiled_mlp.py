"""What the compiled kernel promises beside NumPy's numbers; `test_mlp.py` holds both against autograd."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from walks import Walk

from shoal.config.dqn import DQNConfig
from shoal.config.ppo import PPOConfig
from shoal.errors import ConfigError
from shoal.models import compiled_mlp
from shoal.models.build import build_policy
from shoal.models.compiled_mlp import CompiledMLP, mlp_for
from shoal.models.kernel import Kernel, KernelUse, load_kernel
from shoal.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def rows_of(count: int, width: int = 3) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, width)).astype(np.float32)


def compiled_network(*shape, **more) -> MLP:
    network, use = mlp_for("compiled", *shape, **more)
    assert isinstance(network, CompiledMLP)
    assert use == KernelUse(network.kernel.digest)
    return network


@pytest.mark.parametrize("hiddens", [(64, 64), (20, 7)])
def test_a_row_depends_on_no_other_to_the_last_bit(hiddens) -> None:
    network = compiled_network(3, 5, hiddens)
    x = rows_of(50)
    outputs, values = network.act((x,)), network.values((x,))
    np.testing.assert_array_equal(network.forward((x,))[0], outputs)
    np.testing.assert_array_equal(network.forward((x,))[1], values)
    for begin, end in ((0, 1), (7, 8), (3, 49), (44, 50)):
        np.testing.assert_array_equal(network.act((x[begin:end],)), outputs[begin:end])
        np.testing.assert_array_equal(network.values((x[begin:end],)), values[begin:end])


def test_tanh_is_exact_to_rounding_and_never_beyond_one() -> None:
    network = compiled_network(1, 1, (1,))
    network.params[:] = 0
    for name in ("policy.hidden0.weight", "policy.weight"):
        network.named_params()[name][:] = 1
    x = np.concatenate([np.linspace(-12, 12, 100_001), np.geomspace(1e-30, 1e30, 10_000)]).astype(np.float32)[:, None]
    found, expected = network.act((x,)), np.tanh(x.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=3.5e-7, atol=0)
    assert np.abs(found).max() <= 1


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear"])
def test_a_number_that_is_not_finite_is_not_hidden(activation) -> None:
    network = compiled_network(3, 2, (16, 16), activation)
    x = rows_of(9)
    x[4, 1] = np.nan
    outputs, values, tape = network.forward((x,))
    assert np.isnan(outputs[4]).all()
    assert np.isnan(values[4])
    assert np.isfinite(np.delete(outputs, 4, axis=0)).all()
    assert np.isnan(network.vjp(tape, np.ones_like(outputs), np.ones_like(values))).any()


def test_a_tape_of_one_part_has_the_gradient_of_that_part_alone() -> None:
    for shared in (False, True):
        network, other = compiled_network(3, 2, (16, 9), "tanh", shared), MLP(3, 2, (16, 9), "tanh", shared)
        x, d_outputs = rows_of(11), rows_of(11, 2)
        gradients = []
        for one in (network, other):
            one.vjp(one.forward((x,))[2], d_outputs, d_outputs[:, 0])
            of_policy = one.vjp(one.forward_policy((x,))[1], d_outputs, None).copy()
            of_values = one.vjp(one.forward_value((x,))[1], None, d_outputs[:, 0]).copy()
            gradients.append((of_policy, of_values))
        for found, expected in zip(*gradients, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "more", "reason"),
    [
        ((3, 2, ()), {}, "the network has no hidden layers"),
        ((3, 2, (8,), "gelu"), {}, "the kernel knows the activations linear, tanh, relu, and this is gelu"),
        ((3, 2, (8, 513)), {}, "the kernel is for layers of at most 512, and this network has one of 513"),
        ((3, 2, (8,)), {"layer_norm": True}, r"the kernel knows no layer norm \(high_update_ratio\)"),
    ],
)
def test_what_it_does_not_know_is_refused_or_left_to_numpy(shape, more, reason) -> None:
    with pytest.raises(ConfigError, match=f"config.kernel: compiled is not possible: {reason}; set kernel: numpy"):
        mlp_for("compiled", *shape, **more)
    network, use = mlp_for("auto", *shape, **more)
    assert type(network) is MLP
    assert str(use) == f"kernel: auto is not compiled: {reason}".replace("\\", "")
    assert use is not None
    assert not use.has_failed, "the kernel is not for such a network"
    assert mlp_for("numpy", *shape, **more)[1] is None


class WrongKernel:
    """A kernel of which one function does nothing."""

    def __init__(self, kernel: Kernel, broken: str) -> None:
        self.__dict__.update(kernel.__dict__, digest="wrong", **{broken: lambda *addresses: None})


@pytest.mark.parametrize(
    ("broken", "what"),
    [("forward", "outputs"), ("backward", "gradients"), ("backward_inputs", "derivatives by the inputs")],
)
def test_a_kernel_that_differs_from_numpy_is_refused(monkeypatch, broken, what) -> None:
    wrong = WrongKernel(load_kernel(), broken)
    monkeypatch.setattr(compiled_mlp, "load_kernel", lambda: wrong)
    with pytest.raises(ConfigError, match=f"the compiled kernel differs from NumPy in {what} by"):
        mlp_for("compiled", 3, 2)
    network, use = mlp_for("auto", 3, 2)
    assert type(network) is MLP
    assert str(use).startswith("kernel: auto is not compiled: the compiled kernel differs from NumPy")


def test_the_check_leaves_the_weights_as_they_are() -> None:
    np.testing.assert_array_equal(compiled_network(3, 2).params, MLP(3, 2).params)


def test_a_policy_of_pytorch_has_no_kernel(monkeypatch) -> None:
    spaces = Walk.observation_space, Walk.action_space
    with pytest.raises(
        ConfigError, match=r"config\.kernel: compiled is for NumPy networks, and framework: torch needs"
    ):
        build_policy(*spaces, PPOConfig(kernel="compiled", framework="torch"))
    policy = build_policy(*spaces, PPOConfig(kernel="auto", framework="torch"))
    assert str(policy.kernel_use) == "kernel: auto is not compiled: framework: torch needs PyTorch"


def test_other_algorithms_have_it_too() -> None:
    policy = build_policy(Walk.observation_space, Walk.action_space, DQNConfig(kernel="compiled"))
    assert isinstance(policy.network, CompiledMLP)
    assert "compiled MLP" in policy.network.summary()


def test_without_a_compiler_auto_is_numpy(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(compiled_mlp, "load_kernel", load_kernel.__wrapped__)
    network, use = mlp_for("auto", 3, 2)
    assert type(network) is MLP
    assert use is not None
    assert use.has_failed
    assert "there is no C compiler here" in str(use)
    with pytest.raises(ConfigError, match="there is no C compiler here"):
        mlp_for("compiled", 3, 2)
