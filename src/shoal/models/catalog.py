"""Custom models by name: what a program registers, and what a config file points at."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from shoal.config.settings import AlgorithmConfig
from shoal.envs.importing import attribute, load_dotted, load_file, load_module
from shoal.errors import ConfigError

_registered: dict[str, type[Any]] = {}


def register_custom_model(name: str, model_class: type[Any]) -> None:
    """Make a model class known as `model: {custom_model: NAME}`; a later registration of the name replaces it."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"register_custom_model: the name must be a non-empty text (got {name!r})")
    if not isinstance(model_class, type):
        raise ConfigError(f"register_custom_model({name!r}, ...): give the class itself (got {model_class!r})")
    _registered[name] = model_class


class ModelCatalog:
    """The classic place to register models."""

    @staticmethod
    def register_custom_model(name: str, model_class: type[Any]) -> None:
        """Make a model class known as `model: {custom_model: NAME}`."""
        register_custom_model(name, model_class)


def custom_model_class(model: str | type[Any], search_path: Sequence[str] = ()) -> type[Any]:
    """The class behind `custom_model`: the class itself, or what its text names.

    A text is a registered name, `my_module.MyModel`, `my_module:MyModel` or `my_file.py:MyModel`; modules and files are
    looked for in the folders of `search_path` first.
    """
    if isinstance(model, type):
        return model
    if model in _registered:
        return _registered[model]
    place, colon, name = model.rpartition(":")
    if not colon and "." not in model:
        raise ConfigError(f"model.custom_model: no model {model!r} is registered; {_known(model)}")
    if colon:
        module = load_file(place, search_path) if place.endswith(".py") else load_module(place, search_path)
        found = attribute(module, name)
    else:
        found = load_dotted(model, search_path)
    if not isinstance(found, type):
        raise ConfigError(f"model.custom_model: {model!r} is no class (it is {found!r})")
    return found


def with_model_class(config: AlgorithmConfig, search_path: Sequence[str] = ()) -> AlgorithmConfig:
    """The config with the custom model's class in place of its text."""
    if not isinstance(config.model.custom_model, str):
        return config
    model = config.model.model_copy(update={"custom_model": custom_model_class(config.model.custom_model, search_path)})
    return config.model_copy(update={"model": model})


def with_registered_model(config: AlgorithmConfig) -> AlgorithmConfig:
    """The config with a registered model's class in place of its name, which other processes do not know."""
    return with_model_class(config) if config.model.custom_model in _registered else config


def _known(name: str) -> str:
    how = "call shoal.register_custom_model(name, MyModel) first, or type my_module.MyModel"
    if not _registered:
        return f"none is: {how}"
    near = difflib.get_close_matches(name, _registered, n=3) or sorted(_registered)[:10]
    return f"did you mean {', '.join(near)}? Otherwise {how}"
