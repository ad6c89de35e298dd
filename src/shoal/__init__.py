"""shoal trains reinforcement-learning agents on any simulation, on a laptop and on a supercomputer.

>>> import shoal
>>> trainer = shoal.PPO(env="CartPole-v1")
>>> result = trainer.train()

Names are imported when they are first used, so that `import shoal` and the command line stay quick.
"""

from __future__ import annotations

import sys
from importlib import import_module

from shoal.version import __version__

TYPE_CHECKING = False  # `typing` takes as long to import as all else that a command needs before it hears signals
if TYPE_CHECKING:
    from typing import Any

    from shoal import dqn, ppo, sac, sb3, trpo, tune
    from shoal.bridges.vector_env import make_vec
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
    from shoal.models.catalog import MODEL_DEFAULTS, ModelCatalog, register_custom_action_dist, register_custom_model
    from shoal.models.torch_distributions import TorchDistributionWrapper
    from shoal.models.torch_memory import RecurrentNetwork
    from shoal.models.torch_models import FullyConnectedNetwork, TorchModelV2
    from shoal.reports.notebook import Results, live
    from shoal.runs.loaded_policy import LoadedPolicy as Policy
    from shoal.runs.printing import pretty_print
    from shoal.runs.run import run
    from shoal.runs.trainer import APPO, ARS, BC, CEM, CMAES, DQN, ES, MARWIL, PPO, SAC, TRPO, Trainer
    from shoal.sampling.callbacks import DefaultCallbacks

_HOMES = {  # where each name comes from; after a colon, what it is called there
    "Trainer": "runs.trainer",
    "run": "runs.run",
    "pretty_print": "runs.printing",
    "Results": "reports.notebook",
    "live": "reports.notebook",
    "make_vec": "bridges.vector_env",
    "register_env": "envs.registry",
    "EnvContext": "envs.context",
    "Repeated": "envs.repeated",
    "TaskSettableEnv": "envs.tasks",
    "DefaultCallbacks": "sampling.callbacks",
    "ModelCatalog": "models.catalog",
    "register_custom_action_dist": "models.catalog",
    "register_custom_model": "models.catalog",
    "MODEL_DEFAULTS": "models.catalog",
    "TorchDistributionWrapper": "models.torch_distributions",
    "TorchModelV2": "models.torch_models",
    "FullyConnectedNetwork": "models.torch_models",
    "Policy": "runs.loaded_policy:LoadedPolicy",
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
    "APPO",
    "ARS",
    "BC",
    "CEM",
    "CMAES",
    "DQN",
    "ES",
    "MARWIL",
    "MODEL_DEFAULTS",
    "PPO",
    "SAC",
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
    "Results",
    "ShoalError",
    "TaskSettableEnv",
    "TorchDistributionWrapper",
    "TorchModelV2",
    "Trainer",
    "WorkerError",
    "__version__",
    "dqn",
    "live",
    "make_vec",
    "ppo",
    "pretty_print",
    "register_custom_action_dist",
    "register_custom_model",
    "register_env",
    "run",
    "sac",
    "sb3",
    "trpo",
    "tune",
]


_MODULES = ("dqn", "ppo", "sac", "sb3", "trpo", "tune")

_CLASSIC = {"DQNTrainer": "dqn", "PPOTrainer": "ppo", "SACTrainer": "sac", "TRPOTrainer": "trpo"}
"""Names of classic RLlib for what is here under a shorter one."""


class _ForeignModules:
    """Asked for a module that nobody has found, says what to import instead of one of another library's."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG004
        if name.startswith("shoal."):
            from shoal.config.foreign_names import FOREIGN_MODULES

            if name in FOREIGN_MODULES:
                raise ModuleNotFoundError(f"No module named {name!r}; {FOREIGN_MODULES[name]}", name=name)


sys.meta_path.append(_ForeignModules)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"shoal.{name}")
    home = _HOMES.get(name) or _CLASSIC.get(name)
    if home is not None:
        module, _, own_name = home.partition(":")
        return getattr(import_module(f"shoal.{module}"), own_name or name)
    if name[:1].isupper():
        from shoal.config.algorithms import algorithm_names

        if name in algorithm_names():
            return import_module("shoal.runs.trainer").TRAINERS[name]
    from shoal.config.foreign_names import missing

    raise missing("shoal", name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
