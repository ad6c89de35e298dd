"""`shoal serve` as a person types it: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import shoal
from shoal.cli.main import main

pytest.importorskip("uvicorn")
from serving import Client, serving, source

SMALL = {"train_batch_size": 32, "num_envs_per_worker": 1, "num_sgd_iter": 1, "sgd_minibatch_size": 32}
PATHS = [
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/v1/policies",
    "/v1/policies/policy",
    "/v1/policies/policy/actions",
    "/v1/policies/policy/reload",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "run"
    with shoal.PPO(env="CartPole-v1", config={**SMALL, "model": {"fcnet_hiddens": [8]}}) as trainer:
        trainer.save(folder)
    return folder


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


@contextmanager
def started(desk: Any, *words: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A server that is up, and what it has printed."""
    command = [sys.executable, desk.command, "serve", *words]
    process = subprocess.Popen(
        command, cwd=desk.work, env=desk.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("Ctrl-C"):
            lines.append(process.stdout.readline())
            assert lines[-1], process.communicate()
        yield process, lines
    finally:
        process.kill()
        process.communicate()


def test_a_request_that_was_accepted_is_answered_before_it_ends(desk: Any, run: Path) -> None:
    words = [f"a={run}", f"b={run}", "--port", "0", "--batch-wait-ms", "1000"]
    with started(desk, *words) as (process, lines):
        assert [line.partition(",")[0] for line in lines[:2]] == ["a: PPO CartPole-v1", "b: PPO CartPole-v1"]
        (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)\n", "".join(lines))
        (token,) = re.findall(r"printed once: (\S+)\n", "".join(lines))
        answers: list[Any] = []
        client, other = Client(int(port), token), Client(int(port), token)
        asking = threading.Thread(target=lambda: answers.append(client.act("b", observation=[0] * 4)))
        asking.start()
        while "shoal_requests_in_flight 2\n" not in other.ask("GET", "/metrics")[1]["text"]:
            pass
        process.send_signal(signal.SIGTERM)
        asking.join(60)
        out, err = process.communicate(timeout=60)
    assert answers[0]["training_iteration"] == 0
    assert answers[0]["action"] in (0, 1)
    assert (process.returncode, err) == (143, "")
    assert re.fullmatch(r"\nEnded after \d+ requests, all answered\.\n", out)


def test_a_socket_needs_no_token_and_a_port_beside_it_does(desk: Any, run: Path, tmp_path: Path) -> None:
    path, token_file = tmp_path / "s", tmp_path / "token"
    more = ["--port", "0", "--token-file", str(token_file)]
    with started(desk, str(run), "--socket", str(path), *more) as (process, lines):
        text = "".join(lines)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        assert token_file.read_text().strip() not in text
        (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)\n", text)
        client = Client(int(port), None)
        assert client.ask("GET", "/metrics")[0] == 401
        client.connection = UnixConnection(str(path))
        tried = next(line for line in lines if line.startswith(f"Try: curl --unix-socket {path} --json "))
        body = json.loads(tried.split("'")[1])
        assert client.act(**body)["training_iteration"] == 0
        assert sorted(client.ask("GET", "/openapi.json")[1]["paths"]) == PATHS
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["{run}", "--port", "{port}"],
            "--port: {port} is in use on 127.0.0.1; use another, or --port 0",
        ),
        (["{run}", "--host", "192.0.2.1"], "--host: 192.0.2.1 is no address of this machine"),
        (["nowhere"], "nowhere"),
        (["{run}", "{run}"], "each of several policies needs a name"),
        (["a={run}", "a={run}"], "a: is given twice"),
        (["a b={run}", "c={run}"], "each of several policies needs a name"),
        (["{run}/checkpoint_000000", "--follow"], "--follow: {run}/checkpoint_000000 is one checkpoint"),
        (["{run}", "--policy-id", "x=y"], "--policy-id: x is none of policy"),
        (["{run}", "--policy-id", "y"], "policy_id: there is no policy 'y'"),
        (["{run}", "--replicas", "2"], "--replicas: is of --ray-serve"),
        (["{run}", "--ray-serve", "--socket", "s"], "--socket: Ray Serve listens at a port alone"),
        (["{run}", "--socket", "{run}"], "exists, and is not a socket"),
        (["{run}", "--token-file", "{run}"], "--token-file: {run} cannot be read"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shoal.cli.serve._has_ray_serve", lambda: True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        typed = [word.format(run=run, port=port) for word in words]
        if "--port" not in typed:
            typed += ["--port", "0"] if "--socket" not in typed else []
        done = CliRunner().invoke(main, ["serve", *typed])
    assert done.exit_code == 2, done.output
    assert sentence.format(run=run, port=port) in done.output
    assert done.output.count("\n") == 1


def test_a_missing_extra_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.cli.serve.find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["serve", str(run)])
    assert done.exit_code == 2
    assert done.output == "Error: serve needs starlette and uvicorn; type: pip install 'shoal-rl[serve]'\n"
    monkeypatch.setattr("shoal.cli.serve.find_spec", lambda name: None if name in ("grpc", "fastapi") else name)
    done = CliRunner().invoke(main, ["serve", str(run), "--ray-serve"])
    assert (done.exit_code, done.output) == (
        2,
        "Error: --ray-serve needs Ray Serve; type: pip install 'shoal-rl[ray-serve]'\n",
    )


def test_a_run_of_several_policies_wants_one_named(tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo")
    from agent_envs import Corridor

    agents = {"policies": ["left", "right"], "policy_mapping": {"a_*": "left", "*": "right"}}
    with shoal.PPO(env=Corridor, config={**SMALL, "multiagent": agents}) as trainer:
        trainer.save(tmp_path / "run")
    done = CliRunner().invoke(main, ["serve", str(tmp_path / "run"), "--port", "0"])
    assert done.exit_code == 2, done.output
    assert "has several policies; serve one of them: --policy-id left or --policy-id right" in done.output
    with serving([source(tmp_path / "run", policy_id="right")]) as service:
        client = Client(service.port)
        expected = shoal.Policy.load(tmp_path / "run", policy_id="right").compute_single_action(
            [1, 2, 0], explore=False
        )
        assert client.act(observation=[1, 2, 0])["action"] == expected
