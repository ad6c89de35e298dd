"""A Ray of our own on this machine: it comes up where much else runs, and goes with all that it has started."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from shoal.errors import ClusterError, NodeNotUp, ShoalError
from shoal.machine.broadcasts import deaf_from_birth, with_hearing_workers
from shoal.machine.keeper import STANDARD_INPUT, keeper_words
from shoal.machine.left_processes import spare
from shoal.machine.private_folder import PrivateFolder
from shoal.machine.ray_variables import AUTH_MODE, LOOPBACK, TOKEN_PATH, token_variables
from shoal.parallel.ray_logs import errors_in
from shoal.parallel.ray_signals import signals_kept

if TYPE_CHECKING:
    from psutil import Process

MOST_TRIES = 2
REGISTERING_TIMEOUT_S = 180.0
ENDING_TIMEOUT_S = 10.0
POLL_S = 0.1
LONG_S = 15.0  # after which the user wants to know why nothing happens
CHOSEN_PORTS = range(20000, 32768)  # below those that systems give to connections
AGENTS_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
DAEMONS = ("gcs_server", "raylet")  # without which there is no Ray
LOOKING_S = 1.0
STOPPED_LOOKS = 3  # in a row that find a daemon stopped, after which it counts as lost
SETTINGS = {
    # Ray runs workers at nice 15; ours are no less important than the learner that waits for them.
    "RAY_worker_niceness": "0",
    # How long Ray waits for its own parts, which start slowly where many processes want the cores.
    "RAY_gcs_server_port_wait_time_s": "90",
    "RAY_agent_register_timeout_ms": "180000",
    "RAY_worker_register_timeout_seconds": "180",
}

log = logging.getLogger("shoal")
progress = logging.getLogger("shoal.progress")


class PrivateRay:
    """A Ray that answers only to who can read the token in its folder; it is up after `start`."""

    def __init__(self) -> None:
        import psutil

        self._before = psutil.Process().children()
        self._is_up = False
        self._family: set[Process] = set()  # what it has started, as far as it was seen
        self._daemons: dict[Process, str] = {}  # with their names
        self._is_over = threading.Event()
        self.loss = ""  # what has become of a daemon without which nothing goes on
        self._stopped: dict[Process, int] = {}  # how often in a row each was found stopped
        self._started: dict[str, subprocess.Popen[bytes]] = {}  # by names; of the raylet this is the keeper
        self.folder = PrivateFolder(os.environ, may_be_shared=True)
        self._guard = _guard(self.folder)

    def start(self, num_cpus: int) -> Any:
        """Bring it up; `ray`, or the exception that Ray raises."""
        # Ray reads these when it is imported.
        os.environ.update(token_variables(self.folder.write("token", _token())))
        _keep_to_loopback(True)
        reread_token()
        with _variables(SETTINGS):
            import ray

            with signals_kept(ray), _eased(ray, self):
                ray.init(
                    address="local",
                    num_cpus=num_cpus,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=str(self.folder.ray),
                    _node_ip_address="127.0.0.1",
                )
        _end_at_once(ray)
        self._family = self._below({child for child in self._new_children() if self._is_named_by(child)})
        self._daemons = {process: name for process in self._family if (name := _name(process)) in DAEMONS}
        self._is_up = True
        self._guard.kill()  # from now on the keeper of the raylet does the same
        self._guard.wait()
        threading.Thread(target=self._watch, name="shoal-ray", daemon=True).start()
        return ray

    def _watch(self) -> None:
        """Look at the daemons once in a second, until one is lost or all are to end; in a thread of its own."""
        while not self.loss and not self._is_over.wait(LOOKING_S):
            self.loss = self._lost_daemon()

    def _lost_daemon(self) -> str:
        """What has become of a daemon without which nothing goes on; empty while all live."""
        import psutil

        for process, name in self._daemons.items():
            try:
                state = process.status() if process.is_running() else psutil.STATUS_ZOMBIE
            except psutil.Error:
                state = psutil.STATUS_ZOMBIE
            self._stopped[process] = self._stopped.get(process, 0) + 1 if state == psutil.STATUS_STOPPED else 0
            if state == psutil.STATUS_ZOMBIE:
                return f"its process {name} (pid {process.pid}) has died"
            if self._stopped[process] >= STOPPED_LOOKS:
                process.kill()  # who waits for its answer in Ray's own code hears of its end, and of nothing else
                return f"its process {name} (pid {process.pid}) is stopped (SIGSTOP)"
        return ""

    def end(self) -> None:
        """End it with whatever its processes have started; the folder stays."""
        self._is_over.set()
        self._family |= self._seen()  # who loses its parent in the shutdown cannot be found after it
        if "ray" in sys.modules:
            with contextlib.suppress(Exception):  # of a Ray that is half up
                sys.modules["ray"].shutdown()
        self._kill()

    def remove(self) -> None:
        """Remove its folder, and the token's name from our environment."""
        self.folder.remove()
        self._guard.communicate()  # where it lives, it also removes what a daemon has written at its end
        if os.environ.get(TOKEN_PATH) == str(self.folder.path / "token"):
            del os.environ[TOKEN_PATH], os.environ[AUTH_MODE]
            _keep_to_loopback(False)
            reread_token()  # a Ray that the program starts itself has another

    def why_not(self) -> str:
        """What its daemons give as the reason why it is not up; empty if they say nothing."""
        for name in ("raylet", "gcs_server"):
            for file in self.folder.ray.glob(f"session_2*/logs/{name}.*"):
                with contextlib.suppress(OSError):
                    if found := errors_in(file):
                        return f"{name} says: {found[-1]}"
        return ""

    def keep_logs(self) -> Path | None:
        """A copy of its logs that stays; None if there are none, or no space for them."""
        with contextlib.suppress(OSError, shutil.Error):
            for logs in self.folder.ray.glob("session_2*/logs"):
                kept = Path(tempfile.mkdtemp(prefix="shoal-ray-logs-"))
                shutil.copytree(logs, kept, dirs_exist_ok=True)
                return kept
        return None

    def dead_daemon(self) -> str:
        """The name of a daemon that has ended while it starts; empty if all are alive."""
        ended = [name for name, process in self._started.items() if name in DAEMONS and process.poll() is not None]
        return ended[0] if ended else ""

    def kept(self, start_process: Callable[..., Any]) -> Callable[..., Any]:
        """Ray's `start_ray_process`, which starts the raylet below a keeper.

        Ray's own means end the raylet with us, but not its agents and workers, nor do they remove the folder. Ray
        believes the keeper to be the raylet; "killed" by it, the keeper ends all that is below it.
        """
        signature = inspect.signature(start_process)

        @wraps(start_process)
        def started(*given: Any, **named: Any) -> Any:
            told = signature.bind(*given, **named).arguments
            is_kept = told["process_type"] == "raylet"
            if is_kept:
                words = [*keeper_words(STANDARD_INPUT, 0.0, str(self.folder.path)), *told["command"]]
                told |= {"command": words, "pipe_stdin": True, "fate_share": False}
            info = start_process(**told)
            self._started[told["process_type"]] = info.process
            if is_kept:
                spare(info.process.pid)
                info.process.kill = lambda: _tell_to_end(info.process)
            return info

        return started

    def _seen(self) -> set[Process]:
        """Ray's daemons and all that is below them now.

        The daemons are children of ours which come up while it starts and name the folder, or are about to: one that
        was just forked looks as we do. Later children are the user's, whatever they name.
        """
        family = set(self._family)
        if not self._is_up:
            family.update(child for child in self._new_children() if self._is_named_by(child) or _looks_as_we_do(child))
        return self._below(family)

    def _new_children(self) -> list[Process]:
        import psutil

        children = psutil.Process().children()
        return [child for child in children if child not in self._before and child.pid != self._guard.pid]

    def _is_named_by(self, process: Process) -> bool:
        return any(str(self.folder.path) in word for word in _words(process))

    def _below(self, family: set[Process]) -> set[Process]:
        """The living of a family, and all that is below them."""
        import psutil

        found: set[Process] = set()
        for process in family:
            with contextlib.suppress(psutil.Error):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found |= {process, *process.children(recursive=True)}
        return found

    def _kill(self) -> None:
        """End those of the family that are left: Ray's agents would outlive it by a minute."""
        import psutil

        deadline = monotonic() + ENDING_TIMEOUT_S
        while (left := self._seen()) and monotonic() < deadline:  # one in a disk's hands is deaf to SIGKILL too
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=POLL_S)  # who buries an orphan is not ours to say


