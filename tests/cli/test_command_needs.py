"""What `shoal launch` learns of the command that it is to run, from the command's own --dry-run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.cli.command_needs import capacity_check
from shoal.errors import ConfigError
from shoal.machine.terminal import can_redraw

ONE = [{"CPU": 2.0, "GPU": 0.0}]
Refusal = Callable[..., str]
SWEEP = """
sweep:
  env: CartPole-v1
  run: PPO
  num_samples: 2
  stop: {timesteps_total: 1000}
  config:
    num_workers: 3
    lr: {loguniform: [1.0e-4, 1.0e-2]}
"""


@pytest.fixture
def refusal(desk: Any) -> Refusal:
    """What a command is refused with on these hosts; nothing where it finds room."""

    def asked(*words: str, hosts: Any = ONE) -> str:
        check = capacity_check(words)
        assert check is not None
        done = desk.shoal(*check.question[1:])
        assert done.returncode == 0, done.stderr
        try:
            check.check(done.stdout, hosts)
        except ConfigError as error:
            return str(error)
        return ""

    return asked


@pytest.mark.slow
def test_workers_learners_and_evaluation_are_added_up(refusal: Refusal) -> None:
    train = ("shoal", "train", "CartPole-v1", "--num-workers")
    assert refusal(*train, "2") == ""
    assert refusal(*train, "0") == refusal(*train, "auto") == ""
    assert refusal(*train, "3", "--set", "config.num_cpus_per_worker=0.5") == ""
    assert refusal(*train, "3", hosts=[*ONE, *ONE]) == ""
    assert refusal(*train, "3") == (
        "config.num_workers: 3 workers with num_cpus_per_worker 1 need 3 CPUs, and Ray would have 2; "
        "use --num-workers 2 or auto, let workers share CPUs with --set config.num_cpus_per_worker=0.5, "
        "or offer more CPUs than there are with shoal launch --num-cpus 3"
    )
    evaluated = ("--set", "config.evaluation_num_workers=1", "--set", "config.evaluation_interval=1")
    many = refusal(*train, "2", *evaluated, "--set", "config.num_learners=2")
    assert "3 workers with num_cpus_per_worker 1 (1 of them for evaluation) and 2 learners" in many
    assert "need 5 CPUs" in many
    gpus = refusal(*train, "2", "--set", "config.num_learners=2", "--set", "config.num_gpus=2", hosts=[{"CPU": 8.0}])
    assert "the learners need 2 GPUs, and the hosts have 0" in gpus


def test_a_trial_of_a_sweep_has_a_process_of_its_own(desk: Any, refusal: Refusal) -> None:
    (desk.work / "sweep.yml").write_text(SWEEP)
    assert refusal("shoal", "tune", "-f", "sweep.yml", hosts=[*ONE, *ONE]) == ""
    told = refusal("shoal", "tune", "-f", "sweep.yml")
    assert "a trial needs 4 CPUs" in told
    assert "num_cpus_per_worker" in told
    assert "--num-cpus" in told


@pytest.mark.parametrize(
    "words",
    [
        ("python", "train.py"),
        ("bash", "-c", "shoal train CartPole-v1"),
        ("shoal",),
        ("shoal", "evaluate", "x"),
        ("shoal", "train", "--help"),
        ("shoal", "train", "CartPole-v1", "--ray-address={address}"),
        ("shoal", "tune", "--resume", "x"),
        ("python", "-m", "other", "train"),
    ],
)
def test_what_is_not_understood_is_not_checked(words: tuple[str, ...]) -> None:
    assert capacity_check(words) is None


@pytest.mark.parametrize("described", ["Note: something new\n", "a: [1", "x: 3\n", "x: {config: {what: 1}}\n", ""])
def test_an_answer_that_is_not_understood_refuses_nothing(described: str) -> None:
    for subcommand in ("train", "tune"):
        check = capacity_check(["shoal", subcommand, "x"])
        assert check is not None
        check.check(described, ONE)


def test_the_program_may_be_written_in_several_ways() -> None:
    for program in (["shoal"], ["/opt/rl/bin/shoal"], ["python3.11", "-m", "shoal"]):
        check = capacity_check([*program, "train", "CartPole-v1"])
        assert check is not None
        assert check.question == (*program, "train", "CartPole-v1", "--dry-run")


@pytest.mark.parametrize(
    ("variables", "is_drawn"),
    [
        ({}, True),
        ({"OMPI_COMM_WORLD_RANK": "0"}, False),
        ({"OMPI_COMM_WORLD_RANK": "0", "SHOAL_LIVE_VIEW": "1"}, True),
        ({"SHOAL_LIVE_VIEW": "0"}, False),
        ({"TERM": "dumb", "SHOAL_LIVE_VIEW": "1"}, False),
    ],
)
def test_a_terminal_below_a_launcher_is_no_persons(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_drawn: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for name, value in {"TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    assert can_redraw() == is_drawn
