"""Environments in processes of their own: they hang, crash, leak and leave programs behind, and training goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import psutil
import pytest

import shoal
from shoal.data.batch import Sample
from shoal.envs.faults import KINDS, FaultEnv
from shoal.runs.incidents import read_incidents
from shoal.runs.replaying import EpisodeReplay

DEADLINE_S = 60
SETTINGS: dict[str, Any] = {
    "env_isolation": "process",
    "train_batch_size": 400,
    "num_sgd_iter": 2,
    "seed": 5,
    "env_step_timeout_s": 5,
    "env_reset_timeout_s": 6,
    "env_memory_limit_mb": 120,
}
PY_SPY = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
CAUSES = {
    "raise": ("error", "the solver diverged"),
    "exit": ("exit", "exit code 3"),
    "segfault": ("signal", "SIGSEGV"),
    "hang": ("hang", "env_step_timeout_s, which is 5"),
    "gil_hang": ("hang", "env_step_timeout_s, which is 5"),
    "stop": ("hang", "env_step_timeout_s, which is 5"),
    "nan": ("error", "not finite"),
    "shape": ("error", "shape (4,)"),
    "none": ("error", "NoneType"),
    "slow_reset": ("hang", "reset took longer than env_reset_timeout_s, which is 6"),
    "leak": ("memory", "env_memory_limit_mb is 120"),
    "grandchildren": ("signal", "SIGKILL"),
    "changed_shape": ("error", "shape (5,)"),
}


def trainer_for(settings: dict[str, Any] | None = None, **env_config: Any) -> shoal.Trainer:
    return shoal.PPO(env=FaultEnv, config={**SETTINGS, **(settings or {}), "env_config": env_config})


def below(pid: int) -> list[psutil.Process]:
    """The processes below one, but for those that only wait to be buried."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [p for p in found if _lives(p)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Any) -> None:
    until = monotonic() + DEADLINE_S
    while not condition():
        assert monotonic() < until
        sleep(0.05)


@pytest.fixture(autouse=True)
def _nothing_left() -> Any:
    before = {p.pid for p in below(os.getpid())}
    yield
    wait_for(lambda: {p.pid for p in below(os.getpid())} <= before)


def test_every_kind_of_fault_costs_one_step_and_is_written_down(tmp_path: Path) -> None:
    kinds = list(KINDS)
    settings = {"num_envs_per_worker": len(kinds), "seed": 153}  # with which each has one fault, or two
    others = below(os.getpid())
    with trainer_for(settings, every=10, by_index=True, file=str(tmp_path / "faults")) as trainer:
        sample = trainer.workers.sample(20)
        family = [process for process in below(os.getpid()) if process not in others]
        # One fork server and one process for each environment: no program that a fault has started.
        assert len(family) == 1 + len(kinds)
    for index, kind in enumerate(kinds):
        incidents = [i for i in sample.incidents if i.env_index == index]
        if kind == "log_flood":
            assert incidents == []
            assert sample.batch.valid[:, index].all()
            continue
        assert incidents, kind
        expected, words = CAUSES[kind]
        for incident in incidents:
            assert incident.kind == expected, incident
            assert words in incident.cause
            assert incident.actions is not None
            assert len(incident.actions) == incident.steps_since_seed
    faults = [json.loads(line) for line in (tmp_path / "faults").read_text().splitlines()]
    assert {fault["kind"] for fault in faults} == set(kinds)
    assert {tuple(fault.values())[1:] for fault in faults if fault["kind"] != "log_flood"} == {
        (i.env_index, i.seed, i.steps_since_seed, i.step) for i in sample.incidents
    }
    check_truncations(sample)
    (hang, *_) = [i for i in sample.incidents if i.env_index == kinds.index("gil_hang")]
    assert "_go_wrong" in hang.output  # the stack of the call that never came back
    (crash, *_) = [i for i in sample.incidents if i.env_index == kinds.index("segfault")]
    assert crash.exit_code == -signal.SIGSEGV
    assert "Segmentation fault" in crash.output


