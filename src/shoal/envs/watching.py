"""Watched environments: one that a person looks at in a window, as text or in a film, while an agent plays in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import gymnasium
from gymnasium.vector import VectorEnv

from shoal.envs.closing import close_quietly
from shoal.envs.context import EnvContext
from shoal.envs.env_errors import error_text, pass_on_interrupts
from shoal.envs.making import AnyEnv, EnvMaker, maker_fields, plain_maker
from shoal.envs.video import DEFAULT_FPS, Video, has_render, make_filmable, make_rendering, picture
from shoal.errors import ConfigError, EnvStartError, ShoalError


class EnvView(Protocol):
    """Where a person sees an environment; `mode` is Gymnasium's word for how it draws then."""

    @property
    def mode(self) -> str:
        """`human`, `ansi` or `rgb_array`."""
        ...

    @property
    def fps(self) -> float | None:
        """Steps per second; None: as many as the environment says."""
        ...

    def capture(self, env: gymnasium.Env[Any, Any]) -> Any:
        """What the environment draws now."""
        ...

    def show(self, drawn: Any, fps: float, is_first: bool) -> None:
        """Show what was captured; `is_first` of its episode."""
        ...


@dataclass(frozen=True)
class Window:
    """A window, which the environment opens and draws itself."""

    fps: float | None = None
    mode: str = "human"

    def capture(self, env: gymnasium.Env[Any, Any]) -> None:
        """Nothing: it is drawn already."""

    def show(self, drawn: Any, fps: float, is_first: bool) -> None:
        """Nothing: it is seen already."""


class Film:
    """A video file of at most so many pictures."""

    mode = "rgb_array"

    def __init__(self, path: Path, fps: float | None = None, most_pictures: int | None = None) -> None:
        self.path, self.fps = path, fps
        self._most, self._count = most_pictures, 0
        self._video: Video | None = None

    @property
    def is_full(self) -> bool:
        """Whether no more pictures fit."""
        return self._most is not None and self._count >= self._most

    def capture(self, env: gymnasium.Env[Any, Any]) -> Any:
        """See `EnvView`."""
        return picture(env)

    def show(self, drawn: Any, fps: float, is_first: bool) -> None:  # noqa: ARG002
        """See `EnvView`."""
        if self.is_full:
            return
        if self._video is None:
            self._video = Video(self.path, fps, drawn.shape)
        self._video.add(drawn)
        self._count += 1

    def finish(self) -> None:
        """Put the whole video in its place."""
        if self._video is not None:
            self._video.finish()
            self._video = None

    def close(self) -> None:
        """Leave nothing behind of a video that was not finished; may be called twice."""
        if self._video is not None:
            self._video.close()
            self._video = None


@dataclass
class Watch:
    """A view that is looked at from when `is_on` is set, so that nobody sees an environment being tried.

    A view that fails is looked at no more, and `problem` is why: the environment has not failed.
    """

    view: EnvView
    is_on: bool = False
    problem: BaseException | None = None

    @contextmanager
    def looking(self, env: gymnasium.Env[Any, Any]) -> Iterator[None]:
        """Note what fails in drawing and showing."""
        try:
            yield
        except BaseException as error:
            pass_on_interrupts(error)
            self.problem, self.is_on = error, False
            if not isinstance(error, BrokenPipeError):  # who closed a pipe has seen enough
                why = str(error) if isinstance(error, ConfigError) else error_text(error)
                self.problem = ShoalError(f"env {type(env.unwrapped).__name__} could not be shown: {why}")


class WatchedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows what the environment draws after each reset and step.

    How an episode begins is shown with its first step: a reset after the last one that is wanted is not to be seen.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], watch: Watch) -> None:
        super().__init__(env)
        self._watch, self._fps = watch, float(env.metadata.get("render_fps") or DEFAULT_FPS)
        self._first: tuple[Any] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """See `gymnasium.Env`."""
        keywords = {} if options is None else {"options": options}  # not every environment has room for them
        result: Any = self.env.reset(seed=seed, **keywords)
        if self._watch.is_on:
            with self._watch.looking(self.env):
                self._first = (self._watch.view.capture(self.env),)
        return result

    def step(self, action: Any) -> Any:
        """See `gymnasium.Env`."""
        view = self._watch.view
        if self._first is not None:
            with self._watch.looking(self.env):
                view.show(self._first[0], self._fps, True)
            self._first = None
        result: Any = self.env.step(action)
        if self._watch.is_on:
            with self._watch.looking(self.env):
                view.show(view.capture(self.env), self._fps, False)
        return result


@dataclass(frozen=True)
class WatchedEnvMaker(EnvMaker):
    """Makes environments that are watched; `first_options` are for the reset by which one shows whether it draws."""

    watch: Watch = field(default_factory=lambda: Watch(Window()), compare=False)
    first_options: dict[str, Any] | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"the maker of watched environments {self.name} cannot be sent to another process")

    def make(self, ctx: EnvContext) -> AnyEnv:
        """See `EnvMaker`."""
        mode, fps = self.watch.view.mode, self.watch.view.fps
        plain = plain_maker(self)
        if mode == "rgb_array":
            env: AnyEnv = make_filmable(plain, ctx, self.first_options)
        else:
            env = make_rendering(plain, ctx, mode)
        if isinstance(env, VectorEnv):
            env.close()
            raise ConfigError(f"env {self.name}: a native vector environment, or one of several agents, is not shown")
        if mode != "rgb_array" and getattr(env, "render_mode", None) != mode:
            env.close()
            raise ConfigError(
                f"env {self.name}: it says that it can draw by render_mode={mode!r}, but does not take it; let its "
                "constructor take render_mode and keep it as self.render_mode"
            )
        if fps is not None:
            env.unwrapped.metadata = {**env.unwrapped.metadata, "render_fps": fps}
        return WatchedEnv(env, self.watch)


def watched(maker: EnvMaker, watch: Watch, first_options: dict[str, Any] | None = None) -> WatchedEnvMaker:
    """The same environments, watched."""
    return WatchedEnvMaker(**maker_fields(maker), watch=watch, first_options=first_options)


def render_modes(maker: EnvMaker, ctx: EnvContext) -> Sequence[str]:
    """How an environment says that it can draw; one that cannot at all is refused."""
    env = maker.make(ctx)
    try:
        if isinstance(env, VectorEnv):
            raise ConfigError(f"env {maker.name}: a native vector environment, or one of several agents, is not shown")
        modes = [str(mode) for mode in env.metadata.get("render_modes") or ()]
        if not modes and not has_render(env):
            raise ConfigError(
                f"env {maker.name}: it draws nothing, because it has no render(); `shoal evaluate` plays it unseen"
            )
        return modes
    except BaseException as error:
        if isinstance(error, ConfigError):
            raise
        pass_on_interrupts(error)
        raise EnvStartError(f"env {maker.name}: its metadata cannot be read: {error_text(error)}") from error
    finally:
        close_quietly(env)
