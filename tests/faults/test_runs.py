"""Real `shoal` processes that are killed, stopped and started twice: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import concurrent.futures
import contextlib
import csv
import glob
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from desks import DEADLINE_S, WatchedDesk
from gymnasium.envs.classic_control import CartPoleEnv

from shoal.errors import Interrupted
from shoal.machine.control_groups import MOUNT
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.lost_processes import MARKS_FILE

FAULT_ENV = Path(__file__).with_name("fault_env.py")
ITERATIONS = 30
ENDLESS = [
    *("train", "CartPole-v1", "--seed", "3", "--checkpoint-freq", "1"),
    *("--set", "config.train_batch_size=512", "--set", "config.num_envs_per_worker=4"),
    *("--stop", "timesteps_total=1e9"),
]
TRAIN = [*ENDLESS[:-2], "--stop", f"training_iteration={ITERATIONS}"]
TIMES = re.compile(r"time_.*|timers.*|timesteps_per_s")
"""Results that no two runs share."""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[WatchedDesk]:
    desk = WatchedDesk(tmp_path)
    yield desk
    desk.kill_all()


def await_iteration(child: subprocess.Popen[str], least: int) -> int:
    """Read until the line of an iteration that is no earlier than `least`; its number."""
    assert child.stdout is not None
    for line in child.stdout:
        if (match := re.match(r"iter +(\d+) ", line)) and int(match[1]) >= least:
            return int(match[1])
    raise AssertionError(f"the process ended before iteration {least}")


def numbers_of(folder: Path) -> tuple[Any, ...]:
    """All of a run that must be the same however often it was interrupted: both records, and the last checkpoint."""
    results = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    with open(folder / "progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    newest = read_checkpoint(folder)
    arrays = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in newest.state.arrays.items()}
    return (
        [{name: value for name, value in row.items() if not TIMES.fullmatch(name)} for row in results],
        [{name: value for name, value in row.items() if not TIMES.fullmatch(name)} for row in rows],
        {name: value for name, value in newest.state.values.items() if not TIMES.fullmatch(name)},
        arrays,
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    desk = WatchedDesk(tmp_path_factory.mktemp("uninterrupted"))
    desk.run(*TRAIN)
    numbers = numbers_of(desk.run_folder())
    assert [row["training_iteration"] for row in numbers[0]] == list(range(1, ITERATIONS + 1))
    assert len(numbers[1]) == ITERATIONS
    assert {"policy/params", "learner/optimizer.m", "worker0/history"} <= set(numbers[3])
    return numbers


def test_the_same_command_goes_on_after_kill_9(desk: WatchedDesk, uninterrupted: tuple[Any, ...]) -> None:
    for least in (3, 12, 13):
        child = desk.start(*TRAIN)
        await_iteration(child, least)
        assert desk.end(child, signal.SIGKILL)[1] == 137
    printed = desk.run(*TRAIN)
    assert f" in {desk.shown(desk.run_folder())}\nIt continues from checkpoint_0000" in printed
    lost = (
        rf"trained this run before \(process {child.pid} on .*\) disappeared without a word; nothing says that memory"
    )
    assert re.search(lost, printed)
    assert not (desk.run_folder() / MARKS_FILE).exists()
    assert numbers_of(desk.run_folder()) == uninterrupted


@pytest.mark.repeats(1)
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGINT, 130),
        (signal.SIGUSR1, 85),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_ends_without_a_traceback(
    desk: WatchedDesk, uninterrupted: tuple[Any, ...], number: signal.Signals, code: int
) -> None:
    child = desk.start(*TRAIN)
    reached = await_iteration(child, 4)
    printed, ended = desk.end(child, number)
    assert ended == code
    assert desk.complaints() == ""
    folder = desk.run_folder()
    newest = checkpoints_of(folder)[0]
    assert int(newest.name[-6:]) >= reached
    shown = desk.shown(folder)
    for line in (f"Stopped: interrupted by {number.name}", f"saved     {newest.name}", f"shoal resume {shown}\n"):
        assert line in printed
    desk.run("resume", str(folder))
    assert numbers_of(folder) == uninterrupted


@pytest.mark.slow
def test_a_key_that_bounces_is_one_ctrl_c(desk: WatchedDesk, uninterrupted: tuple[Any, ...]) -> None:
    child = desk.start(*TRAIN)
    reached = await_iteration(child, 4)
    child.send_signal(signal.SIGINT)
    printed, code = desk.end(child, signal.SIGINT)
    assert code == 130
    assert "Stopped: interrupted by SIGINT" in printed
    assert desk.complaints() == ""
    # The line of an iteration is printed after its checkpoint is on the disk.
    assert read_checkpoint(desk.run_folder()).summary["training_iteration"] >= reached
    desk.run(*TRAIN)
    assert numbers_of(desk.run_folder()) == uninterrupted


WILFUL = """
import signal, time
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