def start_private_ray(num_cpus: int) -> tuple[Any, PrivateRay]:
    """`ray`, and the private Ray that it is connected to; one that does not come up is tried once more."""
    progress.info("starting a private Ray")
    attempt = 1
    while True:
        private = PrivateRay()
        try:
            return private.start(num_cpus), private
        except BaseException as error:
            reason = private.why_not() or " ".join(str(error).split())
            private.end()
            is_hopeless = not isinstance(error, Exception) or isinstance(error, ShoalError)
            kept = private.keep_logs() if attempt == MOST_TRIES and not is_hopeless else None
            private.remove()
            if is_hopeless:
                raise
            if attempt == MOST_TRIES:
                where = f"Its logs are in {kept}" if kept else "It has left no logs"
                raise ClusterError(
                    f"Ray did not start on this machine in {attempt} attempts: {reason}; {_busy()}\n"
                    f"{where}; `shoal doctor` looks for causes, and num_workers: 0 trains without Ray."
                ) from error
        log.warning("Ray did not start (%s); it is tried again", reason)
        attempt += 1


def _guard(folder: PrivateFolder) -> subprocess.Popen[bytes]:
    """A keeper that keeps nothing yet: whatever ends us before there is a raylet, the folder and its token go."""
    words = keeper_words(STANDARD_INPUT, 0.0, str(folder.path))
    nowhere = subprocess.DEVNULL
    try:
        begin = deaf_from_birth(subprocess.Popen[bytes])
        guard: subprocess.Popen[bytes] = begin(words, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere)
        spare(guard.pid)
        return guard
    except BaseException:
        folder.remove()
        raise


