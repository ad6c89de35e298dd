"""A policy meets environments: the loop that acts, steps and writes arrays `[T, N]`.

Every environment has its own stream of action noise by its global index, so what is sampled does not depend on how
environments are spread over workers. Nothing is allocated per step; log-probabilities are computed for the whole
fragment at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Batch, Parts, Sample
from shoal.data.state import State
from shoal.data.streams import Stream, generator
from shoal.envs.isolated import IsolatedVector
from shoal.envs.vector import Steps, Vector
from shoal.errors import EnvError
from shoal.models.policy import Policy
from shoal.sampling.ready_first import sample_ready_first
from shoal.sampling.recurrent_state import Carrier, OwnPaceCarrier

MOST_REPLAYED_STEPS = 20_000
LONGEST_EPISODE = 1_000_000


class Buffers:
    """Room for T steps of N environments, and one more row for the observations that follow."""

    def __init__(self, policy: Policy, steps: int, num_envs: int) -> None:
        self.steps = steps
        lead = (steps, num_envs)
        self.obs = policy.obs_spec.allocate(steps + 1, num_envs)
        self.actions = np.zeros((*lead, policy.action_spec.size), policy.action_spec.dtype)
        # Who learns from no probabilities pays nothing for them.
        self.dist_inputs = np.zeros((*lead, policy.distribution.num_inputs if policy.is_stochastic else 0), np.float32)
        self.rewards = np.zeros(lead, np.float32)
        self.terminated = np.zeros(lead, bool)
        self.truncated = np.zeros(lead, bool)
        self.valid = np.ones(lead, bool)

    def grown(self, policy: Policy, steps: int) -> Buffers:
        """A longer copy, for episodes that do not end where the fragment does."""
        new = Buffers(policy, steps, self.rewards.shape[1])
        for name in ("actions", "dist_inputs", "rewards", "terminated", "truncated", "valid"):
            getattr(new, name)[: self.steps] = getattr(self, name)
        for mine, theirs in zip(new.obs, self.obs, strict=True):
            mine[: self.steps + 1] = theirs
        return new


class Sampler:
    """Samples fragments from a vector of environments with a policy; keeps unfinished episodes between calls."""

    def __init__(self, policy: Policy, vector: Vector, seed: int, first_index: int = 0) -> None:
        self.policy, self.vector = policy, vector
        self.num_envs = vector.num_envs
        self._indices = range(first_index, first_index + self.num_envs)
        self._noise = [generator(seed, Stream.ACTIONS, index) for index in self._indices]
        self._last_noise = self._first_noise()
        self._current: Parts = policy.obs_spec.allocate(self.num_envs)  # where the next actions are taken
        self._histories: list[list[NDArray[Any]] | None] = self._no_histories()
        self._history_steps = [0] * self.num_envs
        kind = OwnPaceCarrier if isinstance(vector, IsolatedVector) else Carrier
        self.carrier = None if policy.recurrence is None else kind(policy.recurrence, self.num_envs)
        self._buffers: Buffers | None = None
        self._started = False
        self.steps_sampled = 0  # for who looks on from another thread
        self.note_last_actions: Callable[[], int] = int  # into the incidents of a fragment that was not finished

    def sample(self, steps: int, explore: bool = True, complete_episodes: bool = False) -> Sample:
        """At least `steps` steps of every environment; with `complete_episodes`, on to the end of its episode."""
        policy, vector, carrier = self.policy, self.vector, self.carrier
        if isinstance(vector, IsolatedVector):
            return sample_ready_first(self, vector, steps, explore, complete_episodes)
        buffers = self.begin_fragment(steps)
        actor = policy.network if carrier is None else carrier
        noise = self.draw_noise(steps) if explore else None
        finals: list[tuple[int, int, Parts]] = []
        seeded_at: dict[int, int] = {}
        active: NDArray[np.bool_] | None = None
        env_time = 0.0
        noted = 0  # incidents that have their actions
        self.note_last_actions = lambda: self.note_actions(noted, buffers, np.full(self.num_envs, t + 1), seeded_at)
        start = perf_counter()
        t = 0
        while True:
            obs = tuple(part[t] for part in buffers.obs)
            inputs = actor.act(policy.encoder(obs))
            if policy.is_stochastic:
                buffers.dist_inputs[t] = inputs
            if noise is None:
                actions = policy.distribution.mode(inputs)
            else:
                actions = policy.distribution.sample(inputs, noise[t % steps])
            buffers.actions[t] = actions
            out = Steps(
                tuple(part[t + 1] for part in buffers.obs),
                buffers.rewards[t],
                buffers.terminated[t],
                buffers.truncated[t],
                buffers.valid[t],
            )
            before = perf_counter()
            vector.step(actions, active, out)
            env_time += perf_counter() - before
            if carrier is not None:
                carrier.follow(actions, out)
            for row, last in out.finals:
                finals.append((t, row, last))
            for row in out.failed:
                self.cut_before_failure(buffers, t, row, finals)
            if len(vector.incidents) > noted:
                noted = self.note_actions(noted, buffers, np.full(self.num_envs, t + 1), seeded_at)
            for row in out.seeded:
                seeded_at[row] = t + 1
            if active is not None:
                for part in buffers.obs:
                    part[t + 1][~active] = part[t][~active]
            t += 1
            self.steps_sampled += self.num_envs
            if t < steps:
                continue
            if not complete_episodes:
                break
            ended = (buffers.terminated[t - 1] | buffers.truncated[t - 1]) & buffers.valid[t - 1]
            active = ~ended if active is None else active & ~ended
            if not active.any():
                break
            if t == buffers.steps:
                if t > LONGEST_EPISODE:
                    raise EnvError(
                        f"an episode did not end within {t} steps, and batch_mode is complete_episodes; set `horizon`"
                    )
                buffers = buffers.grown(policy, 2 * t)
            if noise is not None and t % steps == 0:
                noise = self.draw_noise(steps, active)
        return self.finish_fragment(buffers, t, finals, seeded_at, env_time, perf_counter() - start)

    def begin_fragment(self, steps: int) -> Buffers:
        """Room for a fragment, with the observations in it that its first actions are taken at."""
        if not self._started:
            self.vector.reset(self._current)
            self._started = True
        buffers = self._buffers
        if buffers is None or buffers.steps != steps:
            buffers = self._buffers = Buffers(self.policy, steps, self.num_envs)
        for part, current in zip(buffers.obs, self._current, strict=True):
            part[0] = current
        buffers.valid[:] = True
        if self.carrier is not None:
            self.carrier.begin_fragment()
        return buffers

    def finish_fragment(
        self,
        buffers: Buffers,
        steps: int,
        finals: list[tuple[int, int, Parts]],
        seeded_at: dict[int, int],
        env_time_s: float,
        time_s: float,
    ) -> Sample:
        """What a fragment gives, after it is remembered where each environment stands."""
        vector = self.vector
        batch = self._batch(buffers, steps, finals)
        self._remember(batch, buffers, steps, seeded_at)
        episodes, incidents = vector.episodes[:], vector.incidents[:]
        vector.episodes.clear()
        vector.incidents.clear()
        return Sample(
            batch=batch,
            num_steps=batch.num_steps,
            episodes=episodes,
            incidents=incidents,
            env_time_s=env_time_s,
            policy_time_s=time_s - env_time_s,
        )

    def get_state(self) -> State:
        """Counters, noise streams, current observations, and the actions of every unfinished episode."""
        lengths = [-1 if h is None else sum(len(piece) for piece in h) for h in self._histories]
        pieces = [piece for h in self._histories if h for piece in h]
        spec = self.policy.action_spec
        empty = np.zeros((0, spec.size), spec.dtype)
        carried = {} if self.carrier is None else self.carrier.get_state().arrays
        return State(
            {
                "started": self._started,
                "vector": self.vector.get_state(),
                "history_lengths": lengths,
                "noise": [rng.bit_generator.state for rng in self._noise],
            },
            {
                "history": np.concatenate([empty, *pieces]),
                **({} if self.policy.ou is None else {"last_noise": self._last_noise.copy()}),
                **{f"current{k}": part.copy() for k, part in enumerate(self._current)},
                **carried,
            },
        )

    def set_state(self, state: State, replay: bool = True) -> int:
        """Take over a saved state; returns how many unfinished episodes could not be brought back and begin anew."""
        for rng, saved in zip(self._noise, state.values["noise"], strict=True):
            rng.bit_generator.state = saved
        if "last_noise" in state.arrays and self.policy.ou is not None:
            self._last_noise[:] = state.arrays["last_noise"]
        self._started = bool(state.values["started"])
        self.vector.set_state(state.values["vector"])
        self._histories = self._no_histories()
        self._history_steps = [0] * self.num_envs
        if self.carrier is not None:
            self.carrier.set_state(state)
        if not self._started:
            return 0
        lengths = [int(n) for n in state.values["history_lengths"]]
        ends = np.cumsum(np.maximum(lengths, 0))
        histories = [
            None if n < 0 or not replay else state.arrays["history"][end - n : end]
            for n, end in zip(lengths, ends, strict=True)
        ]
        brought_back = self.vector.replay(histories, self._current)
        if self.carrier is not None:
            self.carrier.begin(np.flatnonzero(~np.array(brought_back)))
        lost = 0
        for row, (history, same) in enumerate(zip(histories, brought_back, strict=True)):
            if same and history is not None:
                self._histories[row], self._history_steps[row] = [history], len(history)
                saved_row = [state.arrays[f"current{k}"][row] for k in range(len(self._current))]
                same = all(np.array_equal(part[row], old) for part, old in zip(self._current, saved_row, strict=True))
            lost += not same
        return lost

    def close(self) -> None:
        """Close the environments."""
        self.vector.close()

    def _no_histories(self) -> list[list[NDArray[Any]] | None]:
        return [[] if self.vector.can_replay else None for _ in range(self.num_envs)]

    def draw_noise(self, steps: int, active: NDArray[np.bool_] | None = None) -> NDArray[np.float32]:
        """Noise for `steps` steps, `[steps, N, M]`.

        Who has ended draws none: how far a stream has come must not depend on how long the others take.
        """
        policy = self.policy
        noise = np.zeros((steps, self.num_envs, policy.distribution.num_noise), np.float32)
        for row in range(self.num_envs) if active is None else active.nonzero()[0].tolist():
            noise[:, row] = policy.noise(self._noise[row], steps, self._indices[row])
        if policy.ou is not None:
            rows = slice(None) if active is None else active
            drawn, last = noise[:, rows], self._last_noise[rows]
            policy.ou.correlate(drawn, last)
            noise[:, rows], self._last_noise[rows] = drawn, last
        return noise

    def _first_noise(self) -> NDArray[np.float32]:
        """Where correlated noise begins, `[N, C]`; where there is none, nothing is drawn."""
        policy = self.policy
        if policy.ou is None:
            return np.zeros((self.num_envs, 0), np.float32)
        return np.stack([policy.noise(rng, 1)[0, policy.ou.columns] for rng in self._noise])

    def cut_before_failure(self, buffers: Buffers, t: int, row: int, finals: list[tuple[int, int, Parts]]) -> None:
        """The failed step is no transition; the one before it becomes the last of a truncated episode."""
        buffers.rewards[t, row] = 0.0
        if t and buffers.valid[t - 1, row] and not (buffers.terminated[t - 1, row] or buffers.truncated[t - 1, row]):
            buffers.truncated[t - 1, row] = True
            finals.append((t - 1, row, tuple(part[t, row].copy() for part in buffers.obs)))

    def note_actions(self, first: int, buffers: Buffers, times: NDArray[np.int64], seeded_at: dict[int, int]) -> int:
        """Put the actions since the seed into the incidents from the `first` on; returns how many incidents there are.

        `times` are the actions that rows have taken. It is called before the episodes that follow the failures count as
        begun with a seed.
        """
        incidents = self.vector.incidents
        for place in range(first, len(incidents)):
            incident = incidents[place]
            row = incident.env_index - self._indices.start
            count = incident.steps_since_seed
            before = [] if row in seeded_at else self._histories[row]
            if before is None:
                continue
            begin, end = seeded_at.get(row, 0), int(times[row])
            taken = np.concatenate([*before, buffers.actions[begin:end, row]])
            if count <= len(taken):
                # The last action is the one that failed, or that ended the episode before a reset that did.
                incidents[place] = replace(incident, actions=taken[len(taken) - count :])
        return len(incidents)

    def _batch(self, b: Buffers, steps: int, finals: list[tuple[int, int, Parts]]) -> Batch:
        policy = self.policy
        goes_on = np.flatnonzero(~(b.terminated[steps - 1] | b.truncated[steps - 1]))
        final_at = np.array([(t, row) for t, row, _ in finals], np.int64).reshape(-1, 2)
        last = np.stack([np.full(len(goes_on), steps - 1), goes_on], axis=1)
        final_obs = tuple(
            np.concatenate([np.stack([parts[k] for _, _, parts in finals]), part[steps][goes_on]])
            if finals
            else part[steps][goes_on]
            for k, part in enumerate(b.obs)
        )
        log_probs = np.zeros((steps, self.num_envs), np.float32)
        if policy.is_stochastic:
            rows = steps * self.num_envs
            evaluation = policy.distribution.evaluate(
                b.dist_inputs[:steps].reshape(rows, -1), b.actions[:steps].reshape(rows, -1)
            )
            log_probs = evaluation.log_prob.reshape(steps, self.num_envs)
        final_at = np.concatenate([final_at, last])
        order = np.lexsort(final_at.T[::-1])
        return Batch(
            obs=tuple(part[:steps] for part in b.obs),
            actions=b.actions[:steps],
            rewards=b.rewards[:steps],
            terminated=b.terminated[:steps],
            truncated=b.truncated[:steps],
            valid=b.valid[:steps],
            log_probs=log_probs,
            dist_inputs=b.dist_inputs[:steps],
            final_obs=tuple(part[order] for part in final_obs),
            final_at=final_at[order],
            carried=None if self.carrier is None else self.carrier.record(final_at[order]),
        )

    def _remember(self, batch: Batch, buffers: Buffers, steps: int, seeded_at: dict[int, int]) -> None:
        """Keep where each environment stands, and its actions since its last seed, so that a resumed run can follow."""
        for current, part in zip(self._current, buffers.obs, strict=True):
            current[:] = part[steps]
        all_valid = bool(batch.valid.all())
        for row in range(self.num_envs):
            begin = seeded_at.get(row, 0)
            if row in seeded_at:
                self._histories[row], self._history_steps[row] = [], 0
            history = self._histories[row]
            if history is None:
                continue
            taken = batch.actions[begin:, row]
            # Rows that are no transitions after the last seed are those of an environment at rest.
            taken = taken.copy() if all_valid else taken[batch.valid[begin:, row]]
            history.append(taken)
            self._history_steps[row] += len(taken)
            if self._history_steps[row] > MOST_REPLAYED_STEPS:
                self._histories[row] = None
