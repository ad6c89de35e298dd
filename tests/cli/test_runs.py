"""`shoal runs`: real runs, listed, chosen, sorted, deleted and moved."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from fake_runs import fake_run

import shoal
from shoal.cli.main import main
from shoal.reports.records import results_of
from shoal.runs import atomic_files
from shoal.runs.lease import LEASE, Lease, holder

SMALL = {"num_envs_per_worker": 2, "train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1}


def typed(*words: str | Path, answer: str = "") -> Result:
    return CliRunner().invoke(main, ["runs", *map(str, words)], input=answer)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs and one that its program left."""
    root = tmp_path_factory.mktemp("results")
    for name, lr, left in (("first", 1e-3, False), ("second", 1e-2, False), ("third", 1e-2, True)):
        tree = {
            "env": "CartPole-v1",
            "name": name,
            "results_dir": str(root),
            "stop": {"training_iteration": 3},
            "config": {**SMALL, "lr": lr},
        }
        for result in shoal.run(tree):
            if left and result["training_iteration"] == 2:
                break
    return root


def test_a_row_is_one_line_whatever_a_folder_is_called(tmp_path: Path) -> None:
    fake_run(tmp_path, "a").parent.rename(tmp_path / "a\n  finished  forged\x1b[31m")
    (fake_run(tmp_path, "b") / "experiment.json").write_text("{")
    (tmp_path / "b").rename(tmp_path / "b\nc")
    done = typed(tmp_path)
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    assert sum(r"a\n  finished  forged\x1b[31m/" in line for line in done.output.splitlines()) == 1
    assert done.output.splitlines()[-1].startswith(r"  b\nc/")
    assert len(done.output.splitlines()) == 5


@pytest.mark.parametrize("name", ["a $x_1$", "$HOME", "${x}"])
def test_a_dollar_in_a_name_is_a_letter(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    fake_run(tmp_path / "shoal_results", name, 0)
    for text in (name, tmp_path / "shoal_results" / name):
        done = typed(text)
        assert done.exit_code == 0, done.output
        assert f"1 run in ~/shoal_results/{name}" in done.output
    done = typed("$no_such")
    assert done.exit_code == 2
    assert "there is no run at" in done.output


def test_a_table_of_all(results: Path) -> None:
    done = typed(results)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0].split() == ["best", "last", "steps", "changed", "size", "state", "run", "env", "folder"]
    assert len(lines) == 5
    assert all("finished" in line and "CartPole-v1" in line for line in lines[1:4])
    assert lines[-1] == f"3 runs in {results}"
    assert len([line for line in lines if " 192 " in line]) == 2


def test_conditions_and_order(results: Path) -> None:
    done = typed(results, "--where", "lr > 5e-3 and steps >= 192", "--json")
    (found,) = map(json.loads, done.output.splitlines())
    assert (found["name"], found["state"], found["resumable"]) == ("second", "finished", False)
    assert found["last"]["training_iteration"] == 3
    assert json.loads(typed(results, "--where", "name == 'first'", "--json").output)["name"] == "first"
    names = [json.loads(line)["name"] for line in typed(results, "--sort", "-name", "--json").output.splitlines()]
    assert names == ["first", "second", "third"]
    by_steps = [json.loads(line)["name"] for line in typed(results, "--sort", "-steps", "--json").output.splitlines()]
    assert by_steps[0] == "third"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--where", "episode_reward_meen > 3"], "unknown name episode_reward_meen; did you mean episode_reward_mean"),
        (["--where", "lr >"], "is no formula"),
        (["--where", "lr = 1e-3 and best >= 2"], "has one equals sign; write 'lr == 1e-3 and best >= 2'"),
        (["--where", "lr + 1"], "is no condition; compare something"),
        (["--where", "lr > 'much'"], "holds text against a number"),
        (["--where", "__import__('os').system('true')"], "may use the functions"),
        (["--sort", "stepz"], "--sort: no run has 'stepz'; did you mean steps"),
    ],
)
def test_mistakes(results: Path, words: list[str], sentence: str) -> None:
    done = typed(results, *words)
    assert done.exit_code == 2
    assert sentence in done.output


