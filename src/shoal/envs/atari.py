"""Atari frames as DeepMind prepared them: 84 x 84 pixels in grey, the last four seen at once, four frames per action.

It is what `preprocessor_pref: deepmind` puts around an Atari game. OpenCV is not needed: pixels are averaged by area in
whole numbers, so frames are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from shoal.errors import ConfigError

Frame = NDArray[np.uint8]

SIDE, NUM_FRAMES = 84, 4
FRAMES_PER_ACTION = 4  # where the id leaves every frame to the agent
OPTIONS = ("terminal_on_life_loss", "noop_max")  # of env_config, beside those of the game itself
SENTENCE = (
    "Atari frames are 84 x 84 pixels in grey, the last 4 together, {skip} (preprocessor_pref: deepmind; "
    "null, or wrappers of your own, for the game's own frames)."
)


def is_prepared(keywords: Mapping[str, Any], env_config: Mapping[str, Any]) -> bool:
    """Whether a game's frames are prepared: not where its memory is seen, or `env_config` says what is."""
    return "obs_type" not in env_config and keywords.get("obs_type", "rgb") != "ram"


def frames_per_action(keywords: Mapping[str, Any]) -> int | None:
    """For how many frames an action is repeated; None where the game draws the number itself."""
    skip = keywords.get("frameskip", FRAMES_PER_ACTION)
    if not isinstance(skip, int):
        return None
    return skip if skip > 1 else FRAMES_PER_ACTION


def described(keywords: Mapping[str, Any]) -> str:
    """What is done to the frames of a game, in a sentence."""
    count = frames_per_action(keywords)
    skip = "as many frames per action as the id draws" if count is None else f"{count} frames per action"
    return SENTENCE.format(skip=skip)


class AtariFrames(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A game of grey frames, seen through observations `[84, 84, 4]`, the newest frame last.

    An action is repeated for `skip` frames, and the brighter of the last two is seen, because old games draw some
    things in every other frame only (None: the game itself repeats it). An episode begins with up to `noop_max` frames
    without an action. With `terminal_on_life_loss` it ends with each life, and the next goes on where that was lost.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        skip: int | None = FRAMES_PER_ACTION,
        noop_max: int = 30,
        terminal_on_life_loss: bool = False,
    ) -> None:
        if not isinstance(noop_max, int) or isinstance(noop_max, bool) or noop_max < 0:
            raise ConfigError(f"env_config.noop_max: must be a whole number, 0 or more (got {noop_max!r})")
        if not isinstance(terminal_on_life_loss, bool):
            raise ConfigError(
                f"env_config.terminal_on_life_loss: must be true or false (got {terminal_on_life_loss!r})"
            )
        super().__init__(env)
        self._skip, self._noop_max, self._ends_with_life = skip or 1, noop_max, terminal_on_life_loss
        self.observation_space = Box(0, 255, (SIDE, SIDE, NUM_FRAMES), np.uint8)
        self._noop: Any = 0 if isinstance(env.action_space, Discrete) else np.zeros(env.action_space.shape, np.float32)
        height, width = env.observation_space.shape or (0, 0)
        self._rows, self._columns = _overlaps(height), _overlaps(width).T.copy()
        self._area = self._rows[0].sum() * self._columns[:, 0].sum()
        # Four bytes of a number are four frames, the oldest in the lowest: a shift forgets it.
        self._seen = np.zeros((SIDE, SIDE), "<u4")
        self._lives = 0
        self._lost_a_life = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """Begin a game, or where only a life was lost go on with it, unless a seed asks for a new one."""
        if self._lost_a_life and seed is None:
            frame, _, terminated, truncated, info = self.env.step(self._noop)
            if terminated or truncated:
                frame, info = self.env.reset(options=options)
        else:
            frame, info = self._begun(seed, options)
        self._lost_a_life = False
        self._lives = info.get("lives", 0)
        self._seen = self._small(frame) * np.uint32(0x01010101)
        return self._observation(), info

    def step(self, action: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Repeat the action, and look at what follows."""
        total = 0.0
        frame: Frame | None = None
        for _ in range(self._skip):
            before = frame
            frame, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        assert frame is not None
        if before is not None:
            frame = np.maximum(before, frame)
        lives = info.get("lives", 0)
        if self._ends_with_life and lives < self._lives and not (terminated or truncated):
            self._lost_a_life = terminated = True
        self._lives = lives
        self._seen = (self._seen >> np.uint32(8)) | (self._small(frame) << np.uint32(24))
        return self._observation(), total, terminated, truncated, info

    def _begun(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Frame, dict[str, Any]]:
        """The first frame of a new game, after a number of frames without an action that its own chance draws."""
        frame, info = self.env.reset(seed=seed, options=options)
        waits = int(self.env.unwrapped.np_random.integers(1, self._noop_max + 1)) if self._noop_max else 0
        for _ in range(waits):
            frame, _, terminated, truncated, info = self.env.step(self._noop)
            if terminated or truncated:
                frame, info = self.env.reset(options=options)
        return frame, info

    def _small(self, frame: Frame) -> NDArray[np.uint32]:
        """The frame as `[84, 84]` means by area; sums of whole numbers below 2^24 are exact in single precision."""
        sums = self._rows @ frame.astype(np.float32) @ self._columns
        sums += self._area / 2
        sums /= self._area
        return sums.astype("<u4")

    def _observation(self) -> Frame:
        return self._seen.view(np.uint8).reshape(SIDE, SIDE, NUM_FRAMES)


def _overlaps(size: int) -> NDArray[np.float32]:
    """How much of each of `size` pixels lies in each of 84 equal stretches `[84, size]`, in whole numbers."""
    unit = gcd(size, SIDE)
    begins = np.arange(SIDE)[:, None] * (size // unit)
    pixels = np.arange(size)[None] * (SIDE // unit)
    overlap = np.minimum(begins + size // unit, pixels + SIDE // unit) - np.maximum(begins, pixels)
    return np.asarray(np.maximum(overlap, 0), np.float32)
