"""A run's chain of receipts, and what `verify` makes of runs that were tampered with."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.config.experiment import experiment_from
from shoal.data.state import State
from shoal.envs.importing import UserCode
from shoal.runs.chain import CHAIN_FILE, Chain, machine_differences, read_chain
from shoal.runs.checkpoints import newest_good, newest_summary, read_checkpoint, write_checkpoint
from shoal.runs.lease import Lease
from shoal.runs.outcomes import Outcome, OutcomeKind, write_outcome
from shoal.runs.reproducing import reproduce
from shoal.runs.resuming import stored_tree
from shoal.runs.run import Run
from shoal.runs.user_files import file_hashes, keep_code, user_files
from shoal.runs.verifying import listed_checkpoints, verify_run

HEAD = {"seed": 3, "blas": "openblas", "versions": {"numpy": "2.0"}}


def state(iteration: int, weight: float = 1.0) -> State:
    values: dict[str, Any] = {
        "training_iteration": iteration,
        "timesteps_total": 10 * iteration,
        "env_failures_total": 0,
        "time_total_s": 1.5,
        "policy": {"rng": {"state": 2**100}, "layers": [1]},
        "learner": {"passes": iteration},
        "episodes": {"total": 2, "recent": [[0, weight, 5, {}]]},
    }
    arrays = {"policy/params": np.full(3, weight, np.float32), "learner/replay.obs": np.full(2, weight)}
    return State(values, arrays)


def written(folder: Path, *states: State, after: int = 0) -> None:
    chain = Chain(folder, after, HEAD)
    for one in states:
        chain.append(one)
    chain.close()


def test_a_chain_that_goes_on_is_the_one_that_never_stopped(tmp_path: Path) -> None:
    straight, resumed = tmp_path / "a", tmp_path / "b"
    straight.mkdir(), resumed.mkdir()
    written(straight, *map(state, range(1, 6)))
    written(resumed, *map(state, range(1, 5)))
    with open(resumed / CHAIN_FILE, "ab") as file:
        file.write(b'{"iteration": 5, "time')  # a kill -9 in the middle of a line
    written(resumed, *map(state, range(3, 6)), after=2)
    assert (resumed / CHAIN_FILE).read_bytes() == (straight / CHAIN_FILE).read_bytes()
    found = read_chain(resumed)
    assert found is not None
    assert list(found.links) == [1, 2, 3, 4, 5]
    assert not found.problems
    assert found.head["seed"] == 3


def test_the_link_depends_on_weights_and_not_on_replay_or_times(tmp_path: Path) -> None:
    first, other = state(1), state(1, weight=2.0)
    written(tmp_path, first)
    before = read_chain(tmp_path)
    assert before is not None
    same = State(
        {**other.values, "time_total_s": 9.0},
        {**first.arrays, "learner/replay.obs": other.arrays["learner/replay.obs"]},
    )
    written(tmp_path, same)
    again = read_chain(tmp_path)
    assert again is not None
    assert again.links == before.links
    written(tmp_path, other)
    changed = read_chain(tmp_path)
    assert changed is not None
    assert changed.links[1].differing(before.links[1]) == ["weights"]
    assert changed.links[1].link != before.links[1].link


def test_another_machine_and_a_run_without_a_chain_are_written_down(tmp_path: Path) -> None:
    written(tmp_path, state(5), after=4)
    moved = Chain(tmp_path, 5, {**HEAD, "blas": "mkl"})
    moved.append(state(6))
    moved.close()
    found = read_chain(tmp_path)
    assert found is not None
    assert not found.problems
    assert (found.begins_after, list(found.links)) == (4, [5, 6])
    assert found.machines == ((5, {"versions": {"numpy": "2.0"}, "blas": "mkl"}),)
    assert machine_differences(HEAD, {**HEAD, "blas": "mkl"}) == ["blas: openblas there, mkl here"]


def test_a_state_that_is_replaced_has_another_link(tmp_path: Path) -> None:
    chain = Chain(tmp_path, 0, HEAD)
    chain.append(state(1))
    chain.append(state(2))
    chain.again(state(2, weight=5.0))
    chain.append(state(3))
    chain.close()
    replaced = read_chain(tmp_path)
    written(tmp_path, state(3), after=2)
    assert read_chain(tmp_path) == replaced, "a run that goes on from there goes on with the other"
    chain = Chain(tmp_path, 3, HEAD)
    chain.again(state(3, weight=6.0))
    chain.close()
    replaced = read_chain(tmp_path)
    (tmp_path / CHAIN_FILE).unlink()
    written(tmp_path, state(1), state(2, weight=5.0), state(3, weight=6.0))
    assert read_chain(tmp_path) == replaced
    assert replaced is not None
    assert not replaced.problems


def test_what_is_no_chain_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / CHAIN_FILE).write_text("something else\n")
    written(tmp_path, state(1))
    assert (tmp_path / f"{CHAIN_FILE}.damaged").read_text() == "something else\n"
    found = read_chain(tmp_path)
    assert found is not None
    assert list(found.links) == [1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four iterations that was resumed in between."""
    folder = tmp_path_factory.mktemp("trained")
    keys = {"env": "CartPole-v1", "results_dir": str(folder), "checkpoint_freq": 1, "stop": {"training_iteration": 4}}
    config = {"train_batch_size": 128, "num_envs_per_worker": 2, "num_sgd_iter": 1, "seed": 5}
    tree = {"name": "one", **keys, "report": False, "config": config}
    first = Run.open(experiment_from(tree))
    list(islice(first.results(), 2))
    list(Run.open(experiment_from(tree)).results())
    straight = Run.open(experiment_from({**tree, "name": "two"}))
    list(straight.results())
    assert (straight.folder / CHAIN_FILE).read_bytes() == (first.folder / CHAIN_FILE).read_bytes()
    return first.folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / trained.name)


