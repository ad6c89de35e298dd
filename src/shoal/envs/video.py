"""Pictures of environments: making them draw, and videos of what they drew."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import IO, Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from shoal.envs.closing import close_quietly
from shoal.envs.context import EnvContext
from shoal.envs.env_errors import error_text, pass_on_interrupts
from shoal.envs.making import AnyEnv, Env, EnvMaker
from shoal.errors import ConfigError, EnvStartError

CODECS = {".mp4": ("libx264", "yuv420p"), ".gif": ("gif", "pal8")}
MOST_COLOURS = 256  # of one picture of a GIF
MOST_GIF_FPS = 50  # browsers show a picture of less than 20 ms for 100
LEVELS = np.array([6, 7, 6], np.uint32)  # of red, green and blue, where there are more
DEFAULT_FPS = 30
# What the usual libraries read before they look for a screen.
SCREENLESS = {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}


def has_screen() -> bool:
    """Whether a window can be opened here."""
    return not sys.platform.startswith("linux") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def screen_answers() -> bool:
    """Whether the screen that DISPLAY or WAYLAND_DISPLAY names is there; a forwarded one may be gone."""
    if not has_screen() or not sys.platform.startswith("linux"):
        return has_screen()
    if os.environ.get("SDL_VIDEODRIVER"):
        return True  # who says how to draw knows where
    wayland = os.environ.get("WAYLAND_DISPLAY")
    if wayland and Path(os.environ.get("XDG_RUNTIME_DIR", "/"), wayland).exists():
        return True
    host, _, number = os.environ.get("DISPLAY", "").rpartition(":")
    number = number.partition(".")[0]
    if not number.isdecimal():
        return False
    if host in ("", "unix"):
        return Path(f"/tmp/.X11-unix/X{number}").exists()
    with suppress(OSError), socket.create_connection((host, 6000 + int(number)), timeout=2):
        return True
    return False


def check_video(path: Path, kinds: Sequence[str] = tuple(CODECS)) -> None:
    """Refuse a video that cannot be written, or is of no kind that is asked for."""
    if path.suffix.lower() not in kinds:
        raise ConfigError(f"{path}: a video's name must end in {' or '.join(kinds)}")
    check_videos(str(path))


def check_videos(what: str) -> None:
    """Refuse the videos that `what` asks for if there is nothing to write them with."""
    if find_spec("av") is None:
        raise ConfigError(f"{what}: videos need PyAV, which is not installed; type: pip install 'shoal-rl[video]'")


def make_rendering(maker: EnvMaker, ctx: EnvContext, mode: str) -> AnyEnv:
    """The environment with `render_mode`, if its constructor takes one."""
    if not has_screen():
        for name, value in SCREENLESS.items():
            os.environ.setdefault(name, value)
    try:
        return maker.make(ctx.with_config({**ctx, "render_mode": mode}))
    except ConfigError:
        return maker.make(ctx)  # it takes no such argument; it may draw all the same


def make_in_window(maker: EnvMaker, ctx: EnvContext) -> AnyEnv:
    """The environment in a window of its own."""
    env = make_rendering(maker, ctx, "human")
    modes = env.metadata.get("render_modes") or ["human"]
    if getattr(env, "render_mode", None) != "human" or "human" not in modes:
        env.close()
        raise ConfigError(
            f"config.render_env: env {maker.name} has no window; let its constructor take render_mode='human' and keep "
            "it as self.render_mode, with 'human' in its metadata['render_modes'], or leave render_env out"
        )
    return env


def make_filmable(maker: EnvMaker, ctx: EnvContext, options: dict[str, Any] | None = None) -> Env:
    """The environment after a look whether it draws, once it is reset with these options."""
    env = make_rendering(maker, ctx, "rgb_array")
    if isinstance(env, VectorEnv):
        env.close()
        raise ConfigError(
            f"env {maker.name}: a native vector environment, or one of several agents, cannot be recorded"
        )
    if not has_render(env):
        env.close()
        raise ConfigError(f"env {maker.name}: it cannot be recorded: it draws nothing, because it has no render()")
    try:
        env.reset(seed=0, **({"options": options} if options else {}))
        picture(env)
    except ConfigError:
        env.close()
        raise
    except BaseException as error:
        close_quietly(env)
        pass_on_interrupts(error)
        raise EnvStartError(
            f"env {maker.name}: it cannot be recorded, because its render() failed: {error_text(error)}"
        ) from error
    return env


def has_render(env: AnyEnv) -> bool:
    """Whether the environment has a render() of its own."""
    return getattr(type(env.unwrapped), "render", None) is not gymnasium.Env.render


def picture(env: gymnasium.Env[Any, Any]) -> NDArray[np.uint8]:
    """What the environment draws now, `[height, width, 3]`."""
    frame: Any = env.render()
    if isinstance(frame, list) and frame:
        frame = frame[-1]
    array = np.asarray(frame)
    if array.ndim != 3 or array.shape[2] not in (3, 4) or array.dtype != np.uint8:
        got = f"an array of {array.dtype} and shape {array.shape}" if array.ndim else type(frame).__name__
        raise ConfigError(
            f"env {type(env.unwrapped).__name__}: for a video its render() must return an array of uint8 and shape "
            f"(height, width, 3) when it is made with render_mode='rgb_array' (got {got})"
        )
    return array[:, :, :3]


def paletted(frame: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The picture as places `[height, width]` in a palette `[256, 4]` of opacity, red, green, blue.

    Drawings of simulations have few colours: those stay exactly as they are.
    """
    codes = frame.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colours, places = np.unique(codes, return_inverse=True)
    if len(colours) > MOST_COLOURS:
        coarse = (frame * (LEVELS - 1) + 127) // 255 * 255 // (LEVELS - 1)
        codes = coarse.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
        colours, places = np.unique(codes, return_inverse=True)
    palette = np.zeros((MOST_COLOURS, 4), np.uint8)
    palette[:, 0] = 255
    for column, shift in ((1, 16), (2, 8), (3, 0)):
        palette[: len(colours), column] = colours >> shift & 255
    return places.reshape(frame.shape[:2]).astype(np.uint8), palette


