from __future__ import annotations

import copy
import pickle

import pytest

from shoal.envs.context import EnvContext
from shoal.envs.registry import register_env, registered, registered_names
from shoal.errors import ConfigError


def test_the_items_are_the_users_alone_and_the_indices_are_attributes() -> None:
    ctx = EnvContext({"Scalar": 0.5}, worker_index=2, vector_index=1, env_index=9, num_workers=4)
    assert ctx == {"Scalar": 0.5}
    assert {**ctx} == {"Scalar": 0.5}
    assert (ctx.worker_index, ctx.vector_index, ctx.env_index, ctx.num_workers) == (2, 1, 9, 4)
    assert EnvContext() == {}


@pytest.mark.parametrize("name", ["worker_index", "vector_index", "env_index", "num_workers"])
def test_an_index_as_an_item_says_that_it_is_an_attribute(name) -> None:
    with pytest.raises(KeyError, match=rf"{name} is an attribute of the config; type config\.{name}"):
        EnvContext({"a": 1})[name]
    with pytest.raises(KeyError, match=r"^'b'$"):
        EnvContext({"a": 1})["b"]


def test_an_entry_of_ones_own_may_have_the_name_of_an_index() -> None:
    ctx = EnvContext({"num_workers": 3}, num_workers=8)
    assert (ctx["num_workers"], ctx.num_workers) == (3, 8)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda ctx: pickle.loads(pickle.dumps(ctx))])
def test_copies_are_whole(again) -> None:
    ctx = again(EnvContext({"a": 1}, env_index=3))
    assert isinstance(ctx, EnvContext)
    assert ctx.env_index == 3
    assert ctx == {"a": 1}


def test_a_context_can_be_made_from_another() -> None:
    ctx = EnvContext(EnvContext({"a": 1}, env_index=3), env_index=4)
    assert ctx.env_index == 4
    assert ctx == {"a": 1}


def test_popping_an_item_leaves_the_users_dict_alone() -> None:
    config = {"a": 1}
    EnvContext(config).pop("a")
    assert config == {"a": 1}


def test_registering_again_replaces() -> None:
    register_env("test-context-env", dict)
    register_env("test-context-env", list)
    assert registered("test-context-env") is list
    assert "test-context-env" in registered_names()
    assert registered("nobody-has-this-name") is None


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_a_name_is_a_text(name) -> None:
    with pytest.raises(ConfigError, match="non-empty text"):
        register_env(name, dict)


def test_a_creator_can_be_called() -> None:
    with pytest.raises(ConfigError, match="a class or a function"):
        register_env("x", 3)  # type: ignore[arg-type]
