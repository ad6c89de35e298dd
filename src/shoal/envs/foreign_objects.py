"""Objects that people take for one environment and that are something else, told apart by what they have.

None of the packages that they come from is imported for it.
"""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym

_SEVERAL_AGENTS = (
    "shoal trains several agents of PettingZoo's environments; name a pettingzoo.ParallelEnv around it (docs/agents.md)"
)
_ONE_ENV = (
    "name what makes one of them; shoal makes the batch itself, num_envs_per_worker in each of num_workers processes"
)


def stranger(env: Any) -> str | None:
    """What an object is that is not one environment, and what to do about it; None if it may be one."""
    if isinstance(env, tuple) and env:
        env = env[0]  # gymnax.make gives an environment and its parameters
    return _several_agents(env) or _functional(env) or _batch(env)


def _several_agents(env: Any) -> str | None:
    if any(kind.__name__ == "MultiAgentEnv" for kind in type(env).__mro__):
        return f"it has several agents (RLlib's MultiAgentEnv); {_SEVERAL_AGENTS}"
    return None


def _functional(env: Any) -> str | None:
    """Environments whose state is an argument, as JAX wants them, and those of dm_env."""
    if isinstance(env, gym.Env):
        return None  # shimmy's hands on every attribute of what it wraps
    maker = ""
    if _has(env, "initial", "transition", "observation", "terminal"):
        maker, whose = "gymnasium.envs.functional_jax_env.FunctionalJaxEnv(env)", "Gymnasium's FuncEnv"
    elif _has(env, "default_params", "step_env", "reset_env"):
        maker, whose = "gymnax.wrappers.GymnaxToGymWrapper(env, params)", "gymnax"
    elif _has(env, "observation_size", "action_size", "backend"):
        maker, whose = "brax.envs.wrappers.gym.GymWrapper(env)", "Brax"
    elif _has(env, "observation_spec", "action_spec", "reset") and not _first_is_key(env):
        return (
            "it is an environment of dm_env; name a function that returns it in "
            "shimmy.DmControlCompatibilityV0(env) (pip install shimmy)"
        )
    elif _has(env, "observation_spec", "action_spec", "reset"):
        maker, whose = "jumanji.wrappers.JumanjiToGymWrapper(env)", "Jumanji"
    elif _has(env, "reset", "step") and _first_is_key(env):
        maker, whose = "a gymnasium.Env that keeps the state and the key", "reset(key) gives the state"
    return f"it is a functional environment of JAX ({whose}); name a function that returns {maker}" if maker else None


def _batch(env: Any) -> str | None:
    if _has(env, "send", "recv", "async_reset"):
        how = "make it with envpool.make_gymnasium, which gives a gymnasium.vector.VectorEnv that shoal steps as it is"
        return f"it is a batch of environments (EnvPool); {how}"
    if _has(env, "num_envs", "single_observation_space") or getattr(env, "is_vector_env", False) is True:
        return f"it is a batch of environments, but not a gymnasium.vector.VectorEnv; make it one, or {_ONE_ENV}"
    return None


def _first_is_key(env: Any) -> bool:
    """Whether `reset` wants a key of random numbers first."""
    try:
        parameters = list(inspect.signature(env.reset).parameters.values())
    except (TypeError, ValueError):
        return False
    return bool(parameters) and parameters[0].name in ("key", "rng", "rng_key", "prng_key")


def _has(env: Any, *names: str) -> bool:
    return all(hasattr(env, name) for name in names)
