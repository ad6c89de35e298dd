"""What docs/serve.md shows runs, and its tables are those of the code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

import shoal
from shoal.cli.main import main

pytest.importorskip("uvicorn")
from pages import Page
from serving import serving, source

from shoal.serving.app import application
from shoal.serving.server import server_of, unix_socket

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
SMALL = {"train_batch_size": 32, "num_envs_per_worker": 1, "num_sgd_iter": 1, "sgd_minibatch_size": 32}


def snippet(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return text


def test_the_clients_get_the_action_of_the_policy(tmp_path: Path) -> None:
    with shoal.PPO(env="CartPole-v1", config={**SMALL, "model": {"fcnet_hiddens": [8]}}) as trainer:
        trainer.save(tmp_path / "run")
    expected = shoal.Policy.load(tmp_path / "run").compute_single_action([0.1, 0.0, -0.05, 0.2], explore=False)
    with serving([source(tmp_path / "run")]) as service, unix_socket(tmp_path / "policy.sock") as listening:
        (tmp_path / "token").write_text("a-token-of-the-tests-alone\n")
        program = snippet("python").replace("8421", str(service.port))
        told = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert told.stdout == f"{expected}\n"
        if shutil.which("gcc") is None:
            pytest.skip("there is no compiler")
        (tmp_path / "client.c").write_text(snippet("c"))
        words = [
            "gcc",
            "-std=c11",
            "-D_POSIX_C_SOURCE=200809L",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
            "client",
            "client.c",
        ]
        subprocess.run(words, cwd=tmp_path, check=True)
        server = server_of(application(service, "another-token-of-the-tests", trusts_sockets=True))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        told = subprocess.run(["./client"], cwd=tmp_path, capture_output=True, text=True, check=True)
        server.should_exit = True
        thread.join(60)
    assert told.stdout == f"{expected}\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_a_session_of_a_policy_with_memory_is_asked_by_curl(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    lines = [line for line in Page("docs/serve.md").typed() if "curl" in line]
    assert len(lines) == 2
    with shoal.PPO(env="Pendulum-v1", config={**SMALL, "model": {"use_lstm": True, "lstm_cell_size": 8}}) as trainer:
        trainer.save(tmp_path / "run")
    with serving([source(tmp_path / "run")]) as service, unix_socket(tmp_path / "policy.sock") as listening:
        server = server_of(application(service, "another-token-of-the-tests", trusts_sockets=True))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        command = ["bash", "-c", "\n".join([*lines, lines[1]])]
        told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
        server.should_exit = True
        thread.join(60)
    actions = [answer["action"] for answer in map(json.loads, told.stdout.replace("}{", "}\n{").splitlines())]
    assert len(actions) == 2
    assert actions[0] != actions[1], "it remembers the first step"


def test_every_option_and_path_is_there(tmp_path: Path) -> None:
    known = CliRunner().invoke(main, ["serve", "--help"]).output
    flags = set(re.findall(r"`(?:shoal serve [^`]*)?(--[a-z][a-z-]+)", PAGE)) | set(
        re.findall(r"^ {4}shoal serve .*?(--[a-z-]+)", PAGE, re.MULTILINE)
    )
    assert len(flags) > 10
    assert {flag for flag in flags if flag not in known} == set()
    for option in re.findall(r"^ +(--[a-z-]+)", known, re.MULTILINE):
        assert option in PAGE or option in ("--help", "--results-dir"), option
