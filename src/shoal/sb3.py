"""Our supervised, distributed environments for Stable-Baselines3, which is imported with this module.

>>> from stable_baselines3 import PPO
>>> from shoal.sb3 import RayVecEnv
>>> model = PPO("MlpPolicy", RayVecEnv("CartPole-v1", num_workers=8))
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from shoal.bridges.vector_env import attribute_of, make_vec, set_attribute
from shoal.data.batch import Incident
from shoal.errors import ConfigError

try:
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "stable_baselines3":
        raise
    raise ConfigError("shoal.sb3 needs Stable-Baselines3: type pip install 'shoal-rl[sb3]'") from None

__all__ = ["RayVecEnv"]


class RayVecEnv(VecEnv):
    """Environments of `shoal.make_vec` as a VecEnv of Stable-Baselines3.

    `num_envs` are shared alike by `num_workers` actors of Ray, one each unless it says more; without workers they are
    in this process, or in processes of their own (`env_isolation="process"`), and no Ray is started. The other
    arguments are those of `make_vec`. A step that failed ends its episode as a time limit does, and the info of that
    row has `incident`. Infos of finished episodes have `episode`, as those of a Monitor, and the numbers of the last
    info; `infos=True` brings all infos along.
    """

    def __init__(
        self, env: Any, num_workers: int = 0, num_envs: int | None = None, *, infos: bool = False, **config: Any
    ) -> None:
        self.vector = make_vec(env, num_envs or max(num_workers, 1), num_workers, infos=infos, **config)
        super().__init__(self.vector.num_envs, self.vector.single_observation_space, self.vector.single_action_space)

    def reset(self) -> Any:
        """See `VecEnv`; the seeds of all environments follow from that of the first."""
        given = {row: options for row, options in enumerate(self._options) if options}
        obs, infos = self.vector.reset_with(self._seeds[0], given)
        self.reset_infos = _infos_of(infos, self.num_envs)
        self._reset_seeds()
        self._reset_options()
        return obs

    def step_async(self, actions: np.ndarray[Any, Any]) -> None:
        """See `VecEnv`."""
        self.vector.step_async(actions)

    def step_wait(self) -> Any:
        """See `VecEnv`."""
        obs, rewards, terminated, truncated, told = self.vector.step_wait()
        done = terminated | truncated
        infos = _infos_of(told, self.num_envs)
        for row in np.flatnonzero(done).tolist():
            begun = infos[row]
            infos[row] = {"terminal_observation": begun.pop("final_obs"), **begun.pop("final_info")}
            if "incident" in begun:
                infos[row]["incident"] = begun.pop("incident")
            self.reset_infos[row] = begun
        for info, is_cut in zip(infos, (truncated & ~terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = is_cut
        return obs, rewards.astype(np.float32), done, infos

    @property
    def incidents(self) -> list[Incident]:
        """The newest failures, with all that is needed to see them again."""
        return self.vector.incidents

    @property
    def num_incidents(self) -> int:
        """How many failures there were."""
        return self.vector.num_incidents

    def get_images(self) -> list[Any]:
        """See `VecEnv`; there are pictures with `env_config={"render_mode": "rgb_array"}`."""
        if self.render_mode != "rgb_array":
            return [None] * self.num_envs
        return self._called(lambda env: env.render(), None)

    def close(self) -> None:
        """See `VecEnv`."""
        self.vector.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """See `VecEnv`."""
        if attr_name == "render_mode":  # which `VecEnv` asks for, and an environment need not have
            return self._called(lambda env: getattr(env, "render_mode", None), indices)
        found = self._called(partial(_found, name=attr_name), indices)
        if not all(is_there for is_there, _ in found):
            raise AttributeError(f"the environment has no attribute {attr_name!r}")
        return [value for _, value in found]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """See `VecEnv`; an environment that is restarted after a failure does not have it any more."""
        self._called(partial(set_attribute, name=attr_name, value=value), indices)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """See `VecEnv`."""
        return self._called(lambda env: attribute_of(env, method_name)(*method_args, **method_kwargs), indices)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """See `VecEnv`; Gymnasium's own outermost wrappers, whose work is done elsewhere, are none."""
        return self._called(partial(_is_wrapped, wrapper_class=wrapper_class), indices)

    def _called(self, fn: Any, indices: Any) -> list[Any]:
        rows: Iterable[int] = self._get_indices(indices)
        return list(self.vector.call_each(dict.fromkeys(rows, fn)).values())


def _found(env: Any, name: str) -> tuple[bool, Any]:
    """Whether an environment has an attribute, and its value: an exception would have another type in a process."""
    try:
        return True, attribute_of(env, name)
    except AttributeError:
        return False, None


def _is_wrapped(env: Any, wrapper_class: type[Any]) -> bool:
    while env is not None:
        if isinstance(env, wrapper_class):
            return True
        env = getattr(env, "env", None)
    return False


def _infos_of(told: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """One info for each environment, of what Gymnasium has as columns with masks."""
    infos: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, column in told.items():
        if f"_{key}" not in told:
            continue  # it is a mask itself
        inner = _infos_of(column, count) if isinstance(column, dict) else column
        for row in np.flatnonzero(told[f"_{key}"]).tolist():
            infos[row][key] = inner[row]
    return infos
