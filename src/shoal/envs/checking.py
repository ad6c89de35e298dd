"""A first look at an environment before training: its spaces, one reset and one step, with every finding as a sentence.

What can never work is an error here, before any time is spent. What may be chance (a simulator that raises now and
then) or habit (double precision, a value out of bounds) is a warning: the sampler guards the boundary from then on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from shoal.envs.agents import AgentsEnv
from shoal.envs.closing import close_quietly
from shoal.envs.copies import comes_back_once
from shoal.envs.env_errors import error_text, pass_on_interrupts
from shoal.envs.legacy import takes_options
from shoal.envs.making import AnyEnv, Env, adapt_legacy, strip
from shoal.envs.masks import MaskSpec
from shoal.envs.observations import ObsSpec
from shoal.envs.repeated import Repeated, items_of
from shoal.envs.spaces import ActionSpec, Space, leaves_of, path_name
from shoal.errors import ConfigError, EnvError, EnvStartError

_SEED = 0


@dataclass(frozen=True)
class CheckReport:
    """What a first look found.

    `env` is the environment that was looked at, open, in an unknown state (reset or close it), and behind the old-Gym
    adapter if `legacy` says that only its first steps gave it away: then the maker needs `legacy=True` for the others.
    """

    env: AnyEnv
    legacy: bool
    warnings: tuple[str, ...]


def check_first_steps(
    make: Callable[[], AnyEnv], options: dict[str, Any] | None = None, before: Callable[[str], None] = lambda _: None
) -> CheckReport:
    """Make one environment, reset it and step it once; raise what can never work, report what looks wrong.

    `options` are given to its reset, where there are any. `before` is told of every call that comes next, for who
    watches from elsewhere: the call may end the process.
    """
    with comes_back_once("a first call"):
        return _looked_at(make(), options, before)


def _looked_at(env: AnyEnv, options: dict[str, Any] | None, before: Callable[[str], None]) -> CheckReport:
    try:
        if isinstance(env, AgentsEnv):
            return CheckReport(env, False, tuple(dict.fromkeys(_check_agents(env, before))))
        if isinstance(env, VectorEnv):
            return CheckReport(env, False, tuple(dict.fromkeys(_check_vector(env, before))))
        legacy, warnings = _check_single(env, options, before)
    except BaseException:
        before("close()")
        close_quietly(env)
        raise
    return CheckReport(adapt_legacy(env) if legacy else env, legacy, tuple(dict.fromkeys(warnings)))


def _check_single(env: Env, options: dict[str, Any] | None, before: Callable[[str], None]) -> tuple[bool, list[str]]:
    bare, _ = strip(env)
    spec, actions = _check_spaces(bare.observation_space, bare.action_space)
    warnings: list[str] = []
    if options and not takes_options(bare):
        raise ConfigError("config.randomize: the environment's reset() takes no options; add the argument options=None")
    before("reset()")
    legacy, obs = _check_reset(bare, options, warnings)
    action = _first_action(bare.action_space) if spec.mask is None else _allowed_actions(spec.mask, actions, [obs])[0]
    before("step()")
    try:
        result: Any = bare.step(action)
    except BaseException as error:
        pass_on_interrupts(error)
        warnings.append(f"its first step, with action {action!r}, raised {error_text(error)}")
        return legacy, warnings
    count = len(result) if isinstance(result, tuple | list) else None
    if count == 4:
        obs, reward, done, info = result
        terminated, truncated = done, False
        legacy = True
    elif count == 5:
        obs, reward, terminated, truncated, info = result
    else:
        got = type(result).__name__ if count is None else f"{count} values"
        raise EnvStartError(f"step() must return obs, reward, terminated, truncated, info (got {got})")
    warnings += obs_warnings(bare.observation_space, obs, "step()")
    _check_reward(reward, warnings)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        _check_flag(name, flag, warnings)
    if not isinstance(info, dict):
        raise EnvStartError(f"step() must return a dict as info (got {type(info).__name__})")
    return legacy, warnings


def _check_reset(env: Env, options: dict[str, Any] | None, warnings: list[str]) -> tuple[bool, Any]:
    """Reset once and look at the observation; whether the result has the form of old Gym, and the observation."""
    try:
        result: Any = env.reset(seed=_SEED, options=options) if options else env.reset(seed=_SEED)
    except BaseException as error:
        pass_on_interrupts(error)
        given = f", with options {options}," if options else ""
        raise EnvStartError(f"its first reset(){given} failed: {error_text(error)}") from error
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        warnings += obs_warnings(env.observation_space, result[0], "reset()")
        return False, result[0]
    try:
        warnings += obs_warnings(env.observation_space, result, "reset()")
    except EnvError as error:
        raise EnvStartError(
            f"reset() must return (obs, info) with info a dict (got {_kind(result)}); {error}"
        ) from error
    return True, result


def _check_spaces(observation_space: Any, action_space: Any) -> tuple[ObsSpec, ActionSpec]:
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        if not isinstance(space, spaces.Space):
            raise EnvStartError(
                f"{name} must be a gymnasium.spaces.Space (got {_kind(space)}); set it in the constructor"
            )
    problems: list[str] = []
    actions: ActionSpec | None = None
    spec: ObsSpec | None = None
    try:
        actions = ActionSpec(action_space)
    except ConfigError as error:
        problems += error.problems
    try:
        # How long a sequence may be is for the model to say.
        spec = ObsSpec(observation_space, actions=actions, max_len=1)
    except ConfigError as error:
        problems = [*error.problems, *problems]
    if spec is None or actions is None:
        raise ConfigError(problems)
    return spec, actions


def _check_vector(env: VectorEnv[Any, Any, Any], before: Callable[[str], None]) -> list[str]:
    spec, actions = _check_spaces(env.single_observation_space, env.single_action_space)
    before("reset()")
    try:
        obs, info = env.reset(seed=_SEED)
    except BaseException as error:
        pass_on_interrupts(error)
        raise EnvStartError(f"its first reset() failed: {error_text(error)}") from error
    if not isinstance(info, dict):
        raise EnvStartError(f"reset() must return (obs, info) with info a dict (got {type(info).__name__})")
    warnings = obs_warnings(env.observation_space, obs, "reset()")
    first = _first_action(env.action_space)
    if spec.mask is not None:
        allowed = _allowed_actions(spec.mask, actions, list(iterate(env.observation_space, obs)))
        room: Any = create_empty_array(actions.space, len(allowed))
        first = concatenate(actions.space, allowed, room)
    before("step()")
    try:
        obs, rewards, terminated, truncated, _ = env.step(first)
    except BaseException as error:
        pass_on_interrupts(error)
        return [*warnings, f"its first step raised {error_text(error)}"]
    for name, values in (("reward", rewards), ("terminated", terminated), ("truncated", truncated)):
        if np.shape(values) != (env.num_envs,):
            raise EnvStartError(f"step() must return {name} of shape ({env.num_envs},) (got shape {np.shape(values)})")
    return warnings + obs_warnings(env.observation_space, obs, "step()")


def _check_agents(env: AgentsEnv, before: Callable[[str], None]) -> list[str]:
    specs = {agent: _check_spaces(env.observation_spaces[agent], env.action_spaces[agent]) for agent in env.agents}
    before("reset()")
    try:
        moment = env.begin(_SEED)
    except BaseException as error:
        pass_on_interrupts(error)
        raise EnvStartError(f"its first reset() failed: {error_text(error)}") from error
    warnings: list[str] = []
    actions: dict[str, Any] = {}
    for agent in moment.to_act:
        obs, (spec, action_spec) = moment.observations[agent], specs[agent]
        warnings += obs_warnings(env.observation_spaces[agent], obs, f"reset(), agent {agent}")
        actions[agent] = _first_action(env.action_spaces[agent])
        if spec.mask is not None:
            actions[agent] = _allowed_actions(spec.mask, action_spec, [obs])[0]
    before("step()")
    try:
        moment = env.act(actions)
    except BaseException as error:
        pass_on_interrupts(error)
        return [*warnings, f"its first step, with actions {actions!r}, raised {error_text(error)}"]
    for agent, reward in moment.rewards.items():
        if agent in specs:
            _check_reward(reward, warnings)
    for agent in moment.to_act:
        warnings += obs_warnings(env.observation_spaces[agent], moment.observations[agent], f"step(), agent {agent}")
    return warnings


def obs_warnings(space: Space, obs: Any, source: str) -> list[str]:
    """How an observation departs from its space in ways that training survives; the wrong structure or shape raises."""
    warnings: list[str] = []
    if isinstance(obs, Mapping) and not isinstance(space, spaces.Dict | spaces.Sequence):
        raise EnvStartError(
            f"{source} gives a dict of {', '.join(map(str, obs))}, its space is {space}; if these are agents, "
            "they need PettingZoo's interface; else make the space a Dict"
        )
    if isinstance(space, spaces.Dict) and isinstance(obs, Mapping):
        extra = [str(key) for key in obs if key not in space.spaces]
        if extra:
            warnings.append(
                f"{source} gives {', '.join(extra)}, which observation_space does not have: the policy does not see it"
            )
    for path, leaf in leaves_of(space):
        what = f"{source}: observation {path_name(path)!r}" if path else f"{source}: the observation"
        value = obs
        for key in path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                raise EnvStartError(f"{what} is missing (got {_kind(obs)})") from None
        look = _sequence_warnings if isinstance(leaf, spaces.Sequence) else _leaf_warnings
        warnings += look(leaf, value, what)
    return warnings


def _sequence_warnings(sequence: Space, value: Any, what: str) -> list[str]:
    assert isinstance(sequence, spaces.Sequence)
    try:
        items = items_of(sequence, value)
    except (ValueError, TypeError, KeyError) as error:
        raise EnvStartError(f"{what} {error}") from None
    if isinstance(sequence, Repeated) and len(items) > sequence.max_len:
        raise EnvStartError(f"{what} has {len(items)} items, its space says {sequence.max_len} at most")
    return [warning for item in items for warning in obs_warnings(sequence.feature_space, item, f"{what}, an item")]


def _leaf_warnings(leaf: Space, value: Any, what: str) -> list[str]:
    try:
        array = np.asarray(value)
    except ValueError:
        raise EnvStartError(f"{what} is ragged, its space says shape {leaf.shape}") from None
    if array.shape != leaf.shape:
        is_batch = array.ndim > 0 and len(array) > 1 and array.shape[1:] == leaf.shape
        hint = "; if it is a batch of environments, name what makes one of them: shoal makes the batch itself"
        raise EnvStartError(f"{what} has shape {array.shape}, its space says {leaf.shape}{hint if is_batch else ''}")
    if array.dtype.kind not in "biuf":
        raise EnvStartError(f"{what} must hold numbers (got {_kind(value)})")
    warnings: list[str] = []
    dtype = np.dtype(leaf.dtype) if leaf.dtype is not None else array.dtype
    if (
        isinstance(value, np.ndarray | np.generic)
        and not np.can_cast(array.dtype, dtype, "safe")
        and array.dtype.kind == "f"
    ):
        warnings.append(f"{what} is {array.dtype}, but its space says {dtype}: shoal converts it")
    if not np.isfinite(array).all():
        warnings.append(f"{what} is not finite (NaN or infinity)")
    elif not _inside(leaf, array):
        warnings.append(f"{what} is outside its space {leaf}")
    return warnings


def _inside(leaf: Space, array: Any) -> bool:
    if isinstance(leaf, spaces.Box):
        return bool(((array >= leaf.low) & (array <= leaf.high)).all())
    if isinstance(leaf, spaces.Discrete):
        return bool(leaf.start <= array < leaf.start + leaf.n)
    if isinstance(leaf, spaces.MultiDiscrete):
        start = getattr(leaf, "start", 0)
        return bool(((array >= start) & (array < start + leaf.nvec)).all())
    return bool(((array == 0) | (array == 1)).all())


def _check_reward(reward: Any, warnings: list[str]) -> None:
    if isinstance(reward, Mapping | list | tuple) or np.size(reward) > 1:
        raise EnvStartError(
            f"step() gave {len(reward)} rewards ({_kind(reward)}): it has several agents, or is a batch; several "
            "agents need PettingZoo's interface, and shoal makes the batch itself, so let step() return one number"
        )
    if not isinstance(reward, Real | np.bool_):
        raise EnvStartError(f"step() must return a number as reward (got {_kind(reward)})")
    if not np.isfinite(float(reward)):
        warnings.append(f"step(): the reward is not finite ({reward})")


def _check_flag(name: str, flag: Any, warnings: list[str]) -> None:
    if isinstance(flag, bool | np.bool_):
        return
    if isinstance(flag, Real) and flag in (0, 1):
        warnings.append(f"step(): {name} is {flag!r}, not a bool: shoal reads it as {bool(flag)}")
        return
    raise EnvStartError(f"step() must return True or False as {name} (got {_kind(flag)})")


def _first_action(space: Space) -> Any:
    # A copy, so that the environment's own stream of random actions is not moved.
    own = copy.deepcopy(space)
    own.seed(_SEED)
    return own.sample()


def _allowed_actions(mask: MaskSpec, actions: ActionSpec, observations: list[Any]) -> list[Any]:
    """An action for each observation that its mask allows."""
    taken = np.zeros((len(observations), actions.size), actions.dtype)
    for index, obs in enumerate(observations):
        try:
            row = mask.row(obs)
        except ValueError as error:
            raise EnvStartError(f"reset(): {error}") from None
        if mask.stuck(row[None]).any():
            raise EnvStartError(f"reset(): {mask.trouble(row)}")
        for column, value in mask.first_allowed(row):
            taken[index, column] = value
    return list(actions.decode(taken))


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}, dtype {value.dtype}"
    return "None" if value is None else type(value).__name__