def problems(run: Path) -> list[str]:
    return [f"{one.check}: {one.text}" for one in verify_run(run) if one.verdict == "problem"]


def test_a_resumed_run_has_the_chain_of_a_straight_one_and_is_verified(run: Path) -> None:
    assert problems(run) == []
    listed = listed_checkpoints(run)
    assert [one.iteration for one in listed] == [1, 2, 3, 4]
    assert [one.is_newest for one in listed] == [False, False, False, True]
    assert sum(one.is_best for one in listed) == 1
    assert len({one.sha256 for one in listed}) == 4


def test_a_line_that_is_cut_off_is_told_of(run: Path) -> None:
    whole = (run / CHAIN_FILE).read_bytes()
    (run / CHAIN_FILE).write_bytes(whole + b'{"iteration": 5, "wei')
    chain, *_ = verify_run(run)
    assert (chain.check, chain.verdict) == ("chain", "note")
    assert "4 iterations" in chain.text
    assert "its last line is cut off" in chain.text
    (run / CHAIN_FILE).write_bytes(whole[:-20])
    found = [(one.check, one.verdict) for one in verify_run(run)]
    assert found[0] == ("chain", "note")
    assert ("checkpoint_000004", "problem") in found, "whose receipt it was"


def forged(run: Path) -> None:
    """A checkpoint with weights of its own and right hashes."""
    there = read_checkpoint(run / "checkpoint_000003")
    there.state.arrays["policy/params"][0] += 1
    write_checkpoint(run, there.state, there.experiment_tree, there.summary)


def flipped(run: Path) -> None:
    file = run / "checkpoint_000003" / "arrays.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def swapped(run: Path) -> None:
    shutil.rmtree(run / "checkpoint_000003")
    shutil.copytree(run / "checkpoint_000002", run / "checkpoint_000003")


def other_link(run: Path) -> None:
    lines = (run / CHAIN_FILE).read_text().splitlines()
    entry = json.loads(lines[2])
    lines[2] = json.dumps({**entry, "weights": entry["optimiser"]})
    (run / CHAIN_FILE).write_text("\n".join(lines) + "\n")


def lost_link(run: Path) -> None:
    lines = (run / CHAIN_FILE).read_text().splitlines()
    (run / CHAIN_FILE).write_text("\n".join(lines[:2] + lines[3:]) + "\n")


def other_head(run: Path) -> None:
    text = (run / CHAIN_FILE).read_text()
    (run / CHAIN_FILE).write_text(text.replace('"seed": 5', '"seed": 6', 1))


def cut_off(run: Path) -> None:
    lines = (run / CHAIN_FILE).read_text().splitlines()
    (run / CHAIN_FILE).write_text("\n".join(lines[:4]) + "\n")


def no_json(run: Path) -> None:
    (run / CHAIN_FILE).write_bytes(b"\xff\xfe\n[1]\n" + b"[" * 100_000 + b"\n")


