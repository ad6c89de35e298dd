"""Runs, checkpoints and configurations of strangers: they are read, and none of the code that they name runs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

import shoal
from shoal.cli import compare
from shoal.cli.main import main
from shoal.errors import NotTrusted
from shoal.machine.own_key import key_file, own_key
from shoal.reports.reported_runs import read_run
from shoal.runs.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from shoal.runs.run import Run
from shoal.runs.trust import MARK, is_own, marked
from shoal.tune.sweep_run import SweepRun

SMALL = {"train_batch_size": 64, "sgd_minibatch_size": 32, "num_envs_per_worker": 2, "model": {"fcnet_hiddens": [8]}}

EVIL = """
import pathlib
pathlib.Path({canary!r}).touch()
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from shoal import DefaultCallbacks
class Env(CartPoleEnv): pass
class Hooks(DefaultCallbacks): pass
def task(train_results, task_settable_env, env_ctx): return 1
"""

Forge = Callable[[str, str], dict[str, Any]]
"""From the folder of a stranger's module and the command that leaves a canary to what is forged, by dotted key."""

HOSTILE: dict[str, Forge] = {
    "a function of Python's own": lambda _, touch: {"env": "os:system", "env_config": {"command": touch}},
    "with a dot": lambda _, touch: {"env": "os.system", "env_config": {"command": touch}},
    "a process": lambda _, touch: {"env": "subprocess:run", "env_config": {"args": touch, "shell": True}},
    "a module": lambda folder, _: {"env": "{module}:Env", "search_path": [folder]},
    "a dotted module": lambda folder, _: {"env": "{module}.Env", "search_path": [folder]},
    "a package's id": lambda folder, _: {"env": "{module}:CartPole-v1", "search_path": [folder]},
    "a file": lambda folder, _: {"env": folder + "/{module}.py:Env"},
    "a program": lambda _, touch: {"env": {"command": ["sh", "-c", touch], "protocol": "lines"}},
    "hooks": lambda folder, _: {"callbacks": "{module}:Hooks", "search_path": [folder]},
    "a task function": lambda folder, _: {"env_task_fn": "{module}:task", "search_path": [folder]},
    "a wrapper": lambda folder, _: {"wrappers": ["{module}:Env"], "search_path": [folder]},
    "a wrapper's function": lambda *_: {"wrappers": [{"TransformReward": {"func": "os:system"}}]},
    "a model": lambda folder, _: {"model.custom_model": "{module}:Env", "search_path": [folder]},
    "a policy's model": lambda folder, _: {
        "multiagent": {"policies": {"one": {"model": {"custom_model": "{module}:Env"}}}},
        "search_path": [folder],
    },
    "a distribution": lambda folder, _: {"model.custom_action_dist": "{module}:Env", "search_path": [folder]},
    "a module for an installed package": lambda folder, _: {
        "env_config": {"env_id": "{module}:Env"},
        "search_path": [folder],
    },
}
MODELS = ("a policy's model", "a model", "a distribution")


def forged(name: str, tmp_path: Path, origin: Checkpoint) -> tuple[Path, Path]:
    """A run that looks like any other, but for what it names; and the file that is there if any of that has run."""
    folder, canary = tmp_path / "stranger", tmp_path / "canary"
    folder.mkdir()
    module = f"evil_{abs(hash(str(tmp_path))):x}"
    (folder / f"{module}.py").write_text(EVIL.format(canary=str(canary)))
    changes = HOSTILE[name](str(folder), f"touch {canary}")
    changes = json.loads(json.dumps(changes).replace("{module}", module))
    tree = json.loads(json.dumps(origin.experiment_tree))
    for key, value in changes.items():
        if key == "search_path":
            tree[key] = value
        elif key.startswith("model."):
            tree["config"]["model"][key.removeprefix("model.")] = value
        else:
            tree["config"][key] = value
    return run_of(tree, folder / "run", origin), canary


def run_of(tree: Mapping[str, Any], run: Path, origin: Checkpoint) -> Path:
    write_checkpoint(run, origin.state, tree, {"training_iteration": 1, "timesteps_total": 64})
    (run / "experiment.json").write_text(json.dumps(tree))
    result = {"training_iteration": 1, "timesteps_total": 64, "episode_reward_mean": 20.0, "episodes_total": 3}
    (run / "result.json").write_text(json.dumps(result) + "\n")
    config = {key: value for key, value in tree.items() if key not in ("search_path", MARK)}
    (run / "config.yaml").write_text(json.dumps({config.pop("name"): config}))
    incident = {
        "number": 1, "time": 0.0, "env_index": 0, "worker_index": 0, "host": "", "kind": "raised", "cause": "x",
        "step": 1, "steps_since_seed": 1, "seed": 1, "seeding": 0, "actions": [[0]], "scratch": None,
    }  # fmt: skip
    (run / "incidents.jsonl").write_text(json.dumps(incident) + "\n")
    return run


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    with shoal.PPO(env="CartPole-v1", config=SMALL) as trainer:
        return read_checkpoint(trainer.save(tmp_path_factory.mktemp("origin")))


