"""`CaseEnv`: a solver that is driven by files (OpenFOAM, EnergyPlus and the like) as an environment.

An episode is a copy of a template case in a folder of its own. Each step writes the action into the case's input files,
runs the solver there to its end, and reads its output files; the case keeps the solver's state from step to step. A
solver that fails, diverges or takes too long ends the episode with a penalty, and its case is kept to look at.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import re
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np

from shoal.envs.context import EnvContext
from shoal.envs.mpi import mpi_start
from shoal.envs.program_files import located, runnable
from shoal.errors import ConfigError, EnvError
from shoal.machine.processes import end_with_parent

TEMPLATE_ENDING = ".template"
LOG = "log.solver"
_PLACE = re.compile(r"@(\w+)@")
_TAIL_BYTES = 2000


class CaseEnv(gymnasium.Env[Any, Any], ABC):
    """Subclass it: set the spaces, `template` and `command`, and write `read_outputs`.

    Files of the template that end in `.template` have places such as `@force@`. At each step they are filled with what
    `inputs(action)` gives and written without the ending; a class that writes its inputs otherwise has `write_inputs`.
    """

    template: ClassVar[str | Path] = ""
    """The folder that is copied for each episode."""
    command: ClassVar[Sequence[str]] = ()
    """The solver and its arguments; it runs in the case's folder, once for each step."""
    timeout_s: ClassVar[float | None] = None
    """Seconds that one run of the solver may take; one that takes longer counts as diverged."""
    penalty: ClassVar[float] = -100.0
    """The reward of a step that diverges, which ends the episode."""
    failed_dir: ClassVar[str | Path] = "failed_cases"
    """Where cases that diverged are kept; relative to the working folder."""
    keep_failed: ClassVar[int] = 5
    """How many of them each environment keeps, the newest ones; 0: none."""
    max_case_mb: ClassVar[float | None] = None
    """What a case may take on disk; one that grows further counts as diverged."""
    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        ctx = config if isinstance(config, EnvContext) else EnvContext(config)
        self.config = ctx
        self.folder = Path(ctx.scratch_dir)
        self.case = self.folder / "none"
        self._episode = 0
        self._last_obs: Any = None
        source = Path(self.template)
        if not source.is_dir():
            raise ConfigError(f"{type(self).__name__}.template: there is no folder {source}")
        program = located(self.command[0], self._path()) if self.command else None
        if program is None:
            raise ConfigError(f"{type(self).__name__}.command: there is no program {' '.join(self.command)!r} here")
        runnable(program, f"{type(self).__name__}.command")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Copy the template and let `prepare` make an episode of it."""
        super().reset(seed=seed)
        self._remove(self.case)
        self._episode += 1
        self.case = self.folder / f"case_{self._episode:06d}"
        shutil.copytree(self.template, self.case)
        self._last_obs = self.prepare(options or {})
        return self._last_obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Write the inputs, run the solver, read the outputs."""
        self.write_inputs(action)
        why = self._run()
        if why is None:
            try:
                obs, reward, terminated, truncated = self.read_outputs()
            except (OSError, ValueError, IndexError, KeyError) as error:
                why = f"its output cannot be read: {type(error).__name__}: {error}"
            else:
                why = None if np.isfinite(reward) else f"its reward is {reward}"
        if why is not None:
            return self._last_obs, self.penalty, True, False, {"diverged": why, "case": self._keep()}
        self._last_obs = obs
        return obs, float(reward), bool(terminated), bool(truncated), {}

    def close(self) -> None:
        """Remove the last case; those that diverged stay."""
        self._remove(self.case)

    @abstractmethod
    def prepare(self, options: Mapping[str, Any]) -> Any:
        """Make `self.case` ready for an episode, with chance from `self.np_random`; return the first observation."""

    @abstractmethod
    def read_outputs(self) -> tuple[Any, float, bool, bool]:
        """Observation, reward, terminated and truncated, from the files in `self.case`."""

    def inputs(self, action: Any) -> Mapping[str, Any]:
        """What fills the places of the template's files; by default @action0@, @action1@, ... are its numbers."""
        return {f"action{k}": value for k, value in enumerate(np.atleast_1d(action).tolist())}

    def write_inputs(self, action: Any) -> None:
        """Fill the template's files with `inputs(action)`."""
        values = self.inputs(action)
        for file in sorted(self.case.rglob(f"*{TEMPLATE_ENDING}")):
            file.with_suffix("").write_text(_filled(file, values))

    def has_diverged(self, returncode: int) -> str | None:
        """Why a run of the solver counts as diverged; None if it is good. By default any exit code but 0 does."""
        return None if returncode == 0 else f"the solver ended with code {returncode}"

    def case_files(self) -> dict[str, bytes | None]:
        """What the files of the case hold, for a `get_state` of one's own; None is a file that is gone.

        Files that are as in the template are left out.
        """
        source = Path(self.template)
        held: dict[str, bytes | None] = {}
        for file in sorted(self.case.rglob("*")):
            name = file.relative_to(self.case)
            if file.is_file() and not _is_same(file, source / name):
                held[str(name)] = file.read_bytes()
        for file in sorted(source.rglob("*")):
            name = file.relative_to(source)
            if file.is_file() and not (self.case / name).exists():
                held[str(name)] = None
        return held

    def restore_case_files(self, files: Mapping[str, bytes | None]) -> None:
        """Make the files of a case that has just been prepared those that `case_files` gave, for a `set_state`."""
        for name in self.case_files():
            (self.case / name).unlink(missing_ok=True)
            if (Path(self.template) / name).is_file():
                shutil.copy(Path(self.template) / name, self.case / name)
        for name, content in files.items():
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise EnvError(f"the saved case has a file outside of its folder: {name}")
            file = self.case / name
            if content is None:
                file.unlink(missing_ok=True)
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    def _run(self) -> str | None:
        """Run the solver; why it diverged, None if it did not."""
        words, environ = list(self.command), {**os.environ, "PATH": self._path()}
        if self.config.slots:
            words, environ = mpi_start(words, self.config, environ)
        with open(self.case / LOG, "ab") as log:
            process = subprocess.Popen(
                words,
                cwd=self.case,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, signal.SIGKILL),
            )
            try:
                code = process.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                return f"the solver took more than {self.timeout_s:g} s"
            finally:
                _end(process)
        why = self.has_diverged(code)
        if why is not None:
            return f"{why}{self._tail()}"
        size = sum(file.stat().st_size for file in self.case.rglob("*") if file.is_file()) / 1e6
        if self.max_case_mb is not None and size > self.max_case_mb:
            return f"the case takes {size:.0f} MB, more than the {self.max_case_mb:g} that it may"
        return None

    def _path(self) -> str:
        # A solver that stands in the template is found there.
        return os.pathsep.join([str(Path(self.template).absolute()), os.environ.get("PATH", os.defpath)])

    def _tail(self) -> str:
        lines = (self.case / LOG).read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        return f"; it printed last: {lines[-1][:200]}" if lines else ""

    def _keep(self) -> str:
        """Move the case to those that are kept, and remove the oldest of this environment's."""
        if self.keep_failed == 0:
            return ""
        kept = Path(self.failed_dir).expanduser().absolute()
        kept.mkdir(parents=True, exist_ok=True)
        place = kept / f"env{self.config.env_index}_{self.case.name}"
        self._remove(place)
        shutil.move(self.case, place)
        os.utime(place)
        # By age, not by name: an environment that takes the place of another begins to count anew.
        newest_first = sorted(kept.glob(f"env{self.config.env_index}_case_*"), key=_modified, reverse=True)
        for old in newest_first[self.keep_failed :]:
            self._remove(old)
        return str(place)

    @staticmethod
    def _remove(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)


def _is_same(file: Path, original: Path) -> bool:
    return original.is_file() and filecmp.cmp(file, original, shallow=False)


def _modified(folder: Path) -> int:
    return folder.stat().st_mtime_ns


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the solver and whatever it has started and left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _filled(file: Path, values: Mapping[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            known = ", ".join(values)
            raise EnvError(f"{file.name} has the place @{match[1]}@, which inputs() does not fill; it fills {known}")
        return str(values[match[1]])

    return _PLACE.sub(value, file.read_text())
