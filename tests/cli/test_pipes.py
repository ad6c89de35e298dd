"""The command where nobody looks: in pipes, batch logs and dumb terminals."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from shoal.cli.main import main

LINE = re.compile(r"iter +(\d+)  steps +(\d+)  return +(-|[\d.]+)  len +(-|[\d.]+)  [\d.]+k? steps/s(  eta .*)?")


def lines_of_iterations(text: str) -> list[int]:
    return [int(match[1]) for line in text.splitlines() if (match := LINE.fullmatch(line))]


def test_one_plain_line_per_iteration(trained: tuple[Any, Any, Path]) -> None:
    desk, done, run = trained
    first, making, *iterations, finished, reached, folder, page, saved, evaluate, further, curves = (
        done.stdout.splitlines()
    )
    shown = f"~/{run.relative_to(desk.home)}"
    assert first == f"PPO CartPole-v1 in {shown}"
    assert making == "making 4 environments"
    assert lines_of_iterations("\n".join(iterations)) == [1, 2, 3]
    assert len(iterations) == 3
    assert finished == "Finished: training_iteration 3 >= 3"
    last = json.loads((run / "result.json").read_text().splitlines()[-1])
    assert float(reached.removeprefix("  return    ").split()[0]) == pytest.approx(
        last["episode_reward_mean"], rel=1e-3
    )
    assert folder == f"  run       {shown}"
    assert page == f"  report    {shown}/report.html"
    assert saved == "  saved     checkpoint_000003"
    assert evaluate == f"  evaluate  shoal evaluate {shown}"
    assert further == f"  continue  shoal resume {shown} --stop timesteps_total=1536"
    assert curves.startswith(f"  curves    tensorboard --logdir {shown}")
    assert done.stderr == ""


def test_paths_are_short_where_they_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.cli.paths import short_path, typed_path

    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    assert short_path(work / "results" / "a run") == "results/a run"
    assert typed_path(work / "results" / "a run") == "'results/a run'"
    assert short_path(home / "results" / "a run") == "~/results/a run"
    assert typed_path(home / "results" / "a run") == "~/'results/a run'"
    assert short_path(tmp_path / "elsewhere") == typed_path(tmp_path / "elsewhere") == str(tmp_path / "elsewhere")


@pytest.mark.repeats(1)
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
        heard = [child.stdout.readline() for _ in range(5)]
        child.send_signal(signal.SIGINT)
        rest, complaints = child.stdout.read(), child.stderr.read()
    assert lines_of_iterations("".join(heard)) == [1, 2, 3]
    assert (child.returncode, complaints) == (130, "")
    assert "Stopped: interrupted by SIGINT" in rest


def run_in_shell(desk: Any, words: list[str], where: str) -> subprocess.CompletedProcess[str]:
    line = f"set -o pipefail; {shlex.join([desk.command, *words])} {where}"
    return subprocess.run(
        ["bash", "-c", line],
        cwd=desk.work,
        env=desk.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.repeats(1)
@pytest.mark.parametrize(
    ("where", "why"), [("| head -1", "Broken pipe"), ("> /dev/full", "No space left on device"), (">&-", None)]
)
def test_output_that_cannot_be_written_ends_the_view_and_not_the_run(
    desk: Any, small: list[str], where: str, why: str | None
) -> None:
    words = ["train", "CartPole-v1", "--stop", "training_iteration=5", *small]
    done = run_in_shell(desk, words, where)
    assert done.returncode == 0, done.stderr
    (run,) = desk.runs()
    assert (run / "checkpoint_000005").is_dir()
    told = f"stdout cannot be written ({why}): nothing more is printed there, but training continues"
    for text in (done.stderr, (run / "log.txt").read_text()):
        assert text.count("cannot be written") == (why is not None)
        assert why is None or told in text
    assert len(done.stderr.splitlines()) == (why is not None)


@pytest.mark.parametrize("words", ["--help", "config show", "train CartPole-v1 --dry-run"])
def test_a_full_disk_is_one_sentence(desk: Any, words: str) -> None:
    done = run_in_shell(desk, words.split(), "> /dev/full")
    told = "Error: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


@pytest.mark.parametrize("words", ["train CartPole-v9", "train --no-such-option", "tarin"])
def test_the_exit_code_is_the_same_if_stderr_is_full(desk: Any, words: str) -> None:
    done = run_in_shell(desk, words.split(), "2> /dev/full")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(("where", "code"), [("> /dev/full", 1), ("| head -1", 0)])
def test_evaluate_writes_its_file_though_its_output_is_lost(
    trained: tuple[Any, Any, Path], where: str, code: int
) -> None:
    desk, _, run = trained
    before = set(run.glob("evaluation_*.json"))
    done = run_in_shell(desk, ["evaluate", str(run), "--episodes", "1"], where)
    (new,) = set(run.glob("evaluation_*.json")) - before
    assert json.loads(new.read_text())["episodes_this_iter"] == 1
    told = "Error: the output cannot be written: No space left on device; the results are in "
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(told) if code else done.stderr == ""


def test_a_run_that_nobody_reads_still_ends_as_it_should(desk: Any, small: list[str]) -> None:
    with desk.start("train", "CartPole-v1", "--stop", "timesteps_total=1e9", *small) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert "Broken pipe" in child.stderr.readline()
        child.send_signal(signal.SIGTERM)
        assert child.stderr.read() == ""
    assert child.returncode == 143
    (run,) = desk.runs()
    assert list(run.glob("checkpoint_*"))


def test_quiet_prints_only_the_start_and_the_end(desk: Any, small: list[str]) -> None:
    done = desk.shoal("train", "CartPole-v1", "--stop", "training_iteration=2", "--quiet", *small)
    (run,) = desk.runs()
    first, finished, reached, folder = done.stdout.splitlines()[:4]
    assert (first, finished) == (f"PPO CartPole-v1 in {folder[12:]}", "Finished: training_iteration 2 >= 2")
    assert reached.startswith("  return    ")
    assert folder == f"  run       ~/{run.relative_to(desk.home)}"
    assert lines_of_iterations(done.stdout) == []
    assert done.stderr == ""


def test_what_a_run_leaves(trained: tuple[Any, Any, Path]) -> None:
    _, _, run = trained
    visible = {path.name for path in run.iterdir() if not path.name.startswith((".", "events."))}
    files = {"config.yaml", "experiment.json", "progress.csv", "result.json", "log.txt", "outcome.json", "report.html"}
    files.add("chain.jsonl")
    assert visible - {path.name for path in run.glob("evaluation_*.json")} == {*files, "checkpoint_000003"}
    assert len(list(run.glob("events.out.tfevents.*"))) == 1
    rows = [json.loads(line) for line in (run / "result.json").read_text().splitlines()]
    assert [row["timesteps_total"] for row in rows] == [256, 512, 768]
    assert len((run / "progress.csv").read_text().splitlines()) == 4


def test_the_same_command_again_says_that_the_run_is_finished(trained: tuple[Any, Any, Path], small: list[str]) -> None:
    desk, _, run = trained
    done = desk.shoal("train", "CartPole-v1", "--stop", "training_iteration=3", *small)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == f"~/{run.relative_to(desk.home)} is finished: training_iteration 3 >= 3."
    assert "--new" in done.stdout
    assert desk.runs() == [run]


@pytest.mark.parametrize("name", ["make_context", "invoke"])
def test_ctrl_c_has_one_exit_code_also_before_a_command_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(click.Group, name, interrupted)
    done = CliRunner().invoke(main, ["version"])
    assert (done.exit_code, done.output) == (130, "")
