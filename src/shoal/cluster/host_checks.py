"""The checks: what each says of every host, from their facts alone.

A check turns the facts of all hosts into one finding per host; `CHECKS` has them in the order in which they are shown.
What is bad would break a run or give it away; a warning makes it slow, or breaks a Ray that shoal did not start. Every
finding that is not ok comes with what to type.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shoal.cluster import schedulers
from shoal.machine.cores import usable_cpus
from shoal.machine.memory import bytes_text

Verdict = Literal["ok", "warn", "bad"]
Facts = Mapping[str, Any]
VERDICTS: tuple[Verdict, ...] = ("ok", "warn", "bad")

OLDEST_RAY = (2, 54)  # older ones let anybody delete jobs (CVE-2026-27482)
LONGEST_TEMP_DIR = 43  # of `ray start --temp-dir`, in bytes: a socket's path has 107 at most
OWN_FOLDER_BYTES = len("/shoal-12345678")
SHARED_FILE_SYSTEMS = re.compile(
    r"nfs\d?|lustre|gpfs|beegfs\w*|cifs|smb\d?|ceph|afs|panfs|wekafs|pvfs2|9p|fuse\.(sshfs|glusterfs|ceph).*"
)
GOOD_OPEN_FILES = 65535  # what Ray's documents ask for
FEWEST_OPEN_FILES = 4096  # below, Ray itself warns of connections that fail
THREADS_PER_NODE, THREADS_PER_CPU = 400, 40
LARGEST_SLOW_STORE = 10**10  # up to here Ray puts its object store on the disk rather than make it smaller
LEAST_MEMORY, LEAST_TEMP_SPACE = 10**9, 10**9
FULLEST_DISK = 0.95  # beyond, Ray writes no objects
MOST_SKEW_S, BREAKING_SKEW_S = 1.0, 300.0  # munge and Kerberos refuse after five minutes


@dataclass(frozen=True)
class HostFinding:
    """What one check says of one host."""

    verdict: Verdict
    detail: str
    remedy: str = ""


def _versions(hosts: Mapping[str, Facts]) -> dict[str, HostFinding]:
    told = {host: {"python": facts["python"]["version"], **facts["versions"]} for host, facts in hosts.items()}
    names = next(iter(told.values()), {})
    usual = {name: Counter(versions[name] for versions in told.values()).most_common(1)[0][0] for name in names}
    return {host: _version(versions, usual, hosts[host]["python"]["executable"]) for host, versions in told.items()}


def _version(have: Mapping[str, str | None], usual: Mapping[str, str | None], python: str) -> HostFinding:
    """Ray refuses another Ray and another Python, to the patch; shoal's processes speak to their like only."""
    ray = have["ray"]
    if ray is None or tuple(map(int, re.findall(r"\d+", ray)[:2])) < OLDEST_RAY:
        wanted = f"'ray[tune]>={'.'.join(map(str, OLDEST_RAY))}'"
        return HostFinding("bad", f"ray {ray or 'is not installed'}", f"{python} -m pip install {wanted}")
    other = [name for name in have if have[name] != usual[name]]
    detail = ", ".join(f"{name} {have[name] or 'none'}" for name in other or have)
    if not other:
        return HostFinding("ok", detail)
    return _other_versions(other, usual, detail, python)


def _other_versions(other: Sequence[str], usual: Mapping[str, str | None], detail: str, python: str) -> HostFinding:
    """What to do about the packages whose versions are other ones than on most hosts."""
    detail += "; elsewhere " + ", ".join(f"{name} {usual[name] or 'none'}" for name in other)
    # What follows a + names a build, such as +cpu, that the package index does not have.
    exact = {name: (usual[name] or "").partition("+")[0] for name in other if name not in ("python", "shoal")}
    wanted = " ".join(f"'{name}=={version}'" for name, version in exact.items() if version)
    if wanted and not {"python", "shoal"} & set(other):
        return HostFinding("bad" if "ray" in other else "warn", detail, f"{python} -m pip install {wanted}")
    remedy = "use one environment on every host, on a file system that they all share"
    return HostFinding("bad" if {"python", "shoal"} & set(other) else "warn", detail, remedy)


