"""Several samplers that sample together: one pass of their networks for each step, and one look at all that came of it.

Each has its own policy, environments, noise and unfinished episodes, and gets the fragment that it would have sampled
alone, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Batch, Parts, Sample
from shoal.envs.stacked_vector import StackedVector, why_not_stepped_together
from shoal.envs.vector import PythonVector, Steps
from shoal.errors import EnvError
from shoal.models.network import Array
from shoal.models.stacked_mlp import StackedMLP
from shoal.sampling.fragment import Buffers, Fragment
from shoal.sampling.sampler import Sampler


def why_not_sampled_together(sampler: object) -> str | None:
    """What keeps a sampler from sampling together with others, if anything does."""
    if type(sampler) is not Sampler:
        return "their environments do not wait for each other"
    policy = sampler.policy
    if policy.recurrence is not None:
        return "their policies have memory"
    if policy.others or policy.candidates is not None or policy.act_and_value is not None or policy.ou is not None:
        return "their policies act in a way of their own"
    return why_not_stepped_together(sampler.vector)


class StackedSampler:
    """Samples with several samplers at once."""

    def __init__(self, samplers: Sequence[Sampler], network: StackedMLP) -> None:
        self._samplers, self._network = list(samplers), network
        self._vector = StackedVector(_vectors(samplers))
        self._buffers: Buffers | None = None  # [T, S * N]

    def sample(self, steps: int) -> list[Sample | Exception]:
        """At least `steps` steps of every environment of each sampler; in place of a sample, what has ended it.

        The times of a sample are those of all.
        """
        start = perf_counter()
        buffers, parts = self._lend(steps), self._vector.parts()
        errors: list[Exception | None] = [None] * len(parts)
        fragments = self._begin(steps, errors)
        noise = _side_by_side(fragments)
        self._network.load()
        env_time_s = 0.0
        for t in range(steps):
            actions = self._act(buffers, t, noise)
            decoded = self._samplers[0].policy.action_spec.decode(actions)
            obs = tuple([part[t + 1] for part in buffers.obs])
            step = Steps(obs, buffers.rewards[t], buffers.terminated[t], buffers.truncated[t], buffers.valid[t])
            before = perf_counter()
            told = self._vector.step(decoded, step, errors)
            env_time_s += perf_counter() - before
            self._note(fragments, told, errors)
        return self._finished(fragments, errors, env_time_s, start)

    def _lend(self, steps: int) -> Buffers:
        """Room for a fragment of all, of which every sampler has its columns."""
        if self._buffers is None or self._buffers.steps != steps:
            policy = self._samplers[0].policy
            self._buffers = Buffers(policy, steps, self._vector.num_envs * len(self._samplers))
        for sampler, rows in zip(self._samplers, self._vector.parts(), strict=True):
            sampler.write_to(self._buffers.part(rows))
        return self._buffers

    def _begin(self, steps: int, errors: list[Exception | None]) -> list[Fragment | None]:
        """The fragment of every sampler; None where its environments cannot begin."""
        fragments: list[Fragment | None] = []
        for k, sampler in enumerate(self._samplers):
            try:
                fragments.append(sampler.begin_fragment(steps))
            except Exception as error:
                errors[k] = error
                fragments.append(None)
        return fragments

    def _act(self, buffers: Buffers, t: int, noise: Array) -> NDArray[Any]:
        """The next actions `[S * N, A]` of all, written down with the networks' outputs."""
        policy = self._samplers[0].policy
        obs: Parts = tuple([part[t] for part in buffers.obs])
        if policy.filter is None:
            x = policy.encoder(obs)[0]
        else:
            x = np.concatenate(self._encoded(obs))
        outputs = self._network.act(x.reshape(len(self._samplers), self._vector.num_envs, -1))
        flat = outputs.reshape(len(x), -1)
        actions = policy.distribution.sample(flat, noise[t])
        buffers.dist_inputs[t] = flat
        buffers.actions[t] = actions
        return actions

    def _encoded(self, obs: Parts) -> list[Array]:
        """The features of each policy's observations, by its own filter."""
        features = []
        for sampler, rows in zip(self._samplers, self._vector.parts(), strict=True):
            features.append(sampler.policy.encoder(tuple([part[rows] for part in obs]))[0])
        return features

    def _note(
        self, fragments: Sequence[Fragment | None], told: Sequence[Steps | None], errors: Sequence[Exception | None]
    ) -> None:
        """Count a step of every sampler that has no error, with what is special about it."""
        for k, (sampler, fragment) in enumerate(zip(self._samplers, fragments, strict=True)):
            if fragment is not None and errors[k] is None:
                sampler.note(fragment, told[k])

    def _finished(
        self,
        fragments: Sequence[Fragment | None],
        errors: Sequence[Exception | None],
        env_time_s: float,
        start: float,
    ) -> list[Sample | Exception]:
        """The sample of each, or its error."""
        found: list[Sample | Exception] = []
        for k, (sampler, fragment) in enumerate(zip(self._samplers, fragments, strict=True)):
            error = errors[k]
            if error is None and fragment is not None:
                sample = sampler.finish(fragment, env_time_s, start)
                found.append(replace(sample, batch=_of_its_own(sample.batch)))
                continue
            assert error is not None
            if isinstance(error, EnvError):
                error.incidents = sampler.incidents_so_far()
            found.append(error)
        return found


def _vectors(samplers: Sequence[Sampler]) -> list[PythonVector]:
    vectors = []
    for sampler in samplers:
        assert isinstance(sampler.vector, PythonVector)
        vectors.append(sampler.vector)
    return vectors


def _side_by_side(fragments: Sequence[Fragment | None]) -> Array:
    """The noise `[T, S * N, M]` of all; zeros for those who take no part."""
    drawn: Array | None = None
    for fragment in fragments:
        if fragment is not None:
            drawn = fragment.noise
    if drawn is None:
        return np.zeros((0, 0, 0), np.float32)
    noise = []
    for fragment in fragments:
        if fragment is None or fragment.noise is None:
            noise.append(np.zeros_like(drawn))
        else:
            noise.append(fragment.noise)
    return np.concatenate(noise, axis=1)


def _of_its_own(batch: Batch) -> Batch:
    """The batch in arrays of its own: sums run in the order in which numbers lie in memory."""
    own: dict[str, Any] = {}
    for name in ("actions", "rewards", "terminated", "truncated", "valid", "log_probs", "dist_inputs"):
        own[name] = np.ascontiguousarray(getattr(batch, name))
    own["obs"] = tuple(np.ascontiguousarray(part) for part in batch.obs)
    return replace(batch, **own)
