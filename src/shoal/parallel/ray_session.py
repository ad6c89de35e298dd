"""The Ray that workers run on: one that is there already, or a private one on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sys
import tempfile
from functools import cache
from math import ceil
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from shoal.config.settings import AlgorithmConfig
from shoal.errors import ConfigError

FREEING_TIMEOUT_S = 10.0
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # where it is 0, Ray stays on this machine's own addresses
MOST_LAST_WORDS = 3  # lines
RAYS_OWN = re.compile(
    r":job_id:|:actor_name:|\*\*\* |.*@ +0x|\[\d{4}-\d\d-\d\d .*\] \w+\.cc:"
)  # lines of a worker's log
LONGEST_TEMP_FOLDER = 23  # a socket's path may have 107 letters, and Ray wants 80 of them


class Session:
    """A Ray that is up, and what of it is ours to end."""

    def __init__(self, ray: Any, folder: str | None = None) -> None:
        self.ray = ray
        self.folder = folder  # of a private Ray; nobody else can read it

    def last_words(self, pid: int) -> str:
        """What a process of this machine wrote to its error stream at last, in one line."""
        with contextlib.suppress(Exception):  # where Ray keeps its logs is not promised
            logs = Path(self.ray._private.worker.global_worker.node.get_logs_dir_path())
            return last_words([line for file in logs.glob(f"worker-*-{pid}.err") for line in _tail(file)])
        return ""

    def stop(self) -> None:
        """End the Ray if it is a private one; may be called twice."""
        if self.folder is not None:
            self.ray.shutdown()
            clean(self.folder)
            self.folder = None


def connect(config: AlgorithmConfig) -> Session:
    """Ray with room for the configuration's processes: see `open_session`."""
    running = sys.modules.get("ray")
    if running is not None and running.is_initialized():
        reserved = reserved_resources(running)
        if reserved is None:
            _wait_for_room(running, config)
        else:
            _check_room(config, reserved, "the trial that this runs in has reserved")
        return Session(running)
    # On one's own machine workers may share cores: a laptop runs what a cluster will.
    session = open_session(max(ceil(_needed_cpus(config)), cores(), 1))
    if session.folder is None:
        try:
            address = os.environ.get("RAY_ADDRESS")
            _check_room(config, session.ray.cluster_resources(), f"the Ray cluster at {address} has")
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
    address = os.environ.get("RAY_ADDRESS")
    if address:
        import ray

        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        return Session(ray)
    place = tempfile.gettempdir()
    place = place if len(place) <= LONGEST_TEMP_FOLDER else "/tmp"
    sweep(Path(place))
    folder = tempfile.mkdtemp(prefix=f"shoal-{os.getpid()}-", dir=place)
    import psutil

    before = psutil.Process().children(recursive=True)
    try:
        return Session(_start_private(folder, num_cpus), folder)
    except BaseException:
        # A daemon that was just forked does not name the folder yet, but it is a child of ours.
        for process in psutil.Process().children(recursive=True):
            if process not in before:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        clean(folder)
        raise


def reserved_resources(ray: Any) -> dict[str, float] | None:
    """What a trial of a sweep has reserved for the processes that it starts; None outside of one.

    The first bundle of its placement group is its own; whatever it starts without a place of its own lands in the rest.
    """
    group = ray.util.get_current_placement_group()
    if group is None:
        return None
    rest = group.bundle_specs[1:]
    return {name: sum(bundle.get(name, 0.0) for bundle in rest) for name in ("CPU", "GPU")}


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_that_fit(config: AlgorithmConfig) -> int:
    """What `num_workers: auto` comes to: as many as there are cores for, beside the learners; at least one."""
    address = os.environ.get("RAY_ADDRESS")
    running = sys.modules.get("ray")
    have: float = cores()
    if address or (running is not None and running.is_initialized()):
        alone = {"num_workers": 0, "num_learners": 1, "evaluation_num_workers": 0}
        session = connect(config.model_copy(update=alone))
        have = (reserved_resources(session.ray) or session.ray.available_resources()).get("CPU", 0.0)
    return max(1, _workers_in(config, have))


def _workers_in(config: AlgorithmConfig, cpus: float) -> int:
    return max(0, int((cpus - _other_cpus(config)) / max(config.num_cpus_per_worker, 1e-3)))


