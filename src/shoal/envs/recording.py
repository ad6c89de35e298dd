"""Recorded environments: what an episode begins with, and a record of what happens in it."""

from __future__ import annotations

import copy
import os
import pickle
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic_ns
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

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

    Where environments have processes of their own, each has a recorder there that leaves what it sees in `folder`, and
    `collect` takes it in: so nothing is lost with a process but the episode that it was in.
    """

    def __init__(self, options: RecordingOptions | None = None, folder: Path | None = None) -> None:
        self.is_on = self.one_env_per_episode = False
        self.video_problem = ""
        self.options = options or RecordingOptions()
        self.trajectories: list[Trajectory] = []  # in the order in which episodes ended
        self.begun: Counter[int] = Counter()  # episodes of each environment
        self._folder = folder
        self._videos: list[Video] = []

    def __reduce__(self) -> Any:
        if self._folder is None and not self.options.is_empty:
            raise TypeError("a recorder without a folder cannot be sent to another process: what it keeps stays here")
        return RecorderElsewhere, (self.options, self._folder, self.one_env_per_episode)

    def begin(self, index: int) -> None:
        """Count an episode of an environment that begins now."""
        self.begun[index] += 1

    def keep(self, trajectory: Trajectory) -> None:
        """Keep an episode that has ended."""
        self.trajectories.append(trajectory)

    def show(self, env: gymnasium.Env[Any, Any], index: int) -> None:
        """Film the environment as it is now, if this is one of the episodes that are wanted of it."""
        if not self.options.videos or self.video_problem or self.begun[index] > self.options.video_episodes:
            return
        with self._filming():
            self._add(env.metadata.get("render_fps") or DEFAULT_FPS, picture(env))

    def collect(self) -> None:
        """Take in what recorders in other processes have left."""
        if self._folder is None:
            return
        for path in sorted(self._folder.glob(f"{_EPISODE}-*")):
            self.trajectories.append(_taken(path))
        for path in sorted(self._folder.glob(f"{_PICTURE}-*")):
            fps, frame = _taken(path)
            if not self.video_problem:
                with self._filming():
                    self._add(fps, frame)
        problem = self._folder / _PROBLEM
        if problem.exists() and not self.video_problem:
            self._give_up(problem.read_text())

    def finish(self) -> None:
        """Write what is to be written."""
        self.collect()
        with self._filming():
            while self._videos:
                self._videos[0].finish()
                self._videos.pop(0)

    def close(self) -> None:
        """Give up what is not finished; may be called twice."""
        while self._videos:
            self._videos.pop().close()

    def _add(self, fps: float, frame: NDArray[np.uint8]) -> None:
        if not self._videos:
            for path in self.options.videos:
                self._videos.append(Video(path, fps, frame.shape))
        for video in self._videos:
            video.add(frame)

    @contextmanager
    def _filming(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            pass_on_interrupts(error)
            names = " and ".join(map(str, self.options.videos))
            self._give_up(f"the video {names} was not made: {error_text(error)}")

    def _give_up(self, why: str) -> None:
        self.video_problem = why
        self.close()


class RecorderElsewhere(EpisodeRecorder):
    """The recorder in an environment's own process: what it sees goes into the folder, file by file.

    How many episodes have begun is there too, for the process that takes the place of this one.
    """

    def __init__(self, options: RecordingOptions, folder: Path | None, one_env_per_episode: bool) -> None:
        super().__init__(options, folder)
        self.is_on, self.one_env_per_episode = folder is not None, one_env_per_episode

    def begin(self, index: int) -> None:
        """See `EpisodeRecorder`."""
        assert self._folder is not None
        with open(self._folder / f"{_BEGUN}{index}", "ab") as file:
            file.write(b".")
            self.begun[index] = file.tell()
        if (self._folder / _PROBLEM).exists():
            self.video_problem = "said already"

    def keep(self, trajectory: Trajectory) -> None:
        """See `EpisodeRecorder`."""
        self._leave(_EPISODE, trajectory)

    def collect(self) -> None:
        """See `EpisodeRecorder`; others do."""

    def _add(self, fps: float, frame: NDArray[np.uint8]) -> None:
        self._leave(_PICTURE, (fps, frame))

    def _give_up(self, why: str) -> None:
        super()._give_up(why)
        assert self._folder is not None
        (self._folder / _PROBLEM).write_text(why)

    def _leave(self, kind: str, value: Any) -> None:
        """Leave a file that is whole as soon as it is seen; all processes of a host have one clock."""
        assert self._folder is not None
        name = f"{kind}-{monotonic_ns():020}-{os.getpid()}"
        unfinished = self._folder / f"unfinished-{os.getpid()}"
        unfinished.write_bytes(zlib.compress(pickle.dumps(value), 1))
        unfinished.rename(self._folder / name)


_EPISODE, _PICTURE, _PROBLEM, _BEGUN = "episode", "picture", "problem", "begun"


def _taken(path: Path) -> Any:
    """What a file of our own has, which is not needed any more."""
    value = pickle.loads(zlib.decompress(path.read_bytes()))
    path.unlink()
    return value


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
            self._recorder.begin(self._index)
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
            self._recorder.keep(self._trajectory)
        self._trajectory = None


@dataclass(frozen=True)
class RecordedEnvMaker(EnvMaker):
    """Makes environments that are recorded, and begin as a case says.

    `first_options` are for the reset by which an environment shows whether it draws at all.
    """

    recorder: EpisodeRecorder = field(default_factory=EpisodeRecorder, compare=False)
    case: Case = field(default_factory=Case)
    first_options: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return recorded, (plain_maker(self), self.recorder, self.case, self.first_options)

    def for_look(self) -> RecordedEnvMaker:
        """See `EnvMaker`."""
        return replace(self, recorder=EpisodeRecorder())

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
