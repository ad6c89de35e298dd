"""The loop of a run, with a trainer that counts instead of learning."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.cli.run_view import tell_begin, tell_end, tell_start
from shoal.config.experiment import Experiment, experiment_from, experiments_from_file
from shoal.data.state import State
from shoal.envs.importing import UserCode
from shoal.errors import CheckpointError, ConfigError, EnvError, ShoalError
from shoal.reports.run_list import listed
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.checkpoints import best_checkpoint, read_checkpoint
from shoal.runs.lease import Lease, holder
from shoal.runs.outcomes import ROOM_FILE, Outcome, write_outcome
from shoal.runs.run import Run, run


class Counter:
    """A trainer whose return is ten times its iteration."""

    at: dict[int, Callable[[], None]] = {}
    stopped = 0
    output = None

    def __init__(self, config: Any, search_path: Any = ()) -> None:
        self.config, self.search_path = config, search_path
        self.workers = SimpleNamespace(steps_sampled=0)
        self.interval = config.evaluation_interval
        self.iteration = 0

    def stop_at(self, stop: Any) -> None:
        pass

    def train_iteration(self) -> dict[str, Any]:
        self.at.get(self.iteration + 1, lambda: None)()
        self.iteration += 1
        return {
            "training_iteration": self.iteration,
            "timesteps_total": 100 * self.iteration,
            "episode_reward_mean": 10.0 * self.iteration,
            "time_total_s": float(self.iteration),
            "episodes_this_iter": 1,
        }

    @property
    def evaluation_is_due(self) -> bool:
        return self.interval is not None and self.iteration % self.interval == 0

    def evaluate_iteration(self) -> dict[str, Any]:
        return {"episode_reward_mean": 1000.0 - abs(self.iteration - 5)}

    def call_hook(self, name: str, **given: Any) -> None:
        pass

    def get_state(self) -> State:
        return State({"iteration": self.iteration})

    def set_state(self, state: State) -> None:
        self.iteration = state.values["iteration"]

    def stop(self) -> None:
        Counter.stopped += 1


@pytest.fixture(autouse=True)
def _counting(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.runs import trainer

    monkeypatch.setitem(trainer.TRAINERS, "PPO", Counter)  # type: ignore[arg-type]
    monkeypatch.setattr(Counter, "at", {})


def experiment(folder: Path, **keys: Any) -> Experiment:
    stop = keys.pop("stop", {"training_iteration": 7})
    config = keys.pop("config", {})
    tree = {"env": "CartPole-v1", "checkpoint_freq": 3, "results_dir": str(folder), "stop": stop, "config": config}
    return experiment_from({**tree, **keys})


def iterations(results: Any) -> list[int]:
    return [result["training_iteration"] for result in results]


def numbers_of(folder: Path) -> list[int]:
    return [int(path.name[-6:]) for path in checkpoints_of(folder)]


def rows(folder: Path) -> list[int]:
    return [json.loads(line)["training_iteration"] for line in (folder / "result.json").read_text().splitlines()]


def test_a_run_from_start_to_end(tmp_path: Path) -> None:
    opened = Run.open(experiment(tmp_path))
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), logging.getLogger("shoal").handlers[:]
    stopped = Counter.stopped
    assert iterations(opened.results()) == list(range(1, 8))
    assert opened.outcome is not None
    assert (opened.outcome.kind, opened.outcome.sentence) == ("stopped", "training_iteration 7 >= 7")
    assert numbers_of(opened.folder) == [7, 6, 3]
    assert rows(opened.folder) == list(range(1, 8))
    assert Counter.stopped == stopped + 1
    assert holder(opened.folder) is None
    assert "training_iteration 7 >= 7" in (opened.folder / "log.txt").read_text()
    after = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), logging.getLogger("shoal").handlers[:]
    assert before == after


def test_the_config_file_is_the_experiment(tmp_path: Path) -> None:
    opened = Run.open(experiment(tmp_path, name="my runs", config={"lr": 0.01}))
    next(iter(opened.results()))
    (again,) = experiments_from_file(opened.folder / "config.yaml")
    assert again == opened.experiment


def test_keep_checkpoints_num(tmp_path: Path) -> None:
    opened = Run.open(experiment(tmp_path, keep_checkpoints_num=2, checkpoint_freq=1))
    iterations(opened.results())
    assert numbers_of(opened.folder) == [7, 6]


@pytest.mark.parametrize(("score", "kept"), [("", [7, 5]), ("min-", [7, 6, 1])])
def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path: Path, score: str, kept: list[int]) -> None:
    keep = 1 if not score else 2
    name = f"{score}evaluation/episode_reward_mean"
    keys = {"keep_checkpoints_num": keep, "checkpoint_freq": 1, "checkpoint_score_attr": name}
    opened = Run.open(experiment(tmp_path, config={"evaluation_interval": 1}, **keys))
    iterations(opened.results())
    assert numbers_of(opened.folder) == kept
    best = best_checkpoint(opened.folder, name)
    assert best is not None
    assert best.name == f"checkpoint_{kept[-1]:06d}"
    assert best_checkpoint(opened.folder, "no_such_result") is None
    assert best_checkpoint(opened.folder, "training_iteration") == opened.folder / "checkpoint_000007"


@pytest.mark.parametrize("key", ["record_env", "evaluation_num_workers"])
def test_what_only_an_evaluation_reads_needs_one(tmp_path: Path, key: str) -> None:
    asked = experiment(tmp_path, config={key: 1 if "num" in key else True})
    with pytest.raises(ConfigError, match=f"config.{key}: a run without evaluation_interval evaluates nothing"):
        run(asked)
    assert not list(tmp_path.iterdir())


def test_a_metric_that_no_episode_has_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    list(run(experiment(tmp_path, stop={"training_iteration": 2, "custom_metrics/nobody": 3})))
    assert "stop: custom_metrics/nobody: no episode so far has this metric; there are none" in caplog.text


def test_no_checkpoint_at_end(tmp_path: Path) -> None:
    opened = Run.open(experiment(tmp_path, checkpoint_at_end=False))
    iterations(opened.results())
    assert numbers_of(opened.folder) == [6, 3]


def test_evaluation(tmp_path: Path) -> None:
    stop = {"evaluation/episode_reward_mean": 999}
    opened = Run.open(experiment(tmp_path, stop=stop, config={"evaluation_interval": 2}))
    results = list(opened.results())
    assert [result.get("evaluation") for result in results] == [
        None,
        {"episode_reward_mean": 997.0},
        None,
        {"episode_reward_mean": 999.0},
    ]


def send(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.repeats(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", [1, 2, 5])
def test_a_signal_saves_the_last_finished_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, when: int
) -> None:
    monkeypatch.setattr(Counter, "at", {when: send(number)})
    opened = Run.open(experiment(tmp_path))
    assert iterations(opened.results()) == list(range(1, when))
    assert opened.outcome is not None
    assert (opened.outcome.kind, opened.outcome.signal) == ("interrupted", number)
    assert number.name in opened.outcome.sentence
    if when > 1:
        assert read_checkpoint(opened.folder).state.values == {"iteration": when - 1}
    monkeypatch.setattr(Counter, "at", {})
    again = Run.open(experiment(tmp_path))
    assert again.folder == opened.folder
    assert iterations(again.results()) == list(range(when, 8))
    assert rows(again.folder) == list(range(1, 8))


def test_an_environment_that_swallows_everything_delays_the_signal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swallow() -> None:
        with suppress(BaseException):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Counter, "at", {3: swallow})
    opened = Run.open(experiment(tmp_path))
    assert iterations(opened.results()) == [1, 2, 3]
    assert numbers_of(opened.folder) == [3]


def test_a_signal_in_an_evaluation_keeps_the_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counter, "evaluate_iteration", lambda _: os.kill(os.getpid(), signal.SIGINT))
    opened = Run.open(experiment(tmp_path, config={"evaluation_interval": 2}))
    assert iterations(opened.results()) == [1, 2]
    assert rows(opened.folder) == [1, 2]
    assert numbers_of(opened.folder) == [2]


def test_the_loop_body_may_hold_a_signal(tmp_path: Path) -> None:
    opened = Run.open(experiment(tmp_path))
    seen = []
    for result in opened.results(hold_signals=True):
        seen.append(result["training_iteration"])
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)
    assert seen == [1, 2]
    assert opened.outcome is not None
    assert opened.outcome.signal == signal.SIGINT
    assert numbers_of(opened.folder) == [2]


def test_a_program_gets_its_keyboard_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counter, "at", {3: send(signal.SIGINT)})
    results = run(experiment(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        iterations(results)
    (folder,) = (tmp_path / "default").iterdir()
    assert numbers_of(folder) == [2]
    monkeypatch.setattr(Counter, "at", {4: send(signal.SIGTERM)})
    with pytest.raises(SystemExit) as end:
        iterations(run(experiment(tmp_path)))
    assert end.value.code == 143


def interrupted_program(folder: Path) -> None:
    for result in run(experiment(folder)):
        if result["training_iteration"] == 4:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_in_the_loop_body_is_pythons_own_and_saves(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_program(tmp_path)
    (folder,) = (tmp_path / "default").iterdir()
    assert numbers_of(folder) == [4, 3]


def test_leaving_the_loop_saves(tmp_path: Path) -> None:
    opened = Run.open(experiment(tmp_path))
    results = opened.results()
    for result in results:
        if result["training_iteration"] == 4:
            break
    results.close()
    assert opened.outcome is not None
    assert opened.outcome.sentence == "the program left the loop"
    assert numbers_of(opened.folder) == [4, 3]
    assert holder(opened.folder) is None


def test_a_failure_saves_and_passes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise EnvError("too many failures")

    monkeypatch.setattr(Counter, "at", {6: fail})
    opened = Run.open(experiment(tmp_path))
    with pytest.raises(EnvError, match="too many failures"):
        iterations(opened.results())
    assert opened.outcome is not None
    assert opened.outcome.kind == "failed"
    assert numbers_of(opened.folder) == [5, 3]
    assert "too many failures" in (opened.folder / "log.txt").read_text()


def test_a_full_disk_is_tried_again_and_is_an_error_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from shoal.runs import run_folder as module

    real, full = module.write_checkpoint, {3}

    def sometimes(folder: Path, state: State, tree: Any, summary: Any) -> Path:
        if summary["training_iteration"] in full:
            raise CheckpointError("No space left on device")
        return real(folder, state, tree, summary)

    monkeypatch.setattr(module, "write_checkpoint", sometimes)
    opened = Run.open(experiment(tmp_path))
    assert iterations(opened.results()) == list(range(1, 8))
    assert numbers_of(opened.folder) == [7, 6]
    assert "No space left" in caplog.text
    full.add(7)
    again = Run.open(experiment(tmp_path), new=True)
    with pytest.raises(CheckpointError, match="No space left"):
        iterations(again.results())
    assert again.outcome is not None
    assert again.outcome.kind == "failed"
    assert numbers_of(again.folder) == [6]


def test_a_run_that_ends_on_a_full_disk_leaves_word_of_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "shoal", disk], check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        opened = Run.open(experiment(disk, stop={"training_iteration": 50}))

        def fill() -> None:
            opened._kept.wait()
            with open(disk / "filler", "wb", buffering=0) as filler, suppress(OSError):
                while True:
                    filler.write(bytes(4096))

        monkeypatch.setattr(Counter, "at", {5: fill})
        with pytest.raises(CheckpointError, match="No space left on device"):
            iterations(opened.results())
        assert len(rows(opened.folder)) < 50
        found = listed(opened.folder)
        assert found is not None
        assert found.state == "failed"
        (disk / "filler").unlink()
        again = Run.resume(opened.folder)
        assert next(again.results())["training_iteration"] == 4
        assert (again.unsaved, again.resumed_from) == (47, opened.folder / "checkpoint_000003")
        assert not (opened.folder / ROOM_FILE).exists()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_run_whose_every_save_fails_does_not_say_that_no_iteration_was_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shoal.runs import run_folder as module

    def full(*_: Any) -> Path:
        raise CheckpointError("No space left on device.")

    monkeypatch.setattr(module, "write_checkpoint", full)
    opened = Run.open(experiment(tmp_path))
    with pytest.raises(CheckpointError, match="No space left"):
        iterations(opened.results())
    tell_end(opened, error_follows=True)
    assert "nothing is saved, because saving failed" in capsys.readouterr().out


def test_a_run_that_was_taken_over_writes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Run.open(experiment(tmp_path))

    def take_over() -> None:
        opened._kept.wait()  # for the checkpoint that is being written
        (opened.folder / ".lease").write_text("{}")

    monkeypatch.setattr(Counter, "at", {5: take_over})
    with pytest.raises(ShoalError, match="was taken over"):
        iterations(opened.results())
    assert numbers_of(opened.folder) == [3]
    assert rows(opened.folder) == [1, 2, 3, 4]


def state_of(folder: Path) -> str | None:
    found = listed(folder)
    return None if found is None else found.state


def test_a_run_whose_folder_is_moved_is_saved_where_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = Run.open(experiment(tmp_path))
    old, new = opened.folder, tmp_path / "new"

    def move() -> None:
        opened._kept.wait()
        old.rename(new)

    monkeypatch.setattr(Counter, "at", {5: move})
    with pytest.raises(CheckpointError, match=f"was moved to {new} .*saved in {new}/checkpoint_000005"):
        iterations(opened.results())
    assert (opened.folder, opened.last_checkpoint) == (new, new / "checkpoint_000005")
    assert numbers_of(new) == [5, 3]
    assert not old.exists()
    assert holder(new) is None
    assert "moved" not in "".join(record.getMessage() for record in caplog.records if record.levelno > logging.INFO)
    assert rows(new) == [1, 2, 3, 4, 5]
    assert state_of(new) == "failed"
    monkeypatch.setattr(Counter, "at", {})
    assert iterations(Run.resume(new).results()) == [6, 7]
    assert rows(new) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.repeats(1)
@pytest.mark.parametrize("what", ["all", "files", "other"])
def test_a_run_whose_folder_is_deleted_leaves_its_last_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    opened = Run.open(experiment(tmp_path))
    folder = opened.folder

    def delete() -> None:
        opened._kept.wait()
        if what == "files":  # as `rm -rf` does that meets a folder being written
            (folder / ".lease").unlink()
            return
        shutil.rmtree(folder)
        if what == "other":
            folder.mkdir()

    monkeypatch.setattr(Counter, "at", {5: delete})
    with pytest.raises(CheckpointError, match="deleted") as raised:
        iterations(opened.results())
    if what == "other":  # it is not ours
        assert "could not be saved: File exists" in str(raised.value)
        assert opened.last_checkpoint is None
        assert not list(folder.iterdir())
        return
    assert str(raised.value).endswith(f"saved in {folder}/checkpoint_000005.")
    assert holder(folder) is None
    assert state_of(folder) == "failed"
    monkeypatch.setattr(Counter, "at", {})
    assert iterations(Run.resume(folder).results()) == [6, 7]


def test_what_hangs_in_spite_of_a_signal_is_saved_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from shoal.runs import interrupts

    monkeypatch.setattr(interrupts, "INSIST_S", 0.1)
    opened = Run.open(experiment(tmp_path))

    def swallow() -> None:
        with suppress(BaseException):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        deadline = time.monotonic() + 60
        while "does not end" not in caplog.text and time.monotonic() < deadline:
            with suppress(BaseException):
                time.sleep(0.05)
        assert numbers_of(opened.folder) == [4, 3]
        time.sleep(60)

    monkeypatch.setattr(Counter, "at", {5: swallow})
    assert iterations(opened.results()) == [1, 2, 3, 4]
    assert opened.outcome is not None
    assert opened.outcome.sentence == "interrupted by SIGTERM"
    assert opened.saved_words() == f"; the last checkpoint is {opened.folder}/checkpoint_000004."
    (told,) = (line for line in caplog.text.splitlines() if "does not end" in line)
    assert "SIGTERM: training iteration 5 does not end" in told
    assert "checkpoint_000004 is saved; Ctrl-C or SIGTERM ends the process at once." in told


def test_a_disk_that_stays_full_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from shoal.runs import run_folder as module

    def full(*_: Any) -> Path:
        raise CheckpointError("No space left on device.")

    clock = [1000.0]
    monkeypatch.setattr(module, "write_checkpoint", full)
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    monkeypatch.setattr(Counter, "at", {20: lambda: clock.insert(0, 1700.0)})
    opened = Run.open(experiment(tmp_path, checkpoint_freq=1, stop={"training_iteration": 30}))
    with pytest.raises(CheckpointError):
        iterations(opened.results())
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert ["10 min" in told[0], "20 min" in told[1], len(told)] == [True, True, 2]


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.runs import folders
    from shoal.runs import run_folder as module

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "replace_file", full)
        with pytest.raises(CheckpointError, match="No space left"):
            iterations(Run.open(experiment(tmp_path)).results())
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(folders, "write_file", full)
    with pytest.raises(ConfigError, match="No space left"):
        Run.open(experiment(tmp_path))
    assert not list(tmp_path.iterdir())


def test_the_same_experiment_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = Run.open(experiment(tmp_path))
    iterations(first.results())
    done = Run.open(experiment(tmp_path))
    assert (done.folder, done.done) == (first.folder, "training_iteration 7 >= 7")
    assert iterations(done.results()) == []
    assert iterations(run(experiment(tmp_path))) == []
    assert "new=True" in caplog.text
    more = Run.open(experiment(tmp_path, stop={"training_iteration": 9}, checkpoint_freq=1))
    assert (more.folder, more.resumed_from) == (first.folder, first.folder / "checkpoint_000007")
    assert iterations(more.results()) == [8, 9]
    assert rows(first.folder) == list(range(1, 10))
    assert Run.open(experiment(tmp_path), new=True).folder != first.folder


def test_other_settings_are_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counter, "at", {3: send(signal.SIGTERM)})
    first = Run.open(experiment(tmp_path))
    iterations(first.results())
    other = Run.open(experiment(tmp_path, config={"lr": 0.5, "model": {"fcnet_hiddens": [8]}}))
    assert other.folder != first.folder
    assert "config.lr: 0.0007 there, 0.5 here" in other.notes[0]
    assert "config.model.fcnet_hiddens: [64, 64] there, [8] here" in other.notes[0]
    assert Run.open(experiment(tmp_path)).folder == first.folder


def test_a_damaged_newest_checkpoint_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counter, "at", {7: send(signal.SIGTERM)})
    first = Run.open(experiment(tmp_path))
    iterations(first.results())
    monkeypatch.setattr(Counter, "at", {})
    (first.folder / "checkpoint_000006" / "state.json").write_text("{}")
    again = Run.open(experiment(tmp_path))
    said: list[str] = []
    again.on_start = lambda: tell_start(again, said.append)
    assert tell_begin(again, said.append)
    assert iterations(again.results()) == [4, 5, 6, 7]
    lost = "3 finished iterations after it must be trained again"
    assert said[1:] == [f"It continues from checkpoint_000003; {lost}."]
    assert again.resumed_from == first.folder / "checkpoint_000003"
    assert rows(first.folder) == list(range(1, 8))


def test_no_good_checkpoint_is_a_new_run(tmp_path: Path) -> None:
    first = Run.open(experiment(tmp_path))
    iterations(first.results())
    for path in checkpoints_of(first.folder):
        (path / "manifest.json").write_text("{}")
    other = Run.open(experiment(tmp_path))
    assert other.folder != first.folder
    assert "No checkpoint of" in other.notes[0]


def test_a_run_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    first = Run.open(experiment(tmp_path))
    iterations(first.results())
    with Lease(first.folder):
        with pytest.raises(ShoalError, match=r"is being written by .*: stop it, or start another run with --new"):
            Run.open(experiment(tmp_path))
        with pytest.raises(ShoalError, match=r"is being written by .*: stop it first"):
            Run.resume(first.folder)


def test_a_run_without_a_checkpoint_is_left_alone_while_it_trains(tmp_path: Path) -> None:
    first = Run.open(experiment(tmp_path))
    results = first.results()
    next(results)
    assert rows(first.folder) == [1]
    assert numbers_of(first.folder) == []
    with pytest.raises(ShoalError, match=f"{first.folder.name} is being written by"):
        Run.open(experiment(tmp_path))
    assert [result["training_iteration"] for result in results] == [2, 3, 4, 5, 6, 7]
    assert list(first.folder.parent.iterdir()) == [first.folder]


def test_of_commands_that_begin_at_once_one_trains(tmp_path: Path) -> None:
    first, second = (Run.open(experiment(tmp_path)) for _ in range(2))
    assert first.folder != second.folder, "neither has written anything yet"
    apart = Run.open(experiment(tmp_path), new=True)
    results = second.results()
    next(results)
    with pytest.raises(ShoalError, match=f"{second.folder.name} is being written by"):
        next(first.results())
    assert not first.folder.exists()
    assert iterations(apart.results()) == list(range(1, 8))
    assert iterations(results) == list(range(2, 8))


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_run
from shoal.runs import trainer
trainer.TRAINERS["PPO"] = test_run.Counter
test_run.Counter.at = {3: test_run.send(signal.SIGKILL)}
test_run.iterations(test_run.Run.open(test_run.experiment(Path(sys.argv[1]))).results())
"""


