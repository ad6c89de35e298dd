"""Another user of the same node, who tries what gives a cluster away; prints what was answered, as JSON.

python intruder.py UID JOB_FOLDER TOKEN_FILE [TOKEN]   with a token, to see that the tries would succeed
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  (before it becomes another user, who cannot read the interpreter's files)
import http.client
import json
import os
import socket
import sys
from pathlib import Path

JOB = json.dumps({"entrypoint": "touch /tmp/owned"})
JOB_APIS = ("/api/jobs/", "/api/job_agent/jobs/")


def listening() -> list[tuple[str, int]]:
    """Where this node listens, as everybody can read it."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, _, state = line.split()[1:4]
        address, port = local.split(":")
        if state == "0A":
            number = bytes.fromhex(address)[::-1]
            found.add(("127.0.0.1" if number == bytes(4) else socket.inet_ntoa(number), int(port, 16)))
    for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        local, _, state = line.split()[1:4]
        if state == "0A":
            found.add(("127.0.0.1", int(local.split(":")[1], 16)))
    return sorted(found)


def answer(address: str, port: int, path: str, token: str) -> int:
    """The status that a job is answered with; 0 for what is no web server."""
    connection = http.client.HTTPConnection(address, port, timeout=5)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        connection.request("POST", path, JOB, headers)
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
        Path(path).read_bytes()
    except OSError as error:
        return type(error).__name__
    return ""


def main() -> None:
    uid, folder, token_file, *token = sys.argv[1:]
    if int(uid):
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    files = (folder, f"{folder}/head.json", str(Path(token_file).parent), token_file)
    statuses = {
        f"{address}:{port}{path}": answer(address, port, path, "".join(token))
        for address, port in listening()
        for path in JOB_APIS
    }
    print(json.dumps({"statuses": statuses, "refusals": {path: refusal(path) for path in files}}))


main()
