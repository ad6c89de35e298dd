"""Names of classic RLlib and of other libraries: those that cost nothing work, the others say what to type."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import shoal
from shoal.config.foreign_names import FOREIGN_METHODS, FOREIGN_MODULES, FOREIGN_NAMES

NAMES = [(module, name) for module, names in FOREIGN_NAMES.items() for name in names]


def test_classic_names_are_the_same_objects() -> None:
    for name in ("PPO", "TRPO", "DQN", "SAC"):
        module = importlib.import_module(f"shoal.{name.lower()}")
        trainer = getattr(shoal, name)
        assert getattr(module, f"{name}Trainer") is getattr(shoal, f"{name}Trainer") is trainer
        assert trainer.get_default_config() == module.DEFAULT_CONFIG
        assert type(module.DEFAULT_CONFIG.copy()) is dict
    assert shoal.tune.register_env is shoal.register_env
    assert shoal.ppo.DEFAULT_CONFIG["model"] == shoal.MODEL_DEFAULTS


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_foreign_name_says_what_to_type(module: str, name: str) -> None:
    found = importlib.import_module(module)
    with pytest.raises(AttributeError) as caught:
        getattr(found, name)
    assert str(caught.value) == f"module {module!r} has no attribute {name!r}; {FOREIGN_NAMES[module][name]}"
    assert not hasattr(found, name)


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_what_the_hint_names_is_there(module: str, name: str) -> None:
    for dotted in re.findall(r"\bshoal(?:\.\w+)+", FOREIGN_NAMES[module][name]):
        here: object = shoal
        for part in dotted.split(".")[1:]:
            here = getattr(here, part)


@pytest.mark.parametrize("name", ["A3CTrainer", "TD3", "appo", "PPOConfig", "Traner"])
def test_names_of_algorithms_and_typing_errors_have_hints_too(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; .*shoal\."):
        getattr(shoal, name)


def test_an_import_says_it_too_and_an_unknown_name_is_pythons_own() -> None:
    with pytest.raises(ImportError, match=r"there are shoal\.PPO, shoal\.APPO, shoal\.TRPO, shoal\.DQN and shoal\.SAC"):
        from shoal import A3CTrainer  # noqa: F401
    with pytest.raises(ImportError, match=r"type shoal\.tune\.run"):
        from shoal.tune import Tuner  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'zzz'"):
        from shoal import zzz  # noqa: F401
    with pytest.raises(AttributeError, match=r"has no attribute 'zzz'$"):
        _ = shoal.zzz


def test_names_are_listed_and_cost_nothing_before_they_are_used() -> None:
    assert set(shoal.__all__) <= set(dir(shoal))
    for name in shoal.__all__:
        assert getattr(shoal, name) is not None
    code = "import sys, shoal, shoal.tune; assert not {'numpy', 'pydantic', 'ray', 'difflib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


@pytest.mark.parametrize("name", FOREIGN_METHODS["Trainer"])
def test_a_trainer_says_what_to_type_for_a_foreign_method(name: str) -> None:
    blank = shoal.PPO.__new__(shoal.PPO)
    for owner in (shoal.PPO, blank):
        with pytest.raises(AttributeError) as caught:
            getattr(owner, name)
        assert str(caught.value) == f"'PPO' has no attribute {name!r}; {FOREIGN_METHODS['Trainer'][name]}"


@pytest.mark.parametrize("owner", FOREIGN_METHODS)
def test_what_the_hint_for_a_method_names_is_there(owner: str) -> None:
    for hint in FOREIGN_METHODS[owner].values():
        for kind, method in re.findall(r"\b(trainer|policy)\.(\w+)", hint):
            assert hasattr({"trainer": shoal.Trainer, "policy": shoal.Policy}[kind], method), hint


def test_other_attributes_are_missing_in_pythons_words() -> None:
    blank, policy = shoal.PPO.__new__(shoal.PPO), shoal.Policy.__new__(shoal.Policy)
    with pytest.raises(AttributeError, match="'PPO' object has no attribute 'zzz'"):
        _ = blank.zzz
    with pytest.raises(AttributeError, match="type object 'PPO' has no attribute 'zzz'"):
        _ = shoal.PPO.zzz
    with pytest.raises(AttributeError, match=r"'Policy' has no attribute 'predict'; type policy.compute_single_action"):
        _ = policy.predict


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: shoal.PPO("MlpPolicy", "CartPole-v1"), "shoal.PPO('CartPole-v1', {'model': {'fcnet_hiddens'"),
        (lambda: shoal.PPO("CartPole-v1", verbose=1), "verbose: there is no such argument; write log_level: DEBUG"),
        (lambda: shoal.PPO("CartPole-v1", learning_rate=0.1), "write config={'lr': 0.1}"),
        (lambda: shoal.PPO("CartPole-v1", lr=0.1), "write config={'lr': 0.1}"),
        (lambda: shoal.PPO("CartPole-v1", net_arch=[8]), "write config={'model': {'fcnet_hiddens': [8]}}"),
        (lambda: shoal.PPO("CartPole-v1", total_timesteps=9), "'config': {...}, 'stop': {'timesteps_total': 9}}"),
        (lambda: shoal.run({"env": "CartPole-v1"}, name="a"), "shoal.run({'env': ..., 'name': 'a'})"),
        (lambda: shoal.run({"env": "CartPole-v1"}, total_timesteps=9), "'stop': {'timesteps_total': 9}}"),
    ],
)
def test_a_foreign_argument_is_answered_with_the_line_to_write(call: Callable[[], Any], line: str) -> None:
    with pytest.raises(shoal.ConfigError) as refused:
        call()
    assert line in str(refused.value)


@pytest.mark.parametrize("name", FOREIGN_MODULES)
def test_a_foreign_module_says_what_to_import(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=re.escape(FOREIGN_MODULES[name])):
        importlib.import_module(f"{name}.ppo")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'shoal.zzz'$"):
        importlib.import_module("shoal.zzz")
