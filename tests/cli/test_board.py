"""`shoal board`: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_runs import fake_run

from shoal.cli.board import opening_lines, ssh_words
from shoal.cli.main import main


def test_it_prints_its_address_serves_it_and_ends_with_ctrl_c(desk: Any, tmp_path: Path) -> None:
    fake_run(tmp_path / "runs")
    command = [sys.executable, desk.command, "board", str(tmp_path / "runs"), "--port", "0"]
    process = subprocess.Popen(
        command, cwd=desk.work, env=desk.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("Open ").strip()
        assert process.stdout.readline().startswith("1 run, 0 running, 0 sweeps in ")
        with urllib.request.urlopen(url, timeout=30) as page:
            assert b"Runs: board" in page.read()
        with urllib.request.urlopen(f"{url}events", timeout=30) as news:
            assert news.readline() == b"event: runs\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (0, "")
    assert out.strip() == "The board has ended; the runs go on."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "nowhere, and none of that name in ~/shoal_results"),
        (["."], "--port: {port} is in use on 127.0.0.1; leave --port out, and a free one is taken"),
        ([".", "--host", "no.such.host.invalid"], "--host: no.such.host.invalid is no address of this machine"),
        ([".", "--host", "192.0.2.1"], "--host: 192.0.2.1 is no address of this machine"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(main, ["board", *arguments, "--port", str(port)])
    assert done.exit_code == 2
    assert sentence.format(port=port) in done.output
    assert done.output.count("\n") == 1


def test_from_another_host_the_ssh_line_is_printed() -> None:
    assert ssh_words({}) is None
    assert ssh_words({"SSH_CONNECTION": "10.0.0.9 5022 10.0.0.1 22", "USER": "ann"}) == "ann@10.0.0.1"
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_SUBMIT_HOST": "login1", "USER": "ann"}
    assert ssh_words(job) == f"-J ann@login1 ann@{socket.gethostname()}"
    away = {"SSH_CONNECTION": "10.0.0.9 5022 10.0.0.1 22"}
    assert opening_lines("http://127.0.0.1:1/t/", 1, "127.0.0.1", away)[1] == (
        "On your own machine, first: ssh -N -L 1:127.0.0.1:1 10.0.0.1"
    )
    assert "not encrypted" in opening_lines("http://h:1/t/", 1, "0.0.0.0", away)[1]
    assert len(opening_lines("http://127.0.0.1:1/t/", 1, "127.0.0.1", {})) == 1
