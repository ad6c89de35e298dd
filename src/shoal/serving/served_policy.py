"""One policy that is served: loaded from a checkpoint of anybody's, asked for many rows at once, and replaced by newer.

Reading a checkpoint runs no code: a custom model that a stranger's run names is refused, unless the user says `trust`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.batch import Parts
from shoal.errors import CheckpointError, ConfigError
from shoal.models.network import Array
from shoal.models.policy import Policy
from shoal.runs.checkpoint_folders import checkpoint_folder, checkpoints_of
from shoal.runs.checkpoints import Checkpoint, best_checkpoint, checkpoint_hash
from shoal.runs.folders import env_text, find_run
from shoal.runs.loaded_policy import find_checkpoint, policy_of, score_of
from shoal.runs.resuming import experiment_of, stored_tree
from shoal.serving.sessions import ServedEpisode
from shoal.serving.space_json import ObservationForm, action_json

TOO_LARGE = "the network's outputs are not finite: the numbers of the observation are too large"


@dataclass(frozen=True)
class PolicySource:
    """Where a policy comes from, as the user has said."""

    name: str
    path: Path  # a checkpoint or a run
    best: bool = False
    trust: bool = False
    policy_id: str | None = None

    @property
    def is_run(self) -> bool:
        """Whether there may be newer checkpoints of it."""
        return checkpoint_folder(self.path) is None


@dataclass(frozen=True)
class Loaded:
    """The policy of a checkpoint."""

    policy: Policy
    checkpoint: Path
    hash: str | None
    iteration: int
    algorithm: str
    env: str


@dataclass(frozen=True)
class Question:
    """The rows of one request: encoded observations, how to choose, and what each row remembers."""

    parts: Parts  # each [n, ...]
    explore: bool
    sessions: tuple[ServedEpisode, ...] = ()  # one for each row, or none without memory
    prev_rewards: tuple[float | None, ...] = ()

    @property
    def num_rows(self) -> int:
        """How many observations it has."""
        return len(self.parts[0])


@dataclass(frozen=True)
class ChosenActions:
    """The actions of one request as JSON has them, and which checkpoint has chosen them; or why there are none."""

    actions: list[Any]
    iteration: int
    refusal: str | None = None


class ServedPolicy:
    """A policy under a name. One thread at a time asks it; a newer one takes its place between two batches."""

    def __init__(self, source: PolicySource) -> None:
        self.source = source
        self.loaded = load(source)
        self.form = ObservationForm(self.policy.obs_spec)
        self._rng = np.random.default_rng()

    @property
    def name(self) -> str:
        """What it is called in addresses."""
        return self.source.name

    @property
    def policy(self) -> Policy:
        """The policy that acts now."""
        return self.loaded.policy

    @property
    def has_memory(self) -> bool:
        """Whether each step needs the session of its episode."""
        return self.policy.recurrence is not None

    @property
    def uses_prev_reward(self) -> bool:
        """Whether a step is told the reward of the one before."""
        recurrence = self.policy.recurrence
        return recurrence is not None and recurrence.previous.with_reward

    def newer(self) -> Loaded | None:
        """The checkpoint that should act instead, read and checked; None if there is none."""
        path = _wanted(self.source)
        if path is None or checkpoint_hash(path) == self.loaded.hash:
            return None
        found = load(self.source)
        if found.hash == self.loaded.hash:
            return None
        mine, theirs = self.policy, found.policy
        same = mine.obs_spec.space == theirs.obs_spec.space and mine.action_spec.space == theirs.action_spec.space
        if not same or mine.obs_spec.shapes != theirs.obs_spec.shapes or _memory(mine) != _memory(theirs):
            raise CheckpointError(f"{found.checkpoint} has other observations, actions or memory; start it anew.")
        return found

    def rows_of(self, observations: Sequence[Any], name: str) -> Parts:
        """Observations from JSON as rows; a ValueError says which does not fit."""
        spec = self.policy.obs_spec
        rows = spec.allocate(len(observations))
        places = [name] if name == "observation" else [f"{name}[{row}]" for row in range(len(observations))]
        found = [self.form.parsed(value, where) for value, where in zip(observations, places, strict=True)]
        try:
            spec.put_all(found, rows)
            is_fine = spec.problem(rows) is None
        except Exception:  # which `put` tells in words
            is_fine = False
        if is_fine:
            return rows
        for row, (obs, where) in enumerate(zip(found, places, strict=True)):
            try:
                spec.put(obs, rows, row)
            except ValueError as error:
                raise ValueError(str(error).replace("observation", where, 1)) from None
        return rows

    def answer(self, questions: Sequence[Question]) -> list[ChosenActions]:
        """The actions of several requests, by one pass of the network."""
        loaded = self.loaded
        policy = loaded.policy
        parts = questions[0].parts
        if len(questions) > 1:
            parts = tuple(np.concatenate(pieces) for pieces in zip(*(each.parts for each in questions), strict=True))
        with np.errstate(all="ignore"):  # what is not finite is looked for below
            outputs, states = self._outputs(policy, parts, questions)
        is_finite = np.asarray(np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1))
        remembers_actions = policy.recurrence is not None and policy.recurrence.previous.with_action
        found: list[ChosenActions] = []
        begin = 0
        for question in questions:
            rows = slice(begin, begin + question.num_rows)
            begin = rows.stop
            if not is_finite[rows].all():
                found.append(ChosenActions([], loaded.iteration, TOO_LARGE))
                continue
            actions = self._chosen(policy, outputs[rows], question.explore)
            for at, session in enumerate(question.sessions):
                session.state = [part[rows.start + at].copy() for part in states]
                session.prev_action = actions[at] if remembers_actions else None
            found.append(ChosenActions([action_json(action) for action in actions], loaded.iteration))
        return found

    def _outputs(self, policy: Policy, parts: Parts, questions: Sequence[Question]) -> tuple[Array, tuple[Array, ...]]:
        """What the network puts out for each row, and with memory the states after."""
        inputs = policy.encoder(parts)
        if policy.recurrence is None:
            return policy.network.act(inputs), ()
        recurrence = policy.recurrence
        sessions = [session for question in questions for session in question.sessions]
        rewards = [reward for question in questions for reward in question.prev_rewards]
        before = recurrence.previous.from_env([session.prev_action for session in sessions], rewards)
        states = [policy.get_initial_state() if session.state is None else session.state for session in sessions]
        outputs, after = recurrence.step((*inputs, before), recurrence.stacked(states))
        return outputs, after

    def _chosen(self, policy: Policy, outputs: Array, explore: bool) -> list[Any]:
        if explore:
            rows = policy.distribution.sample(outputs, policy.noise(self._rng, len(outputs)))
        else:
            rows = policy.distribution.mode(outputs)
        return list(policy.action_spec.decode(rows))


def load(source: PolicySource) -> Loaded:
    """Read a checkpoint and build its policy; what cannot be served is a ConfigError."""
    checkpoint = find_checkpoint(source.path, source.best)
    experiment, _ = experiment_of(checkpoint.experiment_tree, source.trust)
    config = experiment.config
    if config.policy:
        raise ConfigError(f"{experiment.run}: a policy of RLlib's cannot be served; train with an algorithm of shoal's")
    names = config.multiagent.names
    if source.policy_id is None and len(names) > 1:
        choices = " or ".join(f"--policy-id {name}" for name in names)
        raise ConfigError(f"{source.path} has several policies; serve one of them: {choices}")
    policy = policy_of(checkpoint, trust=source.trust, policy_id=source.policy_id)
    return Loaded(
        policy,
        checkpoint.path,
        checkpoint_hash(checkpoint.path),
        _iteration(checkpoint),
        experiment.run,
        env_text(config.env),
    )


def _iteration(checkpoint: Checkpoint) -> int:
    return int(checkpoint.summary["training_iteration"])


def _wanted(source: PolicySource) -> Path | None:
    """The newest or best checkpoint of a run by its name alone; nothing of it is read."""
    if not source.is_run:
        return None
    run = find_run(source.path)
    if source.best:
        return best_checkpoint(run, score_of(stored_tree(run) or {}))
    return next(iter(checkpoints_of(run)), None)


def _memory(policy: Policy) -> Any:
    """The form of what a policy remembers."""
    recurrence = policy.recurrence
    if recurrence is None:
        return None
    return [part.shape for part in recurrence.initial_state], recurrence.previous.size


def observation_bytes(policy: Policy) -> int:
    """About the most bytes of one observation as JSON: some 26 for each number."""
    return 26 * sum(math.prod(shape) for shape in policy.obs_spec.shapes) + 200