class Wilful(CartPoleEnv):
    def step(self, action):
        if Path(__file__).with_name("now").exists():
            Path(__file__).with_name("deaf").touch()
            while True:
                try:
                    time.sleep(60)
                except BaseException:
                    pass
        return super().step(action)

class Taking(CartPoleEnv):
    taken = False

    def reset(self, **given):
        if not Taking.taken:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            Taking.taken = True
        return super().reset(**given)
"""


def test_a_second_ctrl_c_ends_at_once_and_says_what_is_saved(desk: WatchedDesk) -> None:
    (desk.home / "wilful.py").write_text(WILFUL)
    child = desk.start("train", "wilful.py:Wilful", *ENDLESS[2:])
    await_iteration(child, 2)
    (desk.home / "now").touch()
    desk.wait_for(child, (desk.home / "deaf").exists)
    while child.poll() is None:  # the first few are one key
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.1)
    assert desk.end(child)[1] == 130
    newest = checkpoints_of(desk.run_folder())[0]
    assert desk.complaints() == f"Stopped at once by SIGINT; the last checkpoint is {newest}.\n"
    read_checkpoint(newest)


def test_handlers_that_an_environment_takes_are_taken_back(desk: WatchedDesk) -> None:
    (desk.home / "wilful.py").write_text(WILFUL)
    child = desk.start("train", "wilful.py:Taking", *ENDLESS[2:])
    reached = await_iteration(child, 2)
    assert desk.end(child, signal.SIGTERM)[1] == 143
    assert read_checkpoint(desk.run_folder()).summary["training_iteration"] >= reached


CRASHING = """
import ctypes
from gymnasium.envs.classic_control import CartPoleEnv

class Crashing(CartPoleEnv):
    def step(self, action):
        ctypes.string_at(0)
