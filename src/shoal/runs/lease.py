"""One writer per run folder.

The lease is a file that names its owner: boot, process namespace, pid and start time. On this kernel an owner is alive
if that very process is. An owner elsewhere is alive while its heartbeat is fresh, by the file system's own clock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from shoal.errors import FolderGone, ShoalError
from shoal.runs.atomic_files import open_own
from shoal.runs.bounded_files import small_json

logger = logging.getLogger("shoal.lease")

LEASE = ".lease"
HEARTBEAT_S = 10.0
LOST_AFTER_S = 60.0

_given_back: set[str] = set()  # nonces of this process's own, whose files may have stayed on a disk that was away


@dataclass(frozen=True)
class LeaseOwner:
    """A process, told apart from every other one that ever ran; `nonce` tells two leases of one process apart."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: str
    nonce: str

    @property
    def is_this_process(self) -> bool:
        """Whether it is the calling process itself, in whatever lease."""
        return self.pid == os.getpid() and (self.host, self.boot) == (socket.gethostname(), _boot())

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> LeaseOwner:
    """The owner that stands for the calling process."""
    pid = os.getpid()
    return LeaseOwner(socket.gethostname(), _boot(), _namespace(), pid, _start_time(pid) or "", os.urandom(8).hex())


class Lease:
    """The right to write a run folder, from construction to `release`.

    `on_beat` is called at the begin, and with every heartbeat in a thread of the lease's.
    """

    def __init__(self, folder: Path, on_beat: Callable[[], None] = lambda: None) -> None:
        self._path = folder / LEASE
        self._on_beat = on_beat
        self._owner = this_process()
        self._done = threading.Event()
        try:
            with _guard(folder):
                _take(self._path, self._owner)
        except FileNotFoundError:  # since who takes it has seen it
            raise _gone(folder, None, False) from None
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # knows where it is moved
        on_beat()
        self._heart = threading.Thread(target=self._beat, name="shoal-lease", daemon=True)
        self._heart.start()

    def confirm(self) -> None:
        """Raise if the folder is gone, or was taken over (this process was asleep, or its disk away, for too long)."""
        try:
            owner = _read(self._path)
        except OSError:  # a disk that is away tells nothing; whatever is written next fails by itself
            return
        if owner is None or owner.nonce != self._owner.nonce:
            moved_to = self._moved_to()
            if moved_to is not None or owner is None:
                raise _gone(self._path.parent, moved_to, self._is_at(self._path.parent))
            raise ShoalError(f"{self._path.parent} was taken over by {owner}, which trains it now.")

    def follow(self, folder: Path) -> None:
        """Go with the folder, which was moved."""
        self._path = folder / LEASE

    def release(self) -> None:
        """Give the folder back; harmless if it is no longer ours."""
        self._done.set()
        self._heart.join()
        _given_back.add(self._owner.nonce)
        path = (self._moved_to() or self._path.parent) / LEASE
        with suppress(OSError):  # of a disk that is away
            os.close(self._descriptor)
        with suppress(OSError, ShoalError):
            if not path.exists():  # a lock must not be made where the folder was
                return
            with _guard(path.parent):
                owner = _read(path)
                if owner is not None and owner.nonce == self._owner.nonce:
                    path.unlink()

    def _moved_to(self) -> Path | None:
        """Where the folder is now, with our lease in it, if that is another place; only Linux tells."""
        with suppress(OSError):
            place = Path(os.readlink(f"/proc/self/fd/{self._descriptor}"))
            owner = _read(place / LEASE)
            is_ours = owner is not None and owner.nonce == self._owner.nonce
            if is_ours and not self._is_at(self._path.parent):
                return place
        return None

    def _is_at(self, place: Path) -> bool:
        """Whether the folder that was taken is the one at a place."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), place.stat())
        except OSError:
            return False

    def _beat(self) -> None:
        while not self._done.wait(HEARTBEAT_S):
            self._on_beat()
            with suppress(OSError):  # a disk that is away may come back; `confirm` tells if somebody took over
                os.utime(self._path, follow_symlinks=False)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def holder(folder: Path) -> LeaseOwner | None:
    """Who is writing the run folder now, if anybody, for who is about to write there: it may make a file to ask."""
    path = folder / LEASE
    owner = _read(path)
    return owner if owner is not None and _is_alive(owner, path) else None


def last_owner(folder: Path) -> LeaseOwner | None:
    """Who wrote the run folder and is gone without having given it back, if anybody."""
    path = folder / LEASE
    owner = _read(path)
    return None if owner is None or _is_alive(owner, path) else owner


class LeaseWatch:
    """Whether run folders are being written, for who looks, once or again and again, and writes nothing there.

    `holder` asks the file system for its time by a file. Here a heartbeat is fresh from when it is seen to come, so
    that hosts' clocks may differ; only at the first look this host's clock is trusted.
    """

    def __init__(self) -> None:
        self._beats: dict[Path, tuple[int, float]] = {}  # the time of the last, and when it was seen
        self._dead: dict[Path, int] = {}  # the lease of a process of this kernel that has ended
        self._alive: dict[Path, float] = {}  # when somebody was seen to write

    def is_written(self, folder: Path) -> bool:
        """Whether somebody trains the run of a folder now; a disk that is away for a while tells nothing new."""
        now = time.monotonic()
        try:
            is_written = self._look(folder, now)
        except OSError:  # as with NFS that has gone stale
            return now - self._alive.get(folder, -LOST_AFTER_S) < LOST_AFTER_S
        if is_written:
            self._alive[folder] = now
        else:
            self._alive.pop(folder, None)
        return is_written

    def _look(self, folder: Path, now: float) -> bool:
        path = folder / LEASE
        owner = None
        with suppress(FileNotFoundError, NotADirectoryError):
            beat = path.lstat().st_mtime_ns
            if self._dead.get(folder) == beat:
                return False
            owner = _read(path)
        if owner is None or owner.nonce in _given_back:
            self._beats.pop(folder, None)
            return False
        if is_on_this_kernel(owner):
            is_alive = bool(owner.started) and _start_time(owner.pid) == owner.started
            if not is_alive:
                self._dead[folder] = beat
            return is_alive
        before = self._beats.get(folder)
        if before is None:
            seen = now - abs(time.time() - beat / 1e9)
        else:
            seen = before[1] if before[0] == beat else now
        self._beats[folder] = (beat, seen)
        return now - seen <= LOST_AFTER_S


def check_free(folder: Path, or_new: bool = False) -> None:
    """Raise if another process is writing the run folder now; `or_new` says that the command has --new."""
    if owner := holder(folder):
        remedy = "stop it, or start another run with --new" if or_new else "stop it first"
        raise ShoalError(f"{folder} is being written by {owner}: {remedy}.")


@contextmanager
def kept_from_others(folder: Path) -> Iterator[None]:
    """Hold a run folder to delete or to move it: whoever would train there meanwhile is refused."""
    check_free(folder)
    try:
        lease = Lease(folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with _guard(folder):  # a full disk is why runs are deleted; who would train there waits for the lock
            check_free(folder)
            yield
        return
    with lease:
        yield


@contextmanager
def one_at_a_time(parent: Path) -> Iterator[None]:
    """Let one process at a time begin a run in an experiment's folder, where the file system has locks."""
    descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _take(path: Path, me: LeaseOwner) -> None:
    owner = _read(path)
    if owner is not None:
        check_free(path.parent)
        if not is_on_this_kernel(owner):
            logger.warning(
                "%s is taken over from %s, which has not responded for over %.0f s.", path.parent, owner, LOST_AFTER_S
            )
        _put_away(path, owner)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        raise ShoalError(f"{path.parent} was just taken over by another process, which trains it now.") from None
    try:
        with open(descriptor, "w") as file:
            json.dump(asdict(me), file)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _put_away(path: Path, owner: LeaseOwner) -> None:
    """Remove a dead owner's lease; without a working lock, make sure that it is that one and no newer."""
    away = path.with_name(f".tmp-lease-{os.getpid()}-{os.urandom(4).hex()}")
    with suppress(FileNotFoundError):
        os.rename(path, away)
        moved = _read(away)
        if moved is not None and moved.nonce != owner.nonce:
            with suppress(OSError):
                os.link(away, path)
            away.unlink()
            raise ShoalError(f"{path.parent} was just taken over by {moved}, which trains it now.")
        away.unlink()