def check_truncations(sample: Sample) -> None:
    """The step that failed is no transition, and the one before it ends a truncated episode."""
    batch = sample.batch
    lost = np.argwhere(~batch.valid)
    assert len(lost)
    finals = batch.final_at.tolist()
    for t, row in lost.tolist():
        assert batch.terminated[t, row]
        assert batch.rewards[t, row] == 0
        if t and batch.valid[t - 1, row] and not batch.terminated[t - 1, row]:
            assert batch.truncated[t - 1, row]
            place = finals.index([t - 1, row])
            assert np.isfinite(batch.final_obs[0][place]).all()
    assert np.isfinite(batch.obs[0]).all()


def test_others_do_not_wait_for_one_that_hangs() -> None:
    settings = {"num_envs_per_worker": 3, "env_step_timeout_s": 20}
    with trainer_for(settings, every=3, kinds=["hang", "none", "none"], by_index=True) as trainer:
        vector = trainer.workers.foreach_worker(lambda worker: worker.vector)[0]
        spec = trainer.get_policy().action_spec
        vector.reset(trainer.get_policy().obs_spec.allocate(3))
        taken = [0, 0, 0]
        todo = [0, 1, 2]
        while min(taken[1:]) < 50:
            vector.send(todo, np.ones((3, spec.size), spec.dtype))
            todo = vector.wait()
            for row in todo:
                taken[row] += 1
        assert taken[0] < 10
        began = monotonic()
    assert monotonic() - began < 10  # a promise to users: to stop takes less, also while an environment hangs


def test_a_hung_reset_keeps_the_step_before_it() -> None:
    settings = {"num_envs_per_worker": 1, "env_reset_timeout_s": 1, "max_env_failures": None}
    with trainer_for(settings, every=4, kinds=["slow_reset"], episode=5) as trainer:
        sample = trainer.workers.sample(20)
    assert sample.batch.valid.all()
    assert {i.kind for i in sample.incidents} == {"hang"}
    assert [e.length for e in sample.episodes] == [5] * 4
    assert all(i.step == 0 for i in sample.incidents)


def test_too_many_failures_end_the_run_with_the_cause() -> None:
    settings = {"num_envs_per_worker": 2, "max_env_failures": 2}
    with trainer_for(settings, every=3, kinds=["exit"]) as trainer:
        with pytest.raises(shoal.EnvError, match="exit code 3") as caught:
            trainer.train()
        assert "max_env_failures is 2" in str(caught.value)


class DiesAtOnce(FaultEnv):
    """Takes the first look's step, which has a seed of its own, and no other."""

    def step(self, action: int) -> Any:
        if self.np_random_seed != 0:
            os._exit(3)
        return super().step(action)


@pytest.mark.slow
def test_an_environment_that_dies_at_every_first_step_is_not_started_for_ever() -> None:
    settings = {"num_envs_per_worker": 1, "env_isolation": "process"}
    with (
        shoal.PPO(env=DiesAtOnce, config=settings) as trainer,
        pytest.raises(shoal.EnvError, match="10 times in a row"),
    ):
        trainer.train()


def test_faults_come_without_a_seed_too() -> None:
    env = FaultEnv({"kinds": ["raise"], "every": 5})
    env.reset()
    with pytest.raises(ArithmeticError):
        list(map(env.step, [1] * 1000))


class Dying:
    """Dies while it is made."""

    def __init__(self, config: Any) -> None:
        sys.stderr.write("no licence for the solver\n")
        sys.stderr.flush()
        os._exit(4)


class Stuck:
    """Never comes to life."""

    def __init__(self, config: Any) -> None:
        sleep(1000)


@pytest.mark.repeats(1)
@pytest.mark.parametrize(
    ("kind", "words", "timeout_s"), [(Dying, "exit code 4.*no licence", DEADLINE_S), (Stuck, "env_reset_timeout_s", 1)]
)
def test_what_never_comes_to_life_ends_the_start(kind: Any, words: str, timeout_s: float) -> None:
    with pytest.raises(shoal.EnvError, match=words) as caught:
        shoal.PPO(env=kind, config={"env_reset_timeout_s": timeout_s, "env_step_timeout_s": timeout_s})
    assert caught.value.exit_code == 2


