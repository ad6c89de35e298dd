"""Deep Q-learning by the names of classic RLlib.

>>> from shoal import dqn
>>> config = dqn.DEFAULT_CONFIG.copy()
>>> config["num_workers"] = 3
>>> trainer = dqn.DQNTrainer(config=config, env="CartPole-v1")
"""

from shoal.config.experiment import default_config
from shoal.runs.trainer import DQN as DQNTrainer

DEFAULT_CONFIG = default_config("DQN")

__all__ = ["DEFAULT_CONFIG", "DQNTrainer"]