"""


def test_a_crash_in_compiled_code_says_where(desk: WatchedDesk) -> None:
    (desk.home / "crashing.py").write_text(CRASHING)
    child = desk.start("train", "crashing:Crashing", "--set", "config.env_isolation=none")
    assert child.wait(DEADLINE_S) == -signal.SIGSEGV
    told = (desk.home / "stderr").read_text()
    assert "Segmentation fault" in told
    assert f'File "{desk.home}/crashing.py", line 7 in step' in told


def test_under_nohup_a_closed_terminal_changes_nothing(desk: WatchedDesk) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which a child inherits
    try:
        child = desk.start(*ENDLESS)
    finally:
        signal.signal(signal.SIGHUP, before)
    reached = await_iteration(child, 2)
    child.send_signal(signal.SIGHUP)
    await_iteration(child, reached + 3)
    assert desk.end(child, signal.SIGTERM)[1] == 143


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGUSR1, 85)])
def test_a_signal_while_python_imports_is_no_traceback(desk: WatchedDesk, number: signal.Signals, code: int) -> None:
    (desk.home / "click").mkdir()
    (desk.home / "click" / "__init__.py").write_text(f"import os\nos.kill(os.getpid(), {number:d})\n")
    assert desk.end(desk.start("train", "CartPole-v1", PYTHONPATH=str(desk.home))) == ("", code)
    assert desk.complaints() == ""


def test_sigterm_at_any_moment_loses_nothing(desk: WatchedDesk, uninterrupted: tuple[Any, ...]) -> None:
    choose = random.Random(11)
    for _ in range(10):
        child = desk.start(*TRAIN)
        moment_s = choose.uniform(0, 1)
        try:
            child.wait(moment_s)
        except subprocess.TimeoutExpired:
            printed, code = desk.end(child, signal.SIGTERM)
            # A run that has just met its criterion still says so, and ends as it would have.
            assert code == 143 or (code == 0 and "Finished" in printed), (moment_s, code, printed)
            assert desk.complaints() == ""
        else:
            assert desk.end(child)[1] == 0
    desk.run(*TRAIN)
    assert numbers_of(desk.run_folder()) == uninterrupted
    assert not list(desk.run_folder().glob(".tmp-*"))


def test_of_two_processes_on_one_run_one_proceeds(desk: WatchedDesk) -> None:
    child = desk.start(*TRAIN)
    await_iteration(child, 1)
    desk.end(child, signal.SIGTERM)
    folder = desk.run_folder()
    resume = ["resume", str(folder), "--quiet", "--stop", "timesteps_total=1e9"]
    children = [desk.start(*resume) for _ in range(2)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ends = {pool.submit(child.wait, DEADLINE_S): child for child in children}
        first = concurrent.futures.wait(ends, return_when=concurrent.futures.FIRST_COMPLETED).done
        (refused,) = (ends[end] for end in first)
        (other,) = (child for child in children if child is not refused)
        assert other.poll() is None
        other.send_signal(signal.SIGTERM)
    assert (refused.returncode, other.returncode) == (1, 143)
    printed, _ = desk.end(other)
    assert "Stopped: interrupted by SIGTERM\n  return    " in printed
    desk.end(refused)
    read_checkpoint(folder)


def test_the_second_process_says_who_has_the_run(desk: WatchedDesk) -> None:
    child = desk.start(*ENDLESS, "--quiet")
    lease = desk.wait_for(child, lambda: next((desk.home / "shoal_results").glob("*/*/.lease"), None))
    second = subprocess.run(
        [sys.executable, "-m", "shoal", "resume", str(lease.parent)], capture_output=True, text=True, check=False
    )
    assert second.returncode == 1
    assert second.stdout == ""
    sentence = f"Error: {lease.parent} is being written by process {child.pid} on "
    assert second.stderr.startswith(sentence)
    assert len(second.stderr.splitlines()) == 1
    # The very same command means this run too; another one says who is running it, and starts a run of its own.
    for words, code, told in (
        (ENDLESS, 1, f"{lease.parent} is being written by process {child.pid} on .* --new"),
        ([*ENDLESS, "--set", "config.lr=1e-4"], 143, f"other settings .*, and process {child.pid} on .* is running it"),
    ):
        another = desk.start(*words)
        assert another.stdout is not None
        heard = []
        for line in another.stdout:
            heard.append(line)
            if line.startswith("iter "):
                another.send_signal(signal.SIGTERM)
        another.stdout.close()
        assert another.wait(DEADLINE_S) == code
        assert re.search(told, "".join(heard) + desk.complaints())
    assert desk.end(child, signal.SIGTERM)[1] == 143


def test_an_environment_that_fails_for_good_ends_the_run_saved_and_with_its_cause(desk: WatchedDesk) -> None:
    settings = {"config.train_batch_size": "400", "config.num_envs_per_worker": "4", "config.max_env_failures": "4"}
    settings |= {"config.env_config": "{mode: nan_reward}"}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    printed, code = desk.end(desk.start("train", f"{FAULT_ENV}:FaultEnv", "--stop", "timesteps_total=1e6", *sets))
    assert code == 1
    folder = desk.run_folder()
    assert [path.name for path in checkpoints_of(folder)] == ["checkpoint_000001"]
    read_checkpoint(folder)
    for line in ("Failed; ", "saved     checkpoint_000001", f"shoal resume {desk.shown(folder)}"):
        assert line in printed
    (error,) = (line for line in desk.complaints().splitlines() if line.startswith("Error"))
    assert re.match(r"Error: environment 1 failed at step 10 .*\(seed \d+ .*, action \d\): .* reward is nan", error)
    assert "max_env_failures is 4" in desk.complaints()
    assert "environment 1 failed at step" not in printed  # it is said once
    assert "The run fails: EnvError: environment 1" in (folder / "log.txt").read_text()


def test_a_trainer_that_is_cut_short_while_it_is_built_closes_its_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.runs import trainer

    closed = []

    class Closing(CartPoleEnv):
        def close(self) -> None:
            closed.append(self)

    def cut_short(*_: Any) -> None:
        raise Interrupted

    monkeypatch.setattr(trainer, "make_learner", cut_short)
    with pytest.raises(Interrupted):
        trainer.PPO(env=lambda _: Closing(), config={"num_envs_per_worker": 3})
    assert len(set(closed)) == 3


@pytest.fixture
def short_folder() -> Iterator[str]:
    """Sockets have short names only."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as folder:
        yield folder