def test_a_run_that_was_killed_before_its_first_checkpoint_is_named_and_another_begins(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parent)]
    killed = subprocess.Popen(command)
    assert killed.wait() == -signal.SIGKILL
    (folder,) = (tmp_path / "default").iterdir()
    assert rows(folder) == [1, 2]
    again = Run.open(experiment(tmp_path))
    assert again.folder != folder
    told = f"{folder} has 2 finished iterations and no checkpoint to continue from, so a new run is started"
    assert again.notes[0].startswith(told)
    assert f"(process {killed.pid} on " in again.notes[0]
    assert "disappeared without a word" in again.notes[0]
    assert iterations(again.results()) == list(range(1, 8))
    assert rows(folder) == [1, 2]
    # From now on the command means the new one.
    finished = Run.open(experiment(tmp_path))
    assert (finished.folder, finished.done, finished.notes) == (again.folder, "training_iteration 7 >= 7", ())


def test_an_older_run_that_goes_on_names_the_newer_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counter, "at", {5: send(signal.SIGTERM)})
    older = Run.open(experiment(tmp_path))
    iterations(older.results())
    monkeypatch.setattr(Counter, "at", {})
    command = [sys.executable, "-c", KILLED.replace("(sys.argv[1]))", "(sys.argv[1])), new=True")]
    killed = subprocess.Popen([*command, str(tmp_path), str(Path(__file__).parent)])
    assert killed.wait() == -signal.SIGKILL
    (newer,) = set((tmp_path / "default").iterdir()) - {older.folder}
    assert rows(newer) == [1, 2]
    again = Run.open(experiment(tmp_path))
    assert again.folder == older.folder
    told = (
        f"{newer} has 2 finished iterations and no checkpoint to continue from, so {older.folder.name} is continued. "
    )
    (note,) = (note for note in again.notes if note.startswith(told))
    assert f"(process {killed.pid} on " in note
    assert "\n" not in note


