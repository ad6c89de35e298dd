"""`FmuEnv`: a co-simulation FMU (FMI 2.0 or 3.0) as an environment, by FMPy.

Its inputs are the action, its outputs the observation, its parameters what `env_config` sets. An FMU has no reward: a
formula over its variables is one.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.config.program_envs import FmuConfig, fmu_config
from shoal.envs.context import EnvContext
from shoal.envs.expressions import Expression
from shoal.errors import ConfigError, EnvError, EnvStartError

_WHOLE = ("Integer", "Enumeration", "Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32", "Int64", "UInt64")
_REALS = ("Real", "Float64", "Float32")
_NUMBERS = (*_REALS, "Boolean", *_WHOLE)


class FmuEnv(gymnasium.Env[Any, Any]):
    """One instance of an FMU; `config` is what the experiment says of it, `ctx` the values of its parameters."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, config: Mapping[str, Any] | FmuConfig, folder: str, ctx: EnvContext) -> None:
        self._config = config if isinstance(config, FmuConfig) else fmu_config(config)
        path = Path(folder, self._config.fmu).expanduser()
        self._description = _description(path)
        variables = {variable.name: variable for variable in self._description.modelVariables}
        self._inputs = _chosen(variables, self._config.inputs, "input", path)
        self._outputs = _chosen(variables, self._config.outputs, "output", path)
        self._start = _start_values(variables, ctx)
        self._step_size = self._of_experiment("step_size", "stepSize", self._config.step_size)
        self._stop_time = self._of_experiment("stop_time", "stopTime", self._config.stop_time)
        self.action_space = self._actions()
        self.observation_space = self._observations()
        names = {variable.name for variable in (*self._inputs, *self._outputs)} | {"time"}
        self._reward = _formula("reward", self._config.reward, names)
        self._is_over = _formula("terminated", self._config.terminated, names)
        self._folder = _unzipped(path)
        self._fmu: Any = None
        self._first: tuple[dict[str, Any], Any] | None = None  # start values, and the FMU's state with them
        can = self._description.coSimulation
        self._keeps_states = bool(can.canGetAndSetFMUstate)
        self._writes_states = self._keeps_states and bool(can.canSerializeFMUstate)
        try:
            self._fmu = self._instance()
        except BaseException:
            self.close()
            raise
        self._time = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin anew with the start values; `options` may hold others for this episode."""
        super().reset(seed=seed)
        start = {**self._start, **_start_values(self._variables(), options or {})}
        if self._first is not None and self._first[0] == start:
            self._set_fmu_state(self._first[1])
        else:
            self._begin(start)
        self._time = 0.0
        return self._observed(), {}

    def get_state(self) -> dict[str, Any] | None:
        """Where the simulation stands, for a checkpoint; None from an FMU that cannot write its state to bytes."""
        if not self._writes_states:
            return None
        state = self._fmu.getFMUState()
        try:
            return {"time": self._time, "fmu": bytes(self._fmu.serializeFMUState(state))}
        finally:
            self._fmu.freeFMUState(state)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` gave."""
        found = self._fmu.deserializeFMUState(state["fmu"])
        try:
            self._set_fmu_state(found)
        finally:
            self._fmu.freeFMUState(found)
        self._time = float(state["time"])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Set the inputs, advance by `step_size`, and read the outputs."""
        taken = self._taken(action)
        for variable, value in zip(self._inputs, taken, strict=True):
            self._set(variable, value)
        try:
            self._fmu.doStep(self._time, self._step_size)
        except Exception as error:
            raise EnvError(f"the FMU failed at t = {self._time:g}: {error}") from error
        self._time += self._step_size
        obs = self._observed()
        values = {variable.name: float(value) for variable, value in zip(self._inputs, taken, strict=True)}
        values |= {variable.name: float(value) for variable, value in zip(self._outputs, obs, strict=True)}
        values["time"] = self._time
        terminated = self._is_over is not None and bool(self._is_over(values))
        truncated = self._time >= self._stop_time - 1e-9 * self._step_size
        assert self._reward is not None
        return obs, self._reward(values), terminated, truncated, {}

    def close(self) -> None:
        """Free the instance and the files that it was unpacked into."""
        if self._fmu is not None:
            self._free()
            self._fmu = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, start: dict[str, Any]) -> None:
        """Initialise with start values, and keep the state that this gives for the next reset with the same ones."""
        self._forget_first()
        try:
            self._fmu.reset()
        except Exception:  # a function that this FMU does not have, or that fails
            self._free()
            self._fmu = self._instance()
        self._initialise(start)
        if self._keeps_states:
            with contextlib.suppress(Exception):  # it says that it can, and cannot: then every reset is a whole one
                self._first = start, self._fmu.getFMUState()

    def _set_fmu_state(self, state: Any) -> None:
        try:
            self._fmu.setFMUState(state)
        except Exception as error:
            raise EnvError(f"the FMU cannot go back to a state of its own: {error}") from error

    def _forget_first(self) -> None:
        if self._first is not None:
            with contextlib.suppress(Exception):
                self._fmu.freeFMUState(self._first[1])
            self._first = None

    def _of_experiment(self, key: str, name: str, given: float | None) -> float:
        """What the configuration says, or else the FMU's default experiment."""
        value = getattr(self._description.defaultExperiment, name, None) if given is None else given
        if value is None or not float(value) > 0:
            raise ConfigError(f"env.{key}: the FMU has no default for it; set env.{key}, in simulated seconds")
        return float(value)

    def _variables(self) -> dict[str, Any]:
        return {variable.name: variable for variable in self._description.modelVariables}

    def _instance(self) -> Any:
        from fmpy.fmi2 import FMU2Slave
        from fmpy.fmi3 import FMU3Slave

        is_old = self._description.fmiVersion.startswith("2")
        kind = FMU2Slave if is_old else FMU3Slave
        try:
            fmu = kind(
                guid=self._description.guid if is_old else self._description.instantiationToken,
                unzipDirectory=self._folder,
                modelIdentifier=self._description.coSimulation.modelIdentifier,
                instanceName="shoal",
            )
            fmu.instantiate()
        except Exception as error:
            raise EnvStartError(f"the FMU {self._config.fmu} cannot be started: {error}") from error
        return fmu

    def _initialise(self, start: Mapping[str, Any]) -> None:
        try:
            if self._description.fmiVersion.startswith("2"):
                self._fmu.setupExperiment(startTime=0.0)
            for name, value in start.items():
                self._set(self._variables()[name], value)
            self._fmu.enterInitializationMode()
            self._fmu.exitInitializationMode()
        except Exception as error:
            raise EnvError(f"the FMU cannot be initialised: {error}") from error

    def _free(self) -> None:
        self._forget_first()
        with contextlib.suppress(Exception):
            self._fmu.terminate()
        with contextlib.suppress(Exception):
            self._fmu.freeInstance()

    def _set(self, variable: Any, value: Any) -> None:
        kind = self._kind(variable)
        plain: float = float(value)
        if kind not in _REALS:
            plain = bool(value) if kind == "Boolean" else int(value)
        getattr(self._fmu, f"set{kind}")([variable.valueReference], [plain])

    def _get(self, variable: Any) -> float:
        return float(getattr(self._fmu, f"get{self._kind(variable)}")([variable.valueReference])[0])

    def _kind(self, variable: Any) -> str:
        """The name of a variable's type in FMPy's functions."""
        if variable.type != "Enumeration":
            return str(variable.type)
        return "Integer" if self._description.fmiVersion.startswith("2") else "Int64"

    def _observed(self) -> Any:
        return np.array([self._get(variable) for variable in self._outputs], np.float32)

    def _actions(self) -> spaces.Space[Any]:
        """A Box of real inputs; one whole or Boolean input is Discrete; several of them are scaled numbers, too."""
        bounds = [self._bounds(variable, "input") for variable in self._inputs]
        if len(self._inputs) == 1 and self._inputs[0].type not in _REALS:
            low, high = bounds[0]
            return spaces.Discrete(int(high - low) + 1, start=int(low))
        return _box(bounds)

    def _observations(self) -> spaces.Space[Any]:
        bounds = [self._bounds(variable, "output") for variable in self._outputs]
        return _box(bounds)

    def _bounds(self, variable: Any, causality: str) -> tuple[float, float]:
        if variable.name in self._config.bounds:
            lowest, highest = self._config.bounds[variable.name]
            return lowest, highest
        if variable.type == "Boolean":
            return 0.0, 1.0
        declared = variable.declaredType
        sides = [getattr(variable, side) or getattr(declared, side, None) for side in ("min", "max")]
        low, high = (float(side) if side is not None else None for side in sides)
        if causality == "input" and (low is None or high is None or not isfinite(high - low)):
            raise ConfigError(
                f"env.bounds: the input {variable.name} has no min and max in the FMU; set env.bounds."
                f"{variable.name}=[LOW, HIGH]"
            )
        return -np.inf if low is None else low, np.inf if high is None else high

    def _taken(self, action: Any) -> list[float]:
        values = np.atleast_1d(action).astype(float).tolist()
        return [
            round(v) if i.type in _WHOLE or i.type == "Boolean" else v
            for i, v in zip(self._inputs, values, strict=True)
        ]