def _interpreter(facts: Facts) -> HostFinding:
    python, variables = facts["python"], facts["variables"]
    if "PYTHONHOME" in variables:
        return HostFinding(
            "bad", f"PYTHONHOME={variables['PYTHONHOME']} replaces the standard library", "unset PYTHONHOME"
        )
    if python["shadowed"]:
        names = ", ".join(python["shadowed"])
        return HostFinding(
            "warn", f"PYTHONPATH={variables['PYTHONPATH']} hides the installed {names}", "unset PYTHONPATH"
        )
    if python["safe_path"]:
        return HostFinding(
            "warn", "-P: modules of the working folder are not found", "unset PYTHONSAFEPATH; leave -P out"
        )
    return HostFinding("ok", python["executable"])


def _open_files(facts: Facts) -> HostFinding:
    soft, hard = facts["limits"]["open_files"]
    if soft is None or soft >= GOOD_OPEN_FILES:
        return HostFinding("ok", "unlimited" if soft is None else str(soft))
    most = GOOD_OPEN_FILES if hard is None else min(hard, GOOD_OPEN_FILES)
    detail = f"{soft}, at most {'any number' if hard is None else hard}"
    remedy = f"ulimit -n {most}" if most > soft else ""
    if most < GOOD_OPEN_FILES:
        ask = f"ask the administrator for a hard limit of {GOOD_OPEN_FILES} (limits.conf, LimitNOFILE)"
        remedy = f"{remedy}; {ask}" if remedy else ask
    return HostFinding("bad" if most < FEWEST_OPEN_FILES else "warn", detail, remedy)