def no_experiment(run: Path) -> None:
    (run / "experiment.json").write_text("{")


def no_mapping(run: Path) -> None:
    (run / "experiment.json").write_text("[1, 2]")


def odd_stop(run: Path) -> None:
    tree = json.loads((run / "experiment.json").read_text())
    (run / "experiment.json").write_text(json.dumps({**tree, "stop": "soon"}))


def piped_experiment(run: Path) -> None:
    (run / "experiment.json").unlink()
    os.mkfifo(run / "experiment.json")


def no_results(run: Path) -> None:
    (run / "result.json").unlink()


def empty_results(run: Path) -> None:
    (run / "result.json").write_bytes(b"")


def random_results(run: Path) -> None:
    (run / "result.json").write_bytes(bytes(range(256)) * 8)


def results_of_other_types(run: Path) -> None:
    whole = (run / "result.json").read_text().splitlines(keepends=True)
    odd = json.dumps({**json.loads(whole[1]), "timesteps_total": "many"}) + "\n"
    (run / "result.json").write_text("".join([whole[0], odd, *whole[2:]]))


def lines_of(run: Path) -> list[str]:
    return (run / "result.json").read_text().splitlines(keepends=True)


def put_lines(run: Path, *lines: str) -> None:
    (run / "result.json").write_text("".join(lines))


def lost_row(run: Path) -> None:
    first, second, _, last = lines_of(run)
    put_lines(run, first, second, last)


def no_first_row(run: Path) -> None:
    put_lines(run, *lines_of(run)[1:])


def doubled_row(run: Path) -> None:
    first, second, *others = lines_of(run)
    put_lines(run, first, second, second, *others)


def swapped_rows(run: Path) -> None:
    first, second, *others = lines_of(run)
    put_lines(run, second, first, *others)


def few_rows(run: Path) -> None:
    put_lines(run, *lines_of(run)[:2])


def last_row_lost(run: Path) -> None:
    put_lines(run, *lines_of(run)[:-1])


def other_return(run: Path) -> None:
    *others, last = lines_of(run)
    put_lines(run, *others, json.dumps({**json.loads(last), "episode_reward_mean": 500.0}) + "\n")


def other_steps(run: Path) -> None:
    shutil.rmtree(run / "checkpoint_000002")
    first, second, *others = lines_of(run)
    put_lines(run, first, json.dumps({**json.loads(second), "timesteps_total": 300}) + "\n", *others)


def far_row(run: Path) -> None:
    put_lines(run, *lines_of(run), json.dumps({"training_iteration": 10**15, "timesteps_total": 5}) + "\n")


def linked_results(run: Path) -> None:
    (run / "result.json").rename(run / "elsewhere.json")
    (run / "result.json").symlink_to("elsewhere.json")


def piped_results(run: Path) -> None:
    no_results(run)
    os.mkfifo(run / "result.json")


def folder_of_results(run: Path) -> None:
    no_results(run)
    (run / "result.json").mkdir()


def other_code(run: Path) -> None:
    keep_code(run, {"my_env.py": Path(__file__)})
    (run / "code" / "my_env.py").write_text("other = 1")


def relisted_code(run: Path) -> None:
    """A copy of other code, with a list of its own that fits it."""
    lines = (run / CHAIN_FILE).read_bytes().splitlines(keepends=True)
    head = {key: value for key, value in json.loads(lines[0]).items() if key not in ("chain", "sha256")}
    (run / CHAIN_FILE).unlink()
    (run / "mine.py").write_text("POWER = 1\n")
    Chain(run, 0, {**head, "code": file_hashes({"mine.py": run / "mine.py"})}).close()
    with open(run / CHAIN_FILE, "ab") as file:
        file.writelines(lines[1:])
    keep_code(run, {"mine.py": run / "mine.py"})
    assert problems(run) == []
    (run / "mine.py").write_text("POWER = 2\n")
    keep_code(run, {"mine.py": run / "mine.py"})


