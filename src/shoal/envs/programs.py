"""`ProgramEnv`: any program that speaks the lines protocol, as a Gymnasium environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from shoal.config.program_envs import ProgramConfig, program_config
from shoal.config.program_names import program_name
from shoal.envs.context import EnvContext
from shoal.envs.line_protocol import VERSION, action, flag, number, observation, read, shown
from shoal.envs.program_calls import TOKEN
from shoal.envs.program_process import Caller, ProgramProcess, end_together
from shoal.envs.space_trees import check_numbers, space_from
from shoal.envs.spaces import Space
from shoal.errors import ConfigError, EnvError, EnvStartError, ProgramLost

EARLY = 2  # answers, of a reset and a step, after which is listened for a second one: who sends it always does
SECOND_ANSWER_S = 0.002  # between the two
_PLACES = ("scratch_dir", "port", "env_index", "worker_index")


class ProgramEnv(gymnasium.Env[Any, Any]):
    """A program that is started here, or that calls in, and that answers resets and steps.

    `config` is what the experiment says of it, `folder` where its relative paths begin. A program that ends, answers
    nonsense or not in time raises EnvError from the call; who has made the environment makes a new one.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, config: Mapping[str, Any] | ProgramConfig, folder: str, ctx: EnvContext) -> None:
        self._config = config if isinstance(config, ProgramConfig) else program_config(config)
        self._program = self._start(folder, ctx)
        self._num_asked = 0
        try:
            hello = self._hello(ctx)
            self.observation_space = self._space("observation", hello, self._config.observation)
            self.action_space = self._space("action", hello, self._config.action)
        except BaseException:
            self.close()
            raise

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env`."""
        answer = self._ask({"reset": {"seed": seed, "options": options}})
        return self._observed(answer)

    def step(self, taken: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env`."""
        answer = self._ask({"step": action(self.action_space, taken)})
        obs, info = self._observed(answer)
        return obs, number(answer, "reward"), flag(answer, "terminated"), flag(answer, "truncated"), info

    def close(self) -> None:
        """End the program."""
        end_programs([self])

    def take_program(self) -> ProgramProcess | Caller | None:
        """The program, for who ends it; the environment has it no longer."""
        program, self._program = self._program, None
        return program

    def _start(self, folder: str, ctx: EnvContext) -> ProgramProcess | Caller | None:
        config = self._config
        if config.listen is not None:
            token = os.environ.get(TOKEN, "")
            if not token:
                raise ConfigError(
                    f"env.listen: needs a secret in the variable {TOKEN}, here and where the program runs"
                )
            host, _, port = config.listen.rpartition(":")
            return Caller(host, int(port) + ctx.env_index, token, config.start_timeout_s)
        assert config.command is not None
        command = [_filled(word, ctx) for word in config.command]
        variables = {name: _filled(value, ctx) for name, value in config.variables.items()}
        return ProgramProcess(command, folder, variables, config.connection, config.start_timeout_s, ctx)

    def _hello(self, ctx: EnvContext) -> dict[str, Any]:
        timeout_s = self._config.start_timeout_s
        hello = self._received(timeout_s, _deadline(timeout_s), "hello")
        if hello.get("shoal") != VERSION:
            wanted = f'{{"shoal": {VERSION}, ...}}'
            raise EnvStartError(
                f"the program must begin with {wanted}, the version of the protocol (got {hello!r:.120})"
            )
        assert self._program is not None
        answer = {"shoal": VERSION, "env_config": dict(ctx), "env_index": ctx.env_index}
        self._send(answer, timeout_s, _deadline(timeout_s), "hello")
        return hello

    def _space(self, name: str, hello: Mapping[str, Any], said: Mapping[str, Any] | None) -> Space:
        tree = said or hello.get(name)
        if tree is None:
            raise EnvStartError(f"the program does not send its {name} space; add it to its hello, or set env.{name}")
        try:
            return space_from(_completed(tree))
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
            raise EnvStartError(f"the {name} space of the program is invalid: {tree!r:.200} ({error})") from None

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        timeout_s = self._config.timeout_s
        asked, deadline = next(iter(message)), _deadline(timeout_s)
        self._check_order()
        self._send(message, timeout_s, deadline, asked)
        return self._received(timeout_s, deadline, asked)

    def _check_order(self) -> None:
        """Refuse a program that is ahead of its questions: all its answers would be those to questions before."""
        if self._program is None:
            return
        is_early = 0 < self._num_asked <= EARLY
        self._num_asked += 1
        line = self._program.link.unasked(SECOND_ANSWER_S if is_early else 0)
        if line is not None:
            read(line)  # which raises what the program reports
            sent = shown(line.decode(errors="replace").strip())
            raise EnvError(f"the program sent a line that nobody had asked for: {sent}; it answers each request once")

    def _send(self, message: Mapping[str, Any], timeout_s: float | None, deadline: float | None, asked: str) -> None:
        if self._program is None:
            raise EnvError("the program was closed")
        try:
            self._program.link.send(message, deadline)
        except TimeoutError:
            raise self._hung(f"did not even read {asked} within {timeout_s:g} s") from None
        except (OSError, ValueError):
            raise self._ended() from None

    def _received(self, timeout_s: float | None, deadline: float | None, asked: str) -> dict[str, Any]:
        assert self._program is not None
        try:
            answer = self._program.link.receive(deadline)
        except TimeoutError:
            raise self._hung(f"did not answer {asked} within {timeout_s:g} s") from None
        if answer is None:
            raise self._ended()
        return answer

    def _hung(self, how: str) -> ProgramLost:
        """End a program that has passed a deadline; the error to raise."""
        assert self._program is not None
        self._program.kill()
        link = self._program.link
        return ProgramLost(f"the program {how}{link.last_words()}", "hang", output=link.output)

    def _ended(self) -> ProgramLost:
        """The error of a program that has ended or hung up."""
        program = self._program
        assert program is not None
        fate, status = program.fate(), program.status
        kind = "error" if status is None else "exit" if status >= 0 else "signal"
        return ProgramLost(f"the program {fate}", kind, status, program.link.output)

    def _observed(self, answer: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        if "obs" not in answer:
            raise EnvError(f"the program's answer has no obs: {answer!r:.120}")
        info = answer.get("info", {})
        if not isinstance(info, dict):
            raise EnvError(f"the program's info must be an object: {info!r:.120}")
        return observation(self.observation_space, answer["obs"], answer), info


def end_programs(envs: Sequence[ProgramEnv]) -> None:
    """End the programs of environments; all are told before any is waited for."""
    programs = [env.take_program() for env in envs]
    for program in programs:
        if isinstance(program, Caller):
            program.close()
    end_together([program for program in programs if isinstance(program, ProgramProcess)])


@dataclass(frozen=True)
class ProgramMaker:
    """Makes environments of one program, here or in another process."""

    config: dict[str, Any]
    folder: str

    def __call__(self, ctx: EnvContext) -> ProgramEnv:
        """Start the program for one environment."""
        try:
            return ProgramEnv(self.config, self.folder, ctx)
        except EnvStartError:
            raise
        except EnvError as error:
            raise EnvStartError(f"env {program_name(self.config)}: {error}") from error


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else monotonic() + timeout_s


def _filled(word: str, ctx: EnvContext) -> str:
    """A word of the command with its braces filled in; `scratch_dir` and `port` are made when they are asked for."""
    if "{" not in word:
        return word
    places = {name: getattr(ctx, name) for name in _PLACES if f"{{{name}" in word}
    try:
        return word.format_map({**ctx, **places})
    except (KeyError, IndexError, ValueError):
        known = ", ".join([*_PLACES, *map(str, ctx)])
        raise ConfigError(
            f"env.command: {word!r} has an unknown name in braces; there are {known}; write {{{{ for a brace"
        ) from None


def _completed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A space as `space_from` reads it, from one that a person wrote: usual values filled in, bounds as lists."""
    kind = {name.lower(): name for name in _KINDS}.get(str(tree["type"]).replace("_", "").lower())
    if kind is None:
        raise ValueError(f"its type must be one of {', '.join(_KINDS)}")
    unknown = tree.keys() - {"type"} - _KINDS[kind]
    if unknown:
        raise ValueError(f"{kind} has no {', '.join(sorted(unknown))}")
    if kind == "Dict":
        return {"type": kind, "spaces": {key: _completed(child) for key, child in tree["spaces"].items()}}
    if kind == "Tuple":
        return {"type": kind, "spaces": [_completed(child) for child in tree["spaces"]]}
    if kind == "Box":
        return _completed_box(tree)
    if kind == "MultiDiscrete":
        nvec = list(tree["nvec"])
        return {"type": kind, "nvec": nvec, "start": tree.get("start") or [0] * len(nvec), "dtype": "int64"}
    if kind == "Discrete":
        return {"type": kind, "n": int(tree["n"]), "start": int(tree.get("start", 0))}
    return {"type": kind, "n": tree["n"]}


def _completed_box(tree: Mapping[str, Any]) -> dict[str, Any]:
    low, high = (np.asarray(tree.get(name, usual), float) for name, usual in (("low", -np.inf), ("high", np.inf)))
    shape = tree.get("shape") or np.broadcast_shapes(low.shape, high.shape) or (1,)
    check_numbers(shape)
    bounds = {"low": _bounds(low, shape), "high": _bounds(high, shape)}
    return {"type": "Box", "shape": list(shape), "dtype": tree.get("dtype", "float32"), **bounds}


def _bounds(bound: NDArray[Any], shape: Sequence[int]) -> list[Any]:
    """The bounds of all numbers in a row; infinity is a text, as JSON has none."""
    row = np.broadcast_to(bound, shape).reshape(-1).tolist()
    return [value if np.isfinite(value) else str(value) for value in row]


_KINDS = {
    "Box": {"shape", "low", "high", "dtype"},
    "Discrete": {"n", "start"},
    "MultiDiscrete": {"nvec", "start"},
    "MultiBinary": {"n"},
    "Dict": {"spaces"},
    "Tuple": {"spaces"},
}