def _threads(facts: Facts) -> HostFinding:
    tasks, (limit, hard) = facts["tasks"], facts["limits"]["processes"]
    rooms = {"ulimit -u": (limit, tasks["of_user"]), "threads-max": (tasks["threads_max"], tasks["of_all"])}
    left = {name: most - now for name, (most, now) in rooms.items() if most is not None}
    if tasks["cgroup_room"] is not None:
        left["the cgroup's pids.max"] = tasks["cgroup_room"]
    if not left:
        return HostFinding("ok", "unlimited")
    by, room = min(left.items(), key=lambda pair: pair[1])
    need = THREADS_PER_NODE + THREADS_PER_CPU * _usable_cpus(facts)
    detail = f"{by} allows {room} more"
    if room >= need:
        return HostFinding("ok", detail)
    raised = f"ulimit -u {'unlimited' if hard is None else hard}"
    ask = f"ask the administrator for room for {need}, or run fewer workers: --num-workers N"
    remedy = f"{raised}; or {ask}" if by == "ulimit -u" and (hard is None or hard > limit) else ask
    return HostFinding("bad" if room < need // 2 else "warn", f"{detail}; Ray wants {need}", remedy)


def _core_dumps(facts: Facts) -> HostFinding:
    soft, _ = facts["limits"]["core"]
    if soft == 0:
        return HostFinding("ok", "off")
    size = "of any size" if soft is None else f"up to {bytes_text(soft)}"
    return HostFinding("warn", f"on, {size}: a crash writes a process's memory to the disk", "ulimit -c 0")


def _shm(facts: Facts) -> HostFinding:
    shm, memory = facts["shm"], facts["memory"]["total"]
    if shm is None or not shm["writable"]:
        return HostFinding("bad", "is missing or cannot be written", "sudo mount -t tmpfs tmpfs /dev/shm")
    store = min(0.3 * memory, LARGEST_SLOW_STORE)
    detail = f"{bytes_text(shm['free'])} free of {bytes_text(shm['size'])}"
    if shm["free"] >= store:
        return HostFinding("ok", detail)
    detail += f"; Ray's object store wants {bytes_text(store)} and goes to the disk instead"
    if shm["size"] < store:
        return HostFinding(
            "warn", detail, f"docker run --shm-size={store * 1.1 / 2**30:.1f}g, or ask the administrator"
        )
    return HostFinding("warn", detail, "remove what is left of yours: find /dev/shm -user $USER -ls")


def _memory(facts: Facts) -> HostFinding:
    memory = facts["memory"]
    limited = (
        f", the limit of a cgroup, of {bytes_text(memory['machine'])}" if memory["total"] < memory["machine"] else ""
    )
    detail = f"{bytes_text(memory['available'])} free of {bytes_text(memory['total'])}{limited}"
    if memory["available"] >= LEAST_MEMORY:
        return HostFinding("ok", detail)
    return HostFinding(
        "warn", detail, "ask the scheduler for more (--mem), or see what runs: ps -u $USER -o pid,rss,cmd"
    )


def temp_problem(folder: Facts) -> str | None:
    """Why Ray's files should not be in a folder; None where they may be."""
    space = folder["space"]
    if space is None or not space["writable"]:
        return "is missing or cannot be written"
    if folder["bytes"] > LONGEST_TEMP_DIR - OWN_FOLDER_BYTES:
        return f"has {folder['bytes']} bytes, which makes the paths of sockets in it too long"
    if SHARED_FILE_SYSTEMS.fullmatch(folder["file_system"]):
        return f"is on {folder['file_system']}, and Ray's sockets need a disk of this host"
    if space["free"] < max(LEAST_TEMP_SPACE, (1 - FULLEST_DISK) * space["size"]):
        return f"has only {bytes_text(space['free'])} free of {bytes_text(space['size'])}"
    return "is mounted noexec" if folder["noexec"] else None


def _temp_folder(facts: Facts) -> HostFinding:
    problems = {folder["path"]: temp_problem(folder) for folder in facts["temp_folders"]}
    good = [path for path, problem in problems.items() if problem is None]
    told = "; ".join(f"{path} {problem}" for path, problem in problems.items() if problem)
    if not good:
        return HostFinding(
            "bad", told, "export TMPDIR=/FOLDER, one that is short, on a disk of the host, and has space"
        )
    first = facts["temp_folders"][0]
    if first["path"] == good[0]:
        return HostFinding("ok", f"{first['path']} ({first['file_system']}, {bytes_text(first['space']['free'])} free)")
    return HostFinding("warn", told, f"unset RAY_TMPDIR; export TMPDIR={good[0]}")


def _addresses(hosts: Mapping[str, Facts]) -> dict[str, HostFinding]:
    return {host: _address(facts, alone=len(hosts) == 1) for host, facts in hosts.items()}


def _address(facts: Facts, alone: bool) -> HostFinding:
    """The host name's address matters to a Ray started by hand: it takes that one, loopback or not."""
    found = {entry["address"]: entry["interface"] for entry in facts["addresses"] if _is_reachable(entry["address"])}
    resolved = facts["resolves_to"]
    told = ", ".join(f"{address} ({interface})" for address, interface in found.items()) or "loopback only"
    if facts.get("reached_by"):
        told = f"reached by {facts['reached_by']} of {told}"
    if alone:
        return HostFinding("ok", told)
    if not found:
        return HostFinding("bad", told, "the host has no network that others could reach: ip -brief address")
    if resolved and any(_is_reachable(address) for address in resolved):
        return HostFinding("ok", told)
    name = facts["hostname"]
    trap = f"{name} resolves to {', '.join(resolved)}" if resolved else f"{name} does not resolve"
    remedy = "nothing for shoal launch; for ray start by hand add --node-ip-address with the address shown"
    return HostFinding("warn", f"{trap}; it has {told}", remedy)


def _is_reachable(address: str) -> bool:
    known = ipaddress.ip_address(address)
    return not (known.is_loopback or known.is_link_local or known.is_unspecified)


def _clocks(hosts: Mapping[str, Facts]) -> dict[str, HostFinding]:
    """How far a host's clock is from the asking one's; what the message's way may explain does not count."""
    findings = {}
    for host, facts in hosts.items():
        if len(hosts) == 1 or "asked_at" not in facts:
            continue
        offset = facts["time"] - (facts["asked_at"] + facts["answered_at"]) / 2
        unsure = (facts["answered_at"] - facts["asked_at"]) / 2
        off = abs(offset) - unsure
        if off <= MOST_SKEW_S:
            findings[host] = HostFinding("ok", f"within {abs(offset) + unsure:.1f} s")
        else:
            verdict: Verdict = "bad" if off > BREAKING_SKEW_S else "warn"
            remedy = "sudo chronyc makestep, or ask the administrator to enable NTP"
            findings[host] = HostFinding(verdict, f"{offset:+.1f} s, give or take {unsure:.1f}", remedy)
    return findings


def _token(facts: Facts) -> HostFinding:
    mode = facts["variables"].get("RAY_AUTH_MODE", "token")
    if mode != "token":
        return HostFinding("bad", f"RAY_AUTH_MODE={mode}: anybody could run code as you", "unset RAY_AUTH_MODE")
    for file in facts["token_files"]:
        path = file["path"]
        if int(file["mode"], 8) & 0o077:
            return HostFinding("bad", f"{path} has mode {file['mode']}: others can read it", f"chmod 600 {path}")
        if file["owner"] != "us":
            return HostFinding("bad", f"{path} belongs to {file['owner']}", f"mv {path} {path}.not-mine")
    if "RAY_AUTH_TOKEN" in facts["ray_variables"]:
        return HostFinding("warn", "RAY_AUTH_TOKEN is set, and Ray prefers it to any file", "unset RAY_AUTH_TOKEN")
    return HostFinding(
        "ok", ", ".join(f"{file['path']} {file['mode']}" for file in facts["token_files"]) or "no old one"
    )


def _ray_variables(facts: Facts) -> HostFinding:
    names = [name for name in facts["ray_variables"] if not name.startswith("RAY_AUTH_")]
    address = facts["variables"].get("RAY_ADDRESS")
    if not names:
        return HostFinding("ok", "none")
    told = ", ".join(f"{name}={address}" if name == "RAY_ADDRESS" else name for name in names)
    return HostFinding("warn", f"{told} set", f"unset {' '.join(names)}")


def _preload(facts: Facts) -> HostFinding:
    value = facts["variables"].get("LD_PRELOAD")
    if not value:
        return HostFinding("ok", "none")
    return HostFinding("warn", f"{value} is loaded into every process of Ray", "unset LD_PRELOAD")


def _proxies(hosts: Mapping[str, Facts]) -> dict[str, HostFinding]:
    """What the hosts say to each other must not go through a proxy, which could not reach them."""
    told = {host: ", ".join(f"{name}={value}" for name, value in f["proxies"].items()) for host, f in hosts.items()}
    usual = Counter(told.values()).most_common(1)[0][0] if told else ""
    return {host: _proxy(told[host], usual, facts["no_proxy"], list(hosts)) for host, facts in hosts.items()}


def _proxy(told: str, usual: str, no_proxy: str, hosts: Sequence[str]) -> HostFinding:
    ends = tuple(end for end in no_proxy.replace(" ", "").split(",") if end)
    is_direct = "*" in ends or all(name.endswith(ends) for name in hosts)
    if not told or is_direct or len(hosts) == 1:
        return HostFinding("ok", told or "none")
    elsewhere = "" if told == usual else f"; elsewhere {usual or 'none'}"
    return HostFinding("warn", f"{told}, between the hosts too{elsewhere}", "export no_proxy='*' NO_PROXY='*'")


def _home(facts: Facts) -> HostFinding:
    home = facts["home"]
    if home["is_there"] and home["is_writable"]:
        return HostFinding("ok", home["path"])
    problem = "cannot be written" if home["is_there"] else "is not there"
    remedy = "export HOME=/FOLDER, one that is there and can be written, or ask the administrator to mount it"
    return HostFinding("warn", f"{home['path']} {problem}", remedy)


def _jobs_folder(facts: Facts) -> HostFinding:
    """Ranks and agents find their head in it; over ssh they are told, and only --join needs it."""
    folder = facts["jobs_folder"]
    remedy = "export SHOAL_JOBS_DIR=/FOLDER, one that all hosts share and that you can write"
    if not folder["is_writable"]:
        return HostFinding("bad", f"{folder['path']} cannot be written", remedy)
    if folder["is_seen"]:
        return HostFinding("ok", folder["path"])
    verdict: Verdict = "bad" if facts["allocation"] else "warn"
    return HostFinding(verdict, f"{folder['path']} is not the folder of the host that asks", remedy)


def _usable_cpus(facts: Facts) -> int:
    given = facts["allocation"] or {}
    return usable_cpus(range(facts["cpus"]["affinity"]), facts["cpus"]["cgroup"], given.get("cpus_here"))


def _cpus(facts: Facts) -> HostFinding:
    cpus, given = facts["cpus"], facts["allocation"] or {}
    if "error" in given:
        return HostFinding(
            "bad", given["error"], f"name the scheduler: --scheduler {'|'.join([*schedulers.names(), 'none'])}"
        )
    promised = given.get("cpus_here")
    told = {"affinity": cpus["affinity"], "cgroup": cpus["cgroup"], given.get("scheduler", ""): promised}
    parts = ", ".join(f"{name} {number:g}" for name, number in told.items() if number is not None)
    detail = f"{_usable_cpus(facts)} of {cpus['machine']} ({parts})"
    if promised is None or _usable_cpus(facts) >= promised:
        return HostFinding("ok", detail)
    remedy = "srun --cpus-per-task N --cpu-bind=none, mpirun --bind-to none, or aprun -cc none"
    return HostFinding("warn", f"{detail}: fewer than the scheduler gave", remedy)


def _gpus(facts: Facts) -> HostFinding:
    variables = facts["gpu_variables"]
    if "ROCR_VISIBLE_DEVICES" in variables and "HIP_VISIBLE_DEVICES" not in variables:
        remedy = "export HIP_VISIBLE_DEVICES=$ROCR_VISIBLE_DEVICES; unset ROCR_VISIBLE_DEVICES"
        return HostFinding("bad", "ROCR_VISIBLE_DEVICES without HIP_VISIBLE_DEVICES, which Ray refuses", remedy)
    told = ", ".join(f"{name}={value}" for name, value in variables.items())
    return HostFinding("ok", f"{len(facts['gpus'])}{f' ({told})' if told else ''}")


def _other_rays(facts: Facts) -> HostFinding:
    rays, folder = facts["tasks"]["rays"], facts["tmp_ray"]
    told = []
    if rays["ours"]:
        told.append(f"{rays['ours']} Ray daemons of yours are running")
    if "another user" in folder.values():
        told.append("/tmp/ray is another user's, where a bare ray.init() looks for a cluster")
    if rays["others"]:
        told.append(f"{rays['others']} Ray daemons of other users")
    if not rays["ours"] and "another user" not in folder.values():
        return HostFinding("ok", told[0] if told else "none")
    see = "see whether you still need them: ps -u $USER -o pid,lstart,cmd | grep -E 'raylet|gcs_server'"
    explicit = "give the address: ray.init('HOST:PORT'), --ray-address HOST:PORT; never auto"
    return HostFinding("warn", "; ".join(told), see if rays["ours"] else explicit)


def _selinux(facts: Facts) -> HostFinding:
    selinux = facts["selinux"]
    if not selinux["enforcing"]:
        return HostFinding("ok", "off")
    if "unconfined" in selinux["context"]:
        return HostFinding("ok", "enforcing, but you are unconfined")
    return HostFinding(
        "warn", f"confines you as {selinux['context']}", "if a socket is refused: ausearch -m avc -ts today"
    )


def _umask(facts: Facts) -> HostFinding:
    umask = facts["umask"]
    if umask is None or int(umask, 8) & 0o002:
        return HostFinding("ok", umask or "unknown")
    return HostFinding("warn", f"{umask}: everybody may write the files that you create", "umask 022")


def _encoding(facts: Facts) -> HostFinding:
    encoding = facts["encoding"]
    if re.fullmatch(r"utf-?8", encoding, re.IGNORECASE):
        return HostFinding("ok", encoding)
    return HostFinding("warn", f"{encoding} cannot write every name", "export LC_ALL=C.UTF-8")


Check = Callable[[Mapping[str, Facts]], dict[str, HostFinding]]


def _each(check: Callable[[Facts], HostFinding]) -> Check:
    """A check that looks at one host at a time."""
    return lambda hosts: {host: check(facts) for host, facts in hosts.items()}


CHECKS: dict[str, Check] = {
    "versions": _versions,
    "python": _each(_interpreter),
    "CPUs": _each(_cpus),
    "GPUs": _each(_gpus),
    "memory": _each(_memory),
    "/dev/shm": _each(_shm),
    "temp folder": _each(_temp_folder),
    "home": _each(_home),
    "jobs folder": _each(_jobs_folder),
    "open files": _each(_open_files),
    "threads": _each(_threads),
    "core dumps": _each(_core_dumps),
    "addresses": _addresses,
    "clock": _clocks,
    "token": _each(_token),
    "RAY_ variables": _each(_ray_variables),
    "LD_PRELOAD": _each(_preload),
    "proxies": _proxies,
    "other Rays": _each(_other_rays),
    "SELinux": _each(_selinux),
    "umask": _each(_umask),
    "encoding": _each(_encoding),
}