RAY = [*ENDLESS, "--num-workers", "2"]


def test_a_run_with_workers_leaves_no_process_and_no_folder(desk: WatchedDesk, short_folder: str) -> None:
    child = desk.start(*RAY, TMPDIR=short_folder)
    reached = await_iteration(child, 2)
    assert len(desk.processes()) > 3
    assert glob.glob(f"{short_folder}/shl-*")
    printed, code = desk.end(child, signal.SIGTERM)
    assert code == 143, printed + desk.complaints()
    assert read_checkpoint(desk.run_folder()).summary["training_iteration"] >= reached
    assert desk.complaints() == ""
    assert not glob.glob(f"{short_folder}/shl-*")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGSTOP, r"is stopped \(SIGSTOP\)"),
        pytest.param(signal.SIGKILL, "has died", marks=pytest.mark.long),
    ],
)
def test_a_run_whose_raylet_is_stopped_or_killed_ends_saved(
    desk: WatchedDesk, short_folder: str, number: signal.Signals, words: str
) -> None:
    child = desk.start(*RAY, TMPDIR=short_folder)
    reached = await_iteration(child, 2)
    (raylet,) = [process for process in desk.processes() if Path(process.exe()).name == "raylet"]
    raylet.send_signal(number)
    printed, code = desk.end(child)
    assert code == 1, printed + desk.complaints()
    told = rf"the Ray of this run is lost: its process raylet \(pid {raylet.pid}\) {words}; start the same command"
    assert re.search(told, desk.complaints()), printed + desk.complaints()
    assert read_checkpoint(desk.run_folder()).summary["training_iteration"] >= reached
    assert not glob.glob(f"{short_folder}/shl-*")


@pytest.mark.slow
def test_a_run_with_workers_that_is_killed_leaves_no_process_and_no_folder(
    desk: WatchedDesk, short_folder: str
) -> None:
    child = desk.start(*RAY, TMPDIR=short_folder)
    await_iteration(child, 2)
    (folder,) = glob.glob(f"{short_folder}/shl-*")
    _, code = desk.end(child, signal.SIGKILL)
    assert code == 137
    deadline = monotonic() + DEADLINE_S
    while Path(folder).exists():
        assert monotonic() < deadline, "nobody removes the folder with the token"


HUNG = """
import threading
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

class Hung(CartPoleEnv):
    def __init__(self):
        super().__init__()
        looked, hangs = (Path(__file__).with_name(name) for name in ("looked", "hangs"))
        if looked.exists():
            hangs.touch()
            threading.Event().wait()
        looked.touch()
"""