def test_only_files_that_there_are_belong_to_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    for name, file in (("mine", str(tmp_path / "mine.py")), ("gone", str(tmp_path / "gone.py")), ("ops", "_ops.py")):
        module = ModuleType(name)  # PyTorch has modules whose file is `_ops.py`, in no folder
        module.__file__ = file
        monkeypatch.setitem(sys.modules, name, module)
    (tmp_path / "_ops.py").write_text("another")
    experiment = experiment_from({"env": "CartPole-v1"})
    assert user_files(experiment, UserCode.at(tmp_path)) == {"mine.py": tmp_path.resolve() / "mine.py"}


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (no_experiment, "experiment.json"),
        (no_mapping, "experiment.json is no experiment"),
        (odd_stop, "experiment.json is no experiment"),
        (piped_experiment, "experiment.json is not a regular file"),
        (no_results, "result.json: it is missing, though the run has made iterations"),
        (empty_results, "result.json: it has no result, though the run has made iterations"),
        (random_results, "lines are no results"),
        (results_of_other_types, "result.json: 1 of its 4 lines are no results"),
        (lost_row, "result.json: 3 results; there is none of iteration 3"),
        (no_first_row, "result.json: 3 results; there is none of iteration 1"),
        (doubled_row, "result.json: iteration 2 is in it a second time"),
        (swapped_rows, "result.json: iteration 1 is in it after iteration 2"),
        (few_rows, "result.json: 2 results; there is none of iteration 3 to 4"),
        (last_row_lost, "result.json: 3 results; there is none of iteration 4"),
        (other_return, "result.json: episode_reward_mean of iteration 4 is 500, and "),
        (other_steps, "result.json: timesteps_total of iteration 2 is 300, and 256 in the chain"),
        (far_row, "result.json: it goes to iteration 1000000000000000, and the chain to 4"),
        (relisted_code, "code/mine.py is not that of the chain"),
        (linked_results, "result.json: it is a link"),
        (piped_results, "result.json: it is not a regular file"),
        (folder_of_results, "result.json: it is not a regular file"),
        (other_code, "my_env.py is not what was kept (SHA-256 differs)"),
        (forged, "checkpoint_000003: its files are whole, but its weights are not those of the chain"),
        (flipped, "arrays.safetensors is not what was saved (SHA-256 differs)"),
        (swapped, "checkpoint_000003 is refused: it is of iteration 2, and has another name"),
        (other_link, "the link of iteration 2 does not follow from the one before it"),
        (lost_link, "iteration 3 follows iteration 1"),
        (other_head, "the head is not what was written"),
        (cut_off, "the chain has no iteration 4"),
        (no_json, "it cannot be parsed"),
    ],
)
def test_what_was_tampered_with_is_found(run: Path, harm: Callable[[Path], None], told: str) -> None:
    harm(run)
    assert told in "\n".join(problems(run))


def test_results_that_are_not_there_yet_or_cut_off_are_no_problem(run: Path) -> None:
    with open(run / "result.json", "ab") as file:
        file.write(b'{"training_iteration": 5')
    assert ("result.json", "note") in [(one.check, one.verdict) for one in verify_run(run)]
    (run / "result.json").unlink()
    fork = {"parent": "elsewhere", "iteration": 4, "link": None, "changes": []}
    (run / "fork.json").write_text(json.dumps(fork))
    (run / "outcome.json").unlink()
    assert problems(run) == [], "a fork begins with what its parent has saved"


def ended(run: Path, kind: OutcomeKind | None, sentence: str = "") -> None:
    (run / "outcome.json").unlink()
    if kind is not None:
        write_outcome(run, Outcome(kind, sentence))


def test_a_row_that_a_kill_or_a_full_disk_has_cost_is_no_problem(run: Path) -> None:
    shutil.rmtree(run / "checkpoint_000004")
    last_row_lost(run)
    ended(run, None)
    told = {one.check: one for one in verify_run(run)}["result.json"]
    assert (told.verdict, told.text) == ("note", "3 results; there is none of iteration 4, in which the run was ended")
    few_rows(run)
    assert problems(run) == ["result.json: 2 results; there is none of iteration 3 to 4"], "a kill costs one at most"
    with open(run / "log.txt", "a") as log:
        log.write("result.json cannot be written (No space left on device); training continues.\n")
    assert problems(run) == []
    (run / "log.txt").unlink()
    write_outcome(
        run, Outcome("failed", "checkpoint_000004 could not be written: No space left on device", iteration=4)
    )
    assert problems(run) == []


def test_a_run_that_somebody_trains_may_have_a_row_that_its_chain_had_not(run: Path) -> None:
    cut_off(run)
    shutil.rmtree(run / "checkpoint_000004")
    assert problems(run) == ["result.json: it goes to iteration 4, and the chain to 3"]
    with Lease(run):
        assert problems(run) == []


