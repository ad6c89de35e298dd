"""The Ray that workers run on: one that is there already, or a private one on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from shoal.config.settings import AlgorithmConfig
from shoal.errors import ConfigError

FREEING_TIMEOUT_S = 10.0
LONGEST_TEMP_FOLDER = 25  # a socket's path may have 107 letters, and Ray wants 80 of them


def connect(config: AlgorithmConfig) -> tuple[Any, str | None]:
    """Ray, joined where RAY_ADDRESS says so, otherwise a private one in a folder that is ours to remove."""
    wanted = config.num_workers * config.num_cpus_per_worker
    running = sys.modules.get("ray")
    if running is not None and running.is_initialized():
        _wait_for_cpus(running, wanted)
        return running, None
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = os.environ.get("RAY_ADDRESS")
    if address:
        import ray

        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        resources: Callable[[], dict[str, float]] = ray.cluster_resources
        have = resources().get("CPU", 0)
        if wanted > have:
            ray.shutdown()
            raise ConfigError(
                f"config.num_workers: {config.num_workers} workers of {config.num_cpus_per_worker:g} CPUs need "
                f"{wanted:g}, the Ray cluster at {address} has {have:g}"
            )
        return ray, None
    place = tempfile.gettempdir()
    place = place if len(place) <= LONGEST_TEMP_FOLDER else "/tmp"
    sweep(Path(place))
    folder = tempfile.mkdtemp(prefix=f"shoal-{os.getpid()}-", dir=place)
    import psutil

    before = psutil.Process().children(recursive=True)
    try:
        return _start_private(folder, max(int(np.ceil(wanted)), 1)), folder
    except BaseException:
        # A daemon that was just forked does not name the folder yet, but it is a child of ours.
        for process in psutil.Process().children(recursive=True):
            if process not in before:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        clean(folder)
        raise


def _start_private(folder: str, num_cpus: int) -> Any:
    """A Ray on this machine alone, that answers only to who can read the token in its folder."""
    token = os.path.join(folder, "token")
    descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(_token())
    # Ray reads these when it is imported.
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = token
    import ray

    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=folder,
        _node_ip_address="127.0.0.1",
    )
    return ray


@cache
def _token() -> str:
    """The secret of this program's private Rays, one after another: Ray reads it once in a process's life."""
    return os.urandom(32).hex()


def clean(folder: str) -> None:
    """End what a private Ray left running, remove its folder, and the token's name from our environment."""
    _end_leftovers(folder)
    shutil.rmtree(folder, ignore_errors=True)
    if os.environ.get("RAY_AUTH_TOKEN_PATH", "").startswith(folder):
        del os.environ["RAY_AUTH_TOKEN_PATH"], os.environ["RAY_AUTH_MODE"]


def _end_leftovers(folder: str) -> None:
    """End the daemons that name this folder, which is ours alone: Ray's agents outlive it by a minute otherwise."""
    import psutil

    left = [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.pid != os.getpid() and any(folder in word for word in process.info["cmdline"] or ())
    ]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=FREEING_TIMEOUT_S)


def sweep(place: Path) -> None:
    """Remove the folders of our private Rays whose process was killed before it could."""
    for folder in place.glob("shoal-*-*"):
        pid = folder.name.split("-")[1]
        with contextlib.suppress(OSError):
            if pid.isdecimal() and folder.stat().st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(folder, ignore_errors=True)


def _wait_for_cpus(ray: Any, wanted: float) -> None:
    """Refuse workers that would wait for a core forever; those just stopped need a moment to give theirs back."""
    deadline = monotonic() + FREEING_TIMEOUT_S
    while (free := float(ray.available_resources().get("CPU", 0))) < wanted:
        if monotonic() > deadline:
            raise ConfigError(
                f"config.num_workers: the workers need {wanted:g} CPUs, the Ray in this program has {free:g} free; "
                "stop the trainer that has the others, or start Ray with more"
            )
        sleep(0.1)
