"""Everything about this host that could break a Ray cluster, as JSON values and in a fraction of a second.

Nothing is judged here: `doctor.py` does that, for one host or for many together. Of secrets only their names are told.
"""

from __future__ import annotations

import locale
import os
import re
import resource
import socket
import stat
import sys
import threading
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from shoal.cluster.allocation import allocation
from shoal.cluster.job_folder import jobs_folder
from shoal.errors import ClusterError
from shoal.machine.control_groups import control_groups, number_in
from shoal.machine.cores import cgroup_cpus, cpus_of_this_process
from shoal.machine.gpus import GPU_VARIABLES, gpus_of_this_host
from shoal.machine.host_names import is_own_name
from shoal.machine.memory import available_memory, total_memory
from shoal.version import __version__

PACKAGES = ("shoal", "ray", "torch", "numpy", "gymnasium")
LIMITS = {"open_files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC, "core": resource.RLIMIT_CORE}
TEMP_VARIABLES = ("RAY_TMPDIR", "TMPDIR", "SLURM_TMPDIR")
TEMP_FOLDERS = ("/tmp", "/var/tmp")
SHOWN_VARIABLES = ("RAY_ADDRESS", "RAY_AUTH_MODE", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "LC_ALL", "LANG")
PROXY = re.compile(r"(http|https|all|grpc)_proxy", re.IGNORECASE)
RAY_DAEMONS = ("raylet", "gcs_server")
RAYS_PLACE = Path("/tmp/ray")
RESOLVING_TIMEOUT_S = 0.5
PROC = Path("/proc")


def facts(environ: Mapping[str, str] = os.environ, asking: str | None = None) -> dict[str, Any]:
    """What this host is like, for this user and this process; `asking` is a folder of the host that asks."""
    return {
        "hostname": socket.gethostname(),
        "user": environ.get("USER", str(os.getuid())),
        "time": time.time(),
        "python": _python(environ),
        "versions": {"shoal": __version__} | {name: _version(name) for name in PACKAGES if name != "shoal"},
        "limits": {name: [_finite(limit) for limit in resource.getrlimit(key)] for name, key in LIMITS.items()},
        "tasks": tasks(),
        "shm": _space("/dev/shm"),
        "memory": _memory(),
        "temp_folders": _temp_folders(environ),
        "home": _folder(Path(os.path.expanduser("~"))),
        "jobs_folder": {
            **_folder(jobs_folder()),
            "is_seen": asking is None or Path(asking).is_dir(),
        },
        "addresses": _addresses(),
        "resolves_to": _resolved(socket.gethostname()),
        "token_files": _token_files(environ),
        "cpus": {"machine": os.cpu_count(), "affinity": len(cpus_of_this_process()), "cgroup": cgroup_cpus()},
        "gpus": gpus_of_this_host(environ),
        "gpu_variables": {name: environ[name] for name in GPU_VARIABLES if name in environ},
        "allocation": _allocation(environ),
        "variables": {name: environ[name] for name in SHOWN_VARIABLES if name in environ},
        "ray_variables": sorted(name for name in environ if name.startswith("RAY_")),
        # A proxy's address may hold a password before the @.
        "proxies": {name: environ[name].rpartition("@")[2] for name in sorted(environ) if PROXY.fullmatch(name)},
        "no_proxy": environ.get("no_proxy", environ.get("NO_PROXY", "")),
        # Where a bare ray.init() looks for a cluster.
        "tmp_ray": {"folder": _owner(RAYS_PLACE), "pointer": _owner(RAYS_PLACE / "ray_current_cluster")},
        "selinux": _selinux(),
        "umask": _umask(),
        "encoding": locale.getpreferredencoding(False),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _python(environ: Mapping[str, str]) -> dict[str, Any]:
    """Which interpreter this is, and packages of ours that PYTHONPATH puts before those installed for it."""
    folders = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return {
        "version": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "safe_path": bool(getattr(sys.flags, "safe_path", False)),  # Python 3.11
        "shadowed": [name for name in PACKAGES if any(Path(folder, name).is_dir() for folder in folders)],
    }


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def tasks(proc: Path = PROC) -> dict[str, Any]:
    """Threads that run and how many there may be, since limits count these; and the daemons of Rays that run here."""
    me, mine, everybody = str(os.getuid()), 0, 0
    rays = {"ours": 0, "others": 0}
    for status in proc.glob("[0-9]*/status"):
        about = dict(re.findall(r"^(Name|Uid|Threads):\s+(\S+)", _read(status) or "", re.MULTILINE))
        if len(about) < 3:
            continue  # it has ended meanwhile
        everybody += int(about["Threads"])
        mine += int(about["Threads"]) if about["Uid"] == me else 0
        if about["Name"] in RAY_DAEMONS:
            rays["ours" if about["Uid"] == me else "others"] += 1
    pairs = [(number_in(folder / "pids.max"), number_in(folder / "pids.current")) for folder in control_groups("pids")]
    rooms = [most - now for most, now in pairs if most is not None and now is not None]
    return {
        "of_user": mine,
        "of_all": everybody,
        "threads_max": number_in(proc / "sys/kernel/threads-max"),
        "cgroup_room": min(rooms, default=None),
        "rays": rays,
    }


def _space(folder: str) -> dict[str, Any] | None:
    try:
        space = os.statvfs(folder)
    except OSError:
        return None
    return {
        "size": space.f_blocks * space.f_frsize,
        "free": space.f_bavail * space.f_frsize,
        "writable": os.access(folder, os.W_OK | os.X_OK),
    }


def _folder(path: Path) -> dict[str, Any]:
    """Whether a folder is there, and whether it, or one in which it can be made, can be written."""
    nearest = path
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    is_writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return {"path": str(path), "is_there": path.is_dir(), "is_writable": is_writable}


def _memory() -> dict[str, Any]:
    import psutil

    machine = int(psutil.virtual_memory().total)
    return {"total": total_memory(), "machine": machine, "available": available_memory()}


def _temp_folders(environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Where Ray's folder could be, in the order in which one would look, and what speaks against each."""
    mounts = parsed_mounts(_read(PROC / "self/mountinfo") or "")
    named = [os.path.abspath(environ[name]) for name in TEMP_VARIABLES if environ.get(name)]
    told = []
    for path in dict.fromkeys([*named, *TEMP_FOLDERS]):
        file_system, options = mount_of(os.path.realpath(path), mounts)
        told.append(
            {
                "path": path,
                "bytes": len(os.fsencode(path)),
                "file_system": file_system,
                "noexec": "noexec" in options,
                "space": _space(path),
            }
        )
    return told


def parsed_mounts(mountinfo: str) -> list[tuple[str, str, list[str]]]:
    """Mount point, type and options of each line of /proc/self/mountinfo."""
    mounts = []
    for line in mountinfo.splitlines():
        mount, _, file_system = line.partition(" - ")
        fields = mount.split()
        # The kernel writes a space in a path as \040.
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
        mounts.append((point, file_system.split()[0], fields[5].split(",")))
    return mounts


def mount_of(path: str, mounts: list[tuple[str, str, list[str]]]) -> tuple[str, list[str]]:
    """Type and options of the file system that holds an absolute path; on one point the later mount hides the other."""
    holding = [mount for mount in mounts if (path + "/").startswith(mount[0].rstrip("/") + "/")]
    longest = max((len(point) for point, _, _ in holding), default=0)
    found = ((kind, options) for point, kind, options in reversed(holding) if len(point) == longest)
    return next(found, ("unknown", []))


def _addresses() -> list[dict[str, str | None]]:
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return [
        {"interface": name, "address": entry.address, "netmask": entry.netmask}
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and name in up
    ]


def _resolved(name: str) -> list[str] | None:
    """The IPv4 addresses of a name; None where it has none, or its server needs longer than anybody would wait."""
    found: list[str] = []

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            return
        found.extend(dict.fromkeys(str(answer[4][0]) for answer in answers))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(RESOLVING_TIMEOUT_S)
    return found or None


def _token_files(environ: Mapping[str, str]) -> list[dict[str, Any]]:
    paths = [environ.get("RAY_AUTH_TOKEN_PATH"), os.path.join(os.path.expanduser("~"), ".ray", "auth_token")]
    told = []
    for path in dict.fromkeys(path for path in paths if path):
        try:
            about = os.stat(path)
        except OSError:
            continue
        told.append({"path": path, "mode": f"{stat.S_IMODE(about.st_mode):04o}", "owner": _owner(Path(path))})
    return told


def _owner(path: Path) -> str | None:
    try:
        return "us" if path.lstat().st_uid == os.getuid() else "another user"
    except OSError:
        return None


def _allocation(environ: Mapping[str, str]) -> dict[str, Any] | None:
    try:
        given = allocation(environ)
    except ClusterError as error:
        return {"error": str(error)}
    if given is None:
        return None
    cpus = next((host.num_cpus for host in given.hosts if is_own_name(host.name)), None)
    return {
        "scheduler": given.scheduler,
        "job_id": given.job_id,
        "hosts": [host.name for host in given.hosts],
        "cpus_here": cpus,
    }


def _selinux() -> dict[str, Any]:
    enforcing = _read(Path("/sys/fs/selinux/enforce")) == "1"
    context = _read(PROC / "self/attr/current") if enforcing else None
    return {"enforcing": enforcing, "context": (context or "").rstrip("\0")}


def _umask() -> str | None:
    """Read rather than set and set back, which another thread's new file could feel."""
    found = re.search(r"^Umask:\s+(\d+)", _read(PROC / "self/status") or "", re.MULTILINE)
    return found[1] if found else None
