"""The Ray that workers run on: one that is there already, or a private one on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from shoal.config.changing import unchecked
from shoal.config.layout import layout_of
from shoal.config.settings import AlgorithmConfig
from shoal.errors import ConfigError, WorkerError
from shoal.machine.cores import cores
from shoal.machine.ray_variables import TOKEN_MODE
from shoal.parallel.capacity import check_cluster, check_machine, check_nodes, check_room, workers_on
from shoal.parallel.private_ray import PrivateRay, reread_token, start_private_ray
from shoal.parallel.ray_address import inspect_cluster, named_address
from shoal.parallel.ray_logs import crash_summary, output_lines
from shoal.parallel.ray_signals import signals_kept

FREEING_TIMEOUT_S = 10.0
LOOKING_S = 1.0  # between two looks at which nodes leave

progress = logging.getLogger("shoal.progress")


class Session:
    """A Ray that is up, and what of it is ours to end."""

    def __init__(self, ray: Any, private: PrivateRay | None = None) -> None:
        self.ray = ray
        self._private = private
        self._looked_at = -LOOKING_S

    @property
    def folder(self) -> str | None:
        """The folder of a private Ray, which nobody else can read."""
        return None if self._private is None else str(self._private.folder.path)

    def leaving_nodes(self) -> set[str]:
        """The nodes of a cluster that was joined which were asked to leave it, and have not left yet."""
        now = monotonic()
        if self._private is not None or now < self._looked_at + LOOKING_S:
            return set()
        self._looked_at = now
        with contextlib.suppress(Exception):  # what Ray knows of its nodes is not promised
            return set(self.ray._private.state.state.get_draining_nodes())
        return set()

    def check(self) -> None:
        """WorkerError where a private Ray is lost: it is on this machine alone, and nothing would ever answer."""
        words = self._private.loss if self._private is not None else ""
        if words:
            raise WorkerError(f"the Ray of this run is lost: {words}; start the same command again to continue")

    def last_output(self, pid: int) -> str:
        """What a process of this machine wrote to its error stream at last, in one line."""
        with contextlib.suppress(Exception):  # where Ray keeps its logs is not promised
            logs = Path(self.ray._private.worker.global_worker.node.get_logs_dir_path())
            return crash_summary([line for file in logs.glob(f"worker-*-{pid}.err") for line in output_lines(file)])
        return ""

    def stop(self) -> None:
        """End the Ray if it is a private one; may be called twice."""
        private, self._private = self._private, None
        if private is not None:
            private.end()
            private.remove()


def connect(config: AlgorithmConfig) -> Session:
    """Ray with room for the configuration's processes: see `open_session`."""
    running = sys.modules.get("ray")
    if running is not None and running.is_initialized():
        check_room(config, is_private=False)
        reserved = reserved_resources(running)
        if reserved is None:
            _wait_for_room(running, config)
        else:
            check_cluster(config, reserved, "the trial that this runs in has reserved")
        return Session(running)
    address = named_address()
    check_room(config, is_private=address is None)
    if address is None:
        check_machine(config)
    # On one's own machine workers may share cores: a laptop runs what a cluster will.
    session = open_session(max(ceil(layout_of(config).cpus), cores(), 1))
    if address is not None:
        try:
            check_cluster(config, session.ray.cluster_resources(), f"the Ray cluster at {address} has")
            check_nodes(config, _nodes(session.ray))
        except BaseException:
            session.ray.shutdown()
            raise
    return session


def open_session(num_cpus: int) -> Session:
    """Ray, joined where one runs in this program or RAY_ADDRESS names one, otherwise a private one on this machine."""
    running = sys.modules.get("ray")
    if running is not None and running.is_initialized():
        return Session(running)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = named_address()
    return Session(*start_private_ray(num_cpus)) if address is None else _join(address)


def _join(address: str) -> Session:
    """The cluster that the user names; where it asks for a token and one is here, the token is sent."""
    progress.info("joining the Ray cluster at %s", address)
    found = inspect_cluster(address)
    if found.needs_token:
        os.environ.update(TOKEN_MODE)  # read when Ray is imported
        reread_token()
    import ray

    with signals_kept(ray):
        ray.init(address=found.address, log_to_driver=False, logging_level=logging.ERROR)
    return Session(ray)


def reserved_resources(ray: Any) -> dict[str, float] | None:
    """What a trial of a sweep has reserved for the processes that it starts; None outside of one.

    The first bundle of its placement group is its own; whatever it starts without a place of its own lands in the rest.
    """
    group = ray.util.get_current_placement_group()
    if group is None:
        return None
    rest = group.bundle_specs[1:]
    return {name: sum(bundle.get(name, 0.0) for bundle in rest) for name in ("CPU", "GPU")}


def workers_that_fit(config: AlgorithmConfig) -> int:
    """The most that `num_workers: auto` may be: what there are cores for beside learners, and one for each of these."""
    running = sys.modules.get("ray")
    nodes: list[Mapping[str, float]] = [{"CPU": cores()}]
    if named_address() is not None or (running is not None and running.is_initialized()):
        # A look at what is there takes nothing of it.
        session = connect(unchecked(config, num_workers=0, num_learners=1, evaluation_num_workers=0))
        have = reserved_resources(session.ray) or session.ray.available_resources()
        nodes = _nodes(session.ray) if config.env_ranks else [have]
    return max(config.num_learners, workers_on(config, nodes))


def _nodes(ray: Any) -> list[Mapping[str, float]]:
    """What each host of the cluster offers."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _wait_for_room(ray: Any, config: AlgorithmConfig) -> None:
    """Refuse workers that would wait for a core forever; those just stopped need a moment to give theirs back."""
    deadline = monotonic() + FREEING_TIMEOUT_S
    while True:
        try:
            return check_cluster(config, ray.available_resources(), "the Ray in this program has free")
        except ConfigError as error:
            if monotonic() > deadline:
                raise ConfigError(f"{error}; or stop the trainer that has the others") from None
        sleep(0.1)
