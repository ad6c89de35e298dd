"""docs/calling_in.md: its run listens, and simulators that are started by its commands train it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/calling_in.md").read_text()
DEADLINE_S = 120
SHORT = "--stop training_iteration=1 --set train_batch_size=200 --results-dir results"


def two_free_ports() -> int:
    """The first of two ports, one after the other, that nobody has."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            try:
                other.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
def test_the_simulators_of_the_page_call_in(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples/simulators/python", tmp_path, dirs_exist_ok=True)
    port = two_free_ports()
    page = PAGE.replace("7000", str(port)).replace("7001", str(port + 1))
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "plant.yml").write_text(block)
    token, train, *simulators = re.findall(r"^ {4}(\S.*)$", page.partition("```\n")[2], re.MULTILINE)
    secret = subprocess.run(f"{token}; printf %s $SHOAL_TOKEN", shell=True, capture_output=True, text=True, check=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "SHOAL_TOKEN": secret.stdout, "PATH": path}
    with open(tmp_path / "log", "w") as log:
        run = subprocess.Popen(f"exec {train} {SHORT}", shell=True, cwd=tmp_path, env=environ, stdout=log, stderr=log)
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        until = time.monotonic() + DEADLINE_S
        while run.poll() is None:
            assert time.monotonic() < until, (tmp_path / "log").read_text()
            for line in simulators:
                if line not in started or started[line].poll():  # before anybody listened
                    started[line] = subprocess.Popen(
                        f"exec env {line}", shell=True, cwd=tmp_path, env=environ, stderr=subprocess.DEVNULL
                    )
            time.sleep(0.2)
    finally:
        for process in [run, *started.values()]:
            process.kill()
            process.wait()
    assert run.returncode == 0, (tmp_path / "log").read_text()
    assert "Finished" in (tmp_path / "log").read_text()
    assert len(started) == 2
