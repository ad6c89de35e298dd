"""Proximal policy optimisation by the names of classic RLlib.

>>> from shoal import ppo
>>> config = ppo.DEFAULT_CONFIG.copy()
>>> config["num_workers"] = 3
>>> trainer = ppo.PPOTrainer(config=config, env="CartPole-v1")
"""

from shoal.config.experiment import default_config
from shoal.runs.trainer import PPO as PPOTrainer

DEFAULT_CONFIG = default_config("PPO")

__all__ = ["DEFAULT_CONFIG", "PPOTrainer"]
