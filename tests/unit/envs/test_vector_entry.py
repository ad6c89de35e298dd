"""`vectorization`: which environments step as one, and what is refused."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv

import shoal
from shoal.envs.making import vectorization_notes
from shoal.envs.native import NativeVector
from shoal.errors import ConfigError

SHORT = {"train_batch_size": 256, "num_envs_per_worker": 32, "num_sgd_iter": 1}


def trained(**config: Any) -> shoal.PPO:
    """A trainer after one iteration."""
    trainer = shoal.PPO("CartPole-v1", {**SHORT, **config})
    trainer.train()
    trainer.stop()
    return trainer


def test_native_takes_the_vector_class_of_the_id() -> None:
    vector = trained(vectorization="native").workers.vector
    assert isinstance(vector, NativeVector)
    assert isinstance(vector.env.unwrapped, CartPoleVectorEnv)
    assert vector.num_envs == 32


def test_envpool_takes_the_pool_of_that_name() -> None:
    pytest.importorskip("envpool")
    vector = trained(vectorization="envpool").workers.vector
    assert isinstance(vector, NativeVector)
    assert vector.num_envs == 32


def test_auto_is_python_and_says_so_where_native_is_faster() -> None:
    trainer = trained()
    assert not isinstance(trainer.workers.vector, NativeVector)
    (note,) = vectorization_notes(trainer.env_maker, trainer.config)
    assert note.startswith("vectorization: auto is python")


@pytest.mark.parametrize(
    ("env", "config", "sentence"),
    [
        ("Pendulum-v1", {"vectorization": "native"}, "has none registered"),
        (lambda _: CartPoleEnv(), {"vectorization": "native"}, "is a single one"),
        (lambda _: gym.make_vec("CartPole-v1", 32), {"vectorization": "python"}, "is a batch that steps itself"),
        (lambda _: CartPoleEnv(), {"vectorization": "envpool"}, "is none of them"),
        ("CartPole-v1", {"vectorization": "native", "horizon": 10}, "horizon is for single ones"),
        ("CartPole-v1", {"vectorization": "native", "env_isolation": "process"}, "env_isolation is for single ones"),
    ],
)
def test_what_cannot_be_is_one_sentence(env: Any, config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        shoal.PPO(env, {**SHORT, **config})
    assert len(caught.value.problems) == 1


def test_a_vector_class_refuses_what_it_does_not_take() -> None:
    with pytest.raises(ConfigError, match=r"env_config\.speed"):
        shoal.PPO("CartPole-v1", {**SHORT, "vectorization": "native", "env_config": {"speed": 2}})
