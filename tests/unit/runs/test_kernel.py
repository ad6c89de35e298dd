"""A run knows the kernel that it learned with, and says so where another one goes on with it."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import shoal
from shoal.models import compiled_mlp
from shoal.models.compiled_mlp import CompiledMLP
from shoal.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def config_of(kernel: str) -> dict:
    return {"kernel": kernel, "train_batch_size": 128, "sgd_minibatch_size": 32, "num_sgd_iter": 2}


def test_a_resumed_run_goes_on_bit_for_bit(start_trainer, tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "shoal.progress")
    straight = start_trainer("PPO", "CartPole-v1", config_of("compiled"))
    assert isinstance(straight.get_policy().network, CompiledMLP)
    digest = straight.get_policy().network.kernel.digest
    assert f"kernel: compiled ({digest}), checked against NumPy" in caplog.messages
    straight.train()
    path = straight.save(tmp_path)
    straight.train()
    resumed = start_trainer("PPO", "CartPole-v1", config_of("compiled"))
    resumed.restore(path)
    resumed.train()
    np.testing.assert_array_equal(resumed.get_policy().network.params, straight.get_policy().network.params)
    assert straight.get_state().values["kernel"] == digest
    assert "the same up to rounding" not in caplog.text


def test_an_auto_that_cannot_be_compiled_is_a_warning(start_trainer, monkeypatch, caplog) -> None:
    def refused() -> None:
        raise OSError("the compiler is ill")

    monkeypatch.setattr(compiled_mlp, "load_kernel", refused)
    start_trainer("PPO", "CartPole-v1", config_of("auto"))
    (told,) = (one for one in caplog.records if "the compiler is ill" in one.getMessage())
    assert (told.name, told.levelname) == ("shoal", "WARNING"), "which is shown with --quiet too"


def test_another_kernel_goes_on_and_says_so(start_trainer, tmp_path, caplog) -> None:
    compiled, plain = (start_trainer("PPO", "CartPole-v1", config_of(kernel)) for kernel in ("compiled", "numpy"))
    assert "kernel" not in plain.get_state().values, "checkpoints of NumPy are as they were"
    compiled.train()
    plain.restore(compiled.save(tmp_path))
    digest = compiled.get_policy().network.kernel.digest
    who = f"the compiled kernel {digest} and goes on with NumPy"
    assert f"the checkpoint was learned with {who}: the same up to rounding, not bit for bit" in caplog.messages
    for trainer in (compiled, plain):
        trainer.train()
    np.testing.assert_allclose(
        plain.get_policy().network.params, compiled.get_policy().network.params, rtol=0, atol=1e-3
    )


def test_a_policy_that_only_acts_needs_no_compiler(start_trainer, tmp_path) -> None:
    trainer = start_trainer("PPO", "CartPole-v1", config_of("compiled"))
    loaded = shoal.Policy.load(trainer.save(tmp_path))
    assert type(loaded.network) is MLP
    np.testing.assert_array_equal(loaded.network.params, trainer.get_policy().network.params)
