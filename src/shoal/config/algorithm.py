"""What other code may ask about an algorithm without knowing which it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel

from shoal.config.fields import STRICT


class Algorithm(BaseModel):
    """What an algorithm is and can do, as class attributes of its configuration; none of them is a key of the user's.

    An algorithm's own class is a subclass of `AlgorithmConfig`, which has the keys.
    """

    model_config = STRICT

    learner: ClassVar[str] = ""  # where its learner is, as module:Class
    trainer: ClassVar[str] = ""  # where its own kind of trainer is, as module:Class; empty: runs/trainer.py has it
    policy: ClassVar[str] = ""  # where a policy of its own kind is read from a checkpoint, as module:function
    acts_by_value: ClassVar[bool] = False  # it takes the best of discrete actions; else it samples by probability
    learns_from_replay: ClassVar[bool] = False  # it learns from remembered transitions; else from each batch once
    learns_offline: ClassVar[bool] = False  # it learns from recorded steps (`input`), and samples nothing
    takes_memory: ClassVar[bool] = False  # its learner may be given sequences, for models with memory
    takes_agents: ClassVar[bool] = False  # its learner may be given rows that are agents of shared environments
    shares_batches: ClassVar[bool] = False  # several learners may learn as one: it has `update(batch, timesteps_total)`
    results: ClassVar[Mapping[str, str]] = {
        "grad_gnorm": "norm of the gradients before clipping",
        "refused_minibatches": "minibatches left out because their gradient was not finite",
        "reward_scale": "what rewards are divided by to learn from them (normalize_rewards; 1: nothing)",
        "cur_lr": "learning rate now",
    }
    batch_key: ClassVar[str] = "train_batch_size"  # the key that the length of an iteration follows from
    mutable: ClassVar[tuple[str, ...]] = ("lr", "gamma", "grad_clip")  # keys that may change while a run trains
    more_exploration: ClassVar[str] = "config.exploration_config"  # what to set if all episodes have the same return
    clips_reported_norm: ClassVar[bool] = True  # grad_clip limits the gradient whose norm is grad_gnorm
