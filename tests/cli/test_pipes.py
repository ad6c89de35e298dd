"""The command where nobody looks: in pipes, batch logs and dumb terminals."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

LINE = re.compile(r"iter +(\d+)  steps +(\d+)  return +(-|[\d.]+)  len +(-|[\d.]+)  [\d.]+k? steps/s(  eta .*)?")


def lines_of_iterations(text: str) -> list[int]:
    return [int(match[1]) for line in text.splitlines() if (match := LINE.fullmatch(line))]


def test_one_plain_line_per_iteration(trained: tuple[Any, Any, Path]) -> None:
    _, done, run = trained
    first, *iterations, finished, folder, saved, evaluate, further = done.stdout.splitlines()
    assert first == f"PPO CartPole-v1 in {run}"
    assert lines_of_iterations("\n".join(iterations)) == [1, 2, 3]
    assert len(iterations) == 3
    assert finished == "Finished: training_iteration 3 >= 3"
    assert folder == f"  run       {run}"
    assert saved == "  saved     checkpoint_000003"
    assert evaluate == f"  evaluate  shoal evaluate {run}"
    assert further == f"  go on     shoal resume {run} --stop timesteps_total=1536"
    assert done.stderr == ""


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1"}, {"NO_COLOR": "1"}, {"TERM": "xterm-256color"}])
def test_no_control_codes(desk: Any, small: list[str], variables: dict[str, str]) -> None:
    done = desk.shoal("train", "CartPole-v1", "--stop", "training_iteration=1", *small, **variables)
    assert done.returncode == 0
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.stdout + done.stderr)
    assert lines_of_iterations(done.stdout) == [1]


def test_lines_come_while_the_run_goes_on(desk: Any, small: list[str]) -> None:
    with desk.start("train", "CartPole-v1", "--stop", "timesteps_total=1e9", *small) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        heard = [child.stdout.readline() for _ in range(4)]
        child.send_signal(signal.SIGINT)
        rest, complaints = child.stdout.read(), child.stderr.read()
    assert lines_of_iterations("".join(heard)) == [1, 2, 3]
    assert (child.returncode, complaints) == (130, "")
    assert "Stopped: interrupted by SIGINT" in rest


def test_a_reader_that_leaves_ends_the_run_saved(desk: Any, small: list[str]) -> None:
    with desk.start("train", "CartPole-v1", "--stop", "timesteps_total=1e9", *small) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        for _ in range(3):
            child.stdout.readline()
        child.stdout.close()
        complaints = child.stderr.read()
    assert child.returncode == 1
    assert "Traceback" not in complaints
    (run,) = desk.runs()
    assert list(run.glob("checkpoint_*"))


def test_quiet_prints_only_the_start_and_the_end(desk: Any, small: list[str]) -> None:
    done = desk.shoal("train", "CartPole-v1", "--stop", "training_iteration=2", "--quiet", *small)
    (run,) = desk.runs()
    assert done.stdout.splitlines()[:2] == [f"PPO CartPole-v1 in {run}", "Finished: training_iteration 2 >= 2"]
    assert lines_of_iterations(done.stdout) == []
    assert done.stderr == ""


def test_what_a_run_leaves(trained: tuple[Any, Any, Path]) -> None:
    _, _, run = trained
    visible = {path.name for path in run.iterdir() if not path.name.startswith((".", "events."))}
    files = {"config.yaml", "experiment.json", "progress.csv", "result.json", "log.txt", "checkpoint_000003"}
    assert visible - {path.name for path in run.glob("evaluation_*.json")} == files
    assert len(list(run.glob("events.out.tfevents.*"))) == 1
    rows = [json.loads(line) for line in (run / "result.json").read_text().splitlines()]
    assert [row["timesteps_total"] for row in rows] == [256, 512, 768]
    assert len((run / "progress.csv").read_text().splitlines()) == 4


def test_the_same_command_again_says_that_the_run_is_finished(trained: tuple[Any, Any, Path], small: list[str]) -> None:
    desk, _, run = trained
    done = desk.shoal("train", "CartPole-v1", "--stop", "training_iteration=3", *small)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == f"{run} is finished: training_iteration 3 >= 3."
    assert "--new" in done.stdout
    assert desk.runs() == [run]
