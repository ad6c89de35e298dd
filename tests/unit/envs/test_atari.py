"""Atari frames as DeepMind prepared them, held against plain arithmetic and the game itself."""

from __future__ import annotations

import itertools
import pickle
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from shoal.envs.atari import AtariFrames
from shoal.envs.context import EnvContext
from shoal.envs.making import env_maker
from shoal.errors import ConfigError


class Screen(gymnasium.Env[Any, Any]):
    """Frames of noise; lives and the end of the game come when they are told to."""

    action_space = Discrete(3)

    def __init__(self, height: int = 210, lives_after: dict[int, int] | None = None) -> None:
        self.observation_space = Box(0, 255, (height, 160), np.uint8)
        self.lives_after = lives_after or {}
        self.steps = self.games = 0
        self.frames: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.games, self.lives = 0, self.games + 1, 3
        return self._frame(), {"lives": self.lives}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.lives = self.lives_after.get(self.steps, self.lives)
        return self._frame(), float(action), self.lives == 0, False, {"lives": self.lives}

    def _frame(self) -> Any:
        self.frames.append(self.np_random.integers(0, 256, self.observation_space.shape, np.uint8))
        return self.frames[-1]


def exact_mean(frame: Any, row: int, column: int) -> int:
    """One pixel of 84 x 84 by fractions, rounded to the nearest."""
    height, width = frame.shape
    total = Fraction(0)
    tall, wide = Fraction(height, 84), Fraction(width, 84)
    for y in range(height):
        share = min((row + 1) * tall, Fraction(y + 1)) - max(row * tall, Fraction(y))
        if share <= 0:
            continue
        for x in range(width):
            part = min((column + 1) * wide, Fraction(x + 1)) - max(column * wide, Fraction(x))
            if part > 0:
                total += share * part * int(frame[y, x])
    return int(total / (tall * wide) + Fraction(1, 2))


@pytest.mark.parametrize("height", [210, 250])
def test_pixels_are_means_by_area(height: int) -> None:
    game = Screen(height)
    env = AtariFrames(game, skip=4, noop_max=0)
    first, _ = env.reset(seed=1)
    assert first.shape == env.observation_space.shape == (84, 84, 4)
    assert env.observation_space.contains(first)
    assert all(np.array_equal(first[..., 0], first[..., k]) for k in range(4))
    obs, reward, _, _, _ = env.step(2)
    assert reward == 4 * 2
    assert game.steps == 4
    brighter = np.maximum(game.frames[-1], game.frames[-2])
    for row, column in [(0, 0), (1, 5), (41, 40), (83, 83)]:
        assert first[row, column, 0] == exact_mean(game.frames[0], row, column)
        assert obs[row, column, 3] == exact_mean(brighter, row, column)


def test_the_newest_frame_is_last_and_observations_are_nobody_elses() -> None:
    env = AtariFrames(Screen(), skip=1, noop_max=0)
    seen = [env.reset(seed=0)[0]]
    copies = [seen[0].copy()]
    for _ in range(5):
        seen.append(env.step(0)[0])
        copies.append(seen[-1].copy())
    for before, after in itertools.pairwise(seen):
        assert np.array_equal(before[..., 1:], after[..., :3])
    assert all(map(np.array_equal, seen, copies))


def test_an_episode_begins_after_a_number_of_frames_that_the_seed_draws() -> None:
    waits = set()
    for seed in range(8):
        counts = []
        for _ in range(2):
            game = Screen()
            AtariFrames(game, noop_max=30).reset(seed=seed)
            counts.append(game.steps)
        assert counts[0] == counts[1]
        waits.add(counts[0])
    assert len(waits) > 3
    assert min(waits) >= 1
    assert max(waits) <= 30


