"""Native vector environments (`gymnasium.make_vec`, envpool-like ones), used as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from shoal.data.batch import Episode, Incident, Parts
from shoal.data.state import State
from shoal.data.streams import reset_seed
from shoal.envs.closing import close_quietly
from shoal.envs.copies import comes_back_once
from shoal.envs.env_errors import named_text, pass_on_interrupts
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec
from shoal.envs.vector import Steps, plain_numbers
from shoal.errors import EnvError

T = TypeVar("T")


class NativeVector:
    """A `gymnasium.vector.VectorEnv` behind the `Vector` contract, whatever its way to reset.

    It is one program: a failure in it cannot be mended for one environment alone, so it ends the run, saved. Its inner
    state cannot be replayed either: a resumed run begins new episodes.
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], obs_spec: ObsSpec, action_spec: ActionSpec, seed: int, first_index: int = 0
    ) -> None:
        self.env = env
        self.task: Any = None  # never another: a curriculum refuses native vector environments
        self.num_envs = env.num_envs
        self.can_replay = False
        self.episodes: list[Episode] = []
        self.incidents: list[Incident] = []
        self._obs_spec, self._action_spec = obs_spec, action_spec
        self._seed, self._first_index = seed, first_index
        self._resets = 0
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._rewards = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._resetting = np.zeros(self.num_envs, bool)  # rows that spend the coming step on their reset

    def reset(self, obs: Parts) -> None:
        """See `Vector`."""
        self._resets += 1
        seeds: Any = [reset_seed(self._seed, self._first_index + i, self._resets) for i in range(self.num_envs)]
        # Gymnasium's own collections of Python environments take a seed for each, and so do EnvPool's; the contract is
        # one for all.
        inner = self.env.unwrapped
        each = isinstance(inner, SyncVectorEnv | AsyncVectorEnv) or getattr(inner, "takes_seeds", False)
        self._put(self._reset(seed=seeds if each else seeds[0]), obs)
        self._rewards[:], self._lengths[:], self._resetting[:] = 0, 0, False

    def step(self, actions: NDArray[Any], active: NDArray[np.bool_] | None, steps: Steps) -> None:
        """See `Vector`."""
        if active is not None:
            raise EnvError(
                "batch_mode: complete_episodes cannot stop single environments of a native vector environment"
            )
        try:
            with comes_back_once("step()"):
                obs, rewards, terminated, truncated, infos = self.env.step(self._batched(actions))
        except BaseException as error:
            pass_on_interrupts(error)
            raise EnvError(f"the vector environment failed in step: {named_text(error)}") from error
        self._put(obs, steps.obs, np.asarray(terminated), np.asarray(truncated))
        steps.rewards[:] = rewards
        if not np.isfinite(steps.rewards.sum()):
            row = int((~np.isfinite(steps.rewards)).argmax())
            raise EnvError(f"environment {self._first_index + row} of the vector gave the reward {steps.rewards[row]}")
        steps.terminated[:] = terminated
        steps.truncated[:] = truncated
        steps.truncated &= ~steps.terminated
        self._skip_resets(steps)
        self._rewards += steps.rewards
        self._lengths += steps.valid
        ended = (steps.terminated | steps.truncated) & steps.valid
        if not ended.any():
            return
        self._hand_over_finals(steps, infos)
        for row in np.flatnonzero(ended).tolist():
            index, reward, length = self._first_index + row, float(self._rewards[row]), int(self._lengths[row])
            self.episodes.append(Episode(index, reward, length, self._metrics(row, infos)))
        self._rewards[ended], self._lengths[ended] = 0, 0
        if self._mode == AutoresetMode.NEXT_STEP:
            self._resetting = ended
        elif self._mode == AutoresetMode.DISABLED:
            self._put(self._reset(options={"reset_mask": ended}), steps.obs)

    replay_limit_s: float | None = None  # it replays nothing

    def env_states(self) -> list[State | None]:
        """See `Vector`."""
        return [None] * self.num_envs

    def bring_back(
        self,
        states: Sequence[State | None],  # noqa: ARG002 - of neither it has any use
        histories: Sequence[NDArray[Any] | None],  # noqa: ARG002
        obs: Parts,
    ) -> list[bool]:
        """See `Vector`."""
        self.reset(obs)
        return [False] * self.num_envs

    def get_state(self) -> dict[str, Any]:
        """See `Vector`."""
        return {"resets": self._resets}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Vector`."""
        self._resets = int(state["resets"])

    def call(self, fn: Callable[[Any], T]) -> list[T]:
        """See `Vector`."""
        return [fn(self.env)]

    def close(self) -> None:
        """See `Vector`."""
        close_quietly(self.env)

    def _reset(self, **options: Any) -> Any:
        try:
            with comes_back_once("reset()"):
                return self.env.reset(**options)[0]
        except BaseException as error:
            pass_on_interrupts(error)
            raise EnvError(f"the vector environment failed in reset: {named_text(error)}") from error

    def _skip_resets(self, steps: Steps) -> None:
        """A step that a row spent on its reset is no transition."""
        if self._resetting.any():
            steps.valid[self._resetting] = False
            steps.rewards[self._resetting] = 0
            steps.truncated[self._resetting] = False
            steps.terminated[self._resetting] = True
            self._resetting = np.zeros(self.num_envs, bool)

    def _hand_over_finals(self, steps: Steps, infos: dict[str, Any]) -> None:
        for row in np.flatnonzero(steps.truncated & steps.valid).tolist():
            last = tuple(part[row].copy() for part in steps.obs)
            if self._mode == AutoresetMode.SAME_STEP:
                room = self._obs_spec.allocate(1)
                finals = infos["final_obs"] if "final_obs" in infos else infos["final_observation"]
                self._obs_spec.put(finals[row], room, 0, ended=True)
                last = tuple(part[0] for part in room)
            steps.finals.append((row, last))

    def _metrics(self, row: int, infos: dict[str, Any]) -> dict[str, float]:
        """The numbers of an episode's last info: arrays over the rows, each with a mask of who has it."""
        if self._mode == AutoresetMode.SAME_STEP:
            infos = infos.get("final_info", {})
        own = {}
        for name, values in infos.items():
            is_mask = name.startswith("_") and name[1:] in infos
            if isinstance(values, np.ndarray) and values.shape == (self.num_envs,) and not is_mask:
                mask = infos.get(f"_{name}")
                if mask is None or mask[row]:
                    own[name] = values[row]
        return plain_numbers(own)

    def _put(self, batched: Any, obs: Parts, *ended: NDArray[np.bool_]) -> None:
        leaf = self._obs_spec.leaves[0]
        if len(self._obs_spec.leaves) == 1 and not leaf.path and leaf.first is None and leaf.items is None:
            array = np.asarray(batched)
            if len(array) != self.num_envs or array[0].size != obs[0][0].size:
                raise EnvError(f"the vector environment's observations have shape {array.shape}")
            obs[0][...] = array.reshape(obs[0].shape)
        else:
            rows = list(iterate(self.env.observation_space, batched))
            try:
                self._obs_spec.put_all(rows, obs)
            except Exception as error:
                raise self._misfit(*self._first_misfit(rows, obs, str(error)), bool(ended)) from error
        problem = self._obs_spec.problem(obs, *ended)
        if problem is not None:
            raise self._misfit(*problem, bool(ended))

    def _first_misfit(self, rows: list[Any], obs: Parts, otherwise: str) -> tuple[int, str]:
        for row, single in enumerate(rows):
            try:
                self._obs_spec.put(single, obs, row, ended=True)
            except ValueError as error:
                return row, str(error)
        return 0, otherwise

    def _misfit(self, row: int, sentence: str, stepped: bool) -> EnvError:
        place = f"environment {self._first_index + row} of the vector, at step {self._lengths[row] + stepped}"
        return EnvError(f"{place} of its episode: {sentence}")

    def _batched(self, actions: NDArray[Any]) -> Any:
        space = self._action_spec.space
        if isinstance(space, spaces.Discrete):  # without an object for each of what may be thousands
            return actions[:, 0].astype(space.dtype) + space.start
        decoded = self._action_spec.decode(actions)
        if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
            return np.asarray(decoded, space.dtype).reshape(self.num_envs, *space.shape)
        room: Any = create_empty_array(space, self.num_envs)
        return concatenate(space, decoded, room)