def _gone(folder: Path, moved_to: Path | None, is_there: bool) -> FolderGone:
    if moved_to is not None:
        what = f"{folder} was moved to {moved_to} while the run was training, so it ends."
    elif is_there:
        what = f"Files of {folder} were deleted while the run was training, so it ends."
    else:
        what = f"{folder} is gone (moved or deleted?), so the run ends."
    return FolderGone(what, moved_to, is_there)


@contextmanager
def _guard(folder: Path) -> Iterator[None]:
    """Let one process at a time look at the lease and change it, where the file system has locks.

    Where it has none, O_EXCL and the check in `_put_away` still leave one winner.
    """
    with open(open_own(folder / ".lease.lock", os.O_RDWR), "r+") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> LeaseOwner | None:
    """The owner in the file; None if there is no file; an unknown owner if it is not readable yet or any more."""
    try:
        return LeaseOwner(**small_json(path))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return LeaseOwner("an unknown host", "", "", 0, "", "")
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ELOOP, errno.EFBIG):  # it is no file of ours
            raise
        return LeaseOwner("an unknown host", "", "", 0, "", "")


def is_on_this_kernel(owner: LeaseOwner) -> bool:
    """Whether this kernel can tell about the owner's process."""
    return bool(owner.boot) and owner.boot == _boot() and owner.namespace == _namespace()


def _is_alive(owner: LeaseOwner, path: Path) -> bool:
    if owner.nonce in _given_back:
        return False
    if is_on_this_kernel(owner):
        return bool(owner.started) and _start_time(owner.pid) == owner.started
    return _age_s(path) <= LOST_AFTER_S


def _age_s(path: Path) -> float:
    """Seconds since the last heartbeat, by the clock that stamps files in this folder: hosts' clocks differ."""
    probe = path.with_name(f".tmp-clock-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        probe.touch(exist_ok=False)
        return probe.stat().st_mtime - path.stat().st_mtime
    except OSError:
        return 0.0
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """When the process started, in clock ticks since boot; None if there is no such process, or only its zombie."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if after_name[0] in "ZX" else after_name[19]
