"""Pictures of environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from shoal.envs.context import EnvContext
from shoal.envs.making import env_maker
from shoal.envs.video import Video, check_video, make_filmable, paletted, picture
from shoal.errors import ConfigError, EnvError


class Drawing(gym.Env):
    """Draws what it is told to."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)
    frame: Any = np.zeros((4, 6, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}

    def render(self):
        if isinstance(self.frame, Exception):
            raise self.frame
        return self.frame


def drawing(frame: Any) -> type[Drawing]:
    return type("Drawn", (Drawing,), {"frame": frame})


def test_pictures_in_the_usual_forms() -> None:
    frame = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    for given in (frame, [np.zeros_like(frame), frame], np.dstack([frame, frame[..., :1]])):
        np.testing.assert_array_equal(picture(drawing(given)()), frame)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (None, r"\(got NoneType\)"),
        ("text", r"\(got str\)"),
        (np.zeros((4, 6), np.uint8), r"shape \(4, 6\)"),
        (np.zeros((4, 6, 3)), "an array of float64"),
    ],
)
def test_what_is_no_picture_is_refused(frame: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_filmable(env_maker(drawing(frame)), EnvContext())


class Unseen(gym.Env):
    """Was written without a thought of drawing."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}


def test_what_draws_nothing_is_refused_as_such() -> None:
    with pytest.raises(ConfigError, match=r"it draws nothing, because it has no render\(\)"):
        make_filmable(env_maker(Unseen), EnvContext())


def test_a_picture_that_fails_is_told_in_its_own_words() -> None:
    with pytest.raises(EnvError, match=r"its render\(\) failed: RuntimeError: no EGL"):
        make_filmable(env_maker(drawing(RuntimeError("no EGL"))), EnvContext())


def test_a_gymnasium_environment_draws_when_it_is_told() -> None:
    env = make_filmable(env_maker("CartPole-v1"), EnvContext())
    assert env.render_mode == "rgb_array"
    assert picture(env).shape == (400, 600, 3)
    env.close()


def test_few_colours_stay_exactly_as_they_are() -> None:
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (200, 3), np.uint8)
    frame = colours[rng.integers(0, 200, (30, 40))]
    places, palette = paletted(frame)
    np.testing.assert_array_equal(palette[places][..., 1:], frame)
    assert (palette[:, 0] == 255).all()


def test_many_colours_become_near_ones() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (100, 100, 3), np.uint8)
    places, palette = paletted(frame)
    assert np.abs(palette[places][..., 1:].astype(int) - frame).max() <= 26


def test_names_of_videos(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.mp4 or \.gif"):
        check_video(tmp_path / "video.avi")


def test_a_gif_is_never_too_quick_for_a_browser(tmp_path) -> None:
    av = pytest.importorskip("av")
    film = Video(tmp_path / "quick.gif", 120, (4, 6, 3))
    for shade in range(0, 240, 20):
        film.add(np.full((4, 6, 3), shade, np.uint8))
    film.finish()
    with av.open(str(tmp_path / "quick.gif")) as video:
        frames = list(video.decode(video=0))
    assert [int(frame.to_ndarray(format="rgb24")[0, 0, 0]) for frame in frames] == [0, 60, 120, 180]
    assert np.diff([frame.time for frame in frames]).min() >= 0.02
