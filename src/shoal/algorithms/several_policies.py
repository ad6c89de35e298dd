"""Several policies in one environment: each trained one has a learner of its own, and all learn from one sample.

Learners are independent: to each, the other agents are a part of its environment. Policies that are not trained stay as
they are, or play as a past self of a trained one (`self_play`), drawn anew in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from shoal.algorithms.off_policy import IsOver, IterationProgress
from shoal.config.off_policy import OffPolicyConfig
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Batch, Step
from shoal.data.state import State
from shoal.data.streams import Stream, generator
from shoal.errors import ConfigError
from shoal.models.policy import Policy
from shoal.parallel.group import Alone, Group
from shoal.parallel.learner import Learner
from shoal.parallel.workers import Workers, check_usable


class SeveralLearners:
    """A learner for each policy that is trained; `policy` is the first of all, with the others."""

    def __init__(
        self, config: AlgorithmConfig, policy: Policy, make: Callable[[AlgorithmConfig, Policy, Group], Learner]
    ) -> None:
        self.config = config
        self.is_over: IsOver | None = None  # whether the run ends with a fragment, and so its iteration early
        self.policies = {config.multiagent.names[0]: policy, **policy.others}
        idle = [name for name in config.multiagent.names if name not in self.policies]
        if idle:
            raise ConfigError(f"config.multiagent.policies: the environment has one agent; leave {', '.join(idle)} out")
        self.learners: dict[str, Any] = {}
        for name in config.multiagent.trained:
            self.learners[name] = make(config.for_policy(name), self.policies[name], Alone())
        self.pool = None if config.multiagent.self_play.learner is None else OpponentPool(config, self.policies)

    def training_step(self, workers: Workers, timesteps_total: int) -> Step:
        """Sample all agents together, and let each policy learn from its own."""
        stats: dict[str, float] = {}
        if self.pool is not None:
            stats = self.pool.choose_opponent()
        if isinstance(self.config, OffPolicyConfig):
            return self._learn_in_rounds(workers, timesteps_total, stats)
        sample = workers.sample(self.config.steps_per_iteration)
        check_usable(sample)
        start = perf_counter()
        for name, learner in self.learners.items():
            batch = self._batch_of(name, sample.batch)
            if batch.num_steps:  # an agent may not have been there at all
                stats |= _named(name, learner.update(batch, timesteps_total))
        return Step.from_samples([sample], stats, perf_counter() - start)

    def get_state(self) -> State:
        """The state of every learner, and of the pool."""
        parts: dict[str, Any] = {name: learner.get_state() for name, learner in self.learners.items()}
        learners = State.of(**parts)
        return (
            State.of(learners=learners)
            if self.pool is None
            else State.of(learners=learners, pool=self.pool.get_state())
        )

    def set_state(self, state: State) -> None:
        """Take over saved learners and a saved pool."""
        saved = state.part("learners")
        for name, learner in self.learners.items():
            if name in saved.values:  # who was not trained then begins now
                learner.set_state(saved.part(name))
        if self.pool is not None and "pool" in state.values:
            self.pool.set_state(state.part("pool"))

    def _learn_in_rounds(self, workers: Workers, timesteps_total: int, stats: dict[str, float]) -> Step:
        """Rounds of a short fragment and of updates, as each of the learners would take them alone."""
        config = self.config
        assert isinstance(config, OffPolicyConfig)
        whole = IterationProgress(timesteps_total)
        progress = {name: IterationProgress(timesteps_total) for name in self.learners}
        with ExitStack() as guards:
            for learner in self.learners.values():
                guards.enter_context(learner.guarded())
            for _ in range(config.rounds_per_iteration):
                for learner in self.learners.values():
                    learner.explore(whole.timesteps)
                sample = workers.sample(config.fragment_length)
                start = perf_counter()
                for name, learner in self.learners.items():
                    batch = self._batch_of(name, sample.batch)
                    if batch.num_steps:
                        learner.learn_from(batch, progress[name])
                whole.samples.append(sample.summary)
                whole.timesteps += sample.num_steps
                whole.learn_time_s += perf_counter() - start
                if self.is_over is not None and self.is_over(whole.timesteps, whole.samples):
                    break
            check_usable(*whole.samples)
        for name, learner in self.learners.items():
            stats |= _named(name, learner.results(progress[name], timesteps_total))
        return Step.from_samples(whole.samples, stats, whole.learn_time_s)

    def _batch_of(self, name: str, batch: Batch) -> Batch:
        """The steps of one policy's agents."""
        if name == self.config.multiagent.names[0]:
            return batch
        assert batch.others is not None
        return batch.others[name]


class OpponentPool:
    """Past selves of a policy that learns, one of which its opponent plays as."""

    def __init__(self, config: AlgorithmConfig, policies: dict[str, Policy]) -> None:
        self.settings, self._seed = config.multiagent.self_play, config.seed
        assert self.settings.learner is not None
        assert self.settings.opponent is not None
        self._learner, self._opponent = policies[self.settings.learner], policies[self.settings.opponent]
        self.iteration = 0
        self.selves: list[State] = []

    def choose_opponent(self) -> dict[str, float]:
        """Keep the learner as it is where that is due, and draw who the opponent is in this iteration."""
        settings = self.settings
        if self.iteration % settings.snapshot_interval == 0:
            self.selves = [*self.selves, self._learner.own_state()][-settings.pool_size :]
        rng = generator(self._seed, Stream.OPPONENTS, self.iteration)
        is_latest = rng.random() < settings.latest_probability
        drawn = int(rng.integers(len(self.selves)))
        self._opponent.set_state(self._learner.own_state() if is_latest else self.selves[drawn])
        self.iteration += 1
        return {f"{settings.opponent}/pool_size": float(len(self.selves))}

    def get_state(self) -> State:
        """The past selves."""
        return State.of(iteration=self.iteration, **{f"self{k}": state for k, state in enumerate(self.selves)})

    def set_state(self, state: State) -> None:
        """Take over saved past selves."""
        self.iteration = int(state.values["iteration"])
        self.selves = state.parts("self")


def _named(policy: str, stats: dict[str, float]) -> dict[str, float]:
    return {f"{policy}/{name}": value for name, value in stats.items()}
