"""The keys of environments with several agents: what stands under multiagent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BaseModel, PlainValidator, WithJsonSchema

from shoal.config.fields import STRICT, Count, Flag, Fraction, Size
from shoal.errors import ConfigError

DEFAULT_POLICY = "default_policy"
"""The policy of all agents where the configuration names none, as in classic RLlib."""


def _policies(value: Any) -> dict[str, dict[str, Any]]:
    if isinstance(value, list | tuple | set):
        value = dict.fromkeys(value)
    if not isinstance(value, Mapping):
        raise ValueError("must map names of policies to their settings: {attacker: {lr: 1e-4}, defender: {}}")
    for name in value:
        if not isinstance(name, str) or not name or not all(sign.isalnum() or sign in "_-" for sign in name):
            raise ValueError(f"names of policies are of letters, digits, - and _ (got {name!r})")
    return {name: dict(settings or {}) for name, settings in value.items()}


def _mapping(value: Any) -> dict[str, str] | Callable[[str], str]:
    if callable(value):
        return value  # type: ignore[no-any-return]
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in (*value, *value.values())):
        raise ValueError('must map agents, or patterns of them, to policies: {"adversary_*": attacker, "*": defender}')
    return dict(value)


def _names(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple | set) or not all(isinstance(name, str) for name in value):
        raise ValueError("must be a list of names of policies")
    return tuple(value)


Policies = Annotated[
    dict[str, dict[str, Any]], PlainValidator(_policies), WithJsonSchema({"type": ["object", "array"]})
]
PolicyMapping = Annotated[
    dict[str, str] | Callable[[str], str], PlainValidator(_mapping), WithJsonSchema({"type": "object"})
]
PolicyNames = Annotated[
    tuple[str, ...] | None,
    PlainValidator(_names),
    WithJsonSchema({"type": ["array", "null"], "items": {"type": "string"}}),
]


class SelfPlayConfig(BaseModel):
    """How a policy that is not trained plays as one of the trained policy's past selves."""

    model_config = STRICT

    learner: str | None = None
    """Policy whose past selves are played against; null: there is no self-play."""
    opponent: str | None = None
    """Policy that plays as one of them, drawn anew in every iteration; it must not be in policies_to_train."""
    snapshot_interval: Size = 10
    """Number of training iterations after which the learner as it is joins the pool."""
    pool_size: Size = 20
    """Number of past selves in the pool; one more takes the place of the oldest."""
    latest_probability: Fraction = 0.5
    """Probability that the opponent is the learner as it is now, and no past self."""


class MultiAgentConfig(BaseModel):
    """Which policies act for the agents of an environment (docs/agents.md)."""

    model_config = STRICT

    policies: Policies = {}
    """Policies by name, each with the settings in which it differs; {}: one, default_policy, acts for all agents.

    A policy may have its own model and the keys that may change in a run, such as lr. A list of names will do."""
    policy_mapping: PolicyMapping = {}
    """Policy of each agent, by its id or a pattern, the first match: {"adversary_*": attacker, "*": defender}.

    {}: an agent has the policy of its own id, with or without the number at its end. In Python also a function of the
    agent's id."""
    policies_to_train: PolicyNames = None
    """Names of the policies that learn; the others stay as they are; null: all learn."""
    rotate_agents: Flag = False
    """Whether the agents change places from one environment to the next, so that every policy plays on every side.

    Environment k gives its first agent's part to agent k, and so on in a circle. All agents must have equal spaces."""
    self_play: SelfPlayConfig = SelfPlayConfig()
    """Self-play against a pool of past selves."""
    num_agents: Count = 0
    """Number of agents of each environment; shoal counts them itself at the start; 0: not counted yet, or one."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all policies."""
        return tuple(self.policies) or (DEFAULT_POLICY,)

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of the policies that learn, in the order of all."""
        if self.policies_to_train is None:
            return self.names
        return tuple(name for name in self.names if name in self.policies_to_train)

    def policy_of(self, agent: str) -> str:
        """The policy that acts for an agent."""
        name: str | None = None
        if len(self.names) == 1 and not self.policy_mapping:
            return self.names[0]
        if callable(self.policy_mapping):
            name = self.policy_mapping(agent)
        elif self.policy_mapping:
            name = next((each for key, each in self.policy_mapping.items() if fnmatchcase(str(agent), key)), None)
        else:
            named = (str(agent), str(agent).rstrip("0123456789").rstrip("_"))
            name = next((each for each in named if each in self.policies), None)
        if name is None:
            raise ConfigError(
                f"config.multiagent.policy_mapping: no policy for agent {agent}; add {{{agent!s}: NAME}} with one of "
                f"{', '.join(self.names)}"
            )
        if name not in self.names:
            raise ConfigError(
                f"config.multiagent.policy_mapping: agent {agent} has the policy {name!r}, and there is none of that "
                f"name; write it into multiagent.policies, or use {' or '.join(self.names)}"
            )
        return name

    def agents_of(self, agents: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """The places of each policy's agents among all agents."""
        chosen = [self.policy_of(agent) for agent in agents]
        found = {name: tuple(k for k, each in enumerate(chosen) if each == name) for name in self.names}
        idle = [name for name, places in found.items() if not places]
        if idle:
            raise ConfigError(
                f"config.multiagent.policies: {idle[0]} acts for none of the agents {', '.join(map(str, agents))}; "
                "give it some in policy_mapping, or leave it out"
            )
        return found

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found: list[str] = []
        unknown = [name for name in self.policies_to_train or () if name not in self.names]
        found += [
            f"config.multiagent.policies_to_train: there is no policy {name!r}; use {' or '.join(self.names)}"
            for name in unknown
        ]
        if not self.trained and not unknown:
            found.append("config.multiagent.policies_to_train: nothing is trained; name a policy, or leave it out")
        play = self.self_play
        if (play.learner is None) != (play.opponent is None):
            found.append("config.multiagent.self_play: name both, learner and opponent")
        elif play.learner is not None and play.learner not in self.trained:
            found.append(f"config.multiagent.self_play.learner: {play.learner!r} is no policy that is trained")
        elif play.opponent is not None and (play.opponent in self.trained or play.opponent not in self.names):
            found.append(
                f"config.multiagent.self_play.opponent: {play.opponent!r} must be one of multiagent.policies, and not "
                "one of policies_to_train"
            )
        return found
