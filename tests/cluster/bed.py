"""A cluster on one machine: nodes with a network, a host name, a process table, a /tmp and a /dev/shm of their own.

Everything is in namespaces, and nothing on the machine's side but the processes that brought it there. The first
process of a node reads a pipe that only this program can write to; when the pipe closes it ends, and the kernel ends
all others of the node with it. So however the program ends, no process, link or mount is left.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

Value = TypeVar("Value")

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("ip", "unshare", "nsenter", "mount", "ssh", "sshd", "ssh-keygen")
PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
LOGIN = "10.77.0.1"

# The new /tmp is filled before it takes the old one's place, since it hides what must stay visible. A process that
# ignores SIGCHLD has its children reaped by the kernel, also those it inherits: as a node's first process should.
BOOT = """
set -eu
name=$0 etc=$1; shift
mount -t tmpfs -o mode=1777 tmpfs /mnt
for kept; do mkdir -p "/mnt/${kept#/tmp/}"; mount --bind "$kept" "/mnt/${kept#/tmp/}"; done
mount --move /mnt /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
(cd "$etc"; find . -type f) | while read -r file; do mount --bind "$etc/$file" "/etc/$file"; done
echo "$name" >/proc/sys/kernel/hostname
echo up
exec env --ignore-signal=CHLD cat >/dev/null
"""

SSH_CONFIG = """\
Host *
  User root
  IdentityFile {ssh}/user
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""

SSHD_CONFIG = """\
HostKey {ssh}/host
AuthorizedKeysFile {ssh}/user.pub
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
PidFile none
ClientAliveInterval 5
SetEnv {variables}
"""


class BedError(Exception):
    """The bed cannot be made, or does not do what it should."""


def wait_until(condition: Callable[[], Value], within_s: float, what: str) -> Value:
    """Ask until the answer is true, and return it; fail with a sentence when the time is over."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.05)
    return value


class Running:
    """A command inside a node; its output goes to files, so what it leaves behind cannot keep a reader waiting."""

    def __init__(self, words: Sequence[str], log: Path, **how: Any) -> None:
        self.words = list(words)
        self.log = log
        with log.with_suffix(".out").open("wb") as out, log.with_suffix(".err").open("wb") as err:
            # A session of its own: Ctrl-C at the tester's terminal is for the tests.
            self.outside = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, **how
            )

    @property
    def out(self) -> str:
        """What it has written so far."""
        return self.log.with_suffix(".out").read_text(errors="replace")

    @property
    def err(self) -> str:
        """What it has complained about so far."""
        return self.log.with_suffix(".err").read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self.outside.poll() is not None

    @property
    def process(self) -> psutil.Process:
        """The command itself, by the machine's process table; nsenter only waits for it."""
        children = wait_until(lambda: psutil.Process(self.outside.pid).children(), 60, f"{self.words} has started")
        return children[0]

    def send_signal(self, number: int) -> None:
        """Signal the command itself."""
        self.process.send_signal(number)

    def wait(self, within_s: float = 120) -> int:
        """The exit code, or minus the signal's number."""
        try:
            return self.outside.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {within_s:g} s: {self.told()}") from None

    def told(self) -> str:
        """Command, exit code and output, for the message of a failed test."""
        return f"{' '.join(self.words)}\nexit code {self.outside.poll()}\n{self.out}\n{self.err}"