def test_a_run_that_failed_without_a_checkpoint_is_named_with_its_error(tmp_path: Path) -> None:
    first = Run.open(experiment(tmp_path))
    results = first.results()
    next(results)
    results.close()
    shutil.rmtree(checkpoints_of(first.folder)[0])
    write_outcome(first.folder, Outcome("failed", "CheckpointError: the disk is full."))
    again = Run.open(experiment(tmp_path))
    told = "has 1 finished iteration and no checkpoint to continue from, so a new run is started. It ended with: "
    assert f"{told}CheckpointError: the disk is full." in again.notes[0]


def test_resume(tmp_path: Path) -> None:
    first = Run.open(experiment(tmp_path), user_code=UserCode.at(tmp_path / "near"))
    iterations(first.results())
    assert Run.resume(first.folder).done == "training_iteration 7 >= 7"
    more = Run.resume(first.folder.parent, {"stop": {"timesteps_total": 900}})
    assert more.user_code.folders == (str(tmp_path / "near"), os.getcwd())
    assert iterations(more.results()) == [8, 9]
    with pytest.raises(CheckpointError, match="continues from its newest checkpoint"):
        Run.resume(first.folder / "checkpoint_000003")
    assert Run.resume(first.folder / "checkpoint_000009" / "checkpoint-9").done == "timesteps_total 900 >= 900"


