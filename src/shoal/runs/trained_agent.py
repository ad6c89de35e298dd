"""A trained agent with its environment, as evaluation, play and replays need both: from a checkpoint of anybody's."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from shoal.config.changing import unchecked
from shoal.config.experiment import Experiment, with_settings
from shoal.envs.making import EnvMaker, maker_of, spaces_of
from shoal.errors import ConfigError
from shoal.models.policy import Policy
from shoal.parallel.ray_workers import without_gpu
from shoal.parallel.start import start_evaluators
from shoal.runs.checkpoints import Checkpoint, understood
from shoal.runs.evaluation import EvaluationSetup
from shoal.runs.folders import env_text
from shoal.runs.loaded_policy import policy_of
from shoal.runs.resuming import experiment_to_run
from shoal.sampling.evaluation_episodes import check_same_form


@dataclass(frozen=True)
class TrainedAgent:
    """The policy of a checkpoint, and the environment that it was trained on."""

    experiment: Experiment
    maker: EnvMaker
    policy: Policy
    task: Any  # that its curriculum had; None: the environment's own

    def setup(self, closing: ExitStack, num_workers: int = 0) -> EvaluationSetup:
        """It with no more processes than are asked for here."""
        config = self.experiment.config
        if num_workers and config.policy:
            raise ConfigError("--num-workers: a policy of RLlib's is evaluated in this process; leave it out")
        config = unchecked(without_gpu(config), num_workers=0, num_learners=1, evaluation_num_workers=num_workers)
        evaluators = start_evaluators(config, self.policy, self.maker.user_code, None, closing)
        return EvaluationSetup(config, self.maker, self.policy, evaluators, self.task)


def trained_agent(
    checkpoint: Checkpoint, trust: bool = False, env: str | None = None, algorithm: str | None = None
) -> TrainedAgent:
    """The agent of a checkpoint; a stranger's code is run only with `trust`, or from here where `env` names it.

    `env` and `algorithm` are refused if the checkpoint has others; one of recorded steps alone gets the environment.
    """
    experiment, user_code = experiment_to_run(checkpoint.experiment_tree, checkpoint.path, trust, env is not None)
    _check_same("--run", algorithm, experiment.run)
    experiment = _with_env(experiment, env)
    config = experiment.config
    maker = maker_of(config, user_code)
    policy = policy_of(checkpoint, maker, trust)
    if config.learns_offline:
        check_same_form(policy, *spaces_of(maker, config.env_config, config.env_ranks))
    with understood(checkpoint.path):
        task = checkpoint.state.values["curriculum"]["task"]
    return TrainedAgent(experiment, maker, policy, task)


def _with_env(experiment: Experiment, env: str | None) -> Experiment:
    """The experiment, which must have the environment that is given; one of recorded steps alone gets it."""
    if experiment.config.env is not None:
        _check_same("--env", env, env_text(experiment.config.env))
        return experiment
    if env is None:
        raise ConfigError("env: the agent has learned from recorded steps alone; add --env, e.g. --env CartPole-v1")
    return with_settings(experiment, {"env": env})


def _check_same(flag: str, asked: str | None, stored: str) -> None:
    # `module.Class` and `module:Class` are two spellings of one thing.
    if asked is not None and asked.replace(":", ".") != stored.replace(":", "."):
        raise ConfigError(f"{flag}: the checkpoint has {stored} (got {asked}); leave {flag} out or use {stored}")
