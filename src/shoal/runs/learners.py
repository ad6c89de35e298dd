"""The learner that a configuration is for."""

from __future__ import annotations

from shoal.algorithms.several_policies import SeveralLearners
from shoal.config.algorithms import load
from shoal.config.settings import AlgorithmConfig
from shoal.errors import ConfigError
from shoal.models.policy import Policy
from shoal.parallel.group import Group
from shoal.parallel.learner import Learner


def make_learner(config: AlgorithmConfig, policy: Policy, group: Group) -> Learner:
    """The learner that a configuration is for; where agents have several policies, one of each."""
    if config.multiagent.policies:
        return SeveralLearners(config, policy, _single_learner)
    return _single_learner(config, policy, group)


def _single_learner(config: AlgorithmConfig, policy: Policy, group: Group) -> Learner:
    try:
        kind = load(config.learner)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"run: the learner {config.learner} cannot be imported ({error}); repair it") from error
    learner: Learner = kind(config, policy, group)
    return learner
