"""A game that stands in for one of Unity's: the same Python types of ML-Agents, without a program behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
from mlagents_envs.base_env import (
    ActionSpec,
    BaseEnv,
    BehaviorSpec,
    DecisionSteps,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
    TerminalSteps,
)

NAME = "Walker?team=0"
LENGTH = 12
NOBODY = np.zeros(0, np.int32)


class UnityEnvironment(BaseEnv):
    """One agent goes left or right for a dozen steps, and is rewarded on the right."""

    def __init__(self, file_name: str, worker_id: int, no_graphics: bool) -> None:
        seen = ObservationSpec((2,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "place")
        self._specs = {NAME: BehaviorSpec([seen], ActionSpec(0, (2,)))}
        self._action = 0
        self.reset()

    def reset(self) -> None:
        self._place, self._taken, self._is_over = 0.0, 0, False

    def step(self) -> None:
        if self._is_over:  # as Unity's agents do, it begins anew
            self.reset()
        self._place += 0.1 if self._action == 1 else -0.1
        self._taken += 1
        self._is_over = self._taken == LENGTH

    def close(self) -> None:
        pass

    @property
    def behavior_specs(self) -> Any:
        return self._specs

    def set_actions(self, behavior_name: str, action: Any) -> None:
        assert behavior_name == NAME
        self._action = int(action.discrete[0, 0])

    def set_action_for_agent(self, behavior_name: str, agent_id: int, action: Any) -> None:
        self.set_actions(behavior_name, action)

    def get_steps(self, behavior_name: str) -> tuple[Any, Any]:
        obs = [np.array([[self._place, self._taken / LENGTH]], np.float32)]
        reward, one, group = np.array([self._place], np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32)
        nothing = [np.zeros((0, 2), np.float32)], np.zeros(0, np.float32)
        if self._is_over:
            waiting = DecisionSteps(*nothing, NOBODY, None, NOBODY, np.zeros(0, np.float32))
            return waiting, TerminalSteps(obs, reward, np.array([False]), one, one, group)
        ended = TerminalSteps(*nothing, np.zeros(0, bool), NOBODY, NOBODY, np.zeros(0, np.float32))
        return DecisionSteps(obs, reward, one, None, one, group), ended
