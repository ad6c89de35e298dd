"""A first look at an environment that will live in a process of its own, in such a process."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from contextlib import suppress

from shoal.envs.env_limits import CLOSE_S, Limits
from shoal.envs.env_process import LENGTH, EnvPlan, FirstLook, Report, received
from shoal.envs.env_processes import EnvProcesses
from shoal.envs.process_deaths import cause_of, last_line
from shoal.envs.process_messages import message, owners_of
from shoal.envs.randomizing import EpisodeValues
from shoal.errors import EnvStartError


def first_look(plan: EnvPlan, drawn: EpisodeValues, limits: Limits) -> FirstLook:
    """A first look at an environment, in a process that ends with it."""
    processes = EnvProcesses.use()
    ready, answering = os.pipe()
    id, connection = processes.start(answering, answering, answering, limits.memory)
    try:
        for name, arguments in (("hello", (list(sys.path), 0, 0)), ("look", (plan, drawn))):
            connection.sendall(message(name, arguments, *owners_of(plan)))
        report = Report()
        for timeout_s in (None, limits.first_look_s):  # the first answer waits until the fork server is up
            connection.settimeout(timeout_s)
            length = LENGTH.unpack(received(connection, LENGTH.size))[0]
            report = pickle.loads(received(connection, length))
            if report.error is not None:
                raise report.error
        found: FirstLook = report.result
        _close(connection)
        return found
    except (EOFError, TimeoutError, ConnectionError) as error:
        late = ""
        if isinstance(error, TimeoutError):
            late = "its first steps took longer than env_reset_timeout_s and env_step_timeout_s allow"
            processes.end(id, stack=True)
        death = processes.awaited_death(id)
        _, cause = cause_of(death, late, limits, "")
        printed = f"; the last that it printed: {last_line(death.output)}" if death is not None and death.output else ""
        raise EnvStartError(f"env {plan.maker.name}: its first steps failed: {cause}{printed}") from None
    finally:
        connection.close()
        processes.end(id)
        processes.awaited_death(id)
        processes.release()
        os.close(ready)
        os.close(answering)


def _close(connection: socket.socket) -> None:
    """Let the environment close; one that does not within some seconds is killed with its process."""
    with suppress(OSError):
        connection.settimeout(CLOSE_S)
        connection.sendall(message("close", ()))
        connection.recv(1)  # nothing, when the process has ended
