"""Our environments as a plain `gymnasium.vector.VectorEnv`, for programs that bring their own algorithm.

What is promised, beyond Gymnasium's contract:

- An environment that raises, hangs past its deadline, dies or gives nonsense is restarted alone. Its step did not
  happen: the row is truncated with a reward of 0, `final_obs` is the last observation that was sound, and
  `infos["incident"]` says what failed. `incidents` has all that is needed to see it again.
- With `num_workers`, environments are in actors of Ray, on this machine or on the nodes of a cluster. One that is lost
  is replaced, and its rows go on with new episodes. Without, no Ray is started.
- Autoreset is in the same step: `final_obs` and `final_info` are as Gymnasium's own vectors have them in that mode.
  `final_info` holds the numbers of the last info and `episode` with `r` and `l`; infos inside an episode stay where
  they are made, unless `infos=True` asks for all of them, which costs a message for every process and step.
- Numbers travel in single precision, images of bytes as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from shoal.bridges.env_group import FormOnly, GroupSteps, Infos, KeptInfos
from shoal.bridges.env_groups import start_groups
from shoal.config.experiment import algorithm_config
from shoal.config.vocabulary import nearest
from shoal.data.batch import Episode, Incident, Parts
from shoal.envs.importing import UserCode
from shoal.envs.legacy import takes_options
from shoal.envs.making import maker_of
from shoal.envs.observations import ObsLeaf, ObsSpec
from shoal.envs.spaces import ActionLeaf, nest, path_name
from shoal.envs.vector import describe
from shoal.envs.wrapping import wrappings
from shoal.errors import ConfigError, EnvError

KEYS = (
    "env_config",
    "env_isolation",
    "env_memory_limit_mb",
    "env_ranks",
    "env_reset_timeout_s",
    "env_resets_per_s",
    "env_restart_delay_s",
    "env_scratch_limit_mb",
    "env_step_timeout_s",
    "horizon",
    "max_concurrent_envs",
    "max_env_failures",
    "max_worker_restarts",
    "num_cpus_per_worker",
    "preprocessor_pref",
    "randomize",
    "recreate_failed_workers",
    "seed",
    "wrappers",
)
"""The keys of a configuration that are about environments, and nothing else."""

MOST_INCIDENTS_KEPT = 1000

log = logging.getLogger("shoal")


def make_vec(
    env: Any, num_envs: int = 1, num_workers: int = 0, *, infos: bool = False, **config: Any
) -> SupervisedVectorEnv:
    """`num_envs` environments as one `gymnasium.vector.VectorEnv`, supervised, here or in `num_workers` actors of Ray.

    `env` is all that a configuration may call an environment; `config` are those of its keys that are about
    environments (`KEYS`), e.g. `env_step_timeout_s=30`. Atari games are prepared only if `preprocessor_pref` says so.
    With `infos`, all that environments tell comes along, at a price where they are in other processes.
    """
    return SupervisedVectorEnv(env, num_envs, num_workers, config, infos)


class SupervisedVectorEnv(VectorEnv[Any, Any, Any]):
    """Environments of ours behind Gymnasium's contract; see the module."""

    def __init__(
        self, env: Any, num_envs: int, num_workers: int, config: Mapping[str, Any], with_infos: bool = False
    ) -> None:
        self.closed = True  # until there is something to close
        tree = _config_tree(env, num_envs, num_workers, config)
        checked = algorithm_config("PPO", tree)
        user_code = UserCode.at().with_working_folder()
        maker = maker_of(checked, user_code)
        if with_infos:
            maker = replace(maker, wrappers=(*maker.wrappers, *wrappings([KeptInfos], user_code)))
        self._groups = start_groups(checked, maker, with_infos)
        self.closed = False
        self.num_envs, self.num_workers = num_envs, num_workers
        facts = self._groups.facts
        form = FormOnly(facts.observation_space, facts.action_space)
        self._obs_spec, self._action_spec = form.obs_spec, form.action_spec
        self.single_observation_space, self.single_action_space = facts.observation_space, facts.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = None
        self.spec = None
        self.incidents: list[Incident] = []  # the newest failures
        self.num_incidents = 0
        # Of the episodes that go on: of one that a failure ends, nobody else tells.
        self._returns: NDArray[np.float64] = np.zeros(num_envs)
        self._lengths: NDArray[np.int64] = np.zeros(num_envs, np.int64)
        self._last: Parts | None = None  # where the next actions are taken
        self._is_stepping = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes everywhere; seeds follow from `seed`, or in each environment from its own of a list.

        Every environment gets `options` with this reset, and not with those that follow in the course of steps.
        """
        if options is not None and not isinstance(options, Mapping):
            raise ConfigError(f"options: must be a dict (got {options!r})")
        if options and "reset_mask" in options:
            raise ConfigError("options: reset_mask: episodes that end are reset in the same step; leave it out")
        return self.reset_with(seed, dict.fromkeys(range(self.num_envs), options) if options else {})

    def reset_with(
        self, seed: int | Sequence[int | None] | None, options: Mapping[int, Mapping[str, Any]]
    ) -> tuple[Any, dict[str, Any]]:
        """`reset`, with options of its own for each environment that has some, by its row."""
        self._check_open()
        seeds = _seeds_of(seed, self.num_envs)
        if self._is_stepping:
            self.step_wait()
        if options:
            self.call_each({row: partial(_give_options, options=dict(given)) for row, given in options.items()})
        answers = self._groups.reset(seeds)
        self._returns[:], self._lengths[:] = 0, 0
        self._last = _joined([each.obs for each in answers])
        infos: dict[str, Any] = {}
        self._tell_infos([each.infos for each in answers], infos)
        self._tell_incidents([incident for each in answers for incident in each.incidents], infos)
        return self._batched(self._last), infos

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """See `VectorEnv`."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Begin a step, whose results `step_wait` gives; meanwhile the caller may do something else."""
        self._check_open()
        if self._last is None:
            raise EnvError("step: call reset first")
        if self._is_stepping:
            raise EnvError("step_async: the last step has not been waited for; call step_wait first")
        rows = self._rows_of(actions)
        self._groups.begin_step(np.split(rows, self.num_workers) if self.num_workers > 1 else [rows])
        self._is_stepping = True

    def step_wait(self) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """What came of the step that was begun."""
        if not self._is_stepping:
            raise EnvError("step_wait: no step was begun; call step_async first")
        self._is_stepping = False
        steps = self._groups.end_step()
        failed = np.concatenate([each.failed for each in steps])
        terminated = np.concatenate([each.terminated for each in steps])
        truncated = np.concatenate([each.truncated for each in steps]) | failed
        rewards = np.concatenate([each.rewards for each in steps]).astype(np.float64)
        self._returns += rewards
        self._lengths += ~failed
        infos: dict[str, Any] = {}
        self._tell_infos([each.infos for each in steps], infos)
        ended = terminated | truncated
        if ended.any():
            self._tell_ends(steps, infos)
            self._returns[ended], self._lengths[ended] = 0, 0
        self._tell_incidents([incident for each in steps for incident in each.incidents], infos)
        self._last = _joined([each.obs for each in steps])
        return self._batched(self._last), rewards, terminated, truncated, infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The result of a method of every environment, or its attribute of that name."""

        def called(env: Any) -> Any:
            found = attribute_of(env, name)
            return found(*args, **kwargs) if callable(found) else found

        return tuple(self.call_each(dict.fromkeys(range(self.num_envs), called)).values())

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every environment."""
        return tuple(self.call_each(dict.fromkeys(range(self.num_envs), lambda env: attribute_of(env, name))).values())

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment: to its own of a list or tuple of values, or to the one value.

        An environment that is restarted after a failure does not have it any more.
        """
        each = list(values) if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ConfigError(f"set_attr: {self.num_envs} environments need as many values (got {len(each)})")
        self.call_each({row: partial(set_attribute, name=name, value=value) for row, value in enumerate(each)})

    def call_each(self, functions: Mapping[int, Callable[[Any], Any]]) -> dict[int, Any]:
        """The results of a function of its own for each environment that has one, by its row."""
        self._check_open()
        return self._groups.call(functions)

    def close_extras(self, **_: Any) -> None:
        """See `VectorEnv`."""
        self._groups.stop()

    def _check_open(self) -> None:
        if self.closed:
            raise EnvError("the vector of environments is closed")

    def _rows_of(self, actions: Any) -> NDArray[Any]:
        """Our rows `[N, A]` of a batch of actions; one that is none of the space is refused."""
        columns = [self._numbers_of(leaf, actions) for leaf in self._action_spec.leaves]
        try:
            return self._action_spec.encoded(columns)
        except ValueError as error:
            raise EnvError(f"step: {error}") from None

    def _numbers_of(self, leaf: ActionLeaf, actions: Any) -> NDArray[Any]:
        """The numbers `[N, size]` of one leaf of a batch of actions; none of another shape are made to fit."""
        shape = (self.num_envs, *(leaf.space.shape or ()))
        place = f" at {path_name(leaf.path)!r}" if leaf.path else ""
        wanted = f"actions{place} must be numbers of shape {shape}"
        try:
            for key in leaf.path:
                actions = actions[key]
            found = np.asarray(actions)
        except (KeyError, IndexError, TypeError, ValueError):  # a key is missing, or lists are of several lengths
            raise EnvError(f"step: {wanted} (got {_shown(actions)})") from None
        is_numbers = found.dtype.kind in "biuf"
        if not is_numbers or found.shape != shape:
            got = f"shape {found.shape}" if is_numbers else _shown(actions)
            raise EnvError(f"step: {wanted} (got {got})")
        return found.reshape(self.num_envs, leaf.size)

    def _batched(self, parts: Parts) -> Any:
        return batched_obs(self._obs_spec, parts)

    def _tell_ends(self, steps: list[GroupSteps], infos: dict[str, Any]) -> None:
        """Put the last observations of episodes and what is known of these into the infos, as Gymnasium has them."""
        assert self._last is not None
        first = 0
        for each in steps:
            told = {episode.env_index: episode for episode in each.episodes}
            ends = np.flatnonzero(each.terminated | each.truncated | each.failed).tolist()
            for row in ends:
                episode = None if each.failed[row] else told.get(first + row)
                if episode is None:
                    final, final_info = self._obs_spec.get(self._last, first + row), self._cut_short(first + row)
                else:
                    parts = tuple(part[None] for part in each.finals[row])
                    last_info = each.infos.get(row, (None, None))[0]
                    final, final_info = self._obs_spec.get(parts, 0), _final_info(episode, last_info)
                self._add_info(infos, {"final_obs": final, "final_info": final_info}, first + row)
            first += len(each.rewards)

    def _cut_short(self, row: int) -> dict[str, Any]:
        """The last info of an episode that a failure has ended."""
        return {"failed": True, "episode": {"r": float(self._returns[row]), "l": int(self._lengths[row])}}

    def _tell_infos(self, groups: list[dict[int, Infos]], infos: dict[str, Any]) -> None:
        """What the environments told of where the next actions are taken: of a reset if there was one."""
        each = self.num_envs // len(groups)
        for index, group in enumerate(groups):
            for row, (stepped, begun) in group.items():
                self._add_info(infos, (stepped if begun is None else begun) or {}, index * each + row)

    def _tell_incidents(self, incidents: list[Incident], infos: dict[str, Any]) -> None:
        """Write failures down, and say of each row what failed there."""
        for incident in incidents:
            text = incident.cause if incident.kind == "worker" else describe(incident)
            log.warning("%s", text)
            self._add_info(infos, {"incident": text}, incident.env_index)
        self.num_incidents += len(incidents)
        self.incidents = (self.incidents + incidents)[-MOST_INCIDENTS_KEPT:]


def batched_obs(spec: ObsSpec, parts: Parts) -> Any:
    """Observations `[N]` in the structure of their space, each leaf with its own type and N in front."""
    values = {leaf.path: _batched_leaf(leaf, parts[leaf.part]) for leaf in spec.leaves}
    return nest(spec.space, values)


def _batched_leaf(leaf: ObsLeaf, part: NDArray[Any]) -> Any:
    if leaf.items is not None:
        return tuple(leaf.items.get(row) for row in part)
    numbers = part if leaf.columns is None else part[:, leaf.columns]
    if leaf.first is not None:
        numbers = numbers.astype(np.int64) + leaf.first
    return np.array(numbers, leaf.space.dtype).reshape(len(part), *(leaf.space.shape or ()))


def _final_info(episode: Episode, told: Mapping[str, Any] | None) -> dict[str, Any]:
    return {**episode.metrics, **(told or {}), "episode": {"r": episode.reward, "l": episode.length}}


def attribute_of(env: Any, name: str) -> Any:
    """An attribute of an environment or of a wrapper's inner one."""
    return env.get_wrapper_attr(name) if hasattr(env, "get_wrapper_attr") else getattr(env, name)


