"""Where programs are found, and what is said of a file that is there and cannot be run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from shoal.envs import CaseEnv
from shoal.envs.context import EnvContext
from shoal.envs.importing import UserCode
from shoal.envs.making import env_maker
from shoal.errors import ConfigError

Make = Callable[[Path, str], object]


def as_program(folder: Path, name: str) -> object:
    return env_maker({"command": [name]}, UserCode.at(folder)).make(EnvContext())


def as_case(folder: Path, name: str) -> object:
    class Case(CaseEnv):
        template = folder
        command = (name,)
        observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def prepare(self, options: object) -> object:
            raise NotImplementedError

        def read_outputs(self) -> tuple[object, float, bool, bool]:
            raise NotImplementedError

    return Case(EnvContext())


@pytest.mark.parametrize("make", [as_program, as_case])
def test_a_file_that_cannot_be_run_is_not_called_absent(make: Make, tmp_path: Path) -> None:
    plain, windows, strange = (tmp_path / name for name in ("plain", "windows", "strange"))
    plain.write_text("#!/bin/sh\n")
    windows.write_bytes(b"#!/bin/sh\r\nexit\r\n")
    strange.write_text("#! /no/such/interpreter -u\n")
    (tmp_path / "folder").mkdir()
    for file in (windows, strange):
        file.chmod(0o755)
    for name, words in {
        "plain": f"command: {plain} may not be executed; type chmod +x {plain}, or name its interpreter",
        "folder": f"command: {tmp_path / 'folder'} is a folder; name the program in it",
        "strange": f"the first line of {strange} names the interpreter '/no/such/interpreter', which is not there",
        "windows": f"the first line of {windows} names the interpreter '/bin/sh\\r', which is not there",
        "absent_one": "there is no program 'absent_one' here",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(words)):
            make(tmp_path, name)
