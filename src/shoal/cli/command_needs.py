"""What a `shoal train` or `shoal tune` needs of a cluster, asked of that command itself by --dry-run."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.cluster.capacity_check import CapacityCheck, Resources
    from shoal.config.settings import AlgorithmConfig

# With these the command describes nothing, goes on with what it was, or sizes itself by another cluster than ours.
NOT_ASKED = ("-h", "--help", "--dry-run", "--resume", "--ray-address", "--num-cpus")

# What may be otherwise on the nodes of a job: files, packages, variables and cores that a login node does not have.
ELSEWHERE = re.compile(
    r"no (such )?(file|folder|module|Gymnasium id|run)\b|\benv '|cannot be (read|written|made)|is not (set|installed)"
    r"|this machine|failed:|import"
)
CERTAIN = re.compile(r"there is no such version|unknown key")

FIRST_TRIAL = re.compile(r"^the first of them in full\n((?: .*\n?)+)", re.MULTILINE)


def capacity_check(command: Sequence[str]) -> CapacityCheck | None:
    """How to learn before Ray starts whether a command finds room; None where its words are not understood."""
    from shoal.cluster.capacity_check import CapacityCheck

    words = _shoal_words(command)
    if not words or words[0] not in ("train", "tune"):
        return None
    if any(word.partition("=")[0] in NOT_ASKED for word in words):
        return None
    check = check_training if words[0] == "train" else check_sweeps
    return CapacityCheck((*command, "--dry-run"), check)


def doubts_about(command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """What a command would be refused for here, but perhaps not on the nodes of a job; ConfigError: also there."""
    import asyncio

    from shoal.cluster.capacity_check import answer

    check = capacity_check(command)
    if check is None:
        return []
    words = (sys.executable, "-m", "shoal", *_shoal_words(check.question))
    try:
        asyncio.run(answer(words, environ))
    except ConfigError as error:
        doubts = [problem for problem in error.problems if _may_differ(problem)]
        if len(doubts) < len(error.problems):
            raise ConfigError(
                [f"the command would fail: {problem}" for problem in error.problems if problem not in doubts]
            ) from None
        return doubts
    return []


def _may_differ(problem: str) -> bool:
    return ELSEWHERE.search(problem) is not None and CERTAIN.search(problem) is None


def check_training(described: str, hosts: Sequence[Resources]) -> None:
    """Refuse experiments whose workers, learners and evaluation would wait for a CPU or a GPU for ever."""
    from shoal.config.layout import layout_of
    from shoal.parallel.capacity import check_nodes

    for config in _configs(described):
        layout = layout_of(config)
        for name, needed in (("CPU", layout.cpus), ("GPU", layout.gpus)):
            if needed > sum(host.get(name, 0.0) for host in hosts):
                raise ConfigError(_no_room(config, name, needed, hosts))
        check_nodes(config, hosts)


def check_sweeps(described: str, hosts: Sequence[Resources]) -> None:
    """Refuse sweeps whose first trial would wait for ever."""
    from shoal.config.layout import layout_of
    from shoal.tune.trial_resources import check_room

    for found in FIRST_TRIAL.finditer(described):
        for config in _configs(textwrap.dedent(found[1])):
            try:
                check_room(layout_of(config).bundles, hosts)
            except ConfigError as error:
                raise ConfigError(
                    f"{error}; config.num_cpus_per_worker below 1 lets workers share a CPU, "
                    "and shoal launch --num-cpus N has Ray offer N on each host"
                ) from None


def _shoal_words(command: Sequence[str]) -> Sequence[str]:
    """What stands after `shoal` or `python -m shoal`; nothing where another program is meant."""
    name = Path(command[0]).name
    if name == "shoal":
        return command[1:]
    if re.fullmatch(r"python[\d.]*", name) and list(command[1:3]) == ["-m", "shoal"]:
        return command[3:]
    return ()


def _configs(described: str) -> list[AlgorithmConfig]:
    """The configurations that --dry-run has printed; none where it cannot be read."""
    from shoal.config.experiment import experiment_from
    from shoal.config.yaml_files import load_text

    try:
        experiments = load_text(described, "--dry-run").tree
        if not isinstance(experiments, dict):
            return []
        return [experiment_from({"name": name, **tree}).config for name, tree in experiments.items()]
    except (ConfigError, TypeError):  # another version of shoal may print something else
        return []


def _no_room(config: AlgorithmConfig, name: str, needed: float, hosts: Sequence[Resources]) -> str:
    from shoal.config.layout import cpus_per_worker, workers_in

    offered = [host[name] for host in hosts if host.get(name)]
    have = sum(offered)
    if name == "GPU":
        return f"config.num_gpus: the learners need {needed:g} GPUs, and the hosts have {have:g}; use num_gpus={have:g}"
    workers = config.worker_count + config.evaluation_num_workers
    each = f"num_cpus_per_worker {config.num_cpus_per_worker:g}"
    if config.env_ranks:
        each = f"{config.envs_per_worker} environments of {config.env_ranks} ranks"
    told = f"{workers} worker{'s' * (workers != 1)} with {each}"
    if config.evaluation_num_workers:
        told += f" ({config.evaluation_num_workers} of them for evaluation)"
    if config.num_learners > 1:
        told += f" and {config.num_learners} learners with num_cpus_per_learner {config.num_cpus_per_learner:g}"
    fit = workers_in(config, have) if cpus_per_worker(config) else 0
    fewer = f"use --num-workers {fit} or auto, " if config.worker_count and fit > 0 else ""
    share = "" if config.env_ranks else "let workers share CPUs with --set config.num_cpus_per_worker=0.5, "
    return (
        f"config.num_workers: {told} need {needed:g} CPUs, and Ray would have {have:g}; {fewer}{share}"
        f"or offer more CPUs than there are with shoal launch --num-cpus {ceil(needed / max(1, len(offered)))}"
    )
