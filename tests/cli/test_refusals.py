"""What a person may get wrong: one sentence, no traceback, exit code 2, and nothing left behind."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from any_algorithm import ANY_ALGORITHM
from desks import Desk

FILES = {
    "duplicate.yml": "a: {env: CartPole-v1}\na: {env: CartPole-v1}\n",
    "torn.yml": "a: {env: CartPole-v1\n",
    "tabs.yml": "a:\n\tenv: CartPole-v1\n",
    "empty.yml": "",
    "list.yml": "- env: CartPole-v1\n",
    "foreign.yml": "a: {env: CartPole-v1, config: {learning_rate: 0.1}}\n",
    "nowhere.yml": "a: {env: no_such_module.Env}\n",
    "broken.py": "raise RuntimeError('no licence')\n",
    "broken.yml": "a: {env: broken.Env}\n",
    "queue.yml": "walltime: 20m\nqueue: debug\n",
    "notes.txt": "CartPole\n",
    "plain.py": "class Plain:\n    pass\n",
    "several.py": (
        "from gymnasium import Env, Wrapper\n"
        "class First(Env): ...\n"
        "class Second(Env): ...\n"
        "class Around(Wrapper): ...\n"
    ),
    "meshless.py": "from gymnasium import Env\nclass Mine(Env):\n    def __init__(self): raise OSError('no mesh')\n",
    "leaving.py": (
        "import sys\n"
        "from gymnasium import Env, spaces\n"
        "class Mine(Env):\n"
        "    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None): sys.exit()\n"
    ),
    "texts.py": (
        "from gymnasium import Env, spaces\n"
        "class Mine(Env):\n"
        "    observation_space, action_space = spaces.Text(5), spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None): return 'abc', {}\n"
    ),
}

REFUSED = {
    "train": "There is no environment to train on",
    "train Cartpole-v1": "CartPole-v1",
    "train CartPole-v7": "there is no such version",
    "train no_such_id": "no_such_id",
    "train no_such_module:Env": "no module 'no_such_module'",
    "train no_such_file.py:Env": "no file 'no_such_file.py'",
    "train no_such_model.fmu": "there is no file no_such_model.fmu",
    "train plain.py:Plian": "did you mean Plain?",
    "train plain.py:Plain": "Plain",
    "train broken.py:Env": "no licence",
    "train meshless.py:Mine": "OSError: no mesh",
    "train leaving.py:Mine": "its first reset() failed: SystemExit (",
    "train leaving.py:Mine --num-workers 1": "its first reset() failed: SystemExit (",
    "train texts.py:Mine": "Text",
    "train plain": "did you mean plain.py?",
    "train notes.txt": "a file is Python with an environment in it (my_env.py:MyEnv), YAML with experiments",
    "train CartPole-v1 Pendulum-v1": "Only one environment is trained at a time (got Pendulum-v1 too)",
    "train CartPole-v1 --num-workers two": "must be a number, 0 or more, or auto (got 'two')",
    "train CartPole-v1 --stop timesteps_total 1000": "write --stop timesteps_total=1000",
    "train CartPole-v1 --stop timesteps_total=0": "stop.timesteps_total: must be more than 0 (got 0)",
    "train CartPole-v1 --stop timesteps_total=-5": "stop.timesteps_total: must be more than 0 (got -5)",
    "train CartPole-v1 --set lrr=3": "lrr: unknown key; did you mean config.lr?",
    "train CartPole-v1 --wrap TimeLimit:5": "write --wrap TimeLimit:max_episode_steps=5",
    "run CartPole-v1": "did you mean train?",
    "config check queue.yml": "queue.yml: describes a job, not an experiment; use it with shoal submit -f queue.yml",
    "train CartPole-v1 --env CartPole-v1": "The environment is given twice",
    "train CartPole-v1 --set config.lr": "write KEY=VALUE",
    "train CartPole-v1 --set type=adam": "several keys have that name; write config.optimizer.type or ",
    "train CartPole-v1 --lr 1e-3": "There is no option --lr; write --set config.lr=1e-3",
    "train plain.py": "it defines no environment",
    "train several.py": "type shoal train several.py:First or shoal train several.py:Second",
    "train list.yml -f empty.yml": "Two files are given",
    "tune CartPole-v1": "A sweep needs a YAML file",
    "envs no_such_environment": "no environment here matches 'no_such_environment'",
    "help tarin": "did you mean train?",
    "train CartPole-v1 --set config.lr=fast": "config.lr: must be a number (got 'fast')",
    "train CartPole-v1 --set config.learning_rate=1": "did you mean config.lr?",
    "train CartPole-v1 --set config.train_batch_size=0": "config.train_batch_size",
    "train CartPole-v1 --stop timesteps_total": "write NAME=LIMIT",
    "train CartPole-v1 --stop timestep_total=5": "did you mean timesteps_total?",
    "train CartPole-v1 --stop timesteps_total=many": "stop.timesteps_total",
    "train CartPole-v1 --stop timesteps_total=.nan": "stop.timesteps_total",
    "train CartPole-v1 --num-workers -1": "--num-workers",
    "train CartPole-v1 --num-cpus 100000": "or --num-workers 99999 if workers may share cores",
    "train CartPole-v1 --run A3C": f"run: must be {ANY_ALGORITHM} (got 'A3C')",
    "train Pendulum-v1 --run DQN": "set run: PPO",
    "train CartPole-v1 --results-dir $NO_SUCH_VARIABLE/x": "is not set",
    "train CartPole-v1 --results-dir plain.py": "cannot be written",
    "train CartPole-v1 --name a/b": "name",
    "train -f no_such_file.yml": "there is no such file",
    "train -f .": "is a folder",
    "train -f duplicate.yml": "duplicate.yml",
    "train -f torn.yml": "torn.yml",
    "train -f tabs.yml": "tabs.yml",
    "train -f empty.yml": "empty.yml",
    "train -f list.yml": "list.yml",
    "train -f foreign.yml": "did you mean config.lr?",
    "train -f nowhere.yml": "no module 'no_such_module'",
    "train -f broken.yml": "no licence",
    "config check foreign.yml": "foreign.yml:1: a.config.learning_rate: unknown key; did you mean config.lr?",
    "config check .": "is a folder",
    "config check no_such_file.yml": "there is no such file",
    "evaluate nothing": "there is no run at",
    "evaluate .": "is not a run and contains none",
    "evaluate plain.py": "plain.py",
    "resume nothing": "there is no run at",
    "resume .": "is not a run and contains none",
    "resume plain.py": "plain.py",
    "submit --walltime 20m": "command: is missing; write it after --",
    "submit --walltime 20 -- true": "--walltime: must have a unit",
    "submit --walltime 20m --queue debug -- true": "There is no option --queue; use --partition.",
    "submit --walltime 20m --dry-run --script job.sh -- true": "--dry-run writes no file",
    "submit -f queue.yml -- true": "queue.yml:2: queue: unknown key; did you mean partition?",
    "submit -f list.yml -- true": "must be a mapping of keys",
    "logs 41": "no job 41 was submitted from here",
    "cancel 41": "no job 41 was submitted from here",
    "tarin CartPole-v1": "did you mean train?",
}


@pytest.fixture(scope="module")
def at_work(tmp_path_factory: pytest.TempPathFactory, trained: tuple[Any, Any, Path]) -> Any:
    """A desk with files that are wrong; one for all, since none of the commands may leave anything there."""
    folder = tmp_path_factory.mktemp("refusals")
    desk = type(trained[0])(folder / "home", folder / "work")
    desk.home.mkdir()
    desk.work.mkdir()
    for name, text in FILES.items():
        (desk.work / name).write_text(text)
    return desk


@pytest.mark.repeats(18, slow=10)
@pytest.mark.parametrize("command", REFUSED)
def test_one_sentence_and_nothing_left(at_work: Any, command: str) -> None:
    done = at_work.shoal(*command.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    *usage, error = done.stderr.splitlines()
    assert error.startswith("Error: ")
    assert REFUSED[command] in error
    assert all(line == "" or line.startswith(("Usage: ", "Try ")) for line in usage), done.stderr
    assert not list(at_work.home.glob("*/*"))
    assert {path.name for path in at_work.work.iterdir()} - {"__pycache__"} == set(FILES)


HELLO = '{"shoal": 1, "observation": {"type": "Box", "low": [-1], "high": [1]}, "action": {"type": "Discrete", "n": 2}}'
PROGRAMS = {
    "banner.sh": "echo Solver 3.1, licensed to nobody; read line",
    "torn.sh": f"echo '{HELLO}'; read line; read line; echo '{{\"obs\": [0.5}}'; read line",
    "sound.sh": f"echo '{HELLO}'; while read line; do echo '{{\"obs\": [0.5]}}'; done",
}
DESCRIPTION = (
    '<?xml version="1.0" encoding="UTF-8"?><fmiModelDescription fmiVersion="2.0" modelName="free" guid="{free}">'
    '<CoSimulation modelIdentifier="free"/><ModelVariables><ScalarVariable name="T" valueReference="1" '
    'causality="output" variability="continuous"><Real/></ScalarVariable></ModelVariables>'
    '<ModelStructure><Outputs><Unknown index="1"/></Outputs></ModelStructure></fmiModelDescription>'
)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("./banner.sh --protocol lines", "a line that is not a message: 'Solver 3.1, licensed to nobody'"),
        ("./torn.sh --protocol lines", "a line that is not a message: '{\"obs\": [0.5}'"),
        ("./sound.sh --protocol lines --set env_ranks=100000", "an environment of 100000 ranks needs 100000 slots"),
        ("free.fmu --set env.reward=T", "free.fmu has no inputs that are numbers; name variables in env.inputs"),
    ],
)
def test_simulators_that_cannot_be_trained(command: str, sentence: str, tmp_path: Path) -> None:
    if "fmu" in command:
        pytest.importorskip("fmpy", reason="FMPy is not installed")
    if "ranks" in command and shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun here")
    desk = Desk.new(tmp_path)
    for name, text in PROGRAMS.items():
        (desk.work / name).write_text(f"#!/bin/sh\n{text}\n")
        (desk.work / name).chmod(0o700)
    with zipfile.ZipFile(desk.work / "free.fmu", "w") as archive:
        archive.writestr("modelDescription.xml", DESCRIPTION)
    done = desk.shoal("train", *command.split())
    assert done.returncode == 2, done.stdout + done.stderr
    (error,) = done.stderr.splitlines()
    assert error.startswith("Error: ")
    assert sentence in error
    assert not desk.runs()


def test_all_problems_are_told_at_once(at_work: Any) -> None:
    sets = ("config.lr=fast", "config.gama=0.9", "config.num_workers=-1")
    done = at_work.shoal("train", "CartPole-v1", *(word for text in sets for word in ("--set", text)))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 3
    assert all(line.startswith("Error: config.") for line in done.stderr.splitlines())


@pytest.mark.parametrize("flag", [["--run", "DQN"], ["--env", "Acrobot-v1"]])
def test_evaluate_checks_what_it_is_told(trained: tuple[Any, Any, Path], flag: list[str]) -> None:
    desk, _, run = trained
    done = desk.shoal("evaluate", str(run), *flag)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"Error: {flag[0]}: the checkpoint has ")
    assert f"(got {flag[1]})" in done.stderr