def test_the_reward_threshold_is_the_default_stop(tmp_path: Path) -> None:
    opened = Run.open(experiment(tmp_path, stop={}))
    assert opened.experiment.stop == {"episode_reward_mean": 475.0}
    assert "reaches 475" in opened.notes[0]
    assert iterations(opened.results())[-1] == 48
    endless = Run.open(experiment(tmp_path, stop={}, env="Pendulum-v1"))
    assert endless.experiment.stop == {}
    assert "until Ctrl-C" in endless.notes[0]


def test_more_environments_than_a_batch_has_steps_are_told(tmp_path: Path) -> None:
    many = experiment(tmp_path, config={"num_envs_per_worker": 9, "train_batch_size": 4})
    assert "an iteration has 9 steps" in Run.open(many).notes[-1]
    enough = experiment(tmp_path, config={"num_envs_per_worker": 4, "train_batch_size": 4})
    assert not Run.open(enough).notes


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    first = Run.open(experiment(tmp_path))
    iterations(first.results())
    (first.folder / "config.yaml").unlink()
    (first.folder / "config.yaml").mkdir()
    with pytest.raises(CheckpointError, match="cannot be written: Is a directory"):
        iterations(Run.resume(first.folder, {"stop": {"training_iteration": 9}}).results())
    assert holder(first.folder) is None