def test_on_ray_workers_and_in_evaluation() -> None:
    settings = {"num_workers": 1, "num_envs_per_worker": 3, "train_batch_size": 120}
    with trainer_for(settings, every=30, kinds=["exit", "segfault", "raise"]) as trainer:
        result = trainer.train()
        evaluation = trainer.evaluate(episodes=10)
    assert result["env_failures_total"] > 0
    assert result["num_remote_worker_restarts"] == 0
    assert evaluation["episodes_this_iter"] == 10
    assert evaluation["env_failures"] > 0


@pytest.mark.slow
def test_what_was_kept_of_every_kind_fails_again_at_the_same_step(tmp_path: Path) -> None:
    config = {**SETTINGS, "num_envs_per_worker": len(KINDS), "max_env_failures": None, "seed": 153}
    config |= {"train_batch_size": 20 * len(KINDS), "env_config": {"every": 10, "by_index": True}}
    experiment = {"env": "shoal.envs:FaultEnv", "run": "PPO", "name": "faults", "results_dir": str(tmp_path)}
    list(shoal.run({**experiment, "stop": {"training_iteration": 1}, "config": config}, new=True))
    (run,) = (tmp_path / "faults").iterdir()
    kept = read_incidents(run)
    assert {entry["env_index"] for entry in kept} == set(range(len(KINDS))) - {list(KINDS).index("log_flood")}
    for entry in {entry["env_index"]: entry for entry in kept}.values():
        again = EpisodeReplay(run, entry).run()
        assert again.is_same(entry), entry["cause"]


def test_an_incident_that_ends_the_run_is_kept_too(tmp_path: Path) -> None:
    config = {"env_isolation": "process", "num_envs_per_worker": 2, "max_env_failures": 0, "train_batch_size": 400}
    experiment = {"env": "shoal.envs:FaultEnv", "run": "PPO", "name": "faults", "results_dir": str(tmp_path)}
    settings = {**config, "env_config": {"every": 20, "kinds": ["exit", "raise"]}}
    with pytest.raises(shoal.EnvError, match="max_env_failures is 0"):
        list(shoal.run({**experiment, "stop": {"training_iteration": 1}, "config": settings}, new=True))
    (run,) = (tmp_path / "faults").iterdir()
    (entry,) = read_incidents(run)
    assert len(entry["actions"]) == entry["steps_since_seed"] > 0
    assert EpisodeReplay(run, entry).run().is_same(entry)


@pytest.mark.slow
def test_a_hang_in_a_reset_with_a_new_seed_is_replayed_by_what_led_to_it(tmp_path: Path) -> None:
    config = {"num_envs_per_worker": 1, "env_reset_timeout_s": 1, "max_env_failures": None, "train_batch_size": 150}
    config |= {
        "env_config": {"every": 40, "kinds": ["slow_reset"], "episode": 100},
        "num_sgd_iter": 1,
    }  # 100: every time
    experiment = {"env": "shoal.envs:FaultEnv", "run": "PPO", "name": "faults", "results_dir": str(tmp_path)}
    list(shoal.run({**experiment, "stop": {"training_iteration": 1}, "config": config}, new=True))
    (run,) = (tmp_path / "faults").iterdir()
    (entry,) = read_incidents(run)
    assert (entry["steps_since_seed"], entry["step"], entry["seeding"]) == (100, 0, 1)
    assert EpisodeReplay(run, entry).run().is_same(entry)


