"""`shoal serve --ray-serve`: the same answers from a real Ray Serve, which is gone after."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from desks import Desk

import shoal

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi", reason="needs ray[serve]")
pytest.importorskip("grpc", reason="needs ray[serve]")
pytest.importorskip("aiohttp", reason="needs ray[serve]")
from serving import Client

SMALL = {"train_batch_size": 32, "num_envs_per_worker": 1, "num_sgd_iter": 1, "sgd_minibatch_size": 32}
OBSERVATIONS = [[0.1] * 4, [-0.3] * 4]


@pytest.mark.slow
def test_ray_serve_gives_the_same_answers_follows_in_every_process_and_ends(tmp_path: Path) -> None:
    desk = Desk.new(tmp_path)
    token = tmp_path / "token"
    words = ["serve", str(tmp_path / "run"), "--ray-serve", "--port", "8437", "--token-file", str(token)]
    words += ["--replicas", "2", "--follow"]
    with ExitStack() as stack:
        trainer = stack.enter_context(shoal.PPO(env="CartPole-v1", config={**SMALL, "model": {"fcnet_hiddens": [8]}}))
        trainer.save(tmp_path / "run")
        expected = shoal.Policy.load(tmp_path / "run").compute_actions(OBSERVATIONS, explore=False)
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, desk.command, *words],
                cwd=desk.work,
                env=desk.environment(),
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        while (line := process.stdout.readline()) and not line.startswith("Ctrl-C"):
            pass
        assert line, "it has ended"
        started = psutil.Process(process.pid).children(recursive=True)
        client = Client(8437, token.read_text().strip())
        assert client.act(observations=OBSERVATIONS)["actions"] == expected
        status, answer = client.ask("POST", "/v1/policies/policy/actions", {"observation": [1]})
        assert (status, [*answer]) == (422, ["error"])
        assert client.ask("POST", "/v1/policies/policy/reload")[0] == 409
        assert Client(8437, "wrong").ask("GET", "/v1/policies")[0] == 401
        trainer.train()
        trainer.save(tmp_path / "run")
        deadline, in_a_row = time.monotonic() + 120, 0
        while in_a_row < 50:  # requests, each of which reaches either of the two
            assert time.monotonic() < deadline, "a process keeps the old checkpoint"
            newer = client.act(observation=OBSERVATIONS[0])["training_iteration"] == 1
            in_a_row = in_a_row + 1 if newer else 0
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode == 143
    gone, alive = psutil.wait_procs(started, timeout=30)
    assert gone
    assert not alive