def test_a_run_without_a_chain_has_its_rows_compared_with_each_other(run: Path) -> None:
    (run / CHAIN_FILE).unlink()
    assert problems(run) == []
    lost_row(run)
    assert problems(run) == ["result.json: 3 results; there is none of iteration 3"]


def test_checkpoints_that_are_exchanged_are_not_good_and_are_not_gone_on_from(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (run / "checkpoint_000004").rename(run / "aside")
    (run / "checkpoint_000002").rename(run / "checkpoint_000004")
    (run / "aside").rename(run / "checkpoint_000002")
    assert [one.problem is None for one in listed_checkpoints(run)] == [True, False, True, False]
    found = newest_good(run)
    assert found is not None
    assert found.path.name == "checkpoint_000003"
    told = "is refused: it is of iteration 2, and has another name; its own is checkpoint_000002."
    assert f"checkpoint_000004 {told} Trying the one before it." in caplog.text
    assert (newest_summary(run) or {})["training_iteration"] == 3


def test_advice_about_a_damaged_checkpoint_names_what_there_is_to_go_on_from(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def advice() -> set[str]:
        found = verify_run(run)
        return {one.remedy for one in found if one.check.startswith("checkpoint_") and one.verdict == "problem"}

    flipped(run)
    assert advice() == {"the run goes on from checkpoint_000004, without it"}
    for path in run.glob("checkpoint_*"):
        (path / "state.json").write_text("{}")
    assert advice() == {"no checkpoint of the run is good, so nothing is left to go on from"}
    assert newest_good(run) is None
    assert caplog.text.count("Trying the one before it") == 3


@pytest.mark.parametrize("content", [b"{", b"[1]", None])
def test_a_damaged_experiment_is_that_of_the_newest_checkpoint(run: Path, content: bytes | None) -> None:
    whole = stored_tree(run)
    (run / "experiment.json").unlink()
    if content is None:
        (run / "experiment.json").mkdir()
    else:
        (run / "experiment.json").write_bytes(content)
    assert stored_tree(run) == whole
    assert whole is not None


def test_a_chain_that_ends_before_its_run_is_told_by_who_compares(run: Path, tmp_path: Path) -> None:
    lines = (run / CHAIN_FILE).read_bytes().splitlines(keepends=True)
    (run / CHAIN_FILE).write_bytes(b"".join(lines[:-2]))
    found = reproduce(run, tmp_path / "scratch", 20)
    assert (found.identical_to, found.differs_at, found.unlinked) == (2, None, 4)
    done = CliRunner().invoke(main, ["reproduce", str(run)])
    assert done.exit_code == 1
    assert done.output.endswith("the run goes to iteration 4, of which its chain has no link to compare with\n")
    assert CliRunner().invoke(main, ["reproduce", str(run), "--iterations", "2"]).exit_code == 0


def test_a_damaged_checkpoint_is_listed_as_such(run: Path) -> None:
    flipped(run)
    assert [one.problem is None for one in listed_checkpoints(run)] == [True, True, False, True]


SHORT = {"train_batch_size": 256, "num_envs_per_worker": 4}
REPLAY = {"replay_buffer_config": {"capacity": 2000, "prioritized_replay": True}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "env", "config"),
    [
        ("TRPO", "CartPole-v1", SHORT),
        ("DQN", "CartPole-v1", {"learning_starts": 200, "timesteps_per_iteration": 400, **REPLAY}),
        ("ES", "CartPole-v1", {}),
    ],
)
def test_every_kind_of_learner_resumes_and_is_reproduced_with_the_same_links(
    algorithm: str, env: str, config: dict[str, Any], tmp_path: Path
) -> None:
    tree = {"name": "one", "run": algorithm, "env": env, "results_dir": str(tmp_path), "report": False}
    tree |= {"checkpoint_freq": 1, "stop": {"training_iteration": 4}, "config": {**config, "seed": 3}}
    first = Run.open(experiment_from(tree))
    list(islice(first.results(), 2))
    list(Run.open(experiment_from(tree)).results())
    found = reproduce(first.folder, tmp_path / "scratch", 20)
    assert (found.identical_to, found.differs_at) == (4, None), found.details
    assert problems(first.folder) == []
