"""Soft actor-critic by the names of classic RLlib.

>>> from shoal import sac
>>> config = sac.DEFAULT_CONFIG.copy()
>>> config["num_workers"] = 3
>>> trainer = sac.SACTrainer(config=config, env="Pendulum-v1")
"""

from shoal.config.experiment import default_config
from shoal.runs.trainer import SAC as SACTrainer

DEFAULT_CONFIG = default_config("SAC")

__all__ = ["DEFAULT_CONFIG", "SACTrainer"]
