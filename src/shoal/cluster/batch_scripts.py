"""The batch script of a job, for each scheduler: short, readable, and complete without shoal on the login node."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from shoal.cluster.containers import container_lines, container_problems, container_runtime
from shoal.cluster.job import Job
from shoal.cluster.scheduler import Scheduler, Script
from shoal.errors import ConfigError
from shoal.machine.signals import RESUME_ME

MARK = "# Written by `shoal submit`"
"""How a script that may be replaced is known."""


def batch_script(
    job: Job, scheduler: Scheduler, programs: Path, folder: Path, environ: Mapping[str, str] = os.environ
) -> str:
    """The script; `programs` has the shoal that writes it, `folder` and the job's id name the folder of its cluster."""
    dialect = scheduler.script
    problems = _problems(job, dialect)
    if problems:
        raise ConfigError(problems)
    log = job.log.replace("%j", "$job_id")
    directives = [*dialect.directives(job), *job.extra_directives]
    parts = [
        [f"#!/bin/bash{' --login' * job.login_shell}", *(f"{dialect.word} {directive}" for directive in directives)],
        [f"{MARK}; `{dialect.submit}` submits it too, even where shoal is not installed."],
        _profile(job, scheduler),
        [dialect.opening.replace("@LOG@", log if log.startswith("/") else f"$PWD/{log}")],
        _preamble(job),
        _environment(job, programs) if job.container is None else _container(job, dialect, folder, environ),
        _launch(job, folder, dialect),
        _wait(job, scheduler),
        _end(job, scheduler),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _problems(job: Job, dialect: Script) -> list[str]:
    """What this scheduler cannot be told."""
    found = [f"{key}: {why}" for key, why in dialect.refused.items() if getattr(job, key) not in (None, 0)]
    found += [f"{key}: is missing; {where}" for key, where in dialect.needed.items() if getattr(job, key) is None]
    if job.parallel_environment is not None and "parallel_environment" not in dialect.needed:
        found.append("parallel_environment: only Grid Engine has them; leave it out")
    found += container_problems(job)
    if job.container is not None and job.nodes > 1 and not dialect.every_node:
        found.append("container: nobody knows how this scheduler starts one on every node; use nodes: 1")
    if dialect.variables is not None:
        found += [
            f"extra_directives: {line!r} would be lost when the job is requeued; write its variables under variables"
            for line in job.extra_directives
            if line.split()[0].partition("=")[0] == dialect.variables
        ]
    return found


def _profile(job: Job, scheduler: Scheduler) -> list[str]:
    """What makes a login shell where the script's first line cannot."""
    if not job.login_shell or not scheduler.script.chooses_shell:
        return []
    return [
        f"# {scheduler.title} does not always start a login shell; then this shell reads what a login shell reads.",
        'shopt -q login_shell || for profile in /etc/profile "$HOME/.bash_profile"; do',
        '  [ ! -r "$profile" ] || . "$profile"',
        "done",
    ]


def _preamble(job: Job) -> list[str]:
    """The user's own lines, between traps that tell which of them fails; a sourced file's own lines may fail."""
    if not job.preamble:
        return []
    # Always with 1: to some schedulers other codes mean more than that the job has failed.
    return [
        "# The preamble of the job's description. If a line of it fails, a message says so, and the job ends.",
        """trap 'echo "The job ended in its preamble, with exit code $?." >&2; exit 1' EXIT""",
        """trap 'code=$? at=$LINENO""",
        """  [ ${#BASH_SOURCE[@]} -eq 1 ] || code=0 # the lines of a file that it sources may fail""",
        """  if [ "$code" -ne 0 ]; then""",
        """    trap - EXIT""",
        """    line=$(sed -n "${at}p" "$0")""",
        """    echo "Line $((at - preamble)) of the preamble failed with exit code $code: $line" >&2""",
        """    exit 1""",
        """  fi' ERR""",
        "preamble=$LINENO",
        *job.preamble,
        "trap - ERR EXIT",
    ]


def _environment(job: Job, programs: Path) -> list[str]:
    """Which shoal and python are used: those of the preamble if there is one, else those that wrote the script."""
    folder = shlex.quote(str(programs))
    if job.preamble:
        lines = [
            "# Where the preamble brings no shoal, the one that wrote this script is used.",
            f'PATH="$PATH":{folder}',
        ]
    else:
        lines = ["# The shoal and the python that wrote this script come first.", f'PATH={folder}:"$PATH"']
    return [*lines, "export PATH", *(f"export {name}={shlex.quote(value)}" for name, value in job.variables.items())]


def _container(job: Job, dialect: Script, folder: Path, environ: Mapping[str, str]) -> list[str]:
    """Which image and folders the container has, and how it is started on every node."""
    lines = container_lines(job, container_runtime(job, environ), folder.parent)
    if job.nodes > 1 and dialect.every_node_function:
        exports = " ".join(f"-x {name}" for name in ("PYTHONNOUSERSITE", *job.variables))
        function = dialect.every_node_function.replace("@NODES@", str(job.nodes)).replace("@EXPORTS@", exports)
        lines += ["", function]
    return lines


def _launch(job: Job, folder: Path, dialect: Script) -> list[str]:
    options = f'--job-dir {shlex.quote(str(folder))}-"$job_id"'
    for name in ("min_nodes", "ports", "on_node_loss"):
        if getattr(job, name) is not None:
            options += f" --{name.replace('_', '-')} {getattr(job, name)}"
    start: list[str] = []
    if job.container is not None and job.nodes > 1:
        options += f" --num-ranks {job.nodes}"
        start.append(dialect.every_node.replace("@NODES@", str(job.nodes)))
    if job.container is not None:
        start.append('"${container[@]}"')
    about = "# `shoal launch` starts Ray on all nodes, runs the command on the first, and ends with its exit code."
    if start:
        about = (
            "# A container on every node: `shoal launch` in it starts Ray, the first runs the command, all end with it."
        )
    return [
        about,
        "# Its process group is its own (set -m): signals of the scheduler reach it through this shell.",
        "set +e -m",
        *(f"{words} \\" for words in start),
        f"{'  ' * bool(start)}shoal launch {options} \\",
        f"  {'  ' * bool(start)}-- {shlex.join(job.command)} </dev/null &",
        "launch=$!",
    ]


def _wait(job: Job, scheduler: Scheduler) -> list[str]:
    dialect = scheduler.script
    timer = [
        f"# {scheduler.title} does not warn this shell alone before the walltime ends, so it warns itself.",
        f"(sleep $(({job.walltime - job.signal_before} - SECONDS)); kill -USR1 $$) </dev/null >/dev/null 2>&1 &",
        "timer=$!",
        'disown "$timer"',
    ]
    return [
        f"# The walltime ends soon: save, and end with {RESUME_ME}. Cancelled: save, and end.",
        f"""trap 'told=yes; kill -USR1 "$launch" 2>/dev/null' {dialect.warnings}""",
        f"""trap 'told=yes; stopped=yes; trap "" {dialect.stops}; kill -TERM "$launch" 2>/dev/null' {dialect.stops}""",
        *([] if dialect.warns else timer),  # after the traps: it may be late already
        "set +m",
        "told=yes stopped=",
        'while [ -n "$told" ]; do # a signal ends `wait` before the command has ended',
        "  told=",
        '  wait "$launch"',
        "  code=$?",
        "done",
        *([] if dialect.warns else ['kill -- "-$timer" 2>/dev/null']),
    ]


def _end(job: Job, scheduler: Scheduler) -> list[str]:
    dialect, lines = scheduler.script, []
    if job.requeue:
        lines += [
            f"# {RESUME_ME}: saved, resume me. {scheduler.title} {dialect.requeues}, at most {job.max_requeues} times.",
            f'if [ "$code" -eq {RESUME_ME} ]; then',
            f'  if [ -z "$stopped" ] && [ "{dialect.requeue_count}" -lt {job.max_requeues} ]; then',
            f"    {dialect.again}",
            "  fi",
            '  echo "The run is saved, but the job is not requeued; submit it again to continue." >&2',
            "fi",
        ]
    if dialect.requeue_code is not None and (job.requeue or dialect.requeues_unasked):
        lines.append(f'[ "$code" -ne {dialect.requeue_code} ] || code=1 # else {scheduler.title} would requeue the job')
    return [*lines, 'exit "$code"']