def _box(bounds: list[tuple[float, float]]) -> spaces.Box:
    rows = np.array(bounds, np.float32)
    return spaces.Box(rows[:, 0], rows[:, 1])


@dataclass(frozen=True)
class FmuMaker:
    """Makes environments of one FMU, here or in another process."""

    config: dict[str, Any]
    folder: str

    def __call__(self, ctx: EnvContext) -> FmuEnv:
        """Make one environment."""
        return FmuEnv(self.config, self.folder, ctx)


def _description(path: Path) -> Any:
    try:
        import fmpy
    except ImportError:
        raise ConfigError("an FMU needs FMPy; type pip install 'shoal-rl[fmi]'") from None
    if not path.is_file():
        raise ConfigError(f"env.fmu: there is no file {path}")
    try:
        description = fmpy.read_model_description(str(path), validate=False)
    except Exception as error:
        raise ConfigError(f"env.fmu: {path} is no FMU: {' '.join(str(error).split())[:200]}") from None
    if description.fmiVersion.startswith("1"):
        raise ConfigError(f"env.fmu: {path} is of FMI {description.fmiVersion}; FMI 2.0 and 3.0 can be trained")
    if description.coSimulation is None:
        raise ConfigError(
            f"env.fmu: {path} is for model exchange; export it for co-simulation, which has its own solver"
        )
    return description


