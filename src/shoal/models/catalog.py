"""Custom models and action distributions by name: what a program registers, and what a config file points at."""

from __future__ import annotations

import difflib
from typing import Any

from shoal.config.changing import unchecked
from shoal.config.experiment import default_model
from shoal.config.settings import AlgorithmConfig
from shoal.envs.importing import INSTALLED, UserCode
from shoal.errors import ConfigError

MODEL_DEFAULTS = default_model()
"""Every key of `model` with its default; DQN and SAC have some others, which `shoal.DQN.get_default_config()` tells."""

# By the key that names them in a model's config.
_registered: dict[str, dict[str, type[Any]]] = {"custom_model": {}, "custom_action_dist": {}}


def register_custom_model(name: str, model_class: type[Any]) -> None:
    """Make a model class known as `model: {custom_model: NAME}`; a later registration of the name replaces it."""
    _register("custom_model", name, model_class)


def register_custom_action_dist(name: str, dist_class: type[Any]) -> None:
    """Make an action distribution known as `model: {custom_action_dist: NAME}`; a later one replaces it."""
    _register("custom_action_dist", name, dist_class)


class ModelCatalog:
    """The classic place to register models and action distributions."""

    @staticmethod
    def register_custom_model(name: str, model_class: type[Any]) -> None:
        """Make a model class known as `model: {custom_model: NAME}`."""
        register_custom_model(name, model_class)

    @staticmethod
    def register_custom_action_dist(name: str, dist_class: type[Any]) -> None:
        """Make an action distribution known as `model: {custom_action_dist: NAME}`."""
        register_custom_action_dist(name, dist_class)


def custom_model_class(model: str | type[Any], user_code: UserCode = INSTALLED, key: str = "custom_model") -> type[Any]:
    """The class behind `custom_model`, or another key: the class itself, or what its text names.

    A text is a registered name, `my_module.MyModel`, `my_module:MyModel` or `my_file.py:MyModel`; modules and files are
    looked for in the user's code first.
    """
    if isinstance(model, type):
        return model
    if model in _registered[key]:
        return _registered[key][model]
    if not {":", "."} & set(model):
        raise ConfigError(f"config.model.{key}: no {_noun(key)} {model!r} is registered; {_known(key, model)}")
    found = user_code.load_named(f"config.model.{key}", model)
    if not isinstance(found, type):
        raise ConfigError(f"config.model.{key}: {model!r} is not a class (it is of type {type(found).__name__})")
    return found


def with_model_class(config: AlgorithmConfig, user_code: UserCode = INSTALLED) -> AlgorithmConfig:
    """The config with the classes of custom model and action distribution in place of their texts."""
    found = {}
    for key in _registered:
        text = getattr(config.model, key)
        if isinstance(text, str):
            found[key] = custom_model_class(text, user_code, key)
    return _with(config, found)


def with_registered_model(config: AlgorithmConfig) -> AlgorithmConfig:
    """The config with registered classes in place of their names, which other processes do not know."""
    found = {}
    for key, classes in _registered.items():
        name = getattr(config.model, key)
        if name in classes:
            found[key] = classes[name]
    return _with(config, found)


def _with(config: AlgorithmConfig, classes: dict[str, type[Any]]) -> AlgorithmConfig:
    if not classes:
        return config
    # The same network by another word, which a checked configuration may have been asked for already.
    return unchecked(config, model=unchecked(config.model, **classes))


def _register(key: str, name: str, made: type[Any]) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"register_{key}: the name must be a non-empty text (got {name!r})")
    if not isinstance(made, type):
        raise ConfigError(f"register_{key}({name!r}, ...): give the class itself (got {made!r})")
    _registered[key][name] = made


def _noun(key: str) -> str:
    return "model" if key == "custom_model" else "distribution"


def _known(key: str, name: str) -> str:
    example = "MyModel" if key == "custom_model" else "MyDist"
    how = f"call shoal.register_{key}(name, {example}) first, or type my_module.{example}"
    if not _registered[key]:
        return f"none is: {how}"
    near = difflib.get_close_matches(name, _registered[key], n=3) or sorted(_registered[key])[:10]
    return f"did you mean {', '.join(near)}? Otherwise {how}"