def test_runs_are_deleted_and_moved_by_their_folders_after_a_question(results: Path, tmp_path: Path) -> None:
    def one(name: str) -> Path:
        (found,) = (results / name).iterdir()
        return found

    first, second = one("first"), one("second")
    refused = typed("rm", results / "first")
    assert (refused.exit_code, first.exists()) == (2, True)
    assert "is not the folder of a run" in refused.output
    with Lease(first):
        for words in (["rm", first, "--yes"], ["mv", first, tmp_path, "--yes"]):
            busy = typed(*words)
            assert busy.exit_code != 0
            assert "is being written by process" in busy.output
            assert "stop it first." in busy.output
    nowhere = typed("mv", first, "", "--yes")
    assert (nowhere.exit_code, first.exists()) == (2, True)
    assert "FOLDER is empty" in nowhere.output
    assert typed("rm", first, answer="n\n").exit_code == 1
    assert first.exists()
    done = typed("rm", first, answer="y\n")
    assert (done.exit_code, first.exists()) == (0, False)
    assert "Delete 1 run?" in done.output
    assert not (results / "first").exists(), "nothing is left in the experiment's folder"
    moved = typed("mv", second, tmp_path / "archive", answer="y\n")
    assert (moved.exit_code, second.exists()) == (0, False)
    assert not (results / "second").exists()
    assert (tmp_path / "archive" / second.name / "experiment.json").exists()
    assert "it is finished; to train it further: shoal resume" in moved.output
    further = shlex.split(moved.output.strip().rpartition("shoal ")[2])
    assert CliRunner().invoke(main, further).exit_code == 0
    assert results_of(tmp_path / "archive" / second.name)[-1]["timesteps_total"] == 2 * 3 * 64
    again = typed("mv", one("third"), one("third") / "inside", "--yes")
    assert again.exit_code == 2
    assert "inside of the run itself" in again.output
    nested = typed("mv", one("third"), tmp_path / "archive" / second.name, "--yes")
    assert (nested.exit_code, one("third").exists()) == (2, True)
    assert "is a run, and a run inside of another is not found" in nested.output
    checkpoint = one("third") / "checkpoint_000001"
    checkpoint.mkdir()
    for name in ("experiment.json", "manifest.json"):
        (checkpoint / name).write_text("{}")
    kept = typed("rm", checkpoint, "--yes")
    assert (kept.exit_code, checkpoint.exists()) == (2, True)
    assert "is not the folder of a run" in kept.output
    twice = typed("rm", one("third"), one("third"), "--yes")
    assert (twice.exit_code, "Deleted 1 run." in twice.output) == (0, True)