def _unzipped(path: Path) -> str:
    import fmpy

    return str(fmpy.extract(str(path)))


def _chosen(variables: Mapping[str, Any], wanted: tuple[str, ...] | None, causality: str, path: Path) -> list[Any]:
    """The variables of a causality, or those that the user names, in their order."""
    of_kind = [v for v in variables.values() if v.causality == causality and v.type in _NUMBERS]
    if wanted is None:
        if not of_kind:
            raise ConfigError(
                f"env.fmu: {path} has no {causality}s that are numbers; name variables in env.{causality}s"
            )
        return of_kind
    unknown = [name for name in wanted if name not in variables or variables[name].type not in _NUMBERS]
    if unknown:
        known = ", ".join(v.name for v in of_kind)
        raise ConfigError(
            f"env.{causality}s: the FMU has no variable {', '.join(unknown)}; its {causality}s are {known}"
        )
    return [variables[name] for name in wanted]


def _start_values(variables: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [name for name in given if name not in variables]
    if unknown:
        known = ", ".join(v.name for v in variables.values() if v.causality == "parameter" or v.start is not None)
        raise ConfigError(
            f"env_config: the FMU has no variable {', '.join(map(str, unknown))}; start values have {known}"
        )
    return dict(given)


def _formula(key: str, text: str | None, names: set[str]) -> Expression | None:
    if text is None:
        return None
    try:
        return Expression(text, names)
    except ValueError as error:
        raise ConfigError(f"env.{key}: {error}") from None