def test_a_life_that_is_lost_ends_an_episode_only_where_asked_for() -> None:
    for asked in (False, True):
        game = Screen(lives_after={2: 2, 6: 0})
        env = AtariFrames(game, skip=1, noop_max=0, terminal_on_life_loss=asked)
        env.reset(seed=0)
        assert env.step(0)[2] is False
        assert env.step(0)[2] is asked
        if asked:
            env.reset()
            assert game.games == 1, "the game goes on"
            assert game.steps == 3
            env.step(0)
        while not env.step(0)[2]:
            pass
        assert game.steps == 6
        env.reset()
        assert game.games == 2
        env.step(0)
        env.step(0)
        env.reset(seed=5)
        assert game.games == 3, "a seed begins a new game"


def game(name: str, **env_config: Any) -> Any:
    pytest.importorskip("ale_py")
    return env_maker(name, preprocessor_pref="deepmind").make(EnvContext(env_config))


@pytest.mark.parametrize(
    ("name", "skip", "inner", "sticky"),
    [
        ("ALE/Pong-v5", 4, 1, 0.25),
        ("PongNoFrameskip-v4", 4, 1, 0.0),
        ("SpaceInvadersDeterministic-v4", 3, 1, 0.0),
        ("Pong-v0", 1, (2, 5), 0.25),
    ],
)
def test_skip_and_sticky_actions_are_those_of_the_id(name: str, skip: int, inner: Any, sticky: float) -> None:
    env = game(name)
    ale = env.unwrapped.ale
    assert env.observation_space.shape == (84, 84, 4)
    assert env.unwrapped._frameskip == inner
    assert ale.getFloat("repeat_action_probability") == pytest.approx(sticky)
    obs, _ = env.reset(seed=0)
    before = ale.getEpisodeFrameNumber()
    obs, _, _, _, _ = env.step(0)
    frames = ale.getEpisodeFrameNumber() - before
    assert frames == skip if isinstance(inner, int) else frames in range(2, 5)
    assert env.observation_space.contains(obs)
    env.close()


def test_a_seed_and_actions_lead_to_the_same_frames() -> None:
    def played() -> Any:
        env = game("ALE/Breakout-v5", terminal_on_life_loss=True, noop_max=3)
        seen = [env.reset(seed=3)[0]]
        for step in range(60):
            obs, _, terminated, truncated, _ = env.step(step % 4)
            seen.append(env.reset()[0] if terminated or truncated else obs)
        env.close()
        return np.stack(seen)

    assert np.array_equal(played(), played())


@pytest.mark.parametrize("obs_type", ["rgb", "ram"])
def test_who_says_what_is_seen_sees_that(obs_type: str) -> None:
    shape = {"rgb": (210, 160, 3), "ram": (128,)}[obs_type]
    assert game("ALE/Pong-v5", obs_type=obs_type).observation_space.shape == shape
    assert game("Pong-ram-v0").observation_space.shape == (128,)


def test_wrappers_of_ones_own_see_the_games_frames() -> None:
    pytest.importorskip("ale_py")
    maker = env_maker("ALE/Pong-v5", wrappers=["GrayscaleObservation"], preprocessor_pref="deepmind")
    assert maker.make(EnvContext()).observation_space.shape == (210, 160)


def test_the_maker_travels_and_refuses_what_nobody_takes() -> None:
    pytest.importorskip("ale_py")
    maker = env_maker("ALE/Pong-v5", preprocessor_pref="deepmind")
    again = pickle.loads(pickle.dumps(maker))
    assert again.make(EnvContext()).observation_space.shape == (84, 84, 4)
    with pytest.raises(ConfigError, match=r"env_config.noopmax: .*terminal_on_life_loss, noop_max"):
        maker.make(EnvContext({"noopmax": 3}))
    with pytest.raises(ConfigError, match=r"env_config.noop_max"):
        env_maker("ALE/Pong-v5").make(EnvContext({"noop_max": 3}))


@pytest.mark.parametrize(("key", "value"), [("noop_max", -1), ("noop_max", 2.5), ("terminal_on_life_loss", "yes")])
def test_wrong_options_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"env_config.{key}: must be"):
        AtariFrames(Screen(), **{key: value})


def test_other_environments_stay_as_they_are() -> None:
    assert env_maker("CartPole-v1", preprocessor_pref="deepmind") == env_maker("CartPole-v1")