def resumed(run: Path) -> subprocess.Popen[str]:
    """Somebody who trains a run further, in a process of its own."""
    command = [sys.executable, "-m", "shoal", "resume", str(run), "--stop", "training_iteration=1000"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def left_run(root: Path) -> Path:
    """A run that its program left after one iteration."""
    tree = {"env": "CartPole-v1", "name": "left", "results_dir": str(root), "stop": {"training_iteration": 3}}
    for _ in shoal.run({**tree, "config": SMALL}):
        break
    (found,) = (root / "left").iterdir()
    return found


def test_a_run_is_held_while_it_is_moved_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, refused = left_run(tmp_path), []

    def tried_by_another(place: Path) -> None:
        refused.append(resumed(place).communicate()[0])

    def slow_copy(source: str, target: str, copy: Callable[[str, str], None] = atomic_files._copy_to_disk) -> None:
        if Path(source) == run / "experiment.json":
            tried_by_another(run)
        copy(source, target)

    def slow_removal(folder: Path, remove: Callable[[Path], None] = atomic_files.remove_folder) -> None:
        if folder.parent == elsewhere:
            tried_by_another(folder)
        remove(folder)

    monkeypatch.setattr(atomic_files, "_copy_to_disk", slow_copy)
    monkeypatch.setattr(atomic_files, "remove_folder", slow_removal)
    before, listed_before = contents(run), one_listed(run)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other_disk:
        elsewhere = Path(other_disk)
        if elsewhere.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is one file system")
        moved = typed("mv", run, elsewhere, "--yes")
        assert (moved.exit_code, run.exists()) == (0, False), moved.output
        assert [found.name for found in elsewhere.iterdir()] == [run.name]
        assert contents(elsewhere / run.name) == before
        assert one_listed(elsewhere / run.name) == listed_before
        removed = typed("rm", elsewhere / run.name, "--yes")
        assert (removed.exit_code, list(elsewhere.iterdir())) == (0, [])
    assert len(refused) == 2
    assert all(f"is being written by process {os.getpid()}" in said for said in refused)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a small tmpfs needs root")
def test_a_run_on_a_full_disk_can_be_deleted(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "shoal", disk], check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        runs = [fake_run(disk, "cart", seed) for seed in range(2)]
        with pytest.raises(OSError, match="No space left"):
            (disk / "filler").write_bytes(bytes(1 << 20))
        with pytest.raises(OSError, match="No space left"), Lease(runs[0]):
            pass
        assert not (runs[0] / LEASE).exists()
        done = typed("rm", *runs, "--yes")
        assert (done.exit_code, list(disk.glob("cart"))) == (0, []), done.output
    finally:
        subprocess.run(["umount", disk], check=True)


def contents(run: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for file in run.rglob("*") if file.is_file()}


def one_listed(run: Path) -> tuple[str, float]:
    """Its state, and when it was changed."""
    found = json.loads(typed(run, "--json").output)
    return found["state"], found["changed"]


def test_a_run_that_somebody_trains_since_the_question_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, others = left_run(tmp_path), []

    def answer(*_: object, **__: object) -> bool:
        others.append(resumed(run))
        until = time.monotonic() + 60
        while holder(run) is None and time.monotonic() < until:
            assert others[0].poll() is None
        return True

    monkeypatch.setattr(click, "confirm", answer)
    moved = typed("mv", run, tmp_path / "archive")
    removed = typed("rm", run, "--yes")
    for refused in (moved, removed):
        assert refused.exit_code == 1
        assert f"is being written by process {others[0].pid}" in refused.output
    os.kill(others[0].pid, signal.SIGINT)
    assert others[0].wait(60) == 130
    assert (run / "experiment.json").exists()
    assert typed("rm", run, answer="y\n").exit_code == 1


def test_runs_that_cannot_be_read_are_named_and_can_be_deleted(tmp_path: Path) -> None:
    fake_run(tmp_path, "whole")
    harmed = fake_run(tmp_path, "harmed")
    (harmed / "experiment.json").write_text('{"name": ')
    said = (
        "1 more run cannot be read, since files are damaged or missing; shoal verify RUN says which, "
        f"shoal runs rm RUN deletes one:\n  harmed/{harmed.name}"
    )
    listed = typed(tmp_path)
    assert listed.exit_code == 0
    assert listed.output.endswith(f"\n1 run in {tmp_path}\n{said}\n")
    as_json = typed(tmp_path, "--json")
    assert [json.loads(line)["name"] for line in as_json.stdout.splitlines()] == ["whole"]
    assert as_json.stderr == f"{said}\n"
    assert typed(tmp_path / "harmed").output == f"{said.replace('harmed/', '')}\n"
    refused = typed("mv", harmed, tmp_path / "elsewhere", "--yes")
    assert (refused.exit_code, harmed.exists()) == (2, True)
    assert "has damaged files and stays where it is" in refused.output
    verified = CliRunner().invoke(main, ["verify", str(harmed)])
    assert verified.exit_code == 1
    assert "experiment.json" in verified.output
    assert typed("rm", harmed, answer="n\n").exit_code == 1
    assert harmed.exists()
    with Lease(harmed):
        assert "is being written by process" in typed("rm", harmed, "--yes").output
    deleted = typed("rm", harmed, answer="y\n")
    assert (deleted.exit_code, harmed.exists()) == (0, False)
    assert "damaged, " in deleted.output


def removed(file: Path) -> None:
    file.unlink()


def made_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def made_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def test_a_checkpoint_is_not_listed_in_the_place_of_its_damaged_run(tmp_path: Path) -> None:
    run, place = left_run(tmp_path / "made"), tmp_path / "place"
    for harm in (removed, made_a_folder, made_a_pipe):
        harmed = shutil.copytree(run, place / "noexp")
        harm(harmed / "experiment.json")
        assert list(harmed.glob("checkpoint_*/experiment.json")), "what was listed in its place"
        for folder in (place, harmed):
            listed = typed(folder)
            assert listed.output.splitlines()[1:] == ["  noexp"], listed.output
        assert CliRunner().invoke(main, ["verify", str(harmed)]).exit_code == 1
        deleted = typed("rm", harmed, answer="y\n")
        assert (deleted.exit_code, harmed.exists()) == (0, False)


@pytest.mark.parametrize("content", [None, b"", b"\xff\x00 no result\n"])
def test_a_run_whose_results_are_damaged_is_listed_as_such(tmp_path: Path, content: bytes | None) -> None:
    harmed = fake_run(tmp_path, "harmed")
    (harmed / "result.json").unlink()
    if content is not None:
        (harmed / "result.json").write_bytes(content)
    fake_run(tmp_path, "whole")
    for _ in range(2):  # also as it is kept
        lines = typed(tmp_path).output.splitlines()
        assert [line.split()[-1].partition("/")[0] for line in lines if "finished!" in line] == ["harmed"]
        assert "  !: its results are damaged or missing; shoal verify FOLDER says more" in lines
    found = {run["name"]: run["damaged"] for run in map(json.loads, typed(tmp_path, "--json").output.splitlines())}
    assert found == {"harmed": True, "whole": False}
    assert CliRunner().invoke(main, ["verify", str(harmed)]).exit_code == 1
    for command in ("plot", "report", "diagnose"):
        done = CliRunner().invoke(main, [command, str(harmed)])
        assert done.exit_code == 2
        assert "result.json cannot be used" in done.output


def test_a_run_with_fewer_results_than_its_chain_has_links_is_listed_as_damaged(tmp_path: Path) -> None:
    tree = {"env": "CartPole-v1", "name": "cut", "results_dir": str(tmp_path), "stop": {"training_iteration": 3}}
    assert len(list(shoal.run({**tree, "config": SMALL}))) == 3
    assert not json.loads(typed(tmp_path, "--json").output)["damaged"]
    (file,) = tmp_path.glob("cut/*/result.json")
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    for _ in range(2):  # also as it is kept
        assert json.loads(typed(tmp_path, "--json").output)["damaged"]


def test_an_experiment_is_listed_by_its_name_and_a_run_deleted_as_the_list_calls_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    first = fake_run(tmp_path / "shoal_results", "cart")
    fake_run(tmp_path / "shoal_results", "other")
    (found,) = map(json.loads, typed("cart", "--json").output.splitlines())
    assert found["path"] == str(first)
    wrong = typed("cat")
    assert (wrong.exit_code, wrong.output.endswith("did you mean cart?\n")) == (2, True)
    for too_much in ("cart", "shoal_results/cart"):
        refused = typed("rm", too_much, "--yes")
        assert "is not the folder of a run" in refused.output
    done = typed("rm", f"cart/{first.name}", "--yes")
    assert (done.exit_code, first.exists()) == (0, False)
    assert len(typed("--json").output.splitlines()) == 1


def test_nothing_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "There are no runs yet" in typed().output
    assert "There are no runs in" in typed(tmp_path).output
