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
    from shoal.envs.context import EnvContext
    from shoal.envs.registry import register_env
    from shoal.envs.repeated import Repeated
    from shoal.errors import CheckpointError, ClusterError, ConfigError, EnvError, ShoalError, WorkerError
    from shoal.models.catalog import ModelCatalog, register_custom_action_dist, register_custom_model
    from shoal.models.policy import Policy
    from shoal.models.torch_distributions import TorchDistributionWrapper
    from shoal.models.torch_memory import RecurrentNetwork
    from shoal.models.torch_models import FullyConnectedNetwork, TorchModelV2
    from shoal.runs.printing import pretty_print
    from shoal.runs.run import run
    from shoal.runs.trainer import DQN, PPO, TRPO, Trainer

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
    "ModelCatalog": "models.catalog",
    "register_custom_action_dist": "models.catalog",
    "register_custom_model": "models.catalog",
    "TorchDistributionWrapper": "models.torch_distributions",
    "TorchModelV2": "models.torch_models",
    "FullyConnectedNetwork": "models.torch_models",
    "RecurrentNetwork": "models.torch_memory",
    "Policy": "models.policy",
    "ShoalError": "errors",
    "ConfigError": "errors",
    "EnvError": "errors",
    "CheckpointError": "errors",
    "WorkerError": "errors",
    "ClusterError": "errors",
}

__all__ = [
    "DQN",
    "PPO",
    "TRPO",
    "CheckpointError",
    "ClusterError",
    "ConfigError",
    "EnvContext",
    "EnvError",
    "FullyConnectedNetwork",
    "ModelCatalog",
    "Policy",
    "RecurrentNetwork",
    "Repeated",
    "ShoalError",
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
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    return getattr(import_module(f"shoal.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
