"""`shoal doctor` and `shoal cluster aws` as a person types them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from shoal.version import __version__

CLEAN = {"RAY_AUTH_MODE": "token", "LD_PRELOAD": ""}


def test_doctor_tells_a_line_per_check_and_a_verdict(desk: Any) -> None:
    done = desk.shoal("doctor", **CLEAN)
    assert done.stderr == ""
    table, _, rest = done.stdout.partition("\n\n")
    lines = [line.split(maxsplit=1) for line in table.splitlines()]
    assert len(lines) >= 15
    assert {verdict for verdict, _ in lines} <= {"ok", "warn", "bad"}
    assert done.returncode == int("bad" in {verdict for verdict, _ in lines})
    verdict, *remedies = rest.splitlines()
    assert f"{len(lines)} checks on 1 host: " in verdict
    assert len(remedies) >= sum(verdict != "ok" for verdict, _ in lines)
    assert "\x1b" not in done.stdout


def test_doctor_ends_with_1_and_a_remedy_if_something_would_break(desk: Any) -> None:
    done = desk.shoal("doctor", RAY_AUTH_MODE="disabled")
    assert done.returncode == 1
    assert "bad   token" in done.stdout
    assert "  token: unset RAY_AUTH_MODE\n" in done.stdout


def test_doctor_tells_of_a_home_that_is_not_there(desk: Any) -> None:
    done = desk.shoal("doctor", HOME="/proc/sys/fs/away", SHOAL_JOBS_DIR="", **CLEAN)
    assert "Traceback" not in done.stderr
    assert "warn  home" in done.stdout
    assert "/proc/sys/fs/away is not there" in done.stdout
    assert "  home: export HOME=/FOLDER" in done.stdout
    assert "  jobs folder: export SHOAL_JOBS_DIR=/FOLDER" in done.stdout
    assert done.returncode == 1


def test_doctor_as_json_has_every_fact(desk: Any) -> None:
    done = desk.shoal("doctor", "--json", RAY_AUTH_MODE="disabled", RAY_AUTH_TOKEN="canary")
    told = json.loads(done.stdout)
    (facts,) = told["facts"].values()
    assert facts["hostname"] == os.uname().nodename
    verdicts = {row["check"]: row["verdict"] for row in told["rows"]}
    assert verdicts["token"] == "bad"
    assert "canary" not in done.stdout


def test_doctor_makes_a_table_on_a_terminal(desk: Any) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [desk.command, "doctor"], stdout=theirs, cwd=desk.work, env=desk.environment(TERM="xterm", COLUMNS="100")
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:
            pass  # Linux says so when the other end is closed
    os.close(ours)
    assert process.returncode in (0, 1)
    assert b"\x1b[" in shown
    assert b"checks on 1 host" in shown


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / f"shoal_rl-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("shoal/__init__.py", "")
    return path


AWS = ["cluster", "aws", "--nodes", "3", "--instance-type", "m6i.4xlarge"]


def test_aws_prints_the_file_alone_and_makes_the_token(desk: Any, wheel: Path) -> None:
    done = desk.shoal(*AWS, "--image", "ami-0123456789abcdef0", "--wheel", str(wheel), "--name", "pong")
    assert done.returncode == 0, done.stderr
    token = desk.home / ".shoal" / "aws" / "pong" / "token"
    assert done.stderr == f"The cluster's token is in {token}.\n"
    assert done.stdout.startswith("# 3 machines on AWS")
    assert token.read_text() not in done.stdout


def test_aws_can_be_checked_by_ray(desk: Any, wheel: Path) -> None:
    done = desk.shoal(*AWS, "--image", "ami-0123456789abcdef0", "--wheel", str(wheel), "--check")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("Ray 2.")
    assert "accepts the file." in done.stderr
    assert done.stdout.startswith("# 3 machines on AWS")


def test_aws_tells_all_that_is_missing_at_once_and_makes_nothing(desk: Any) -> None:
    done = desk.shoal(*AWS, "--spot-price", "-1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == ["--image", "--spot-price", "--wheel"]
    assert not (desk.home / ".shoal").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "there is no command to run"),
        (("--timeout", "5", "--", "true"), "--timeout: must have a unit"),
        (("--ports", "1-2", "--", "true"), "--ports: must be a range"),
        (("--hosts", "a", "--hostfile", "b", "--", "true"), "use --hosts or --hostfile, not both"),
        (("--hostfile", "nowhere", "--", "true"), "--hostfile: nowhere cannot be read"),
        (("--hostfile", "/dev/zero", "--", "true"), "/dev/zero has more than 16 MB; that is no list of hosts"),
        (("--variable", "1X", "--", "true"), "--variable: must be NAME or NAME=VALUE"),
        (("--variable", "NOT_SET_ANYWHERE", "--", "true"), "--variable: NOT_SET_ANYWHERE is not set here"),
        (("--scheduler", "slrum", "--", "true"), "there is no scheduler 'slrum'; use slurm, lsf"),
        (("--env", "X=1", "--", "true"), "There is no option --env here; use --variable X=1."),
        (("--join", "x", "--", "true"), "--join adds hosts to a running job"),
        (("--scheduler", "none", "--", "no-such-program"), "no-such-program: there is no such program on PATH"),
    ],
)
def test_launch_refuses_what_makes_no_sense(desk: Any, words: tuple[str, ...], sentence: str) -> None:
    done = desk.shoal("launch", *words)
    assert (done.returncode, done.stdout) == (2, "")
    told = done.stderr.splitlines()[-1]
    assert told.startswith("Error: ")
    assert sentence in told
    assert len(done.stderr.splitlines()) == 1 or done.stderr.startswith("Usage: shoal launch")


def test_a_command_that_is_refused_leaves_no_folder(desk: Any) -> None:
    done = desk.shoal("launch", "--scheduler", "none", "--", desk.command, "train", "CartPole-v9")
    assert done.returncode == 2
    assert "there is no such version" in done.stderr
    assert not list(desk.home.glob(".shoal/jobs/*"))


@pytest.mark.skipif(find_spec("aiohttp") is not None, reason="Ray's dashboard is installed")
def test_a_dashboard_that_is_not_installed_is_named(desk: Any) -> None:
    done = desk.shoal("launch", "--dashboard", "--", "true")
    assert done.returncode == 2
    assert "pip install 'ray[default]'" in done.stderr


def test_launch_inside_of_a_launch_is_refused(desk: Any) -> None:
    done = desk.shoal("launch", "--", "true", SHOAL_CLUSTER_EVENTS="x")
    assert done.returncode == 2
    assert "leave out the inner" in done.stderr


def test_joining_what_does_not_run_is_refused(desk: Any) -> None:
    done = desk.shoal("launch", "--join", "nothing")
    assert done.returncode == 1
    assert "is not the folder of a running job" in done.stderr
