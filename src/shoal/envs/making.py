"""From what a user calls an environment (an id, a name, a file, a class, a function) to a living one."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from shoal.config.program_names import program_name
from shoal.config.settings import AlgorithmConfig
from shoal.envs import atari
from shoal.envs.agents import AgentsEnv, as_agents_env
from shoal.envs.batches import as_vector_env
from shoal.envs.closing import close_quietly
from shoal.envs.context import EnvContext
from shoal.envs.copies import comes_back_once
from shoal.envs.env_arguments import check_keywords, create, guarded
from shoal.envs.env_errors import error_text, pass_on_interrupts
from shoal.envs.env_formats import FormatMaker, format_maker
from shoal.envs.envpool_ids import PREFIX, EnvPoolMaker, envpool_maker
from shoal.envs.fmu import FmuMaker
from shoal.envs.foreign_objects import stranger
from shoal.envs.gym_ids import find_spec, is_id, nearest_ids, spec_of_package, unknown_id
from shoal.envs.importing import (
    INSTALLED,
    UserCode,
    attribute,
)
from shoal.envs.legacy import AnyForm, LegacyGymEnv, is_legacy
from shoal.envs.pettingzoo_ids import PREFIX as PETTINGZOO
from shoal.envs.pettingzoo_ids import pettingzoo_maker
from shoal.envs.programs import ProgramMaker
from shoal.envs.registry import registered
from shoal.envs.vector_entry import pool_of, vector_entry
from shoal.envs.wrapping import Wrapping, wrappings
from shoal.errors import AttributeMissing, ConfigError, EnvStartError, ModuleMissing

Env: TypeAlias = "gymnasium.Env[Any, Any]"
AnyEnv: TypeAlias = "gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]"

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
WORTH_A_VECTOR = 32  # environments; of fewer, a vector class steps about as many per second as single ones
_PARTS = ("reset", "step", "observation_space", "action_space")


@dataclass(frozen=True)
class EnvMaker:
    """Makes any number of one environment, here or in another process.

    `name` is fit for a folder's name; `env_maker(source, user_code, ...)` gives an equal maker wherever the same
    modules, files and registered names exist. `legacy` forces the adapter for old Gym, for what only a first step
    reveals. `wrappers` are put around each, in their order.
    """

    name: str
    source: str
    create: Callable[[EnvContext], Any] = field(compare=False, repr=False)
    user_code: UserCode = INSTALLED
    legacy: bool = False
    by_text: bool = field(default=False, repr=False)
    wrappers: tuple[Wrapping, ...] = ()

    def for_look(self) -> EnvMaker:
        """What makes an environment for a first look at it, of which nothing is kept."""
        return self

    def make(self, ctx: EnvContext) -> AnyEnv:
        """Make one environment, adapted to Gymnasium's interface if it is an old one."""
        with self.user_code.importable(), comes_back_once("the constructor"):
            env = as_agents_env(as_vector_env(self.create(ctx), self.name), self.name)
        if isinstance(env, VectorEnv):
            return self._unwrapped(env)
        missing = self._missing_parts(env)
        if missing:
            raise EnvStartError(
                f"env {self.name}: it gave {type(env).__name__} without {', '.join(missing)}; "
                "an environment needs reset, step, observation_space and action_space, as a gymnasium.Env has"
            )
        adapted = adapt_legacy(env) if self.legacy or is_legacy(env) else env
        return self._wrapped(adapted) if self.wrappers else adapted

    def _missing_parts(self, env: Any) -> list[str]:
        """What an environment needs and this one does not have; looking at it runs its own code, which may fail."""
        try:
            told = stranger(env)
            missing = [part for part in _PARTS if not hasattr(env, part)]
        except BaseException as error:
            pass_on_interrupts(error)
            close_quietly(env)
            raise EnvStartError(f"env {self.name}: reading its spaces failed: {error_text(error)}") from error
        if told:
            close_quietly(env)
            raise EnvStartError(f"env {self.name}: {told}")
        return missing

    def _wrapped(self, env: Env) -> Env:
        """The environment in its wrappers, which see Gymnasium's interface whatever only a first step would reveal."""
        bare, limit = strip(env)
        wrapped: Env = AnyForm(bare)
        if limit is not None:
            wrapped = TimeLimit(wrapped, limit)
        try:
            for wrapping in self.wrappers:
                wrapped = wrapping.put_around(wrapped, self.user_code)
        except BaseException:
            close_quietly(env)
            raise
        return wrapped

    def _unwrapped(self, env: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
        if self.wrappers:
            env.close()
            if isinstance(env, AgentsEnv):
                raise ConfigError(
                    f"config.wrappers: env {self.name} has several agents, and Gymnasium's wrappers are for one; "
                    "apply PettingZoo's where it is made"
                )
            raise ConfigError(
                f"config.wrappers: env {self.name} is a batch of environments, which shoal does not wrap; "
                "apply the wrappers where it is made"
            )
        return env

    def __reduce__(self) -> tuple[Any, ...]:
        # A class found by a text lives in a module that another process cannot import by name: there it is found again.
        if self.by_text:
            return _found_again, (self.source, self.user_code, self.legacy, self.wrappers)
        values = (self.name, self.source, self.create, self.user_code, self.legacy, self.by_text, self.wrappers)
        return EnvMaker, values


def maker_fields(maker: EnvMaker) -> dict[str, Any]:
    """All that a maker of another kind needs to make the same environments, and then do more with them."""
    return {own.name: getattr(maker, own.name) for own in fields(EnvMaker)}


def plain_maker(maker: EnvMaker) -> EnvMaker:
    """Makes the same environments, and does no more with them."""
    return EnvMaker(**maker_fields(maker))


def env_maker(
    env: object,
    user_code: UserCode = INSTALLED,
    wrappers: Sequence[Any] = (),
    preprocessor_pref: str | None = None,
) -> EnvMaker:
    """Find out what `env` means: a registered name, a Gymnasium id, a module's or file's class, a class, a callable.

    Modules and files are looked for in the user's code first. `wrappers` and `preprocessor_pref` are as a configuration
    says them; wrappers take the place of the latter.
    """
    maker = _maker_of(env, user_code)
    if wrappers:
        return replace(maker, wrappers=wrappings(wrappers, user_code))
    if preprocessor_pref == "deepmind" and isinstance(maker.create, _Spec) and maker.create.is_atari:
        return replace(maker, create=replace(maker.create, prepares_frames=True))
    return maker


def maker_of(config: AlgorithmConfig, user_code: UserCode = INSTALLED) -> EnvMaker:
    """What makes the environments of a configuration; one that learns from recorded steps may have none."""
    if config.env is None and config.learns_offline:
        return EnvMaker("recorded", "", _no_environment, user_code)
    maker = env_maker(config.env, user_code, config.wrappers, config.preprocessor_pref)
    return _vectorized(maker, config.vectorization)


def _vectorized(maker: EnvMaker, how: str) -> EnvMaker:
    """The maker whose environments step as `vectorization` says; what only a made one can tell, its worker checks."""
    is_pool = isinstance(maker.create, EnvPoolMaker)
    if is_pool and how in ("python", "native"):
        raise ConfigError(f"config.vectorization: env {maker.source} is a pool of EnvPool's; leave it out (got {how})")
    if how == "native" and isinstance(maker.create, _Spec):
        return replace(maker, create=vector_entry(maker.create.spec, maker.name, maker.create.settings))
    if how == "envpool" and not is_pool:
        if not isinstance(maker.create, _Spec):
            raise ConfigError(
                f"config.vectorization: EnvPool has environments of its own, and env {maker.name} is none of them; "
                "leave it out"
            )
        if maker.create.settings:
            named = ", ".join(maker.create.settings)
            raise ConfigError(
                f"config.vectorization: env {maker.name} sets {named}, which EnvPool's has not; leave it out"
            )
        return replace(maker, create=pool_of(maker.create.spec))
    return maker


def vectorization_notes(maker: EnvMaker, config: AlgorithmConfig) -> tuple[str, ...]:
    """What `vectorization: auto` took, where there was a choice.

    It takes the one that resumes exactly and does not depend on the number of workers, and names the one that is fast.
    """
    if config.vectorization != "auto" or config.num_envs_per_worker == "auto":
        return ()
    count = config.envs_per_worker
    if isinstance(maker.create, EnvPoolMaker):
        return (f"vectorization: auto is envpool, a pool of {count} environments",)
    has_choice = isinstance(maker.create, _Spec) and maker.create.spec.vector_entry_point is not None
    if not has_choice or count < WORTH_A_VECTOR:
        return ()
    return (
        f"vectorization: auto is python, which steps {count} environments one after another and resumes them exactly; "
        "native steps them as one, many times as fast, and resumes with new episodes",
    )


def _no_environment(ctx: EnvContext) -> Any:  # noqa: ARG001
    """Refuse to make the environment of a policy that was learned without one."""
    raise ConfigError("env: is missing: this policy was learned from recorded steps alone; name one to run it on")


def preprocessing_notes(maker: EnvMaker, env_config: Mapping[str, Any]) -> tuple[str, ...]:
    """What is done to an environment's observations before anybody sees them, in a sentence if anything is."""
    if isinstance(maker.create, _Spec) and maker.create.will_prepare(env_config):
        return (maker.create.sentence(env_config),)
    return ()


def _maker_of(env: object, user_code: UserCode) -> EnvMaker:
    if isinstance(env, str):
        return _maker_from_text(env, user_code)
    if isinstance(env, Mapping):
        user_code.check_trusted(f"the program {program_name(env)}")
        folder = user_code.folders[0] if user_code.folders else os.getcwd()
        program = FmuMaker(dict(env), folder) if "fmu" in env else ProgramMaker(dict(env), folder)
        return EnvMaker(_folder_name(program_name(env)), json.dumps(program.config), program, user_code)
    if env is None or not callable(env) or _looks_like_env(env):
        what = f"an environment already made ({type(env).__name__})" if _looks_like_env(env) else repr(env)
        raise ConfigError(
            f"env: needs a Gymnasium id, my_module:MyEnv, my_env.py:MyEnv, a class or a function that makes one "
            f"environment per call (got {what})"
        )
    qualname = _qualname(env)
    name = _folder_name(qualname.rpartition("<locals>.")[2])
    source = f"{getattr(env, '__module__', None) or '__main__'}:{qualname}"
    return EnvMaker(name, source, _Call(env, name), user_code)


def spaces_of(
    maker: EnvMaker, env_config: Mapping[str, Any], env_ranks: int = 0
) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """The spaces of an environment, which is made and closed for that."""
    if isinstance(maker.create, EnvPoolMaker):
        return maker.create.spaces()
    ctx = EnvContext(env_config, env_ranks=env_ranks)
    env = maker.make(ctx)
    try:
        if isinstance(env, VectorEnv):
            return env.single_observation_space, env.single_action_space
        return env.observation_space, env.action_space
    finally:
        close_quietly(env)
        ctx.release()


def strip(env: Env) -> tuple[Env, int | None]:
    """Take off Gymnasium's own outer wrappers that cost time at every step, and give the tightest step limit they held.

    Only the exact checker, order and time-limit wrappers go, from outside up to the first other wrapper.
    """
    limit: int | None = None
    while type(env) in (PassiveEnvChecker, OrderEnforcing, TimeLimit):
        if isinstance(env, TimeLimit):
            limit = env._max_episode_steps if limit is None else min(limit, env._max_episode_steps)
        assert isinstance(env, gymnasium.Wrapper)
        env = env.env
    return env, limit


def adapt_legacy(env: Any) -> Env:
    """The environment behind the old-Gym adapter, its step limit outside, where `step` gives five values."""
    bare, limit = strip(env)
    adapted: Env = LegacyGymEnv(bare)
    return adapted if limit is None else TimeLimit(adapted, limit)


@dataclass(frozen=True)
class _Call:
    """Makes an environment by calling a class or function."""

    target: Callable[..., Any]
    name: str
    own_code: UserCode = INSTALLED  # where a class found in a file has its neighbours

    def __call__(self, ctx: EnvContext) -> Any:
        with self.own_code.importable():
            return create(self.target, self.name, ctx)


@dataclass(frozen=True)
class _Spec:
    """Makes an environment from Gymnasium's own description of it, which other processes may not have registered."""

    spec: EnvSpec
    name: str
    settings: dict[str, Any]

    prepares_frames: bool = False  # of an Atari game

    def __call__(self, ctx: EnvContext) -> Any:
        keywords = {**self.settings, **ctx}
        make = self._make_frames if self.will_prepare(ctx) else self._make
        return guarded(lambda: make(keywords), self.name, ctx)

    @property
    def is_atari(self) -> bool:
        """Whether the id is that of an Atari game."""
        return str(self.spec.entry_point) == "ale_py.env:AtariEnv"

    def will_prepare(self, env_config: Mapping[str, Any]) -> bool:
        """Whether a game with this `env_config` is seen through prepared frames."""
        return self.prepares_frames and self.is_atari and atari.is_prepared(self.settings, env_config)

    def sentence(self, env_config: Mapping[str, Any]) -> str:
        """What is done to the frames of a game with this `env_config`."""
        return atari.described({**self.spec.kwargs, **self.settings, **env_config})

    def _make(self, keywords: dict[str, Any], *also: str) -> Any:
        entry = self.spec.entry_point
        target = load_env_creator(entry) if isinstance(entry, str) else entry
        if target is not None:
            check_keywords(target, self.name, keywords, ("max_episode_steps", "disable_env_checker", *also))
        own = {key: value for key, value in keywords.items() if key not in also}
        return gymnasium.make(self.spec, **{"disable_env_checker": True, **own})

    def _make_frames(self, keywords: dict[str, Any]) -> Any:
        """The game in grey, one frame per step unless it draws the number itself, and what prepares its frames."""
        options = {key: keywords[key] for key in atari.OPTIONS if key in keywords}
        skip = atari.frames_per_action({**self.spec.kwargs, **keywords})
        every_frame: dict[str, Any] = {} if skip is None else {"frameskip": 1}
        env = self._make({**keywords, "obs_type": "grayscale", **every_frame}, *atari.OPTIONS)
        bare, limit = strip(env)
        prepared: Env = atari.AtariFrames(bare, skip, **options)
        return prepared if limit is None else TimeLimit(prepared, limit)


def _maker_from_text(text: str, user_code: UserCode) -> EnvMaker:
    text = text.strip()
    creator = registered(text)
    if creator is not None:
        return EnvMaker(_folder_name(text), text, _Call(creator, text), user_code)
    if text.startswith(PREFIX):
        return EnvMaker(_folder_name(text), text, envpool_maker(text), user_code)
    if text.startswith(PETTINGZOO):
        return EnvMaker(_folder_name(text), text, pettingzoo_maker(text), user_code)
    if (made := _format_of(text, user_code)) is not None:
        return EnvMaker(_folder_name(text), text, made, user_code)
    head, colon, attr = text.rpartition(":")
    if text.endswith(".py"):
        raise ConfigError(f"env {text!r}: which class in it? Type {text}:MyEnv")
    if "<locals>" in attr or "<lambda>" in attr:
        raise ConfigError(f"env {text!r}: a function inside a program; start from that program, with env=... in Python")
    if colon and text not in gymnasium.registry:
        return _maker_from_colon(text, head, attr, user_code)
    if text not in gymnasium.registry and (file := _file_called(text, user_code)):
        raise ConfigError(f"env {text!r}: {file}")
    if _DOTTED.fullmatch(text) and text not in gymnasium.registry:
        try:
            target = user_code.load_dotted(text)
        except ModuleMissing as error:
            near = nearest_ids(text)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ConfigError(f"env {text!r}: {error}{hint}") from error
        except AttributeMissing as error:
            raise ConfigError(f"env {text!r}: {error}") from error
        return _maker_of_found(text, text, target, user_code)
    found = find_spec(text)
    if found is None:
        if user_code.with_working_folder().has_file(f"{text}.py"):
            raise ConfigError(f"env {text!r}: no such Gymnasium id; did you mean {text}.py?")
        raise unknown_id(text)
    spec, settings = found
    return EnvMaker(_folder_name(text), text, _Spec(spec, text, settings), user_code)


def _format_of(text: str, user_code: UserCode) -> FormatMaker | None:
    """What an environment means in a format that an installed package adds; its code is the package's own."""
    found = format_maker(text) if ":" in text and not text.partition(":")[0].endswith(".py") else None
    if found is not None:
        user_code.check_trusted(f"the environment {text}")
        found.function()  # so that a package that is broken is told of before anything starts
    return found


def _file_called(text: str, user_code: UserCode) -> str | None:
    """What is wrong with a file that is named as the environment; None if there is no such file."""
    if "." not in text or not user_code.with_working_folder().has_file(text):
        return None
    return (
        "is not a file that shoal can train; a file is Python with an environment in it (my_env.py:MyEnv), "
        "YAML with experiments (my_experiments.yml), or a program that speaks the lines protocol (add --protocol lines)"
    )


def _maker_from_colon(text: str, head: str, attr: str, user_code: UserCode) -> EnvMaker:
    is_file = head.endswith(".py")
    if not head or not attr:
        raise ConfigError(f"env {text!r}: type my_module:MyEnv or my_env.py:MyEnv")
    try:
        module = user_code.load_file(head) if is_file else user_code.load_module(head)
        target = attribute(module, attr)
    except AttributeMissing as error:
        if not is_id(attr) or (is_file and attr not in gymnasium.registry):
            raise ConfigError(f"env {text!r}: {error}") from error
        # Gymnasium's own "module:id": the import registered the id.
        return EnvMaker(_folder_name(attr), text, _Spec(spec_of_package(head, attr), attr, {}), user_code)
    except ConfigError as error:
        raise ConfigError(f"env {text!r}: {error}") from error
    if is_file:
        return _maker_of_found(
            f"{Path(head).stem}.{attr}", text, target, user_code, UserCode.at(Path(str(module.__file__)).parent)
        )
    return _maker_of_found(f"{head}.{attr}", text, target, user_code)


def _maker_of_found(name: str, text: str, target: Any, user_code: UserCode, own_code: UserCode = INSTALLED) -> EnvMaker:
    if not callable(target) or _looks_like_env(target):
        raise ConfigError(
            f"env {text!r}: that is of type {type(target).__name__}; "
            "name a class, or a function that makes one environment per call"
        )
    return EnvMaker(_folder_name(name), text, _Call(target, text, own_code), user_code, by_text=True)


def _found_again(source: str, user_code: UserCode, legacy: bool, wrappers: tuple[Wrapping, ...] = ()) -> EnvMaker:
    return replace(env_maker(source, user_code), legacy=legacy, wrappers=wrappers)


def _looks_like_env(env: object) -> bool:
    return not isinstance(env, type) and hasattr(env, "reset") and hasattr(env, "step")


def _qualname(target: Any) -> str:
    while isinstance(target, functools.partial):
        target = target.func
    return str(getattr(target, "__qualname__", type(target).__qualname__))


def _folder_name(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", text).strip("_.") or "env"