def _tell_to_end(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin is not None
    with contextlib.suppress(OSError):
        keeper.stdin.write(b"end\n")
        keeper.stdin.flush()


def _name(process: Process) -> str:
    import psutil

    with contextlib.suppress(psutil.Error):
        return str(process.name())
    return ""


def _words(process: Process) -> list[str]:
    import psutil

    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


def _looks_as_we_do(process: Process) -> bool:
    import psutil

    return bool(_words(process)) and _words(process) == psutil.Process().cmdline()


@contextlib.contextmanager
def _eased(ray: Any, private: PrivateRay) -> Iterator[None]:
    """Let Ray start without hurry, and without what nobody here needs; for neither it has a setting.

    It gives its node 30 s to come up, of which the raylet spends up to 30 s waiting for the ports of two agents in
    Python. An agent whose port is given is not waited for. Its daemons are deaf to the terminal and schedulers, since a
    run needs them until all is saved, and what they start ends with us.
    """
    services, parameter = ray._private.services, ray._private.parameter
    ask, make, spawn = services.get_node, parameter.RayParams, services.start_ray_process
    given_start = services.start_raylet
    start = with_hearing_workers(given_start)

    def get_node(address: str, node_id: str) -> Any:
        _wait_for_node(ray, address, node_id, private)
        return ask(address, node_id)

    def make_parameters(**given: Any) -> Any:
        ports = dict(zip(AGENTS_PORTS, _free_ports(len(AGENTS_PORTS)), strict=True))
        return make(**{**given, **ports, "no_monitor": True, "include_log_monitor": False})

    def start_raylet(*given: Any, **named: Any) -> Any:
        # Of this port the raylet learns by a file alone, which the agent writes when it is up.
        told = inspect.signature(start).bind(*given, **named).arguments
        port = told["dashboard_agent_listen_port"]
        ray._raylet.persist_port(told["session_dir"], told["node_id"], "dashboard_agent_listen_port", port)
        return start(*given, **named)

    services.get_node, parameter.RayParams, services.start_raylet = get_node, make_parameters, start_raylet
    services.start_ray_process = deaf_from_birth(private.kept(spawn))
    try:
        yield
    finally:
        services.get_node, parameter.RayParams, services.start_raylet = ask, make, given_start
        services.start_ray_process = spawn


def _end_at_once(ray: Any) -> None:
    """Have Ray kill its daemons without asking them first: they are deaf, and it would wait a second for each."""
    node = ray._private.worker._global_node
    kill = node.kill_all_processes
    node.kill_all_processes = lambda **given: kill(**{**given, "allow_graceful": False})


def _free_ports(count: int) -> list[int]:
    """Free ports of this machine, none of which a connection gets by chance before Ray takes it."""
    found: list[int] = []
    for port in random.SystemRandom().sample(CHOSEN_PORTS, len(CHOSEN_PORTS)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise NodeNotUp(f"no {count} ports are free")


def _wait_for_node(ray: Any, address: str, node_id: str, private: PrivateRay) -> None:
    """Return when the node is part of its cluster; NodeNotUp if a daemon dies, or if it takes all too long."""
    began = monotonic()
    is_told = False
    while True:
        with contextlib.suppress(ray.exceptions.RayError):
            nodes = ray._raylet.GcsClient(address=address).get_all_node_info()
            if node_id in {node.hex() for node in nodes}:
                return
        if dead := private.dead_daemon():
            raise NodeNotUp(f"its process {dead} ends as soon as it is started")
        if monotonic() > began + REGISTERING_TIMEOUT_S:
            raise NodeNotUp(f"its node is not up after {REGISTERING_TIMEOUT_S:.0f} s")
        if monotonic() > began + LONG_S and not is_told:
            progress.info("still starting a private Ray; %s", _busy())
            is_told = True
        sleep(POLL_S)


def _busy() -> str:
    """How much this machine has to do."""
    from shoal.machine.cores import cores

    return f"the load is {os.getloadavg()[0]:.0f} on {cores()} cores"


@contextlib.contextmanager
def _variables(settings: Mapping[str, str]) -> Iterator[None]:
    """Have these in our environment meanwhile, unless the user has set them."""
    added = [name for name in settings if name not in os.environ]
    os.environ.update({name: settings[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _keep_to_loopback(is_kept: bool) -> None:
    """Let Ray take 127.0.0.1 as it is, or no longer."""
    if is_kept:
        os.environ.update(LOOPBACK)
    else:
        for name in LOOPBACK:
            os.environ.pop(name, None)
    if "ray" in sys.modules:  # read once, when it is imported
        constants: Any = sys.modules["ray._private.ray_constants"]
        constants.ENABLE_RAY_CLUSTER = not is_kept


def reread_token() -> None:
    """Let a Ray that is imported already take notice of the variables: it reads them once."""
    if "ray" in sys.modules:
        raylet: Any = sys.modules["ray._raylet"]
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


@cache
def _token() -> str:
    """The secret of this program's private Rays, one after another: Ray reads it once in a process's life."""
    return os.urandom(32).hex()