SCRIPT = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_run
from shoal.runs import trainer
trainer.TRAINERS["PPO"] = test_run.Counter
results = test_run.run(test_run.experiment(Path(sys.argv[1])))
for result in results:
    if result["training_iteration"] == 4:
        raise RuntimeError("the user's own mistake")
"""


def test_a_script_that_fails_in_its_loop_is_saved(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(Path(__file__).parent)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr.rstrip().endswith("RuntimeError: the user's own mistake")
    (folder,) = (tmp_path / "default").iterdir()
    assert numbers_of(folder) == [4, 3]
    assert holder(folder) is None


SECOND_SIGNAL = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_run
from shoal.runs import checkpoints, interrupts, trainer
trainer.TRAINERS["PPO"] = test_run.Counter
test_run.Counter.at = {5: test_run.send(signal.SIGINT)}
interrupts.PRESS_S = 0.0
sync = checkpoints.sync_folder
def impatient(folder):
    if "000004" in folder.name:
        os.kill(os.getpid(), signal.SIGINT)
    sync(folder)
checkpoints.sync_folder = impatient
test_run.iterations(test_run.Run.open(test_run.experiment(Path(sys.argv[1]))).results())
"""


def test_the_second_signal_ends_at_once_and_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SECOND_SIGNAL, str(tmp_path), str(Path(__file__).parent)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    (folder,) = (tmp_path / "default").iterdir()
    words = f"Stopped at once by SIGINT; the last checkpoint is {folder}/checkpoint_000003.\n"
    assert (ended.returncode, ended.stderr) == (130, words)
    assert read_checkpoint(folder).state.values == {"iteration": 3}
    again = Run.open(experiment(tmp_path))
    assert iterations(again.results()) == [4, 5, 6, 7]
    assert rows(folder) == list(range(1, 8))
    assert not list(folder.glob(".tmp-*"))


