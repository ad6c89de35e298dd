"""Fragments of environments of several agents: each agent is a row that steps when it is asked to.

A fragment has `steps` steps of the busiest agent of each environment. Who was asked less often has fewer, and the rest
of its rows are no transitions. A step that has not ended with the fragment (others are to move first) is the first of
the row in the next one, with the action, the log-probability and the value of the policy that chose it. So no step is
lost, also where fragments are short.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Sample
from shoal.data.state import State
from shoal.envs.agent_vector import AgentRows
from shoal.models.policy import Policy
from shoal.sampling.fragment import Fragment
from shoal.sampling.own_pace import OwnPaceFragment, OwnPaceSampler


class AgentSampler(OwnPaceSampler):
    """A sampler of the agents of one policy; that of the first policy samples with the `others`."""

    vector: AgentRows

    def __init__(
        self,
        policy: Policy,
        vector: AgentRows,
        seed: int,
        first_index: int = 0,
        others: tuple[AgentSampler, ...] = (),
    ) -> None:
        super().__init__(policy, vector, seed, first_index)
        self.others = others
        spec = policy.action_spec
        num_kept = policy.num_kept_outputs
        # Of the rows whose step goes on from one fragment to the next.
        self._carried: NDArray[np.bool_] = np.zeros(self.num_envs, bool)
        self._carried_actions: NDArray[Any] = np.zeros((self.num_envs, spec.size), spec.dtype)
        self._carried_inputs = np.zeros((self.num_envs, num_kept), np.float32)
        self._carried_values = np.zeros(self.num_envs, np.float32)

    def sample(self, steps: int, explore: bool = True, complete_episodes: bool = False) -> Sample:
        """See `Sampler`; at most `steps` steps of every agent."""
        assert not complete_episodes
        own, *others = sample_together([self, *self.others], steps, explore)
        if not others:
            return own
        names = [sampler.vector.policy.name for sampler in self.others]
        batches = dict(zip(names, [sample.batch for sample in others], strict=True))
        taken = sum(sample.num_steps for sample in others)
        return replace(own, batch=replace(own.batch, others=batches), num_steps=own.num_steps + taken)

    def begin(self, steps: int, explore: bool) -> OwnPaceFragment:
        """Begin a fragment, with the steps that the last one has not ended."""
        noise = self.draw_noise(steps) if explore else None
        fragment = OwnPaceFragment(self.policy, self._begin(steps), self._current, noise)
        self._fragment = fragment
        carried, buffers = self._carried, fragment.buffers
        buffers.actions[0, carried] = self._carried_actions[carried]
        buffers.dist_inputs[0, carried] = self._carried_inputs[carried]
        if buffers.values is not None:
            buffers.values[0, carried] = self._carried_values[carried]
        return fragment

    def act(self, fragment: OwnPaceFragment) -> None:
        """Give an action to every agent that is asked for one and has not taken all its steps."""
        asked = self.vector.asked()
        rows = asked[fragment.is_stepping[asked]]
        if len(rows):
            self.vector.send(rows.tolist(), self._act_for(rows, fragment))

    def take_in(self, fragment: OwnPaceFragment, steps: int) -> None:
        """Write down the steps that have ended, and where agents are to act next."""
        done = self.vector.take_done()
        if len(done):
            self._take_in(done, fragment)
            fragment.rest_where_done(done, steps, complete_episodes=False)
        fragment.begin_again(self.vector.asked(), self.vector.rows.obs)

    def end(self, fragment: OwnPaceFragment, env_time_s: float, start: float) -> Sample:
        """The fragment; steps that have not ended are kept for the next one."""
        self._carry(fragment)
        fragment.cut_where_late()
        fragment.fill_up()
        return self.finish(fragment, env_time_s, start)

    def get_state(self) -> State:
        """See `Sampler`."""
        state = super().get_state()
        carried = {
            "carried": self._carried,
            "carried_actions": self._carried_actions,
            "carried_inputs": self._carried_inputs,
            "carried_values": self._carried_values,
        }
        copies = {name: array.copy() for name, array in carried.items()}
        whole = State(state.values, {**state.arrays, **copies})
        if not self.others:
            return whole
        others = State.of(**{f"policy{k}": sampler.get_state() for k, sampler in enumerate(self.others)})
        return State.of(**whole.values, **whole.arrays, others=others)

    def set_state(self, state: State, replay: bool = True) -> int:
        """See `Sampler`."""
        lost = super().set_state(state, replay)
        self._carried_actions[:] = state.arrays["carried_actions"]
        self._carried_inputs[:] = state.arrays["carried_inputs"]
        self._carried_values[:] = state.arrays["carried_values"]
        # Where an episode has begun anew, no step goes on.
        self._carried = state.arrays["carried"] & self.vector.acting()
        for k, sampler in enumerate(self.others):
            lost += sampler.set_state(state.part("others").part(f"policy{k}"), replay)
        return lost

    def _env_states(self) -> list[State | None]:
        """See `Sampler`; the environments remember where they stood when the last fragment ended."""
        if not self._started:
            return [None] * self.num_envs
        return self.vector.env_states()

    def _add_actions_to_incidents(self, fragment: Fragment) -> None:
        """See `Sampler`; the actions of one row do not lead to what happened to all of them."""
        fragment.num_incidents = len(self.vector.incidents)

    def _carry(self, fragment: OwnPaceFragment) -> None:
        """Keep the action of every step that goes on, and what came with it."""
        acting, buffers = self.vector.acting(), fragment.buffers
        rows = np.flatnonzero(acting)
        at = fragment.times[rows], rows
        self._carried = acting
        self._carried_actions[rows] = buffers.actions[at]
        self._carried_inputs[rows] = buffers.dist_inputs[at]
        if buffers.values is not None:
            self._carried_values[rows] = buffers.values[at]


def sample_together(samplers: list[AgentSampler], steps: int, explore: bool) -> list[Sample]:
    """A fragment of each policy's agents, all of which play in the same environments."""
    envs = samplers[0].vector.envs
    start = perf_counter()
    env_time_s = 0.0
    fragments = [sampler.begin(steps, explore) for sampler in samplers]
    while True:
        for sampler, fragment in zip(samplers, fragments, strict=True):
            sampler.act(fragment)
        before = perf_counter()
        has_stepped = envs.advance()
        env_time_s += perf_counter() - before
        if not has_stepped:  # in every environment somebody has taken all its steps
            break
        for sampler, fragment in zip(samplers, fragments, strict=True):
            sampler.take_in(fragment, steps)
    envs.end_fragment()
    return [sampler.end(fragment, env_time_s, start) for sampler, fragment in zip(samplers, fragments, strict=True)]
