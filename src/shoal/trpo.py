"""Trust region policy optimisation by the names of classic RLlib.

>>> from shoal import trpo
>>> config = trpo.DEFAULT_CONFIG.copy()
>>> config["num_workers"] = 3
>>> trainer = trpo.TRPOTrainer(config=config, env="CartPole-v1")
"""

from shoal.config.experiment import default_config
from shoal.runs.trainer import TRPO as TRPOTrainer

DEFAULT_CONFIG = default_config("TRPO")

__all__ = ["DEFAULT_CONFIG", "TRPOTrainer"]