class Node:
    """One machine of the cluster; up from `boot` to `halt`, and then perhaps again."""

    def __init__(self, name: str, address: str, bed: Bed) -> None:
        self.name = name
        self.address = address
        self.bed = bed
        self.services: list[Running] = []
        self.spared: set[int] = set()  # further processes of the services, by the machine's process table
        self._unshare: subprocess.Popen[str] | None = None

    @property
    def is_up(self) -> bool:
        return self._unshare is not None

    def boot(self) -> None:
        """Start the first process, in namespaces of its own, and wait until it has mounted what it wants."""
        unshare = ["unshare", "--net", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]
        arguments = [self.name, str(self.bed.folder / "etc"), *map(str, self.bed.kept)]
        self._unshare = subprocess.Popen(
            [*unshare, "sh", "-c", BOOT, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        told = self._unshare.stdout.readline()
        if told != "up\n":
            ended, self._unshare = self._unshare, None
            raise BedError(f"node {self.name} does not start: {told}{ended.communicate()[0]}")
        (first,) = psutil.Process(self._unshare.pid).children()
        self.pid = first.pid
        self._namespace = os.readlink(f"/proc/{self.pid}/ns/pid")

    def halt(self) -> None:
        """End the first process, and with it all others."""
        if self._unshare is not None:
            self._unshare.communicate(timeout=60)
            self._unshare = None
        for service in self.services:
            service.wait(60)
        self.services.clear()

    def popen(
        self, words: Sequence[str], *, cwd: Path | None = None, uid: int | None = None, **variables: str
    ) -> Running:
        """Start a command in the site's environment and these variables, in the home folder unless told otherwise."""
        enter = ["nsenter", "-t", str(self.pid), "-n", "-u", "-i", "-m", "-p"]
        if uid is not None:
            enter += ["-S", str(uid), "-G", str(uid)]
        log = self.bed.folder / "logs" / f"{next(self.bed.counter):03}-{self.name}-{Path(words[0]).name}"
        moved = ["env", "-C", str(cwd or self.bed.home), *words]
        return Running([*enter, *moved], log, env={**self.bed.environment, **variables})

    def run(self, words: Sequence[str], *, within_s: float = 120, check: bool = True, **how: Any) -> Running:
        """Run a command to its end; unless `check` is off it must succeed."""
        running = self.popen(words, **how)
        try:
            code = running.wait(within_s)
        except BaseException:
            with contextlib.suppress(psutil.Error, AssertionError):
                running.send_signal(signal.SIGKILL)
            raise
        assert code == 0 or not check, running.told()
        return running

    def processes(self) -> list[psutil.Process]:
        """All that runs in the node, beside its first process and its services."""
        own = {self.pid, *self.spared, *(service.process.pid for service in self.services)}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):  # it may have ended meanwhile
                if process.pid not in own and os.readlink(f"/proc/{process.pid}/ns/pid") == self._namespace:
                    found.append(process)
        return found

    def files(self) -> list[str]:
        """All files and folders in the node's /tmp and /dev/shm, but for what it shares with the machine."""
        root = f"/proc/{self.pid}/root"
        shared = {str(path) for kept in self.bed.kept for path in (kept, *kept.parents)}
        found = []
        for top in ("/tmp", "/dev/shm"):
            for folder, folders, files in os.walk(root + top):
                inside = folder.removeprefix(root)
                if Path(inside) in self.bed.kept:
                    folders.clear()
                    continue
                found += [f"{inside}/{name}" for name in (*folders, *files)]
        return sorted(set(found) - shared)

    def sweep(self) -> None:
        """End all processes and remove all files that the node did not start with."""

        def none_runs() -> bool:
            for process in (left := self.processes()):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            return not left

        wait_until(none_runs, 60, f"everything on {self.name} has ended")
        for path in reversed(self.files()):  # what is in a folder before the folder itself
            outside = Path(f"/proc/{self.pid}/root{path}")
            outside.rmdir() if outside.is_dir() and not outside.is_symlink() else outside.unlink()


class Bed:
    """A login node and the nodes n1, n2, ..., on one switch, with a home folder they all see and an sshd in each."""

    def __init__(self, folder: Path, num_nodes: int = 3) -> None:
        """Prepare it in a folder that stands for the site's shared file system."""
        self.folder = folder.resolve()
        self.home = self.folder / "home"
        self.counter = itertools.count()
        seen = {self.folder, ROOT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
        self.kept = sorted(path for path in seen if path.is_relative_to("/tmp"))
        self.login = Node("login", LOGIN, self)
        self.nodes = {f"n{k}": Node(f"n{k}", f"10.77.0.{10 + k}", self) for k in range(1, num_nodes + 1)}
        self.environment = {
            "PATH": PATH,
            "HOME": str(self.home),
            "USER": "root",
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT / "src"),
            "SLURM_CONF": str(self.folder / "slurm" / "slurm.conf"),
            # What a user who is not root, on nodes with cores enough, does not need to say.
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
        }
        self._everywhere: list[list[str]] = []

    def __enter__(self) -> Bed:
        for part in ("home", "logs", "etc/ssh", "ssh"):
            (self.folder / part).mkdir(parents=True)
        self.folder.chmod(0o755)
        everyone = [self.login, *self.nodes.values()]
        hosts = ["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in everyone)]
        (self.folder / "etc" / "hosts").write_text("\n".join(hosts) + "\n")
        (self.folder / "etc/ssh/ssh_config").write_text(SSH_CONFIG.format(ssh=self.folder / "ssh"))
        try:
            self.login.boot()
            bridge = ("link add switch type bridge", f"addr add {LOGIN}/24 dev switch", "link set switch up")
            self._ip(self.login, *bridge, "link set lo up")
            for node in self.nodes.values():
                self.boot(node)
            self._start_sshd()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every node that is up."""
        for node in (self.login, *self.nodes.values()):
            node.halt()

    def boot(self, node: Node) -> None:
        """Start a node, plug it in, and start the services that every node has."""
        node.boot()
        # A machine keeps its hardware address when it starts again, so that its neighbours find it at once.
        hardware = f"02:00:00:00:00:{node.address.rpartition('.')[2]}"
        cable = f"link add {node.name} type veth peer name eth0 address {hardware} netns {node.pid}"
        self._ip(self.login, cable, f"link set {node.name} master switch up")
        self._ip(node, f"addr add {node.address}/24 dev eth0", "link set eth0 up", "link set lo up")
        node.services += [node.popen(words) for words in self._everywhere]

    def kill(self, node: Node) -> None:
        """A node loses its power: nobody hears from it any more, not even the end of a connection."""
        self._ip(self.login, f"link del {node.name}")
        node.halt()

    def cut(self, node: Node) -> None:
        """Pull the node's plug out of the switch."""
        self._ip(self.login, f"link set {node.name} down")

    def mend(self, node: Node) -> None:
        """Put the plug back."""
        self._ip(self.login, f"link set {node.name} up")

    def start_everywhere(self, words: Sequence[str]) -> None:
        """Start a service on every node, now and whenever one boots again."""
        self._everywhere.append(list(words))
        for node in self.nodes.values():
            node.services.append(node.popen(words))

    def left(self) -> dict[str, list[str]]:
        """What is running or lying about on each node, where something is."""
        up = [node for node in self.nodes.values() if node.is_up]
        found = {node.name: [*map(_told, node.processes()), *node.files()] for node in up}
        return {name: things for name, things in found.items() if things}

    def sweep(self) -> None:
        """End and remove whatever is running or lying about on the nodes that are up."""
        for node in (self.login, *self.nodes.values()):
            if node.is_up:
                node.sweep()

    def _start_sshd(self) -> None:
        ssh = self.folder / "ssh"
        for key in ("user", "host"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ssh / key)], check=True)
        variables = " ".join(f'"{name}={value}"' for name, value in self.environment.items())
        (ssh / "sshd_config").write_text(SSHD_CONFIG.format(ssh=ssh, variables=variables))
        sshd = shutil.which("sshd", path=PATH)  # it starts itself again for each connection, and wants its whole path
        assert sshd is not None
        self.start_everywhere([sshd, "-D", "-f", str(ssh / "sshd_config")])
        for name in self.nodes:
            knock = ["bash", "-c", f"exec 3<>/dev/tcp/{name}/22"]
            wait_until(
                lambda knock=knock: self.login.run(knock, check=False).wait() == 0, 60, f"sshd listens on {name}"
            )

    def _ip(self, node: Node, *commands: str) -> None:
        lines = "\n".join(commands)
        done = subprocess.run(
            ["nsenter", "-t", str(node.pid), "-n", "ip", "-batch", "-"], input=lines, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise BedError(f"ip on {node.name}: {done.stderr.strip()}\n{lines}")


def _told(process: psutil.Process) -> str:
    """A process, and what it is there for."""
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {process.status()} {' '.join(process.cmdline()) or process.name()}"
    return f"{process.pid} (ended)"
