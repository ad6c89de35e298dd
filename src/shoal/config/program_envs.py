"""Environments that are programs or FMUs, as a configuration describes them: `env: {command: [./solver], ...}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, PlainValidator, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from shoal.config.fields import STRICT, Positive, Seconds, Text, number
from shoal.config.problems import got, sentences
from shoal.errors import ConfigError

_LISTEN = re.compile(r"(?P<host>[\w.\-:\[\]]+):(?P<port>\d{1,5})")


def command_words(value: Any) -> tuple[str, ...]:
    """The program and its arguments; a text is taken apart as a shell would, a number is its digits."""
    import shlex

    if isinstance(value, str):
        value = shlex.split(value)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("must be a program and its arguments, e.g. [./solver, --case, a]")
    if not all(isinstance(word, str | int | float) and not isinstance(word, bool) for word in value):
        raise ValueError("must be a list of texts")
    return tuple(map(str, value))


def listen_address(value: Any) -> str | None:
    """`HOST:PORT` to listen at."""
    if value is None:
        return None
    match = _LISTEN.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < int(match["port"]) < 65536:
        raise ValueError("must be HOST:PORT, e.g. 127.0.0.1:7000")
    return str(value)


def described_space(value: Any) -> dict[str, Any] | None:
    """A space as a mapping; what it holds is checked when the environment is made."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise ValueError("must be a space, e.g. {type: Box, shape: [3], low: -1, high: 1} or {type: Discrete, n: 4}")
    return dict(value)


SpaceTree = Annotated[dict[str, Any] | None, PlainValidator(described_space), WithJsonSchema({"type": "object"})]


class ProgramConfig(BaseModel):
    """A program that is an environment: how it is started, and how it is spoken to."""

    model_config = STRICT

    command: Annotated[tuple[str, ...] | None, BeforeValidator(command_words)] = None
    """The program and its arguments.

    {scratch_dir}, {port}, {env_index}, {worker_index} and the keys of env_config in braces are replaced."""
    listen: Annotated[str | None, PlainValidator(listen_address), WithJsonSchema({"type": ["string", "null"]})] = None
    """HOST:PORT where programs that are started elsewhere connect: environment i listens at PORT + i.

    Instead of command. They must know the secret in the variable SHOAL_TOKEN."""
    protocol: Literal["lines"] = "lines"
    """Protocol between shoal and the program: lines of JSON."""
    connection: Literal["pipe", "unix", "tcp"] = "pipe"
    """Connection: stdin and stdout, or a socket whose address the program finds in SHOAL_ADDRESS."""
    observation: SpaceTree = None
    """The space of observations, if the program does not send it."""
    action: SpaceTree = None
    """The space of actions, if the program does not send it."""
    start_timeout_s: Seconds = 60.0
    """Seconds until the program must have sent its first message."""
    timeout_s: Seconds | None = None
    """Seconds that one answer may take; a program that takes longer is ended and started again. null: no limit."""
    variables: dict[Text, Text] = {}
    """Further variables of the program's environment."""


def program_config(value: Mapping[str, Any]) -> ProgramConfig:
    """The checked description of a program; a ConfigError has every problem."""
    try:
        config = ProgramConfig.model_validate(dict(value))
    except ValidationError as error:
        known = [f"env.{name}" for name in ProgramConfig.model_fields]
        raise ConfigError(sentences(error, ("env",), known)) from None
    if (config.command is None) == (config.listen is None):
        given = "both are given" if config.command else "neither is given"
        raise ConfigError(f"env: needs either command, the program to start, or listen, where others connect; {given}")
    if config.listen is not None and config.connection != "pipe":
        raise ConfigError("env.connection: works only with command; a program that connects by itself has a TCP socket")
    return config


def named_bounds(value: Any) -> dict[str, list[float]]:
    """Names with their lowest and highest value."""
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of names to [LOW, HIGH]")
    for name, pair in value.items():
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not number(pair[0]) < number(pair[1]):
            raise ValueError(f"{name} must be [LOW, HIGH], and LOW be less")
    return {str(name): [float(pair[0]), float(pair[1])] for name, pair in value.items()}


class FmuConfig(BaseModel):
    """An FMU that is an environment: its step, its reward and what of it is seen."""

    model_config = STRICT

    fmu: Text
    """The file, a co-simulation FMU of FMI 2.0 or 3.0."""
    reward: Text
    """A formula over inputs, outputs and time: -(T - 20)**2 - 0.1*u."""
    step_size: Positive | None = None
    """Seconds of simulated time that one step takes; null: that of the FMU's default experiment."""
    stop_time: Positive | None = None
    """Simulated time at which an episode is truncated; null: that of the FMU's default experiment."""
    terminated: Text | None = None
    """A formula that is true where an episode ends for good: T > 90 or T < 0."""
    inputs: tuple[Text, ...] | None = None
    """The variables that are the action; null: all inputs."""
    outputs: tuple[Text, ...] | None = None
    """The variables that are observed; null: all outputs."""
    bounds: Annotated[dict[str, list[float]], PlainValidator(named_bounds), WithJsonSchema({"type": "object"})] = {}
    """Lowest and highest values of variables, where the FMU does not have them or others are wanted: {u: [0, 1]}."""


def fmu_config(value: Mapping[str, Any]) -> FmuConfig:
    """The checked description of an FMU; a ConfigError has every problem."""
    try:
        return FmuConfig.model_validate(dict(value))
    except ValidationError as error:
        known = [f"env.{name}" for name in FmuConfig.model_fields]
        problems = sentences(error, ("env",), known)
        lacks = "env.reward: is missing"
        hint = "; an FMU has no reward of its own, so set a formula over its variables: --set env.reward='-(T - 20)**2'"
        raise ConfigError([f"{lacks}{hint}" if problem == lacks else problem for problem in problems]) from None


def checked_program(value: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a program or an FMU as plain values, checked, without what is as usual."""
    if not {"command", "listen", "fmu"} & value.keys():
        raise ValueError(f"must have the key command (a program to start), listen or fmu {got(dict(value))}")
    try:
        config = fmu_config(value) if "fmu" in value else program_config(value)
    except ConfigError as error:
        raise PydanticCustomError("env", "env", {"problems": error.problems}) from None
    return config.model_dump(mode="json", exclude_defaults=True)