@pytest.mark.parametrize(
    ("stop", "steps"),
    [
        ({"timesteps_total": 75}, 80),
        ({"episodes_total": 3}, None),
        ({"simulator_calls_total": 90}, None),
        ({"episode_reward_mean": 5}, None),
        ({"episode_reward_max": 20, "timesteps_total": 5000}, None),
    ],
)
def test_every_stop_criterion_is_met_within_one_fragment(tmp_path: Path, stop: dict[str, float], steps: int) -> None:
    config = {"num_envs_per_worker": 2, "rollout_fragment_length": 5, "learning_starts": 20}
    tree = {"env": "CartPole-v1", "run": "DQN", "results_dir": str(tmp_path), "config": config}
    (result,) = Run.open(experiment_from({**tree, "stop": stop})).results()
    assert result["timesteps_total"] < 300
    assert steps in (result["timesteps_total"], None)
    (name, limit), *_ = stop.items()
    assert result[name] >= limit
    # Had it ended with the fragment before, the criterion would not have been met.
    shorter = {"timesteps_total": result["timesteps_total"] - 10}
    (before,) = Run.open(experiment_from({**tree, "stop": shorter, "name": "shorter"})).results()
    assert before["timesteps_total"] == result["timesteps_total"] - 10
    assert before[name] is None or before[name] < limit


def test_a_time_limit_ends_an_iteration_of_many_fragments(tmp_path: Path) -> None:
    config = {"num_envs_per_worker": 2, "rollout_fragment_length": 5, "timesteps_per_iteration": 100_000_000}
    tree = {"env": "CartPole-v1", "run": "DQN", "results_dir": str(tmp_path), "config": config}
    (result,) = Run.open(experiment_from({**tree, "stop": {"time_total_s": 0.2}})).results()
    assert result["time_total_s"] >= 0.2
    assert result["timesteps_total"] < 1_000_000


def test_a_run_that_ends_before_learning_begins_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tree = {"env": "CartPole-v1", "run": "DQN", "results_dir": str(tmp_path), "config": {"num_envs_per_worker": 2}}
    assert iterations(Run.open(experiment_from({**tree, "stop": {"timesteps_total": 500}})).results()) == [1]
    (told,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert told.startswith("nothing is learned: the run ends at 500 steps, and learning begins after")
    assert "config.learning_starts=1000" in told
