"""What a run's own results say is wrong with it, each said once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.data.number_text import number_text

ENDLESS_STEPS = 2000  # of each environment, without the end of an episode
STUCK_STEPS = 50_000  # over all environments, in which every episode has the same return
STUCK_EPISODES = 20

EXPLORING = {
    "PPO": "config.entropy_coeff=0.01",
    "TRPO": "a larger config.train_batch_size",
    "DQN": "a longer config.exploration_config.epsilon_timesteps",
}


class Hints:
    """Follows the results of one run from its first, and tells what a person would want to know early."""

    def __init__(self, algorithm: str, num_envs: int) -> None:
        self._algorithm, self._num_envs = algorithm, num_envs
        self._is_endless_told = self._is_stuck_told = False
        self._return: float | None = None
        self._steps_before = 0
        self._has_varied = False

    def add(self, result: Mapping[str, Any]) -> list[str]:
        """What is to be said after this result."""
        return [hint for hint in (self._endless(result), self._stuck(result)) if hint]

    def _endless(self, result: Mapping[str, Any]) -> str | None:
        steps = int(result.get("timesteps_total", 0))
        if self._is_endless_told or result.get("episodes_total", 1) or steps < ENDLESS_STEPS * self._num_envs:
            return None
        self._is_endless_told = True
        return (
            f"no episode has ended in {steps:,} steps ({steps // self._num_envs:,} of each environment), so there "
            "is no return to report; if episodes have no end of their own, limit them: --set config.horizon=1000"
        )

    def _stuck(self, result: Mapping[str, Any]) -> str | None:
        """Every episode since the first has had the same return: the agent has never seen that anything matters."""
        low, high = result.get("episode_reward_min"), result.get("episode_reward_max")
        if self._is_stuck_told or self._has_varied or low is None:
            return None
        if self._return is None:
            if result.get("training_iteration") != 1 and result.get("episodes_total") != result.get(
                "episodes_this_iter"
            ):
                self._has_varied = True  # what was before is not known
            self._return = low
            self._steps_before = int(result.get("timesteps_total", 0)) - int(result.get("timesteps_this_iter", 0))
        if low != high or low != self._return:
            self._has_varied = True
        steps = int(result.get("timesteps_total", 0)) - self._steps_before
        episodes = int(result.get("episodes_total", 0))
        if self._has_varied or steps < STUCK_STEPS or episodes < STUCK_EPISODES:
            return None
        self._is_stuck_told = True
        more = EXPLORING.get(self._algorithm, "config.exploration_config")
        others = ", ".join(f"--run {name}" for name in EXPLORING if name != self._algorithm)
        return (
            f"all {episodes:,} episodes so far have had the same return, {number_text(low)}: unless that is the best "
            f"there is, the agent has seen nothing yet to learn from; explore more ({more}), "
            f"reward steps towards the goal, start with easier tasks (config.env_task_fn), or try another "
            f"algorithm ({others})"
        )