@pytest.mark.slow
def test_constructors_that_hang_in_workers_end_with_the_run(desk: WatchedDesk, short_folder: str) -> None:
    (desk.home / "hung.py").write_text(HUNG)
    (desk.home / "looked").touch()
    child = desk.start("train", "hung.py:Hung", *ENDLESS[2:], "--num-workers", "2", TMPDIR=short_folder)
    desk.wait_for(child, (desk.home / "hangs").exists)
    printed, code = desk.end(child, signal.SIGTERM)
    assert code == 143, printed + desk.complaints()
    assert "Stopped: interrupted by SIGTERM" in printed
    assert not re.search("stack trace|ray::|C\\+\\+|Fatal Python error", printed + desk.complaints())
    assert not glob.glob(f"{short_folder}/shl-*")


@pytest.mark.parametrize("processes", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_workers_that_are_being_started_end_with_the_run(desk: WatchedDesk, short_folder: str, processes: int) -> None:
    child = desk.start(*RAY, TMPDIR=short_folder)
    desk.wait_for(child, lambda: len(desk.processes()) >= processes)
    printed, code = desk.end(child, signal.SIGTERM)
    assert code == 143, printed + desk.complaints()
    assert "Stopped: interrupted by SIGTERM" in printed
    assert not glob.glob(f"{short_folder}/shl-*")


SLOW = """
import time
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

class Slow(CartPoleEnv):
    def step(self, action):
        if Path(__file__).with_name("now").exists():
            time.sleep(0.1)
            Path(__file__).with_name("slow").touch()
        return super().step(action)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_what_a_terminal_or_a_batch_system_sends_to_all_processes_at_once_saves(
    desk: WatchedDesk, short_folder: str, number: signal.Signals, code: int
) -> None:
    (desk.home / "slow.py").write_text(SLOW)
    child = desk.start("train", "slow.py:Slow", *ENDLESS[2:], "--num-workers", "2", TMPDIR=short_folder)
    reached = await_iteration(child, 2)
    (desk.home / "now").touch()  # from here on, a fragment takes a minute
    desk.wait_for(child, (desk.home / "slow").exists)
    os.killpg(child.pid, number)
    printed, ended = desk.end(child)
    assert ended == code, printed + desk.complaints()
    assert read_checkpoint(desk.run_folder()).summary["training_iteration"] >= reached
    assert desk.complaints() == ""


DEADLY = """
import os, signal
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

class Deadly(CartPoleEnv):
    def step(self, action):
        if Path(__file__).with_name("now").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
"""


DEAF = """
import signal
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

class Deaf(CartPoleEnv):
    def reset(self, **options):
        signal.signal(signal.SIGTERM, lambda *_: None)
        return super().reset(**options)

    def step(self, action):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return super().step(action)
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, 85, marks=pytest.mark.slow),
    ],
)
def test_an_environment_that_takes_the_signals_does_not_get_them(
    desk: WatchedDesk, number: signal.Signals, code: int
) -> None:
    (desk.home / "deaf.py").write_text(DEAF)
    child = desk.start("train", "deaf.py:Deaf", *ENDLESS[2:-4], "--checkpoint-freq", "0", *ENDLESS[-2:])
    reached = await_iteration(child, 2)
    printed, ended = desk.end(child, number)
    assert ended == code
    assert f"Stopped: interrupted by {number.name}" in printed
    assert read_checkpoint(desk.run_folder()).summary["training_iteration"] >= reached


@pytest.mark.slow
def test_workers_that_die_again_and_again_leave_a_saved_run_and_the_cause(desk: WatchedDesk, short_folder: str) -> None:
    (desk.home / "deadly.py").write_text(DEADLY)
    words = ["train", "deadly.py:Deadly", *ENDLESS[2:], "--num-workers", "2"]
    child = desk.start(*words, TMPDIR=short_folder)
    reached = await_iteration(child, 2)
    (desk.home / "now").touch()
    printed, code = desk.end(child)
    assert code == 1
    assert re.search(r"worker [12] on \S+ \(pid \d+\) was lost: its process died", desk.complaints())
    assert "times in a row, without a fragment in between" in desk.complaints()
    assert "Failed" in printed
    assert read_checkpoint(desk.run_folder()).summary["training_iteration"] >= reached
    assert not glob.glob(f"{short_folder}/shl-*")
    (desk.home / "now").unlink()
    again = desk.start(*words, TMPDIR=short_folder)
    assert await_iteration(again, reached + 1) > reached
    assert desk.end(again, signal.SIGTERM)[1] == 143


