"""Environments of several agents: PettingZoo's parallel API, and its AEC API by PettingZoo's own conversions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.envs.closing import close_quietly
from shoal.envs.spaces import Space
from shoal.errors import ConfigError, EnvStartError


@dataclass(frozen=True)
class Moment:
    """What the agents of an environment were given by a reset or a step, by their ids."""

    observations: Mapping[str, Any]
    to_act: tuple[str, ...]  # whose actions the next step takes
    live: tuple[str, ...]  # who takes part still; empty: the episode is over
    rewards: Mapping[str, Any] = field(default_factory=dict)
    terminated: Mapping[str, Any] = field(default_factory=dict)
    truncated: Mapping[str, Any] = field(default_factory=dict)
    infos: Mapping[str, Any] = field(default_factory=dict)


class AgentsEnv(VectorEnv[Any, Any, Any]):
    """One environment of several agents, each of which counts as one environment of a batch.

    It is stepped by its agents (`begin`, `act`), and not as Gymnasium's batches are: agents come and go, and those of a
    turn-based game act one after another.
    """

    def __init__(self, env: Any, name: str) -> None:
        self.env, self.name = env, name
        self.agents = _possible_agents(env, name)
        self.num_envs = len(self.agents)
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self.observation_spaces: dict[str, Space] = {agent: env.observation_space(agent) for agent in self.agents}
        self.action_spaces: dict[str, Space] = {agent: env.action_space(agent) for agent in self.agents}
        first = self.agents[0]
        self.single_observation_space, self.single_action_space = (
            self.observation_spaces[first],
            self.action_spaces[first],
        )
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._in_turns = _in_turns(env)

    @property
    def unwrapped(self) -> Any:
        """PettingZoo's own environment."""
        return getattr(self.env, "unwrapped", self.env)

    def begin(self, seed: int | None = None) -> Moment:
        """Begin an episode."""
        result = self.env.reset() if seed is None else self.env.reset(seed=seed)
        if not isinstance(result, tuple) or len(result) != 2:
            raise ValueError("reset() must return observations and infos, each a dict by agent")
        observations, infos = result
        return self._moment(observations, infos=infos)

    def act(self, actions: Mapping[str, Any]) -> Moment:
        """Take one step with the actions of those that are to act."""
        result = self.env.step(dict(actions))
        if not isinstance(result, tuple) or len(result) != 5:
            raise ValueError(
                "step() must return observations, rewards, terminations, truncations and infos, each a dict by agent"
            )
        observations, rewards, terminated, truncated, infos = result
        return self._moment(observations, rewards, terminated, truncated, infos)

    def render(self) -> Any:
        """See `VectorEnv`."""
        return self.env.render()

    def close_extras(self, **_: Any) -> None:
        """See `VectorEnv`."""
        close_quietly(self.env)

    def _moment(
        self,
        observations: Mapping[str, Any],
        rewards: Mapping[str, Any] | None = None,
        terminated: Mapping[str, Any] | None = None,
        truncated: Mapping[str, Any] | None = None,
        infos: Mapping[str, Any] | None = None,
    ) -> Moment:
        terminated, truncated = terminated or {}, truncated or {}
        live = tuple(a for a in self.env.agents if not (terminated.get(a, False) or truncated.get(a, False)))
        strangers = [agent for agent in live if agent not in self.observation_spaces]
        if strangers:
            raise ValueError(f"agent {strangers[0]!r} is none of possible_agents ({', '.join(map(str, self.agents))})")
        if self._in_turns is None:
            to_act = tuple(agent for agent in live if agent in observations)
        else:
            to_act = tuple(agent for agent in live if agent == self._in_turns.agent_selection)
        if live and not to_act:
            raise ValueError(f"no agent may act, and {', '.join(map(str, live))} have not ended")
        return Moment(observations, to_act, live, rewards or {}, terminated, truncated, infos or {})


def has_agents(env: Any) -> bool:
    """Whether this is an environment of PettingZoo, of either API."""
    return has_parts(env, "possible_agents", "step", "reset") and callable(getattr(env, "observation_space", None))


def as_agents_env(env: Any, name: str) -> Any:
    """The environment itself, or one of several agents behind one interface; `name` is what the user calls it."""
    if isinstance(env, AgentsEnv) or not has_agents(env):
        return env
    if has_parts(env, "agent_iter", "last"):
        env = _parallel(env, name)
    try:
        return AgentsEnv(env, name)
    except BaseException:
        close_quietly(env)
        raise


def has_parts(env: Any, *names: str) -> bool:
    """Whether an object has all of these attributes; PettingZoo's own raise where they are not set yet."""
    return all(hasattr(env, name) for name in names)


def _parallel(env: Any, name: str) -> Any:
    """An AEC environment with PettingZoo's parallel API: agents in turns, or where it says so, all at once."""
    try:
        from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel
    except ImportError:
        raise ConfigError(f"env {name}: it needs PettingZoo; type pip install 'shoal-rl[pettingzoo]'") from None
    convert = aec_to_parallel if (env.metadata or {}).get("is_parallelizable") else turn_based_aec_to_parallel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has no render_mode
        return convert(env)


def _possible_agents(env: Any, name: str) -> tuple[str, ...]:
    agents = tuple(env.possible_agents)
    if not agents:
        raise EnvStartError(f"env {name}: its possible_agents are empty; list every agent that may ever take part")
    return agents


def _in_turns(env: Any) -> Any:
    """The turn-based environment that PettingZoo's conversion has inside, whatever is around it; None: all act."""
    while env is not None:
        if type(env).__name__ == "turn_based_aec_to_parallel_wrapper":
            return env.aec_env
        env = vars(env).get("env")
    return None
