"""Measures the costs of a configuration in a process of its own, and gives up on one that hangs or dies."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from time import monotonic
from typing import Any

import cloudpickle

from shoal.config.algorithms import name_of
from shoal.config.changing import unchecked
from shoal.config.settings import AlgorithmConfig
from shoal.data.throughput import Costs
from shoal.envs.making import EnvMaker
from shoal.envs.process_deaths import last_line
from shoal.errors import ConfigError, EnvStartError
from shoal.models.catalog import with_registered_model
from shoal.runs.measuring import CallLimits, ProfileBudget

START = """
import os, sys
sys.path[:] = sys.argv[2:]
from shoal.runs.measuring import main
main()
"""
START_S = 60.0  # for the process itself, whose imports may come from a slow file system


def measured_costs(config: AlgorithmConfig, maker: EnvMaker, budget: ProfileBudget, timeout_s: float) -> Costs:
    """The costs of a configuration on this machine; `timeout_s` is how long one call of the environment may take.

    Raises ConfigError where the configuration makes no sense, and EnvStartError where the environment fails.
    """
    if config.trainer:
        raise ConfigError(
            f"run: a profile measures shoal's own sampling and learning, not {name_of(type(config))}; leave --run out"
        )
    # Functions of the driver's stay here: they need not be fit for a journey to other processes.
    sent = unchecked(with_registered_model(config), env_task_fn=None)
    limits = CallLimits.of(config, timeout_s)
    question = cloudpickle.dumps((sent, maker, budget, limits))
    ours, theirs = os.pipe()
    with tempfile.TemporaryFile() as output, open(ours, "rb") as answers:
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs), *sys.path],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(theirs,),
            start_new_session=True,
        )
        os.close(theirs)
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(question)
            tree = _answer(answers, limits.longest_s, budget.seconds)
            if tree is not None:
                return Costs.from_tree(tree)
            status = process.wait()
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        words = last_line(output.read().decode(errors="replace"))
    how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
    told = f"; it printed last: {words[:300]}" if words else ""
    raise EnvStartError(f"env {maker.name}: it ended the process that measures it ({how}){told}; try shoal check")


def _answer(answers: Any, timeout_s: float, measuring_s: float) -> dict[str, Any] | None:
    """What the process says in the end; None if it died before it could.

    A call has `timeout_s`; before the first comes the start, and between two signs of life may be all measuring.
    """
    deadline = monotonic() + START_S + timeout_s
    while True:
        ready, _, _ = select.select([answers], [], [], max(deadline - monotonic(), 0))
        if not ready:
            raise EnvStartError(
                f"the environment did not answer within {timeout_s:g} s; try shoal check, or give it longer (--timeout)"
            )
        line = answers.readline()
        if not line:
            return None
        kind, value = json.loads(line)
        if kind == "costs":
            tree: dict[str, Any] = value
            return tree
        if kind == "refused":
            raise ConfigError(value)
        if kind == "failed":
            raise EnvStartError(value)
        deadline = monotonic() + measuring_s + timeout_s
