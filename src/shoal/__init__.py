"""shoal trains reinforcement-learning agents on any simulation, on a laptop and on a supercomputer.

>>> import shoal
>>> trainer = shoal.PPO(env="CartPole-v1")
>>> result = trainer.train()

Names are imported when they are first used, so that `import shoal` and the command line stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.version import __version__

if TYPE_CHECKING:
    from shoal import tune
    from shoal.envs.context import EnvContext
    from shoal.envs.registry import register_env
    from shoal.envs.repeated import Repeated
    from shoal.envs.tasks import TaskSettableEnv
    from shoal.errors import (
        CallbackError,
        CheckpointError,
        ClusterError,
        ConfigError,
        EnvError,
        ShoalError,
        WorkerError,
    )
    from shoal.models.catalog import ModelCatalog, register_custom_action_dist, register_custom_model
    from shoal.models.torch_distributions import TorchDistributionWrapper
    from shoal.models.torch_memory import RecurrentNetwork
    from shoal.models.torch_models import FullyConnectedNetwork, TorchModelV2
    from shoal.runs.policies import Policy
    from shoal.runs.printing import pretty_print
    from shoal.runs.run import run
    from shoal.runs.trainer import DQN, PPO, TRPO, Trainer
    from shoal.sampling.callbacks import DefaultCallbacks

_HOMES = {
    "DQN": "runs.trainer",
    "PPO": "runs.trainer",
    "TRPO": "runs.trainer",
    "Trainer": "runs.trainer",
    "run": "runs.run",
    "pretty_print": "runs.printing",
    "register_env": "envs.registry",
    "EnvContext": "envs.context",
    "Repeated": "envs.repeated",
    "TaskSettableEnv": "envs.tasks",
    "DefaultCallbacks": "sampling.callbacks",
    "ModelCatalog": "models.catalog",
    "register_custom_action_dist": "models.catalog",
    "register_custom_model": "models.catalog",
    "TorchDistributionWrapper": "models.torch_distributions",
    "TorchModelV2": "models.torch_models",
    "FullyConnectedNetwork": "models.torch_models",
    "Policy": "runs.policies",
    "RecurrentNetwork": "models.torch_memory",
    "ShoalError": "errors",
    "ConfigError": "errors",
    "EnvError": "errors",
    "CheckpointError": "errors",
    "CallbackError": "errors",
    "WorkerError": "errors",
    "ClusterError": "errors",
}

__all__ = [
    "DQN",
    "PPO",
    "TRPO",
    "CallbackError",
    "CheckpointError",
    "ClusterError",
    "ConfigError",
    "DefaultCallbacks",
    "EnvContext",
    "EnvError",
    "FullyConnectedNetwork",
    "ModelCatalog",
    "Policy",
    "RecurrentNetwork",
    "Repeated",
    "ShoalError",
    "TaskSettableEnv",
    "TorchDistributionWrapper",
    "TorchModelV2",
    "Trainer",
    "WorkerError",
    "__version__",
    "pretty_print",
    "register_custom_action_dist",
    "register_custom_model",
    "register_env",
    "run",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name == "tune":
        return import_module("shoal.tune")
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    return getattr(import_module(f"shoal.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
