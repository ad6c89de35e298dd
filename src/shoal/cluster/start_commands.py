"""How to start one process on each host: by a scheduler's own means, or by ssh."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence

from shoal.cluster.host_lists import Host
from shoal.cluster.scheduler import Environ, Start, Words
from shoal.errors import ClusterError


def agents_command(
    starts: Sequence[Start], hosts: Sequence[Host], words: Sequence[str], environ: Environ
) -> list[Words]:
    """The commands that run `words` once on each host; the first of the words is an absolute path."""
    start = usable_start(starts, hosts, environ)
    return start.commands([host.name for host in hosts], list(words), environ)


def usable_start(starts: Sequence[Start], hosts: Sequence[Host], environ: Environ) -> Start:
    """The first way to start processes whose program is here; ClusterError where there is none."""
    programs = []
    for start in starts:
        programs.append(_ssh_words(environ)[0] if start is SSH else start.program)
        if shutil.which(programs[-1], path=environ.get("PATH")):
            return start
    raise ClusterError(
        f"{' and '.join(programs)} cannot be found on PATH, so nothing can be started on {hosts[0].name}; "
        "load the scheduler's module, or start `shoal launch` on every host with mpirun."
    )


def in_this_folder(words: Words, environ: Environ) -> Words:
    """The words, started in this folder where the host has it, for launchers that start in the home folder."""
    # These hand over no environment either, and an interpreter from a module does not even start without its libraries.
    paths = [f"{name}={environ[name]}" for name in ("LD_LIBRARY_PATH", "PYTHONPATH") if environ.get(name)]
    setting = ["/usr/bin/env", *paths] if paths else []
    return ["/bin/sh", "-c", 'cd "$1" 2>/dev/null; shift; exec "$@"', "sh", os.getcwd(), *setting, *words]


def _ssh(hosts: Sequence[str], words: Words, environ: Environ) -> list[Words]:
    ssh = [*_ssh_words(environ), "-T"]
    # A host that loses its power does not hang up: it is asked whether it is there, and given up after 15 s.
    for option in ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"):
        ssh += ["-o", option]
    line = shlex.join(in_this_folder(words, environ))  # the remote shell takes it apart again
    return [[*ssh, host, line] for host in hosts]


def _ssh_words(environ: Environ) -> Words:
    """The user's own ssh, with its options."""
    text = environ.get("SHOAL_SSH", "ssh")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ClusterError(f"SHOAL_SSH={text!r} cannot be read ({error}); write it like 'ssh -p 2222'.") from error
    if not words:
        raise ClusterError("SHOAL_SSH is empty; unset it, or write it like 'ssh -p 2222'.")
    return words


SSH = Start("ssh", _ssh)
