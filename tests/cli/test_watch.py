"""`shoal watch`: a real run, followed from another process until it ends."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_runs import fake_run

from shoal.cli.main import main
from shoal.runs.lease import Lease
from shoal.runs.outcomes import Outcome


def typed(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["watch", *map(str, words)], prog_name="shoal")


def test_a_run_of_another_process_is_followed_to_its_end(desk: Any, small: list[str]) -> None:
    with desk.start("train", "CartPole-v1", "--stop", "training_iteration=1000000", *small) as training:
        assert any(line.startswith("iter    2") for line in training.stdout)
        with desk.start("watch", "CartPole-v1", "--interval", "0.1") as watching:
            seen = 0
            for line in watching.stdout:
                seen += line.startswith("iter ")
                if seen == 8:
                    training.send_signal(signal.SIGTERM)
                    seen += 1
                    break
            training.stdout.read()
            rest = watching.stdout.read()
    assert training.returncode == 143
    assert "Stopped: interrupted by SIGTERM" in rest
    assert watching.returncode == 0


@pytest.mark.parametrize(
    ("outcome", "code", "sentence"),
    [
        (Outcome("stopped", "training_iteration 10 >= 10"), 0, "Finished: training_iteration 10 >= 10"),
        (Outcome("failed", "EnvError: it broke"), 1, "Failed: EnvError: it broke"),
        (None, 1, "Nobody trains it, and it left no word: it was killed, or its machine went down."),
    ],
)
def test_a_run_that_has_ended(tmp_path: Path, outcome: Outcome | None, code: int, sentence: str) -> None:
    folder = fake_run(tmp_path, outcome=outcome)
    done = typed(folder)
    assert done.exit_code == code
    lines = done.output.splitlines()
    assert [line[:9] for line in lines[:5]] == [f"iter {at:4d}" for at in range(6, 11)]
    assert sentence in lines


@pytest.mark.parametrize("content", [None, "{", '{"kind": "stopped", "sentence": ""}'])
def test_a_finished_run_without_its_outcome(tmp_path: Path, content: str | None) -> None:
    folder = fake_run(tmp_path, outcome=None, stop={"training_iteration": 10})
    if content is not None:
        (folder / "outcome.json").write_text(content)
    done = typed(folder, "--once")
    assert done.exit_code == 0
    assert "Finished: its results meet its stop criterion; outcome.json" in done.output


def test_one_look(tmp_path: Path) -> None:
    folder = fake_run(tmp_path, outcome=None)
    lease = Lease(folder)
    try:
        done = typed("first", "--results-dir", tmp_path, "--once")
    finally:
        lease.release()
    assert done.exit_code == 0
    assert done.output.splitlines()[-1] == f"{folder} is training."


def test_what_is_refused(tmp_path: Path) -> None:
    fake_run(tmp_path)
    done = typed("frist", "--results-dir", tmp_path)
    assert done.exit_code == 2
    assert "did you mean first?" in done.output
    assert typed("first", "--interval", "0").exit_code == 2


def test_lines_and_words_that_are_not_shoals_own(tmp_path: Path) -> None:
    folder = fake_run(tmp_path, outcome=Outcome("failed", "EnvError: \x1b[31mred"))
    with open(folder / "result.json", "a") as file:
        file.write("[" * 100_000 + "\n")
    done = typed(folder, "--once")
    assert done.exit_code == 1
    assert r"Failed: EnvError: \x1b[31mred" in done.output.splitlines()
    assert "iter   10" in done.output
