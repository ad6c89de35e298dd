"""Trainers that differ in nothing but the seed take their iterations together.

Each keeps everything that is its own: environments, noise, batch, order of minibatches, optimiser, counters. Only what
NumPy computes is computed for all at once (`StackedSampler`, `StackedPPO`), and it is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

from shoal.algorithms.ppo import PPOLearner
from shoal.algorithms.stacked_ppo import StackedPPO, fit_together, why_not_learned_together
from shoal.config.experiment import Experiment
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Sample, Step
from shoal.parallel.workers import check_usable
from shoal.runs.logs import speaking_of
from shoal.runs.trainer import Trainer
from shoal.sampling.sampler import Sampler
from shoal.sampling.stacked_sampler import StackedSampler, why_not_sampled_together
from shoal.sampling.worker import Worker

MOST_TOGETHER = 16
"""Trainers at once: with more, what one pass of the networks reads and writes leaves the caches."""


def why_not_configured_together(experiment: Experiment) -> str | None:
    """What of an experiment keeps its seeds from being trained together, if anything does."""
    config = experiment.config
    reasons = {
        "run": "only PPO's can be" if experiment.run != "PPO" else None,
        "loggers": "their loggers are told of one run at a time" if experiment.loggers else None,
        **_config_reasons(config),
    }
    return next((f"{key}: {words}" for key, words in reasons.items() if words is not None), None)


def _config_reasons(config: AlgorithmConfig) -> dict[str, str | None]:
    """What each key of a configuration has against it; None: nothing."""
    asked = {
        "num_workers": (bool(config.num_workers), "their environments are in other processes"),
        "env_isolation": (config.isolates_envs, "their environments are in processes of their own"),
        "evaluation_num_workers": (bool(config.evaluation_num_workers), "their evaluations are in other processes"),
        "kernel": (config.kernel != "numpy", "the compiled kernel has one network at a time"),
        "framework": (config.framework == "torch", "networks of PyTorch are not stacked"),
        "model": (config.model.memory is not None, "their policies have memory"),
        "callbacks": (config.callbacks is not None, "their hooks are called for one run at a time"),
        "curriculum": (bool(config.curriculum.stages), "each run has come to a stage of its own"),
        "env_task_fn": (config.env_task_fn is not None, "each run has a task of its own"),
        "exploration_config": (
            config.exploration_config.type != "StochasticSampling",
            "actions are tried out in another way than by sampling",
        ),
        "explore": (not config.explore, "no actions are sampled"),
        "batch_mode": (config.batch_mode != "truncate_episodes", "their batches are of different length"),
        "env_resets_per_s": (config.env_resets_per_s is not None, "their environments wait before they are reset"),
        "output": (config.output is not None, "their steps are written down"),
        "render_env": (config.render_env, "their environments are shown"),
    }
    return {key: words if stands_against else None for key, (stands_against, words) in asked.items()}


def why_not_together(trainer: Trainer) -> str | None:
    """What of a trainer's own, with its environment, keeps it from training together with others, if anything does."""
    if type(trainer.workers) is not Worker:
        return "their environments are in other processes"
    return why_not_sampled_together(trainer.workers.sampler) or why_not_learned_together(trainer.learner)


class SeedStack:
    """Takes one iteration of several trainers at once, when the first of them asks for its own.

    Who asks later gets what is there. An iteration that nobody asks for has not happened: what a run saves is the state
    after the last iteration that it has finished.
    """

    def __init__(self) -> None:
        self._members: list[Trainer] = []
        self._found: dict[int, Step | Exception] = {}
        self._taken_s = 0.0
        self._parts: tuple[list[Trainer], StackedSampler, StackedPPO] | None = None

    def begin(self, trainers: Sequence[Trainer]) -> None:
        """Let these trainers, which have come equally far, take their next iteration together."""
        self._members, self._found = list(trainers), {}

    def step_of(self, trainer: Trainer) -> Step:
        """One trainer's iteration, or what has ended it."""
        if len(self._members) < 2 or trainer not in self._members:
            return trainer.own_step()
        before_s = self._taken_s
        if not self._found:
            before_s, start = 0.0, perf_counter()
            try:
                self._found = self._steps()
            except Exception as error:  # none of them stands where it should
                self._found = {id(member): error for member in self._members}
            self._taken_s = perf_counter() - start
        found = self._found[id(trainer)]
        if isinstance(found, Exception):
            raise found
        return replace(found, before_s=before_s)

    def _steps(self) -> dict[int, Step | Exception]:
        """One iteration of all members."""
        sampler, learner = self._stacked()
        samples: dict[int, Sample] = {}
        found: dict[int, Step | Exception] = {}
        for member, sample in zip(
            self._members, sampler.sample(self._members[0].config.steps_per_iteration), strict=True
        ):
            try:
                if isinstance(sample, Exception):
                    raise sample
                check_usable(sample)
                samples[id(member)] = sample
            except Exception as error:
                found[id(member)] = error
        start = perf_counter()
        learning = [member for member in self._members if id(member) in samples]
        batches = [samples[id(member)].batch for member in learning]
        stats: list[dict[str, float]] = []
        if len(learning) == len(self._members) and fit_together(batches):
            speaking = [partial(speaking_of, member.folder) for member in learning]
            stats = learner.update(batches, learning[0].timesteps_total, speaking)
        else:
            for member, batch in zip(learning, batches, strict=True):
                with speaking_of(member.folder):
                    stats.append(_learner(member).update(batch, member.timesteps_total))
        learn_s = perf_counter() - start
        for member, own in zip(learning, stats, strict=True):
            found[id(member)] = Step.from_samples([samples[id(member)]], own, learn_s)
        return found

    def _stacked(self) -> tuple[StackedSampler, StackedPPO]:
        """What samples and learns for these members."""
        if self._parts is None or self._parts[0] != self._members:
            learner = StackedPPO([_learner(member) for member in self._members])
            sampler = StackedSampler([_sampler(member) for member in self._members], learner.network)
            self._parts = list(self._members), sampler, learner
        return self._parts[1:]


def _learner(trainer: Trainer) -> PPOLearner:
    assert isinstance(trainer.learner, PPOLearner)
    return trainer.learner


def _sampler(trainer: Trainer) -> Sampler:
    assert isinstance(trainer.workers, Worker)
    return trainer.workers.sampler