LONG = (pytest.mark.slow, pytest.mark.long)
COMPILED = '''
import ctypes
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

HERE = Path(__file__).parent

def hang(library):
    """Wait for a lock that nobody gives back, which no signal ends; PyDLL also keeps that of the interpreter."""
    (HERE / "hangs").touch()
    lock = ctypes.create_string_buffer(64)
    for _ in range(2):
        library.pthread_mutex_lock(lock)

class Holding(CartPoleEnv):
    def close(self):
        hang(ctypes.PyDLL(None))

class Releasing(CartPoleEnv):
    def close(self):
        hang(ctypes.CDLL(None))

class Stepping(CartPoleEnv):
    def step(self, action):
        if (HERE / "now").exists():
            hang(ctypes.CDLL(None))
        return super().step(action)
'''
IN_C = [*("--seed", "3", "--set", "config.train_batch_size=256", "--set", "report=false")]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("Holding", [], marks=pytest.mark.slow),
        pytest.param("Releasing", [], marks=LONG),
        pytest.param("Holding", ["--set", "config.env_isolation=process"], marks=LONG),
        pytest.param("Holding", ["--num-workers", "1"], marks=pytest.mark.slow),
    ],
)
def test_a_close_that_hangs_in_compiled_code_does_not_hold_the_end(
    desk: WatchedDesk, short_folder: str, name: str, words: list[str]
) -> None:
    (desk.home / "compiled.py").write_text(COMPILED)
    command = ["train", f"compiled.py:{name}", *IN_C, *words, "--stop", "training_iteration=2"]
    printed, code = desk.end(desk.start(*command, TMPDIR=short_folder))
    assert code == 0, printed + desk.complaints()
    assert (desk.home / "hangs").exists()
    run = desk.run_folder()
    assert read_checkpoint(run).summary["training_iteration"] == 2
    assert json.loads((run / "outcome.json").read_text())["kind"] == "stopped"
    assert not glob.glob(f"{short_folder}/shl-*")
    is_left = "the process ends without it; the last checkpoint is" in desk.complaints()
    assert is_left == (not words)


CLOSING = """
import os
from gymnasium.envs.classic_control import CartPoleEnv

class Closing(CartPoleEnv):
    steps = 0

    def step(self, action):
        Closing.steps += 1
        if Closing.steps == 300:
            os.closerange(3, 100)
        return super().step(action)
"""


def test_an_environment_that_closes_the_files_of_others_is_told_in_a_sentence(desk: WatchedDesk) -> None:
    (desk.home / "closing.py").write_text(CLOSING)
    printed, code = desk.end(desk.start("train", "closing.py:Closing", *IN_C, "--stop", "training_iteration=2"))
    assert code == 0, printed + desk.complaints()
    assert "Finished" in printed
    assert "Traceback" not in desk.complaints()
    assert "has closed files that others had opened" in desk.complaints()
    assert read_checkpoint(desk.run_folder()).summary["training_iteration"] == 2


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGUSR1, 85, marks=pytest.mark.slow), pytest.param(signal.SIGTERM, 143, marks=LONG)],
)
def test_a_signal_is_heard_while_a_step_hangs_in_compiled_code(
    desk: WatchedDesk, number: signal.Signals, code: int
) -> None:
    (desk.home / "compiled.py").write_text(COMPILED)
    words = ["train", "compiled.py:Stepping", *IN_C, "--checkpoint-freq", "0", "--stop", "timesteps_total=1e9"]
    child = desk.start(*words)
    reached = await_iteration(child, 2)
    (desk.home / "now").touch()
    desk.wait_for(child, (desk.home / "hangs").exists)
    printed, ended = desk.end(child, number)
    assert ended == code, printed + desk.complaints()
    assert f"Stopped by {number.name} without waiting any longer" in desk.complaints()
    run = desk.run_folder()
    assert read_checkpoint(run).summary["training_iteration"] >= reached
    assert json.loads((run / "outcome.json").read_text())["signal"] == number


