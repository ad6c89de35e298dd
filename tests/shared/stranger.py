"""Another user of this machine, who tries what gives a Ray away; prints what was answered, as JSON.

python stranger.py UID PORTS FILES [TOKEN]     PORTS and FILES with commas; a token shows that the tries would succeed
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  (before it becomes another user, who cannot read the interpreter's files)
import http.client
import json
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NOBODY = 65534
JOB_APIS = ("/api/jobs/", "/api/job_agent/jobs/")
CALLS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.JobInfoGcsService/GetAllJobInfo",
    "/ray.rpc.ActorInfoGcsService/GetAllActorInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.rpc.InternalKVGcsService/InternalKVPut",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.NodeManagerService/GetSystemConfig",
    "/ray.rpc.NodeManagerService/RequestWorkerLease",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.CoreWorkerService/PushTask",
    "/ray.rpc.CoreWorkerService/KillActor",
    "/ray.rpc.CoreWorkerService/NumPendingTasks",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.ObjectManagerService/FreeObjects",
    "/ray.rpc.ReporterService/HealthCheck",
)
HARMLESS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.NodeManagerService/GetSystemConfig",
    "/ray.rpc.CoreWorkerService/NumPendingTasks",
)
"""What may be tried with the token: nothing is changed by them."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ANSWER_S = 3.0


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _header(name: str, value: str) -> bytes:
    """A header as HPACK writes one that it does not remember."""
    assert len(name) < 127
    assert len(value) < 127
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def grpc_status(port: int, path: str, token: str = "") -> int | None:
    """The status that gRPC answers an empty request with, 0 being success; None for what does not speak it."""
    headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost", "te": "trailers"}
    headers["content-type"] = "application/grpc"
    if token:
        headers["authorization"] = f"Bearer {token}"
    packed = b"".join(_header(name, value) for name, value in headers.items())
    request = PREFACE + _frame(4, 0, 0, b"") + _frame(1, 4, 1, packed) + _frame(0, 1, 1, bytes(5))
    heard = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), ANSWER_S) as connection:
        connection.settimeout(ANSWER_S)
        connection.sendall(request)
        while b"grpc-status" not in heard and (data := connection.recv(65536)):
            heard += data
    found = re.search(rb"grpc-status([\x01\x02])(\d{1,2})", heard)
    return None if found is None else int(found[2][: found[1][0]])


def job_status(port: int, path: str, token: str = "") -> int:
    """The status that a job is answered with; 0 for what is no web server."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        connection.request("POST", path, json.dumps({"entrypoint": "touch /tmp/owned"}), headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def refusal(path: str) -> str:
    """Why a file or folder cannot be read; empty if it can."""
    try:
        if Path(path).is_dir():
            os.listdir(path)
        else:
            Path(path).read_bytes()
    except OSError as error:
        return type(error).__name__
    return ""


def main() -> None:
    """Try everything."""
    uid, ports, files, *token = sys.argv[1:]
    if int(uid):
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    numbers = [int(port) for port in ports.split(",")]
    given = "".join(token)
    calls = HARMLESS if given else CALLS
    told = {
        "grpc": {f"{port}{path}": grpc_status(port, path, given) for port in numbers for path in calls},
        "jobs": {f"{port}{path}": job_status(port, path) for port in numbers for path in JOB_APIS},
        "files": {path: refusal(path) for path in files.split(",")},
    }
    print(json.dumps(told))


# What the tests and the benchmark want of it.

VICTIM = """
import json, os, sys
import psutil
from shoal.parallel.private_ray import start_private_ray

ray, private = start_private_ray(2)

@ray.remote
class Actor:
    def ping(self):
        return 1

actor = Actor.remote()
assert ray.get(actor.ping.remote()) == 1
family = [psutil.Process(), *psutil.Process().children(recursive=True)]
ports = {c.laddr.port for p in family for c in p.net_connections("tcp") if c.status == "LISTEN"}
print(json.dumps({"folder": str(private.folder.path), "ports": sorted(ports)}), flush=True)
sys.stdin.read()
assert ray.get(actor.ping.remote()) == 1
private.end()
private.remove()
"""


@contextmanager
def victim(folder: Path, planted: str) -> Iterator[dict[str, Any]]:
    """A Ray as shoal starts it, where somebody has planted the address of another."""
    place = folder / "t"
    (place / "ray").mkdir(parents=True)
    for where in (place, place / "ray"):
        (where / "ray_current_cluster").write_text(planted)
    variables = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    variables |= {"RAY_TMPDIR": str(place), "TMPDIR": str(place)}
    process = subprocess.Popen(
        [sys.executable, "-c", VICTIM], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.communicate("")
        assert process.returncode == 0


def tries(found: dict[str, Any], uid: int = NOBODY, token: str = "") -> dict[str, Any]:
    """What a stranger is answered."""
    folder = found["folder"]
    files = ",".join(found.get("files", (folder, f"{folder}/token", f"{folder}/r")))
    ports = ",".join(map(str, found["ports"]))
    words = [sys.executable, __file__, str(uid), ports, files, *([token] if token else [])]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def successes(answers: dict[str, Any]) -> list[str]:
    """What of it would give the Ray away."""
    found = [call for call, status in answers["grpc"].items() if status == 0]
    found += [path for path, status in answers["jobs"].items() if status == 200]
    return found + [path for path, refused in answers["files"].items() if not refused]


if __name__ == "__main__":
    main()
