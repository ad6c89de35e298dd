"""How many actions a server tells, and how soon: `shoal serve`, a bare handler, and Ray Serve with an RLlib policy.

Each serves one observation per request to 1, 8 and 32 clients that ask as soon as they are answered; all servers and
the clients share this machine's cores. Then 10,000 bad requests and 200 slow connections are sent beside good ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import uvloop
from peers import HERE, ONE_THREAD, ROOT, _environment, python_of
from record import Bar, Record, console, show_bars
from rich.table import Table

import shoal

sys.path.insert(0, str(ROOT / "tests" / "shared"))
from serving import Client, bad_requests

CLIENTS = (1, 8, 32)
OBS = [0.1, -0.2, 0.03, 0.4]
BAD = 10_000
SLOW = 200


def is_whole(head: bytes, body: bytes) -> bool:
    """Whether nothing of an answer is missing: by its length, or by the last of its chunks, as Ray Serve sends them."""
    heads = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
    if b"chunked" in heads.get(b"transfer-encoding", b""):
        return body.endswith(b"0\r\n\r\n")
    return len(body) >= int(heads[b"content-length"])


class Asking(asyncio.Protocol):
    """A client that asks again as soon as it is answered, until the time is over."""

    def __init__(self, request: bytes, until: float, done: asyncio.Future[None]) -> None:
        self.request, self.until, self.done = request, until, done
        self.latencies: list[float] = []
        self.failed = 0
        self.buffer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if not end or not is_whole(head, body):
            return
        now = time.perf_counter()
        self.latencies.append(now - self.sent_at)
        self.failed += b" 200 " not in head[:20]
        self.buffer = b""
        if now < self.until:
            self._ask()
        else:
            self.transport.close()
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self.done.done():
            self.failed += 1
            self.done.set_result(None)

    def _ask(self) -> None:
        self.sent_at = time.perf_counter()
        self.transport.write(self.request)


async def asked(port: int, request: bytes, clients: int, seconds: float) -> dict[str, float]:
    """What so many clients got in so many seconds."""
    loop = asyncio.get_running_loop()
    until = time.perf_counter() + seconds
    made: list[Asking] = []
    for _ in range(clients):
        asking = Asking(request, until, loop.create_future())
        await loop.create_connection(lambda asking=asking: asking, "127.0.0.1", port)
        made.append(asking)
    await asyncio.gather(*(each.done for each in made))
    latencies = sorted(latency for each in made for latency in each.latencies)
    return {
        "requests_per_s": len(latencies) / seconds,
        "p50_ms": 1e3 * statistics.median(latencies),
        "p99_ms": 1e3 * latencies[int(0.99 * (len(latencies) - 1))],
        "failed": sum(each.failed for each in made),
    }


def request_to(path: str, token: str = "none") -> bytes:
    """The bytes of one request."""
    body = json.dumps({"observation": OBS}).encode()
    heads = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    heads += [f"Content-Length: {len(body)}", f"Authorization: Bearer {token}"]
    return "\r\n".join([*heads, "", ""]).encode() + body


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def process(command: list[str], who: str) -> Iterator[subprocess.Popen[str]]:
    """A server, ended after."""
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment(who))
    try:
        yield started
    finally:
        started.send_signal(signal.SIGINT)
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


@contextmanager
def shoal_server(run: Path, folder: Path, *words: str) -> Iterator[tuple[int, bytes, int]]:
    token, port = folder / "token", free_port()
    command = [
        sys.executable,
        "-m",
        "shoal",
        "serve",
        str(run),
        "--port",
        str(port),
        "--token-file",
        str(token),
        *words,
    ]
    with process(command, "shoal") as server:
        assert server.stdout is not None
        while not server.stdout.readline().startswith("Ctrl-C"):
            assert server.poll() is None, "shoal serve has ended"
        yield port, request_to("/v1/policies/policy/actions", token.read_text().strip()), server.pid


@contextmanager
def bare_server() -> Iterator[tuple[int, bytes, int]]:
    port = free_port()
    with process([sys.executable, str(HERE / "runners" / "run_serve_bare.py"), str(port)], "shoal") as server:
        wait_for(port)
        yield port, request_to("/act"), server.pid


@contextmanager
def rllib_server() -> Iterator[tuple[int, bytes, int]]:
    port = free_port()
    command = [str(python_of("ray-serve")), str(HERE / "runners" / "run_serve_rllib.py"), str(port)]
    with process(command, "ray-serve") as server:
        assert server.stdout is not None
        while server.stdout.readline() != "up\n":
            assert server.poll() is None, "Ray Serve has ended"
        yield port, request_to("/act"), server.pid


def cpu_s(pid: int) -> float:
    """The processor time of a server with all its processes."""
    server = psutil.Process(pid)
    total = 0.0
    for each in (server, *server.children(recursive=True)):
        with suppress(psutil.Error):
            total += sum(each.cpu_times()[:2])
    return total


def wait_for(port: int) -> None:
    """Until somebody listens."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise SystemExit(f"nobody listens at {port}")