class Video:
    """A video that is written frame by frame, and has a name when it is whole.

    Where the file system cannot do without a name, it has another until then, which stays if the process is killed.
    """

    def __init__(self, path: Path, fps: float, shape: tuple[int, ...]) -> None:
        import av

        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = path.with_name(f".tmp-{os.getpid()}-{os.urandom(4).hex()}-{path.name}")
        codec, self._pixels = CODECS[path.suffix.lower()]
        self._every = ceil(fps / MOST_GIF_FPS) if codec == "gif" else 1
        self._seen = 0
        self._to_frame: Callable[..., Any] = av.VideoFrame.from_ndarray
        self._nameless = _nameless(path.parent)
        kind = path.suffix.lower().removeprefix(".")
        self._file = av.open(self._nameless or str(self._temporary), "w", format=kind)
        stream: Any = self._file.add_stream(codec, rate=max(round(fps / self._every), 1))
        if codec == "gif":
            stream.options = {"gifflags": "-transdiff-offsetting"}  # they compare places, and palettes differ
        # The usual codec halves the resolution of colours, so that sides must be even.
        self._height, self._width = (side // 2 * 2 for side in shape[:2])
        stream.height, stream.width, stream.pix_fmt = self._height, self._width, self._pixels
        self._stream = stream

    def add(self, frame: NDArray[np.uint8]) -> None:
        """One picture more."""
        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        cut = np.ascontiguousarray(frame[: self._height, : self._width])
        shown = self._to_frame(paletted(cut), "pal8") if self._pixels == "pal8" else self._to_frame(cut, "rgb24")
        self._file.mux(self._stream.encode(shown))

    def finish(self) -> None:
        """Put the whole video in its place."""
        self._file.mux(self._stream.encode(None))
        self._file.close()
        if self._nameless is not None:
            self._nameless.flush()
            descriptor = self._nameless.fileno()
            # The kernel follows that link only where a folder is given, though the path needs none.
            os.link(f"/proc/self/fd/{descriptor}", self._temporary, src_dir_fd=descriptor)
            self._nameless.close()
        os.replace(self._temporary, self.path)

    def close(self) -> None:
        """Leave nothing behind of a video that was not finished."""
        with suppress(Exception):
            self._file.close()
        if self._nameless is not None:
            with suppress(OSError):
                self._nameless.close()
        self._temporary.unlink(missing_ok=True)


def _nameless(folder: Path) -> IO[bytes] | None:
    """A file in a folder that has no name, and goes with the process; None where there is no such thing."""
    with suppress(OSError, AttributeError):
        return open(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666), "w+b")
    return None
