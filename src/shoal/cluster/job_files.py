"""A job's file, a site's file and flags make one tree, which is checked once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from shoal.cluster.job import Job
from shoal.cluster.schedulers import names
from shoal.config.problems import got, printable, sentences
from shoal.config.vocabulary import nearest
from shoal.errors import ConfigError

SITE_FILE = "~/.config/shoal/site.yml"
"""What all jobs of a site have in common; each key that a job's own file or a flag sets replaces the one in here."""

FOREIGN: Mapping[str, str] = MappingProxyType(
    {
        "queue": "partition",
        "qos": "extra_directives",
        "constraint": "extra_directives",
        "gres": "gpus_per_node",
        "project": "account",
        "time": "walltime",
        "time_limit": "walltime",
        "wall_time": "walltime",
        "runtime": "walltime",
        "num_nodes": "nodes",
        "nnodes": "nodes",
        "hosts": "nodes",
        "cpus": "cpus_per_node",
        "cores": "cpus_per_node",
        "ncpus": "cpus_per_node",
        "cpus_per_task": "cpus_per_node",
        "cores_per_node": "cpus_per_node",
        "gpus": "gpus_per_node",
        "ngpus": "gpus_per_node",
        "mem": "memory_per_node",
        "memory": "memory_per_node",
        "mem_per_node": "memory_per_node",
        "job_name": "name",
        "jobname": "name",
        "cmd": "command",
        "run": "command",
        "modules": "preamble",
        "module": "preamble",
        "setup": "preamble",
        "prologue": "preamble",
        "shell": "login_shell",
        "env": "variables",
        "environment": "variables",
        "environment_variables": "variables",
        "export": "variables",
        "pe": "parallel_environment",
        "log": "output",
        "log_file": "output",
        "directives": "extra_directives",
        "signal": "signal_before",
        "max_restarts": "max_requeues",
        "image": "container",
        "apptainer": "container",
        "singularity": "container",
        "sif": "container",
        "bind": "container_binds",
        "binds": "container_binds",
        "volumes": "container_binds",
        "mounts": "container_binds",
    }
)
"""The words of schedulers and of other tools, and ours."""


@dataclass(frozen=True)
class Source:
    """Keys that one file, or the command line, sets."""

    tree: Mapping[Any, Any]
    file: str | None = None
    lines: Mapping[str, int] = field(default_factory=dict)

    def place(self, key: str) -> str:
        """Where a key stands, for the front of a sentence."""
        if self.file is not None:
            return f"{self.file}:{self.lines.get(key, 1)}: {key}"
        return key if key == "command" else f"--{key.replace('_', '-')}"


def source_of(path: str | Path) -> Source:
    """The keys of a job's or a site's YAML file."""
    from shoal.config.yaml_files import load_file  # here, so that flags alone do not import a YAML parser

    document = load_file(path)
    if not isinstance(document.tree, dict):
        raise ConfigError(f"{path}: must be a mapping of keys, as nodes: 3 {got(document.tree)}")
    return Source(document.tree, str(path), document.lines)


def job_from(sources: Iterable[Source]) -> Job:
    """The checked job that the sources describe together, later ones going before earlier ones."""
    tree: dict[str, Any] = {}
    places: dict[str, str] = {}
    problems = []
    for source in sources:
        for key, value in source.tree.items():
            name = printable(str(key))
            if name not in Job.model_fields:
                problems.append(f"{source.place(name)}: unknown key{_hint(name)}")
            else:
                tree[name], places[name] = value, source.place(name)
    try:
        job = Job.model_validate(tree)
    except ValidationError as error:
        problems += [_placed(sentence, places) for sentence in sentences(error, [], Job.model_fields)]
        raise ConfigError(problems) from None
    problems += [_placed(sentence, places) for sentence in _unknown_scheduler(job.scheduler)]
    problems += [_placed(sentence, places) for sentence in job.conflicts()]
    if problems:
        raise ConfigError(problems)
    return job


def _unknown_scheduler(name: str) -> list[str]:
    """What is wrong with a scheduler that nobody has described."""
    known = names()
    if name in ("auto", *known):
        return []
    meant = nearest(name.lower(), known, 0.6)
    hint = f"; did you mean {meant}?" if meant else ""
    return [f"scheduler: must be auto or one of {', '.join(known)}{hint} {got(name)}"]


def _placed(sentence: str, places: Mapping[str, str]) -> str:
    """The sentence with file and line, or the flag, in front; what to type where a key is missing."""
    path, _, what = sentence.partition(": ")
    if what == "is missing":
        return f"{sentence}; " + {
            "walltime": 'use --walltime 20m, or walltime: "20m" in the job\'s file',
            "command": "write it after --, as in `shoal submit --walltime 20m -- shoal train CartPole-v1`",
        }.get(path, "write it into the job's file")
    key = path.partition("[")[0]
    return f"{places.get(key, key)}{path[len(key) :]}: {what}"


def _hint(key: str) -> str:
    plain = key.strip().lower().replace("-", "_")
    meant = FOREIGN.get(plain) or nearest(plain, Job.model_fields, 0.7)
    return f"; did you mean {meant}?" if meant else ""