def bad_beside_good(port: int, token: str, count: int) -> dict[str, int]:
    """Good requests that were sent while bad ones and slow connections were, and how many of them were lost."""
    good = lost = 0
    with ExitStack() as stack:
        for number in range(SLOW):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            slow.sendall(b"POST /v1/policies/policy/actions HTTP/1.1\r\nX-Slow: " + b"a" * (number % 7))
        pool = stack.enter_context(ThreadPoolExecutor(4))
        bad = [pool.submit(bad_requests, port, count // 4, seed, token) for seed in range(4)]
        client = Client(port, token)
        while not all(each.done() for each in bad):
            good += 1
            try:
                status, _ = client.ask("POST", "/v1/policies/policy/actions", {"observation": OBS})
            except OSError:
                status, client = 0, Client(port, token)
            lost += status != 200
        for each in bad:
            each.result()
    return {"bad": count // 4 * 4, "slow_connections": SLOW, "good": good, "good_lost": lost}


def show(results: dict[str, Any]) -> None:
    table = Table(
        "server", "clients", "requests/s", "p50 ms", "p99 ms", "CPU ms/request", title="One observation per request"
    )
    for who, by_clients in results.items():
        for clients, found in by_clients.items():
            row = (f"{found['requests_per_s']:.0f}", f"{found['p50_ms']:.2f}", f"{found['p99_ms']:.2f}")
            table.add_row(who, clients, *row, f"{found['cpu_ms']:.3f}")
    console.print(table)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each number of clients asks")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, each with all servers one after another")
    parser.add_argument("--quick", action="store_true", help="two seconds, one round, 1000 bad requests")
    parser.add_argument("--no-rllib", action="store_true", help="without Ray Serve and RLlib, which want 3 GB")
    options = parser.parse_args()
    seconds, repeats, num_bad = (2.0, 1, 1000) if options.quick else (options.seconds, options.repeats, BAD)
    who = ["shoal"] if options.no_rllib else ["shoal", "ray-serve"]
    settings = {"seconds": seconds, "repeats": repeats, "clients": list(CLIENTS), "network": "64x64 tanh, CartPole-v1"}
    record = Record("serve", who, {**settings, "bad": num_bad, "threads": ONE_THREAD})
    rounds: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="serve-") as name:
        folder = Path(name)
        with shoal.PPO(env="CartPole-v1", config={"model": {"fcnet_hiddens": [64, 64]}}) as trainer:
            trainer.save(folder / "run")
        for _ in range(repeats):
            servers: dict[str, Any] = {
                "shoal": lambda: shoal_server(folder / "run", folder),
                "shoal, --batch-wait-ms 2": lambda: shoal_server(folder / "run", folder, "--batch-wait-ms", "2"),
                "bare handler": bare_server,
            }
            if not options.no_rllib:
                servers["Ray Serve, RLlib"] = rllib_server
            for server, start in servers.items():
                with start() as (port, request, pid):
                    for clients in CLIENTS:
                        uvloop.run(asked(port, request, clients, min(1.0, seconds)))  # warm
                        before = cpu_s(pid)
                        found = uvloop.run(asked(port, request, clients, seconds))
                        used = cpu_s(pid) - before
                        found["cpu_ms"] = 1e3 * used / (found["requests_per_s"] * seconds)
                        rounds.setdefault(server, {}).setdefault(str(clients), []).append(found)
        with shoal_server(folder / "run", folder) as (port, _, _):
            robust = bad_beside_good(port, (folder / "token").read_text().strip(), num_bad)
    results = {
        server: {
            clients: {key: statistics.median(each[key] for each in found) for key in found[0]}
            for clients, found in by_clients.items()
        }
        for server, by_clients in rounds.items()
    }
    show(results)
    console.print(robust)
    ours, bare = results["shoal"], results["bare handler"]
    bars = [
        Bar(
            "processor time of a bare handler's request, 32 clients",
            ours["32"]["cpu_ms"] / bare["32"]["cpu_ms"],
            2.5,
            at_least=False,
            unit=" x",
        ),
        Bar("good requests lost beside bad ones", robust["good_lost"], 0, at_least=False),
        Bar(
            "requests/s of a bare handler, 32 clients",
            ours["32"]["requests_per_s"] / bare["32"]["requests_per_s"],
            0.4,
            at_least=True,
            unit=" x",
        ),
    ]
    if not options.no_rllib:
        theirs = results["Ray Serve, RLlib"]
        for clients in ("1", "32"):
            ratio = ours[clients]["requests_per_s"] / theirs[clients]["requests_per_s"]
            bars.append(
                Bar(f"requests/s of Ray Serve with RLlib, {clients} clients", ratio, 2, at_least=True, unit=" x")
            )
        ratio = theirs["32"]["cpu_ms"] / ours["32"]["cpu_ms"]
        bars.append(
            Bar("processor time of Ray Serve with RLlib over ours, 32 clients", ratio, 2, at_least=True, unit=" x")
        )
        ratio = theirs["1"]["p99_ms"] / ours["1"]["p99_ms"]
        bars.append(Bar("p99 of Ray Serve with RLlib over ours, 1 client", ratio, 2, at_least=True, unit=" x"))
    show_bars(bars)
    if not options.quick:
        record.keep({"servers": results, "bad_requests": robust}, bars)


if __name__ == "__main__":
    main()