def typed(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=True)


READING = {
    "runs": lambda run: typed("runs", run.parent),
    "report": lambda run: typed("report", run),
    "diagnose": lambda run: typed("diagnose", run, "--no-play"),
    "plot": lambda run: typed("plot", run, "-o", run.parent / "curve.svg"),
    "verify": lambda run: typed("verify", run),
    "incidents": lambda run: typed("incidents", run),
    "model": lambda run: typed("model", run),
}
FILES = ("result.json", "outcome.json", "config.yaml", "experiment.json", ".lease", ".started", "chain.jsonl",
         "incidents.jsonl", "fork.json", "log.txt", "evaluation_1.json")  # fmt: skip


@pytest.mark.parametrize("kind", ["pipe", "folder", "deep", "endless"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_of_ours_hangs_no_command(name: str, kind: str, tmp_path: Path, origin: Checkpoint) -> None:
    def too_late(*_: object) -> NoReturn:
        raise AssertionError("it waits for ever")

    run = run_of(origin.experiment_tree, tmp_path / "stranger" / "PPO_run_0a1b2_2026-11-19_00-00-00", origin)
    (run / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(run / name)
    elif kind == "folder":
        (run / name).mkdir()
    elif kind == "endless":
        with open(run / name, "wb") as file:
            file.truncate(1 << 36)  # of zeros, on no disk
    else:
        (run / name).write_text("[" * 100_000)
    before = signal.signal(signal.SIGALRM, too_late)
    try:
        for command, call in READING.items():
            signal.alarm(60)
            result = call(run)
            assert result.exit_code in (0, 1, 2), (command, result.output)
            assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exc_info)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def served_of(run: Path) -> Any:
    """What `shoal serve` would serve, after it has acted; or why it does not."""
    from shoal.serving.served_policy import PolicySource, Question, ServedPolicy

    try:
        served = ServedPolicy(PolicySource("policy", run))
    except NotTrusted as error:
        return error
    return served.answer([Question(served.rows_of([[0.0] * 4], "observations"), explore=False)])


COMMANDS: dict[str, Callable[[Path], Result]] = {
    "resume": lambda run: typed("resume", run, "--stop", "training_iteration=2"),
    "evaluate": lambda run: typed("evaluate", run, "--episodes", "1"),
    "diagnose": lambda run: typed("diagnose", run, "--episodes", "1"),
    "replay": lambda run: typed("replay", run, "1"),
    "profile": lambda run: typed("profile", run, "--seconds", "0.5"),
    "train -f": lambda run: typed("train", "-f", run / "config.yaml", "--dry-run"),
    "check -f": lambda run: typed("check", "-f", run / "config.yaml"),
    "play": lambda run: typed("play", run, "--episodes", "1"),
    "reproduce": lambda run: typed("reproduce", run, "--iterations", "1"),
    "fork": lambda run: typed("fork", run, "--at", "1", "--set", "config.lr=1e-4"),
    "bisect": lambda run: typed("bisect", broken(run)),
}


def broken(run: Path) -> Path:
    """The run, with results of a collapse."""
    lines = [
        {"training_iteration": place + 1, "episode_reward_mean": value} for place, value in enumerate([0, 9, 9, 0, 0])
    ]
    (run / "result.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


@pytest.mark.parametrize("name", HOSTILE)
def test_no_command_runs_what_a_strangers_run_names(name: str, tmp_path: Path, origin: Checkpoint) -> None:
    run, canary = forged(name, tmp_path, origin)
    for command, call in COMMANDS.items():
        result = call(run)
        assert not canary.exists(), f"{command} ran the code of {name}"
        assert result.exit_code == 2, (command, result.output)
        assert "--trust" in result.output, (command, result.output)
        assert result.output.count("\n") <= 2, (command, result.output)
    assert typed("diagnose", run, "--no-play").exit_code in (0, 1)
    assert typed("runs", run.parent).exit_code == 0
    result = typed("model", run)
    assert not canary.exists()
    assert result.exit_code == (2 if name in MODELS else 0), result.output
    served = served_of(run)
    assert not canary.exists()
    assert isinstance(served, NotTrusted) == (name in MODELS), served
    if name in MODELS:
        with pytest.raises(NotTrusted, match="is named by a run that is not yours"):
            shoal.Policy.load(run)
    else:
        assert shoal.Policy.load(run).compute_single_action([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    result = typed("train", "CartPole-v1", "--restore", run, "--results-dir", tmp_path / "results", "--dry-run")
    assert not canary.exists(), result.output


@pytest.mark.parametrize("kind", ["file", "two files", "folder", "folder of the file"])
def test_a_link_does_not_make_a_strangers_run_ones_own(kind: str, tmp_path: Path, origin: Checkpoint) -> None:
    run, canary = forged("a module", tmp_path, origin)
    mine = tmp_path / "mine"
    mine.mkdir()
    file, folder = mine / "link.yaml", mine / "link"
    folder.symlink_to(os.path.relpath(run, mine))
    if kind == "folder of the file":
        file = folder / "config.yaml"
    elif kind == "two files":
        (mine / "first.yaml").symlink_to(os.path.relpath(run / "config.yaml", mine))
        file.symlink_to("first.yaml")
    else:
        file.symlink_to(run / "config.yaml")
    calls: dict[str, Callable[[], Result]] = {
        "train -f": lambda: typed("train", "-f", file, "--dry-run"),
        "check -f": lambda: typed("check", "-f", file),
        "profile -f": lambda: typed("profile", "-f", file, "--seconds", "0.5"),
        "tune -f": lambda: typed("tune", "-f", file, "--dry-run"),
    }
    if kind == "folder":
        calls = {command: partial(call, folder) for command, call in COMMANDS.items() if command != "bisect"}
    for command, call in calls.items():
        result = call()
        assert not canary.exists(), command
        assert result.exit_code == 2, (command, result.output)
        assert "--trust" in result.output, (command, result.output)


def test_a_strangers_checkpoint_in_ones_own_run_names_no_code(tmp_path: Path, origin: Checkpoint) -> None:
    run, canary = forged("a module", tmp_path, origin)
    own = run_of(origin.experiment_tree, tmp_path / "own", origin)
    (theirs,) = run.glob("checkpoint_*")
    linked = own / "checkpoint_000009"
    linked.symlink_to(theirs)
    for words in (("evaluate", linked, "--episodes", "1"), ("evaluate", own, "--episodes", "1")):
        typed(*words)
        assert not canary.exists(), words
    typed("resume", own, "--stop", "training_iteration=10")
    assert not canary.exists()


def test_a_link_to_ones_own_run_needs_no_word(tmp_path: Path, origin: Checkpoint) -> None:
    run = run_of(origin.experiment_tree, tmp_path / "run", origin)
    (tmp_path / "link.yaml").symlink_to(run / "config.yaml")
    assert typed("train", "-f", tmp_path / "link.yaml", "--dry-run").exit_code == 0


def test_a_link_to_the_file_of_a_strangers_sweep_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sweep.json").write_text(json.dumps({"shoal": "0"}))
    tree = {"s": {"env": "os:system", "config": {"lr": {"grid_search": [1e-3]}}}}
    (theirs / "sweep.yaml").write_text(json.dumps(tree))
    (tmp_path / "link.yaml").symlink_to("theirs/sweep.yaml")
    result = typed("tune", "-f", tmp_path / "link.yaml", "--dry-run")
    assert (result.exit_code, result.output.count("\n")) == (2, 1), result.output
    assert f"link.yaml is a link to {theirs}/sweep.yaml, which belongs to {theirs}, which is not yours" in result.output


@pytest.mark.parametrize("name", ["a function of Python's own", "hooks", "a model"])
def test_no_further_seed_of_a_strangers_run_is_trained(name: str, tmp_path: Path, origin: Checkpoint) -> None:
    run, canary = forged(name, tmp_path, origin)
    with pytest.raises(NotTrusted, match="is not a run of yours, and would run"):
        compare._train(read_run(run), [1], is_silent=True, trust=False)
    assert not canary.exists()


@pytest.mark.parametrize("name", ["a function of Python's own", "a module", "a file", "hooks"])
def test_the_code_runs_if_the_user_says_so(name: str, tmp_path: Path, origin: Checkpoint) -> None:
    run, canary = forged(name, tmp_path, origin)
    typed("evaluate", run, "--episodes", "1", "--trust")
    assert canary.exists()


@pytest.mark.parametrize("mark", [None, "00" * 32, "zz", 5, "", ["x"], "another's"])
def test_a_mark_cannot_be_guessed_or_copied(mark: Any, tmp_path: Path, origin: Checkpoint) -> None:
    own = origin.experiment_tree
    assert is_own(own)
    tree = json.loads(json.dumps(own))
    tree["config"]["env"], tree["config"]["env_config"] = "os:system", {"command": f"touch {tmp_path}/canary"}
    tree[MARK] = own[MARK] if mark == "another's" else mark
    assert not is_own(tree)
    with pytest.raises(NotTrusted, match=r"would run env 'os:system', env_config 'touch .*--trust"):
        Run.resume(run_of(tree, tmp_path / "run", origin))
    assert not (tmp_path / "canary").exists()


def test_ones_own_run_needs_no_word_wherever_it_is(tmp_path: Path, origin: Checkpoint) -> None:
    run = run_of(origin.experiment_tree, tmp_path / "run", origin)
    moved = shutil.move(run, tmp_path / "elsewhere")
    assert typed("evaluate", moved, "--episodes", "1").exit_code == 0
    assert typed("train", "-f", moved / "config.yaml", "--dry-run").exit_code == 0


def test_a_strangers_run_of_an_installed_environment_is_played(
    tmp_path: Path, origin: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of({**origin.experiment_tree, MARK: None, "search_path": [str(tmp_path)]}, tmp_path / "run", origin)
    for module in ("pygame", "box2d", "ale_py", "safetensors"):  # which an environment may import at any time
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert typed("evaluate", run, "--episodes", "1").exit_code == 0
    assert not (tmp_path / "canary").exists()


def test_the_environment_may_come_from_the_users_own_folder(
    tmp_path: Path, origin: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, canary = forged("a module", tmp_path, origin)
    text = json.loads((run / "experiment.json").read_text())["config"]["env"]
    module = text.partition(":")[0]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / f"{module}.py").write_text("from gymnasium.envs.classic_control import CartPoleEnv as Env")
    monkeypatch.chdir(mine)
    result = typed("evaluate", run, "--episodes", "1", "--env", text)
    assert result.exit_code == 0, result.output
    assert not canary.exists()


def test_a_strangers_links_are_not_written_through(tmp_path: Path, origin: Checkpoint) -> None:
    run = run_of({**origin.experiment_tree, MARK: None}, tmp_path / "run", origin)
    (tmp_path / "precious").write_text("mine")
    (run / "log.txt").symlink_to(tmp_path / "precious")
    result = typed("resume", run, "--stop", "training_iteration=2")
    assert result.exit_code == 1
    assert "log.txt is a symbolic link" in result.output
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_strangers_sweep_is_not_continued(tmp_path: Path) -> None:
    canary, sweep = tmp_path / "canary", tmp_path / "sweep"
    sweep.mkdir()

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {canary}",)

    (sweep / "ray").mkdir()
    (sweep / "ray" / "tuner.pkl").write_bytes(pickle.dumps(Bomb()))
    tree = {"name": "s", "env": "os:system", "config": {"lr": {"grid_search": [1e-3]}, "env_config": {"command": "x"}}}
    about = {"shoal": "0", "search_path": [], "function": None, "sweep": tree}
    # Also one's own, once it is at another place: what lies beside it may have been exchanged.
    for written in (about, marked(about, tmp_path / "elsewhere"), {**about, "search_path": 5}):
        (sweep / "sweep.json").write_text(json.dumps(written))
        with pytest.raises(NotTrusted, match="pickles"):
            SweepRun.resume(sweep)
        result = typed("tune", "--resume", sweep)
        assert (result.exit_code, canary.exists()) == (2, False), result.output


def test_the_secret_is_private_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert own_key() is None
    key = own_key(make=True)
    assert key is not None
    assert own_key(make=True) == own_key() == key
    assert key_file().stat().st_mode & 0o777 == 0o600
    assert [child.name for child in key_file().parent.iterdir()] == ["own.key"]
    key_file().chmod(0o644)  # somebody may have read it
    assert own_key() is None
    key_file().unlink()
    key_file().symlink_to(tmp_path / "planted")
    (tmp_path / "planted").write_bytes(b"x" * 32)
    assert own_key() is None


def test_without_a_home_a_run_has_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: Checkpoint) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert marked({"env": "CartPole-v1"})[MARK] is None
    assert not is_own(origin.experiment_tree)
