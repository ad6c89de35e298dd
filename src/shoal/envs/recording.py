"""Recorded environments: what an episode begins with, and a record of what happens in it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
from gymnasium.vector import VectorEnv

from shoal.envs.agents import AgentsEnv
from shoal.envs.cases import Case
from shoal.envs.context import EnvContext
from shoal.envs.env_errors import error_text, pass_on_interrupts
from shoal.envs.legacy import takes_options
from shoal.envs.making import AnyEnv, EnvMaker, maker_fields, plain_maker
from shoal.envs.video import DEFAULT_FPS, Video, make_filmable, picture
from shoal.errors import ConfigError


@dataclass(frozen=True)
class RecordingOptions:
    """What is kept of an evaluation's episodes beside their numbers."""

    trajectories: bool = False
    videos: tuple[Path, ...] = ()  # of the first environment, or of each case: the same pictures in each file
    video_episodes: int = 1  # how many episodes of an environment the videos show

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""
        return not self.trajectories and not self.videos


@dataclass
class Trajectory:
    """One whole episode in the environment's own terms; observations are one more than steps."""

    env_index: int
    obs: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False


class EpisodeRecorder:
    """Keeps what happens in its environments, from when `is_on` is set.

    An environment that is closed within an episode has failed, and the episode is forgotten; where there is
    `one_env_per_episode`, that is how every episode ends. A video that fails is given up: `video_problem` says why, and
    the episodes go on as if nobody had filmed them.
    """

    def __init__(self, options: RecordingOptions | None = None) -> None:
        self.is_on = self.one_env_per_episode = False
        self.video_problem = ""
        self.options = options or RecordingOptions()
        self.trajectories: list[Trajectory] = []  # in the order in which episodes ended
        self.begun: Counter[int] = Counter()  # episodes of each environment
        self._videos: list[Video] = []

    def show(self, env: gymnasium.Env[Any, Any], index: int) -> None:
        """Film the environment as it is now, if this is one of the episodes that are wanted of it."""
        paths = self.options.videos
        if not paths or self.video_problem or self.begun[index] > self.options.video_episodes:
            return
        with self._filming():
            frame = picture(env)
            if not self._videos:
                fps = env.metadata.get("render_fps") or DEFAULT_FPS
                for path in paths:
                    self._videos.append(Video(path, fps, frame.shape))
            for video in self._videos:
                video.add(frame)

    def finish(self) -> None:
        """Write what is to be written."""
        with self._filming():
            while self._videos:
                self._videos[0].finish()
                self._videos.pop(0)

    def close(self) -> None:
        """Give up what is not finished; may be called twice."""
        while self._videos:
            self._videos.pop().close()

    @contextmanager
    def _filming(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            pass_on_interrupts(error)
            names = " and ".join(map(str, self.options.videos))
            self.video_problem = f"the video {names} was not made: {error_text(error)}"
            self.close()


class RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Begins each episode as its case says, and tells a recorder what happens.

    It passes on what the environment gives, also in the form of old Gym, which only a first step may reveal.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], recorder: EpisodeRecorder, index: int, case: Case, filmed: bool
    ) -> None:
        super().__init__(env)
        self._recorder, self._index, self._case, self._filmed = recorder, index, case, filmed
        self._trajectory: Trajectory | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """See `gymnasium.Env`."""
        self._end()
        case = self._case
        keywords: dict[str, Any] = {"seed": seed if case.seed is None else case.seed}
        chosen = options if case.options is None else case.options
        if chosen is not None:  # not every environment has room for them
            keywords["options"] = chosen
        result: Any = self.env.reset(**keywords)
        if self._recorder.is_on:
            self._recorder.begun[self._index] += 1
            if self._recorder.options.trajectories:
                first = result[0] if isinstance(result, tuple) and len(result) == 2 else result
                self._trajectory = Trajectory(self._index, [copy.deepcopy(first)])
            if self._filmed:
                self._recorder.show(self.env, self._index)
        return result

    def step(self, action: Any) -> Any:
        """See `gymnasium.Env`."""
        result: Any = self.env.step(action)
        if self._trajectory is not None:
            self._trajectory.obs.append(copy.deepcopy(result[0]))
            self._trajectory.actions.append(copy.deepcopy(action))
            self._trajectory.rewards.append(float(result[1]))
            self._trajectory.terminated = bool(result[2])
        if self._filmed and self._recorder.is_on:
            self._recorder.show(self.env, self._index)
        return result

    def close(self) -> None:
        """See `gymnasium.Env`."""
        if self._recorder.one_env_per_episode:
            self._end()
        super().close()

    def _end(self) -> None:
        """A reset is the end of the episode before it, whoever ended that."""
        if self._trajectory is not None and self._trajectory.actions:
            self._recorder.trajectories.append(self._trajectory)
        self._trajectory = None


@dataclass(frozen=True)
class RecordedEnvMaker(EnvMaker):
    """Makes environments that are recorded, and begin as a case says.

    `first_options` are for the reset by which an environment shows whether it draws at all.
    """

    recorder: EpisodeRecorder = field(default_factory=EpisodeRecorder, compare=False)
    case: Case = field(default_factory=Case)
    first_options: dict[str, Any] | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the maker of recorded environments {self.name} cannot be sent to another process: its recorder stays here"
        )

    def make(self, ctx: EnvContext) -> AnyEnv:
        """See `EnvMaker`."""
        case = self.case
        if case.env_config is not None:
            ctx = ctx.with_config({**ctx, **case.env_config})
        plain = plain_maker(self)
        filmed = bool(self.recorder.options.videos) and ctx.vector_index == 0
        env = make_filmable(plain, ctx, case.options or self.first_options) if filmed else plain.make(ctx)
        if isinstance(env, AgentsEnv):
            env.close()
            raise ConfigError(f"env {self.name}: of several agents there are no cases, trajectories and videos yet")
        if isinstance(env, VectorEnv):
            env.close()
            raise ConfigError(f"env {self.name}: a native vector environment has no cases and no trajectories")
        if case.options and not takes_options(env):
            env.close()
            raise ConfigError(f"env {self.name}: its reset takes no options (the cases have {', '.join(case.options)})")
        return RecordedEnv(env, self.recorder, ctx.env_index, case, filmed)


def recorded(
    maker: EnvMaker, recorder: EpisodeRecorder, case: Case | None = None, first_options: dict[str, Any] | None = None
) -> RecordedEnvMaker:
    """The same environments, recorded."""
    return RecordedEnvMaker(**maker_fields(maker), recorder=recorder, case=case or Case(), first_options=first_options)