def set_attribute(env: Any, name: str, value: Any) -> None:
    """Set an attribute where the environment or one of its wrappers has it."""
    if hasattr(env, "set_wrapper_attr"):
        env.set_wrapper_attr(name, value)
    else:
        setattr(env, name, value)


def _give_options(env: Any, options: dict[str, Any]) -> None:
    """Let the next reset of an environment, and none after it, have these options."""
    if not takes_options(env):
        raise ConfigError("options: the environment's reset() takes none; add the argument options=None")
    reset = env.reset

    def once(**keywords: Any) -> Any:
        env.reset = reset
        return reset(**{**keywords, "options": {**(keywords.get("options") or {}), **options}})

    env.reset = once


def _joined(groups: list[Parts]) -> Parts:
    if len(groups) == 1:
        return groups[0]
    return tuple(np.concatenate(parts) for parts in zip(*groups, strict=True))


def _seeds_of(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """One seed for each environment: its own of several, or the only one, which their places tell apart."""
    given = [seed] * num_envs
    if isinstance(seed, list | tuple) or (isinstance(seed, np.ndarray) and seed.ndim == 1):
        given = list(seed)
        if len(given) != num_envs:
            raise ConfigError(f"seed: {num_envs} environments need as many seeds, or one number (got {len(given)})")
    for each in given:
        is_whole = isinstance(each, int | np.integer) and not isinstance(each, bool)
        if each is not None and (not is_whole or each < 0):  # type: ignore[operator]
            raise ConfigError(f"seed: must be a whole number of at least 0, or a list of them (got {_shown(seed)})")
    return [None if each is None else int(each) for each in given]  # type: ignore[arg-type]


def _shown(value: Any) -> str:
    """What was given, on one line that is not long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _config_tree(env: Any, num_envs: int, num_workers: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the environments' workers; what is not about environments is refused."""
    problems = []
    for name, value, least in (("num_envs", num_envs, 1), ("num_workers", num_workers, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            problems.append(f"{name}: must be a whole number of at least {least} (got {value!r})")
    if not problems and num_workers and num_envs % num_workers:
        fit = max(1, round(num_envs / num_workers)) * num_workers
        problems.append(f"num_envs: {num_envs} environments cannot be shared alike by {num_workers} workers; use {fit}")
    for key in config:
        if key not in KEYS:
            close = nearest(key, KEYS)
            hint = f"; did you mean {close}?" if close else f"; make_vec takes {', '.join(KEYS)}"
            problems.append(f"{key}: is no key of environments{hint}")
    if problems:
        raise ConfigError(problems)
    each = num_envs // max(num_workers, 1)
    return {
        "preprocessor_pref": None,
        **config,
        "env": env,
        "num_workers": num_workers,
        "num_envs_per_worker": each,
        "train_batch_size": max(2048, num_envs),
    }