def _other_cpus(config: AlgorithmConfig) -> float:
    """What learners and evaluation take."""
    learners = config.num_learners * config.num_cpus_per_learner if config.num_learners > 1 else 0.0
    return learners + config.evaluation_num_workers * config.num_cpus_per_worker


def _needed_cpus(config: AlgorithmConfig) -> float:
    return config.worker_count * config.num_cpus_per_worker + _other_cpus(config)


def _check_room(config: AlgorithmConfig, have: dict[str, float], who_has: str) -> None:
    """Refuse what would wait for a core or a GPU forever."""
    count = config.worker_count
    key = "num_workers" if count or not config.evaluation_num_workers else "evaluation_num_workers"
    parts = [f"{count} worker{'s' * (count != 1)} of {config.num_cpus_per_worker:g} CPUs"]
    if config.num_learners > 1:
        parts.append(f"{config.num_learners} learners of {config.num_cpus_per_learner:g}")
    if config.evaluation_num_workers:
        parts.append(f"{config.evaluation_num_workers} for evaluation")
    needed, cpus = _needed_cpus(config), have.get("CPU", 0.0)
    if needed > cpus:
        fit = _workers_in(config, cpus) if count else 0
        advice = f"say num_workers: {fit}, or auto" if fit else "give it more, or wait for others to end"
        raise ConfigError(f"config.{key}: {' and '.join(parts)} need {needed:g}, {who_has} {cpus:g}; {advice}")
    gpus = config.num_gpus if config.num_learners > 1 else 0
    if gpus > have.get("GPU", 0.0):
        raise ConfigError(f"config.num_gpus: {gpus:g} are asked for, {who_has} {have.get('GPU', 0.0):g}")


def _start_private(folder: str, num_cpus: int) -> Any:
    """A Ray on this machine alone, that answers only to who can read the token in its folder."""
    token = os.path.join(folder, "token")
    descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(_token())
    # Ray reads these when it is imported.
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = token
    _keep_to_loopback(True)
    # Ray runs workers at nice 15; ours are no less important than the learner that waits for them.
    os.environ.setdefault("RAY_worker_niceness", "0")
    _reread_token()
    import ray

    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=os.path.join(folder, "r"),  # Ray lets everybody into its own (mode 0777)
        _node_ip_address="127.0.0.1",
    )
    return ray


def _keep_to_loopback(is_kept: bool) -> None:
    """Let Ray take 127.0.0.1 as it is: it turns it into an address of the network wherever it could have clusters."""
    if is_kept:
        os.environ[LOOPBACK] = "0"
    else:
        os.environ.pop(LOOPBACK, None)
    if "ray" in sys.modules:  # read once, when it is imported
        constants: Any = sys.modules["ray._private.ray_constants"]
        constants.ENABLE_RAY_CLUSTER = not is_kept


def _reread_token() -> None:
    """Let a Ray that is imported already take notice of the variables: it reads them once."""
    if "ray" in sys.modules:
        raylet: Any = sys.modules["ray._raylet"]
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


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
        _keep_to_loopback(False)
        _reread_token()  # a Ray that the program starts itself has another


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


def _wait_for_room(ray: Any, config: AlgorithmConfig) -> None:
    """Refuse workers that would wait for a core forever; those just stopped need a moment to give theirs back."""
    deadline = monotonic() + FREEING_TIMEOUT_S
    while True:
        try:
            return _check_room(config, ray.available_resources(), "the Ray in this program has free")
        except ConfigError as error:
            if monotonic() > deadline:
                raise ConfigError(f"{error}; or stop the trainer that has the others") from None
        sleep(0.1)


def last_words(lines: list[str]) -> str:
    """What is worth telling of a dead process's last lines: in a crash the line before it, and where it happened."""
    crash = next((k for k, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    if crash is None:
        return " | ".join(lines[-MOST_LAST_WORDS:])
    where = [line for line in lines[crash + 1 :] if line.startswith("File ")]
    return " | ".join([*lines[max(crash - 1, 0) : crash + 1], *where[:1]])


def _tail(file: Path) -> list[str]:
    """The last lines of a log that say something."""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 4096))
        lines = stream.read().decode(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip() and not RAYS_OWN.match(line)]
