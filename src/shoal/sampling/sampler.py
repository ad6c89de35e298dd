"""A policy meets environments: the loop that acts, steps and writes arrays `[T, N]`.

Every environment has its own stream of action noise by its global index, so what is sampled does not depend on how
environments are spread over workers. Nothing is allocated per step; log-probabilities are computed for the whole
fragment at once.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Batch, Incident, Parts, Sample
from shoal.data.state import State
from shoal.data.streams import Stream, generator
from shoal.envs.vector import Steps, Vector
from shoal.models.distributions import Categorical
from shoal.models.network import Array, Inputs
from shoal.models.policy import Policy
from shoal.sampling.fragment import Buffers, Fragment
from shoal.sampling.recurrent_state import RecurrentActor

MOST_REPLAYED_STEPS = 20_000
STEPS_BETWEEN_LOOKS = 4096  # at whether observations are in their space, which costs about as much as a step
LARGEST_OUTPUT = 1e10  # of parameters that overflow: far beyond any action, and far from what a mask puts in its place


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
        self.recurrent = None if policy.recurrence is None else RecurrentActor(policy.recurrence, self.num_envs)
        self._buffers: Buffers | None = None
        self._fragment: Fragment | None = None
        self._started = False
        self.steps_sampled = 0  # for who looks on from another thread
        self._next_look = 0.0  # the number of steps at which observations are compared with their space

    def sample(self, steps: int, explore: bool = True, complete_episodes: bool = False) -> Sample:
        """At least `steps` steps of every environment; with `complete_episodes`, on to the end of its episode."""
        fragment = self.begin_fragment(steps, explore)
        env_time_s = 0.0
        start = perf_counter()
        while fragment.taken < steps or (complete_episodes and self._episodes_go_on(fragment, steps)):
            actions = self._act(fragment)
            step = fragment.next_step()
            before = perf_counter()
            self.vector.step(actions, fragment.active, step)
            env_time_s += perf_counter() - before
            if self.recurrent is not None:
                self.recurrent.follow(actions, step)
            self.note(fragment, step)
        return self.finish(fragment, env_time_s, start)

    def begin_fragment(self, steps: int, explore: bool = True) -> Fragment:
        """A fragment to be filled with steps of every environment."""
        noise = self.draw_noise(steps) if explore else None
        self._fragment = Fragment(self.policy, self._begin(steps), self._current, noise)
        return self._fragment

    def note(self, fragment: Fragment, step: Steps | None) -> None:
        """Count a step that was written to a fragment, and note what is special about it; None: nothing is."""
        if self.vector.incidents:
            self._add_actions_to_incidents(fragment)
        if step is None:
            fragment.taken += 1
        else:
            fragment.add(step)
        self.steps_sampled += self.num_envs

    def write_to(self, buffers: Buffers) -> None:
        """Write fragments of their length to these arrays from now on."""
        self._buffers = buffers

    def incidents_so_far(self) -> list[Incident]:
        """The failures of a fragment that could not be finished, with the actions that led to them."""
        if self._fragment is not None:
            self._add_actions_to_incidents(self._fragment)
        return self.vector.incidents[:]

    def get_state(self) -> State:
        """Counters, noise streams, current observations, and the actions of every unfinished episode."""
        spec = self.policy.action_spec
        lengths = []
        pieces = [np.zeros((0, spec.size), spec.dtype)]
        for history, count in zip(self._histories, self._history_steps, strict=True):
            lengths.append(-1 if history is None else count)
            pieces += history or []
        values = {
            "started": self._started,
            "vector": self.vector.get_state(),
            "history_lengths": lengths,
            "noise": [rng.bit_generator.state for rng in self._noise],
        }
        arrays = {"history": np.concatenate(pieces)}
        told: dict[str, Any] = {}
        for row, env_state in enumerate(self._env_states()):
            if env_state is not None:
                told[str(row)] = env_state.values
                arrays[f"env_state{row}"] = env_state.arrays["bytes"]
        if told:
            values["env_states"] = told
        if self.policy.ou is not None:
            arrays["last_noise"] = self._last_noise.copy()
        for k, part in enumerate(self._current):
            arrays[f"current{k}"] = part.copy()
        if self.recurrent is not None:
            arrays |= self.recurrent.get_state().arrays
        return State(values, arrays)

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
        if self.recurrent is not None:
            self.recurrent.set_state(state)
        if not self._started:
            return 0
        histories: list[NDArray[Any] | None] = [None] * self.num_envs
        env_states: list[State | None] = [None] * self.num_envs
        if replay:
            histories, env_states = _saved_histories(state), _saved_env_states(state, self.num_envs)
        for k, part in enumerate(self._current):
            part[:] = state.arrays[f"current{k}"]
        brought_back = self.vector.bring_back(env_states, histories, self._current)
        if self.recurrent is not None:
            self.recurrent.begin(np.flatnonzero(~np.array(brought_back)))
        lost = 0
        for row, history in enumerate(histories):
            is_back = brought_back[row]
            if is_back and history is None:
                self._histories[row] = None  # it has its state, and nobody knows its actions
            elif is_back and history is not None:
                self._histories[row], self._history_steps[row] = [history], len(history)
                is_back = self._stands_where_saved(row, state)
            lost += not is_back
        return lost

    def close(self) -> None:
        """Close the environments."""
        self.vector.close()

    def _begin(self, steps: int) -> Buffers:
        """The buffers of a new fragment, those of the one before if it was as long; environments have begun."""
        if not self._started:
            self.vector.reset(self._current)
            self._started = True
        if self._buffers is None or self._buffers.steps != steps:
            self._buffers = Buffers(self.policy, steps, self.num_envs)
        if self.recurrent is not None:
            self.recurrent.begin_fragment()
        return self._buffers

    def finish(self, fragment: Fragment, env_time_s: float, start: float) -> Sample:
        """What a fragment gives, after it is remembered where each environment stands."""
        batch = fragment.batch(self.recurrent)
        self._remember(batch, fragment)
        self._fragment = None
        policy_time_s = perf_counter() - start - env_time_s
        episodes, incidents = self.vector.episodes[:], self.vector.incidents[:]
        self.vector.episodes.clear()
        self.vector.incidents.clear()
        return Sample(
            batch=batch,
            num_steps=batch.num_steps,
            episodes=episodes,
            incidents=incidents,
            env_time_s=env_time_s,
            policy_time_s=policy_time_s,
            notes=self._notes(batch),
        )

    def _notes(self, batch: Batch) -> tuple[str, ...]:
        """What is odd about a fragment, if it is time to look and nothing was found before."""
        if self.steps_sampled < self._next_look:
            return ()
        self._next_look = self.steps_sampled + STEPS_BETWEEN_LOOKS
        found = self.policy.obs_spec.outside(batch.obs)
        if found is not None and not batch.valid.all():  # rows without a transition may hold anything
            found = self.policy.obs_spec.outside(tuple(part[batch.valid] for part in batch.obs))
        if found is None:
            return ()
        self._next_look = inf
        return (f"{found}; training uses it as it is: widen the space, or scale the observation",)

    def _act(self, fragment: Fragment) -> NDArray[Any]:
        """The actions of the fragment's next step, written down with the network's outputs."""
        policy, buffers, t = self.policy, fragment.buffers, fragment.taken
        obs = policy.encoder(tuple([part[t] for part in buffers.obs]))
        if policy.candidates is not None:
            outputs = self._outputs_of_candidates(obs)
        elif policy.act_and_value is not None and buffers.values is not None:
            outputs, buffers.values[t] = policy.act_and_value(obs)
        else:
            actor = policy.network if self.recurrent is None else self.recurrent
            outputs = actor.act(obs)
        if policy.num_kept_outputs:
            buffers.dist_inputs[t] = outputs
        if fragment.noise is None:
            actions = policy.distribution.mode(outputs)
        else:
            actions = policy.distribution.sample(outputs, fragment.noise[t % len(fragment.noise)])
        buffers.actions[t] = actions
        return actions

    def _outputs_of_candidates(self, inputs: Inputs) -> Array:
        """The outputs `[N, K]` of each environment's own parameters, which may be so large that they overflow."""
        candidates = self.policy.candidates
        assert candidates is not None
        with np.errstate(over="ignore", invalid="ignore"):
            outputs = self.policy.network.act_with(inputs, candidates[self._indices.start : self._indices.stop])
        return np.nan_to_num(outputs, copy=False, posinf=LARGEST_OUTPUT, neginf=-LARGEST_OUTPUT)

    def _episodes_go_on(self, fragment: Fragment, steps: int) -> bool:
        """Whether some episode is not complete yet; who has completed its own rests, and needs no noise."""
        if not fragment.rest_where_ended():
            return False
        if fragment.noise is not None and fragment.taken % steps == 0:
            fragment.noise = self.draw_noise(steps, fragment.active)
        return True

    def _env_states(self) -> list[State | None]:
        """What environments say of where they stand.

        They have gone past the place that is remembered here where a fragment was cut short: then their actions tell.
        """
        if not self._started or self._fragment is not None:
            return [None] * self.num_envs
        return self.vector.env_states()

    def _no_histories(self) -> list[list[NDArray[Any]] | None]:
        if not self.vector.can_replay:
            return [None] * self.num_envs
        return [[] for _ in range(self.num_envs)]

    def _stands_where_saved(self, row: int, state: State) -> bool:
        """Whether following the saved actions has led an environment to the saved observation."""
        for k, part in enumerate(self._current):
            stands_there = np.array_equal(part[row], state.arrays[f"current{k}"][row])
            if not stands_there:
                return False
        return True

    def draw_noise(self, steps: int, active: NDArray[np.bool_] | None = None) -> NDArray[np.float32]:
        """Noise for `steps` steps, `[steps, N, M]`.

        Who has ended draws none: how far a stream has come must not depend on how long the others take.
        """
        policy = self.policy
        noise = np.zeros((steps, self.num_envs, policy.distribution.num_noise), np.float32)
        drawing = range(self.num_envs) if active is None else active.nonzero()[0].tolist()
        if type(policy.distribution) is Categorical:  # whose calls, one for each environment, would be felt
            found = policy.distribution.noise_of_all([self._noise[row] for row in drawing], steps)
            noise[:, drawing] = found.transpose(1, 0, 2)
        else:
            for row in drawing:
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

    def _add_actions_to_incidents(self, fragment: Fragment) -> None:
        """Put the actions since the seed into the incidents that do not have them yet.

        It is called before the episodes that follow the failures count as begun with a seed.
        """
        incidents = self.vector.incidents
        for place in range(fragment.num_incidents, len(incidents)):
            incident = incidents[place]
            row = incident.env_index - self._indices.start
            actions = self._actions_since_seed(fragment, row)
            if actions is not None and incident.steps_since_seed <= len(actions):
                # The last action is the one that failed, or that ended the episode before a reset that did.
                first = len(actions) - incident.steps_since_seed
                incidents[place] = replace(incident, actions=actions[first:])
        fragment.num_incidents = len(incidents)

    def _actions_since_seed(self, fragment: Fragment, row: int) -> NDArray[Any] | None:
        """Every action of an environment since its last seed, `[n, A]`; None where they were too many to keep."""
        before = self._histories[row]
        if row in fragment.seeded_at:
            before = []
        if before is None:
            return None
        begin = fragment.seeded_at.get(row, 0)
        return np.concatenate([*before, fragment.buffers.actions[begin : fragment.num_actions(row), row]])

    def _remember(self, batch: Batch, fragment: Fragment) -> None:
        """Keep where each environment stands, and its actions since its last seed, so that a resumed run can follow."""
        for current, part in zip(self._current, fragment.buffers.obs, strict=True):
            current[:] = part[fragment.taken]
        all_valid = bool(batch.valid.all())
        for row in range(self.num_envs):
            begin = fragment.seeded_at.get(row, 0)
            if row in fragment.seeded_at:
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


def _saved_histories(state: State) -> list[NDArray[Any] | None]:
    """The actions of every environment since its last seed; None where they were too many to keep."""
    histories: list[NDArray[Any] | None] = []
    end = 0
    for length in state.values["history_lengths"]:
        end += max(length, 0)
        histories.append(None if length < 0 else state.arrays["history"][end - length : end])
    return histories


def _saved_env_states(state: State, num_envs: int) -> list[State | None]:
    """What environments said of where they stood; None of those that said nothing."""
    found: list[State | None] = [None] * num_envs
    for row, values in state.values.get("env_states", {}).items():
        found[int(row)] = State(values, {"bytes": state.arrays[f"env_state{row}"]})
    return found