@pytest.mark.skipif(PY_SPY is None, reason="needs py-spy")
def test_the_stack_of_one_that_is_stopped_is_written_by_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PY_SPY is not None
    monkeypatch.setenv("PATH", f"{Path(PY_SPY).parent}:{os.environ['PATH']}")
    config = {"num_envs_per_worker": 1, "env_step_timeout_s": 0.5, "env_config": {"every": 5, "kinds": ["stop"]}}
    with shoal.PPO(env="shoal.envs:FaultEnv", config=config) as trainer:
        incidents = trainer.workers.sample(20).incidents
    # One of them: it has two seconds for each, and the machine may be busy.
    assert any("FaultEnv._go_wrong (" in incident.output for incident in incidents), incidents[0].output


def test_a_py_spy_that_does_not_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "py-spy").write_text("#!/bin/sh\necho stack of $*\nsleep 1000\n")
    (tmp_path / "py-spy").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    config = {"num_envs_per_worker": 1, "env_step_timeout_s": 0.5, "env_config": {"every": 5, "kinds": ["hang"]}}
    with shoal.PPO(env="shoal.envs:FaultEnv", config=config) as trainer:
        (incident, *_) = trainer.workers.sample(10).incidents
    assert "stack of dump --nonblocking --pid" in incident.output
    assert "_go_wrong" in incident.output  # by faulthandler, after py-spy's time


PROGRAM = """
    import os, sys, shoal
    from shoal.envs import FaultEnv

    config = {"num_envs_per_worker": 3, "env_isolation": "process", "env_config": {"kinds": ["hang"], "every": 5}}
    trainer = shoal.PPO(env=FaultEnv, config=config)
    trainer.workers.foreach_env(lambda env: __import__("subprocess").Popen(["sleep", "1000"]) and None)
    print("sampling", flush=True)
    trainer.train()
"""


def test_nothing_survives_a_worker_that_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(PROGRAM))
    shared = set(os.listdir("/dev/shm"))
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "sampling\n"
    wait_for(lambda: len(below(process.pid)) == 1 + 2 * 3)
    family = below(process.pid)
    process.kill()
    process.wait()
    process.stdout.close()
    wait_for(lambda: not any(map(_lives, family)))
    left = {name for name in os.listdir("/dev/shm") if "shoal" in name and not name.startswith("shoal-seed-")}
    assert left <= shared  # but for what others train on this machine


def test_a_killed_fork_server_is_replaced() -> None:
    others = psutil.Process().children()
    with trainer_for({"num_envs_per_worker": 2}, every=10**6, kinds=["raise"]) as trainer:
        trainer.train()
        (server,) = [process for process in psutil.Process().children() if process not in others]
        environments = below(server.pid)
        server.kill()
        wait_for(lambda: not any(map(_lives, environments)))  # until then one of them may take all its steps
        result = trainer.train()
    assert result["env_failures_total"] == 2
    # A step each; none where it met the environment in its reset.
    assert 400 - 2 <= result["timesteps_this_iter"] <= 400


TALKING = """
import sys
from gymnasium.envs.classic_control import CartPoleEnv

class Talking(CartPoleEnv):
    def __init__(self, config):
        super().__init__()
        self.index, self.steps = config.env_index, 0

    def step(self, action):
        self.steps += 1
        if self.steps <= 3:
            words = {1: f"{self.index} begins", 2: f", {self.index} ends\\n", 3: f"{self.index} is alone"}
            sys.stderr.write(words[self.steps])
            sys.stderr.flush()
        return super().step(action)
"""


def test_what_environments_print_does_not_mix_within_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "talking.py").write_text(TALKING)
    config = {"env": "talking.py:Talking", "env_isolation": "process", "num_envs_per_worker": 3, "train_batch_size": 9}
    with shoal.PPO(config, search_path=[tmp_path]) as trainer:
        for _ in range(3):
            trainer.workers.sample(1)
    found = [line for line in capfd.readouterr().err.splitlines() if "begins" in line or "alone" in line]
    whole = [f"{index} begins, {index} ends" for index in range(3)]
    assert sorted(line for line in found if "ends" in line) == whole
    assert set(found) <= {*whole, "0 begins", *(f"{index} is alone" for index in range(3))}  # one is looked at first