THREADS = """
import threading
from gymnasium.envs.classic_control import CartPoleEnv

class Threaded(CartPoleEnv):
    def __init__(self):
        super().__init__()
        threading.Thread(target=threading.Event().wait, name="solver").start()
"""


@pytest.mark.slow
def test_a_thread_that_lives_on_does_not_hold_the_end(desk: WatchedDesk) -> None:
    (desk.home / "threads.py").write_text(THREADS)
    printed, code = desk.end(desk.start("train", "threads.py:Threaded", *IN_C, "--stop", "training_iteration=1"))
    assert code == 0, printed + desk.complaints()
    assert "end with the process: solver" in desk.complaints()


EVALUATED = """
import threading
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

class Evaluated(CartPoleEnv):
    def __init__(self, hangs=False):
        super().__init__()
        self.hangs = hangs

    def step(self, action):
        if self.hangs:
            Path(__file__).with_name("evaluates").touch()
            threading.Event().wait()
        return super().step(action)
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGUSR1, 85, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, marks=LONG),
        pytest.param(signal.SIGINT, 130, marks=LONG),
    ],
)
def test_a_signal_ends_a_long_evaluation_by_a_worker(
    desk: WatchedDesk, short_folder: str, number: signal.Signals, code: int
) -> None:
    (desk.home / "evaluated.py").write_text(EVALUATED)
    words = ["train", "evaluated.py:Evaluated", *IN_C, "--checkpoint-freq", "0", "--stop", "timesteps_total=1e9"]
    words += ["--set", "config.evaluation_interval=2", "--set", "config.evaluation_num_workers=1"]
    words += ["--set", "config.evaluation_config.env_config.hangs=true"]
    child = desk.start(*words, TMPDIR=short_folder)
    desk.wait_for(child, (desk.home / "evaluates").exists)
    printed, ended = desk.end(child, number)
    assert ended == code, printed + desk.complaints()
    assert f"Stopped: interrupted by {number.name}" in printed
    assert desk.complaints() == ""
    # The iteration that the evaluation was of is finished, and saved.
    assert read_checkpoint(desk.run_folder()).summary["training_iteration"] == 2
    assert not glob.glob(f"{short_folder}/shl-*")


LEAKING = """
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

KEPT = []

class Leaking(CartPoleEnv):
    def step(self, action):
        if Path(__file__).with_name("now").exists():
            KEPT.append(b"x" * 50_000_000)
        return super().step(action)
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of this test's own, with 1 GB."""
    for parent, limit in ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (MOUNT, "memory.max")):
        folder = parent / f"shoal-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            try:
                (folder / limit).write_text("1000000000")
                yield folder
                return
            finally:
                folder.rmdir()
    pytest.skip("no control group can be made here")


@pytest.mark.slow
def test_a_run_that_the_kernel_killed_for_memory_says_so(desk: WatchedDesk, small_group: Path) -> None:
    (desk.home / "leaking.py").write_text(LEAKING)
    words = ["train", "leaking.py:Leaking", *ENDLESS[2:]]
    child = desk.start(*words)
    (small_group / "cgroup.procs").write_text(str(child.pid))
    await_iteration(child, 2)
    desk.wait_for(child, lambda: str(small_group) in (desk.run_folder() / MARKS_FILE).read_text())
    (desk.home / "now").touch()
    assert desk.end(child)[1] == 137
    (desk.home / "now").unlink()
    again = desk.start(*words)
    printed = "".join(itertools.takewhile(lambda line: not line.startswith("iter"), again.stdout or []))
    desk.end(again, signal.SIGTERM)
    assert f"(process {child.pid} on " in printed
    assert "disappeared without a word" in printed
    assert re.search("the kernel killed it because memory ran out|memory is the likely cause: the kernel has", printed)
    assert "use a smaller num_envs_per_worker" in printed
