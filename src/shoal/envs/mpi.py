"""`run_mpi`: the ranks of an environment, on its own slots and nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from shoal.envs.context import EnvContext
from shoal.errors import ConfigError
from shoal.machine.mpi_launchers import find_launcher, folder_variables, mpi_variables, mpi_words, refuse_root
from shoal.machine.processes import end_with_parent


def run_mpi(command: Sequence[str], config: Mapping[str, Any], **options: Any) -> subprocess.Popen[Any]:
    """Start a program with one rank on each slot of an environment; `config` is what its constructor was given.

    The options are those of subprocess.Popen, which is what comes back. It is ended by `terminate()`, and at the latest
    with the environment's process.
    """
    words, variables = mpi_start(command, config, options.pop("env", None))
    return subprocess.Popen(
        words,
        env=variables,
        # A launcher that is asked to end takes its ranks along.
        **{"start_new_session": True, "preexec_fn": partial(end_with_parent, signal.SIGTERM), **options},
    )


def mpi_command(command: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """The words that `run_mpi` starts, to look at or to print."""
    return mpi_start(command, config)[0]


def mpi_start(
    command: Sequence[str], config: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """The words of a launcher around a program, and the variables for them; `environ`: other ones than ours."""
    if not isinstance(config, EnvContext):
        raise ConfigError(
            "run_mpi: config must be the mapping that the environment's constructor was given, which has the slots "
            f"(got a {type(config).__name__})"
        )
    if not config.slots:
        raise ConfigError("config.env_ranks: the environment starts MPI ranks; set how many, e.g. env_ranks: 8")
    environ = os.environ if environ is None else environ
    found = find_launcher(environ)
    refuse_root(found, environ)
    # Not in scratch_dir, which is kept when the environment fails: it holds what the user's own code has written.
    folders = folder_variables(found, config.memory_dir)
    variables = {**folders, **mpi_variables(found, environ)}
    return mpi_words(found, config.slots, list(map(str, command))), variables
