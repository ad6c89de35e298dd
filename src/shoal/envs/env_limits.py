"""What an environment in a process of its own may take before it counts as failed."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.config.settings import AlgorithmConfig
from shoal.envs.shared_rows import Phase

UNLIMITED_S = 600.0  # of a first look, for what has no deadline while something else has one
CLOSE_S = 3.0  # for environments to close by themselves
LONGEST_TICK_S = 0.5
SHORTEST_TICK_S = 0.01


@dataclass(frozen=True)
class Limits:
    """What an environment may take before it counts as failed."""

    step_timeout_s: float | None = None
    reset_timeout_s: float | None = None  # of a reset, and of making the environment
    memory: int | None = None  # bytes, with all that is below its process
    restart_delay_s: float = 0.0
    disk: int | None = None  # bytes of its scratch_dir

    @classmethod
    def from_config(cls, config: AlgorithmConfig) -> Limits:
        """The limits that a configuration sets."""
        return cls(
            config.env_step_timeout_s,
            config.env_reset_timeout_s,
            _bytes(config.env_memory_limit_mb),
            config.env_restart_delay_s,
            _bytes(config.env_scratch_limit_mb),
        )

    @property
    def first_look_s(self) -> float | None:
        """Seconds for making an environment, one reset and one step."""
        if self.step_timeout_s is None and self.reset_timeout_s is None:
            return None
        reset_s, step_s = (t if t is not None else UNLIMITED_S for t in (self.reset_timeout_s, self.step_timeout_s))
        return 2 * reset_s + step_s

    @property
    def tick_s(self) -> float:
        """Seconds between two looks at who is late."""
        timeouts = [t for t in (self.step_timeout_s, self.reset_timeout_s) if t is not None]
        return min(max(min(timeouts, default=LONGEST_TICK_S) / 10, SHORTEST_TICK_S), LONGEST_TICK_S)

    def passed_deadline(self, phase: Phase, took_s: float) -> str:
        """The deadline that somebody has passed who is at this for so long, in words; empty if none."""
        steps, resets = self.step_timeout_s, self.reset_timeout_s
        if phase is Phase.STEP and steps is not None and took_s > steps:
            return f"its step took longer than env_step_timeout_s, which is {steps:g}"
        if phase in (Phase.RESET, Phase.MAKE) and resets is not None and took_s > resets:
            what = "reset" if phase is Phase.RESET else "constructor"
            return f"its {what} took longer than env_reset_timeout_s, which is {resets:g}"
        return ""


def _bytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes * 1_000_000
