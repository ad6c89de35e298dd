"""Environments of several agents with known answers, as PettingZoo has them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv


class Corridor(ParallelEnv):
    """Two agents walk from 0 to 3 (action 1) or wait (0); each arrives for itself, and is gone then.

    A third one comes at step 2, and is truncated two steps later. An observation is the agent's place, the step and a
    number of the episode's own. A step costs 1, and to arrive gives 10.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "corridor"}
    possible_agents: ClassVar[list[str]] = ["a_0", "a_1", "late_0"]

    def __init__(self, fails_at: int | None = None, render_mode: str | None = None) -> None:
        self.fails_at, self.render_mode = fails_at, render_mode
        self.total = 0
        self.rng = np.random.default_rng()

    def observation_space(self, agent):
        return spaces.Box(-10, 10, (3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.mark = self.rng.random()
        self.time, self.places = 0, dict.fromkeys(self.possible_agents, 0)
        self.agents = ["a_0", "a_1"]
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert sorted(actions) == sorted(self.agents)
        self.total += 1
        if self.total == self.fails_at:
            raise RuntimeError("the solver diverged")
        self.time += 1
        for agent, action in actions.items():
            self.places[agent] += int(action)
        arrived = {agent: self.places[agent] >= 3 for agent in self.agents}
        cut = {agent: agent == "late_0" and self.time >= 4 for agent in self.agents}
        rewards = {agent: 10.0 if arrived[agent] else -1.0 for agent in self.agents}
        infos = {agent: {"time": self.time} for agent in self.agents}
        seen = self._seen()
        self.agents = [agent for agent in self.agents if not (arrived[agent] or cut[agent])]
        if self.time == 2 and self.agents:
            self.agents.append("late_0")
            seen["late_0"] = self._of("late_0")
        return seen, rewards, arrived, cut, infos

    def _seen(self):
        return {agent: self._of(agent) for agent in self.agents}

    def _of(self, agent):
        return np.array([self.places[agent], self.time, self.mark], np.float32)


class Cards(AECEnv):
    """Three players lay cards of 1 to 3 in turn, two rounds; what one lays is taken from the next player at once.

    So a player's loss comes while another one acts. After the last card everyone gets 100. The mask forbids the card
    that was laid last.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "cards", "is_parallelizable": False}

    def __init__(self) -> None:
        self.possible_agents = ["p_0", "p_1", "p_2"]
        self.render_mode = None

    def observation_space(self, agent):
        seen = spaces.Box(0, 10, (3,), np.float32)
        return spaces.Dict({"observation": seen, "action_mask": spaces.Box(0, 1, (3,), np.int8)})

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        self.turn, self.last = 0, 0
        self.agent_selection = self.agents[0]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def observe(self, agent):
        mask = np.zeros(3, np.int8)
        if agent == self.agent_selection:
            mask[:] = 1
            if self.turn:
                mask[self.last] = 0
        place = self.possible_agents.index(agent)
        return {"observation": np.array([self.turn, self.last, place], np.float32), "action_mask": mask}

    def step(self, action):
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        assert not self.turn or action != self.last
        place = self.possible_agents.index(self.agent_selection)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.rewards[self.possible_agents[(place + 1) % 3]] -= action + 1
        self.turn, self.last = self.turn + 1, int(action)
        if self.turn == 6:
            for agent in self.agents:
                self.rewards[agent] += 100
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = self.possible_agents[(place + 1) % 3]


class Match(ParallelEnv):
    """Two agents see a bit each, and both get 1 if the first says its own bit and the second the other's.

    The second agent has other observations and actions if `differs`.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "match"}
    possible_agents: ClassVar[list[str]] = ["speaker_0", "listener_0"]

    def __init__(self, differs: bool = False) -> None:
        self.differs, self.render_mode = differs, None
        self.rng = np.random.default_rng()

    def observation_space(self, agent):
        wide = self.differs and agent == "listener_0"
        return spaces.Box(0, 1, (3 if wide else 2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3 if self.differs and agent == "listener_0" else 2)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.time, self.agents = 0, self.possible_agents[:]
        return self._draw(), {agent: {} for agent in self.agents}

    def step(self, actions):
        first, second = self.bits
        rewards = {
            "speaker_0": float(actions["speaker_0"] == first),
            "listener_0": float(actions["listener_0"] != second),
        }
        self.time += 1
        ended = self.time == 8
        seen = self._draw()
        flags = dict.fromkeys(self.agents, ended)
        infos = {agent: {} for agent in self.agents}
        if ended:
            self.agents = []
        return seen, rewards, flags, dict.fromkeys(flags, False), infos

    def _draw(self):
        self.bits = self.rng.integers(0, 2, 2).tolist()
        seen = {}
        for agent, bit in zip(self.possible_agents, self.bits, strict=True):
            seen[agent] = np.zeros(self.observation_space(agent).shape, np.float32)
            seen[agent][bit] = 1
        return seen
