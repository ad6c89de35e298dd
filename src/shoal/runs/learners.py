"""The learner that a configuration is for."""

from __future__ import annotations

from shoal.config.algorithms import load
from shoal.config.settings import AlgorithmConfig
from shoal.errors import ConfigError
from shoal.models.policy import Policy
from shoal.parallel.group import Group
from shoal.parallel.learner import Learner


def make_learner(config: AlgorithmConfig, policy: Policy, group: Group) -> Learner:
    """The learner that a configuration is for."""
    try:
        kind = load(config.learner)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"run: the learner {config.learner} cannot be imported ({error}); repair it") from error
    learner: Learner = kind(config, policy, group)
    return learner
