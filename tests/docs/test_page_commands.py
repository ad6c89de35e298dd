"""The lines of pages that no other test types: each ends well, in their order, where there is what they name.

Every line of a page in WALKS is typed, so one that is added is typed too. It is typed as it stands but for SHORTER,
which bounds what it costs, and for the `swaps` of its page, which put a name in the place of one that stands for any.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner
from pages import ROOT, Page, words_of

import shoal
from shoal.cli.main import main

PYTHON = Path(sys.executable)
DEADLINE_S = 200
MODELS = ROOT / "tests" / "foreign_models"
ITERATIONS = 12
FALLS = [[0, 3e-3], [8191, 3e-3], [8192, 1.0], [10240, 1.0]]
"""A learning rate that breaks a run in iteration 9, after it has learned something: there is something to find."""

SHORTER = {
    r"^(shoal (?:train|tune) .*)--stop \S+": r"\1",
    r"^(shoal train .*)$": r"\1 --stop training_iteration=1",
    r"^(shoal resume (?:(?!--stop).)*)$": rf"\1 --stop training_iteration={ITERATIONS + 1}",
    r"^(shoal resume .*--stop) timesteps_total=\d+": r"\1 training_iteration=1",
    r"^(shoal tune (?!--resume).*)$": r"\1 --num-samples 2 --stop timesteps_total=6000",
    r"--seeds \d+": "--seeds 2",
    r"--num-samples \d+ (.*--num-samples)": r"\1",
    r"--num-workers \w+": "--num-workers 1",
    r"^shoal profile .*": r"\g<0> --seconds 0.5",
    r"^shoal submit": "shoal submit --scheduler slurm --dry-run",
    r"^shoal launch --": "shoal launch --num-cpus 3 --",
    r"--set (?:config\.)?lr=1e-4": "--set lr_schedule=null --set lr=1e-4",
    r"--at 120": "--at 6",
    r"--iterations 20": "--iterations 2",
    r"--port \d+": "--port 0",
    r"^shoal (?:board|serve)(?!.*--(?:port|socket)).*": r"\g<0> --port 0",
    r"--host 0\.0\.0\.0": "--host 127.0.0.1",
}
"""What is written differently in every line, in this order: few steps, no scheduler, any port, this machine alone."""

NEEDS = {
    "envpool": "envpool",
    "MiniGrid-": "minigrid",
    "ALE/": "ale_py",
    "CMAES": "cma",
    "pettingzoo": "pettingzoo",
    "mpe2": "mpe2",
    "my_game": "pettingzoo",
    "--video": "av",
    ".parquet": "pyarrow",
    "shoal serve": "uvicorn",
    "optuna": "optuna",
    "shoal tune": "ray",
    "--num-workers": "ray",
    "shoal launch": "ray",
}
"""The package that a line with these words needs; without it, the line is left out."""

SAYS = {
    "shoal train": "Finished: training_iteration 1 >= 1",
    "shoal resume": "Finished: training_iteration ",
    "shoal tune --resume": "is finished",
    "shoal tune --dry-run": ": 2 trials",
    "shoal launch": "Ray is up at ",
    "shoal evaluate": "episode_reward",
    "shoal submit": "#!/bin/bash",
    "shoal verify": " 0 problems",
    "shoal reproduce": "identical to iteration 2",
    "shoal fork": "Finished: training_iteration ",
    "shoal bisect": "collapse: episode_reward_mean was ",
    "shoal export": "proved: 1000 observations",
    "shoal migrate": "env",
    "shoal import": "Measure it: shoal evaluate ",
    "shoal profile": "recommended",
    "shoal doctor": "python",
}
"""What there is in the answer to lines that begin so."""

MAY_FIND = ("shoal diagnose", "shoal doctor")
"""What ends with 1 if it finds something, as it may here."""


@dataclass(frozen=True)
class Walk:
    """How the lines of a page are typed."""

    swaps: dict[str, str] = field(default_factory=dict)
    answers: str = ""
    """What is typed when a command asks."""
    prepare: Callable[[Path], object] | None = None
    leaves_out: str = "$^"
    """Lines that `WITHOUT_TEST` of `test_every_page.py` explains."""
    has_program: bool = False
    """Whether its Python goes on from its lines."""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def solver(folder: Path) -> None:
    write(folder / "my_solver.py", (folder / "my_env.py").read_text().replace("Thermostat", "Solver"))


def game(folder: Path) -> None:
    (program,) = Page("docs/agents.md").blocks("python")
    write(folder / "my_game.py", program.partition("\nconfig = ")[0].replace("Meeting", "MyGame"))


def airfoil(folder: Path) -> None:
    (folder / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "airfoil_env.py", folder / "examples")


def sweeps(folder: Path) -> None:
    write(folder / "sweep.yml", Page("docs/tuning.md").blocks("yaml")[0])


def examples(folder: Path) -> None:
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))


def models(folder: Path) -> None:
    shutil.copy(MODELS / "sb3_ppo_cartpole.zip", folder / "model.zip")
    shutil.copy(MODELS / "sb3_a2c_pendulum.zip", folder / "pendulum.zip")
    shutil.copy(MODELS / "sb3_a2c_pendulum.pkl", folder / "vec_normalize.pkl")
    shutil.copytree(MODELS / "rllib_ppo_cartpole", folder / "rllib_checkpoint")


def files_of(name: str) -> Callable[[Path], None]:
    """The files that a page shows under their names."""

    def written(folder: Path) -> None:
        for file, text in re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```", Page(name).text, re.MULTILINE | re.DOTALL):
            write(folder / file, text)

    return written


def of_all_commands(folder: Path) -> None:
    models(folder)
    files_of("docs/moving/from_rllib1.md")(folder)
    files_of("docs/moving/from_rllib2.md")(folder)
    sweeps(folder)
    for name in ("spare", "other"):
        shutil.copytree(folder / "shoal_results" / "my_env.Thermostat", folder / "shoal_results" / name)


def sb3(folder: Path) -> None:
    files_of("docs/moving/from_sb3.md")(folder)
    write(folder / "hyperparams" / "ppo.yml", (folder / "ppo.yml").read_text())


SMALL_BATCH = "--set train_batch_size=64 --set sgd_minibatch_size=64 --set num_envs_per_worker=2"
CASES = "case,options.low,options.high\nslow,-0.01,0.01\nfast,-0.05,0.05\n"
WALKS = {
    "docs/agents.md": Walk(prepare=game),
    "docs/appo.md": Walk(prepare=solver),
    "docs/board.md": Walk({"/scratch/ann/results": "shoal_results"}),
    "docs/cluster.md": Walk(),
    "docs/commands.md": Walk(
        {
            "FOLDER/NAME/RUN(?= ARCHIVE)": "shoal_results/other/*",
            r"\bNAME/RUN\b": "shoal_results/spare/*",
            "ARCHIVE": "archive",
            r"\bFOLDER\b": "shoal_results",
            r"runs NAME\b": "runs CartPole-v1",
            "my_sweep": "cartpole_sweep",
            "old.yml": "cartpole-ppo.yaml",
        },
        answers="y\n",
        prepare=of_all_commands,
    ),
    "docs/containers.md": Walk(leaves_out="apptainer|podman"),
    "docs/diagnose.md": Walk(),
    "docs/doctor.md": Walk(leaves_out=".*--hosts"),
    "docs/environments.md": Walk({"ALE/Breakout-v5": f"ALE/Breakout-v5 {SMALL_BATCH}"}),
    "docs/evaluation.md": Walk(prepare=lambda folder: write(folder / "cases.csv", CASES)),
    "docs/evolution.md": Walk(prepare=airfoil),
    "docs/export.md": Walk(leaves_out="cc|gfortran"),
    "docs/importing.md": Walk(
        {
            "model.zip --env Pendulum": "pendulum.zip --env Pendulum",
            "RUN/config.yaml": "shoal_results/Pendulum-v1/*/config.yaml",
            r"\bRUN\b": "Pendulum-v1",
        },
        prepare=models,
    ),
    "docs/index.md": Walk(),
    "docs/kernel.md": Walk(),
    "docs/loggers.md": Walk(leaves_out=".*wandb"),
    "docs/moving/from_rllib1.md": Walk(prepare=files_of("docs/moving/from_rllib1.md")),
    "docs/moving/from_rllib2.md": Walk(prepare=files_of("docs/moving/from_rllib2.md")),
    "docs/moving/from_sb3.md": Walk(prepare=sb3),
    "docs/presets.md": Walk(leaves_out=".*swimmer"),
    "docs/profile.md": Walk({r"\bENV\b": "CartPole-v1"}),
    "docs/receipts.md": Walk(),
    "docs/sac.md": Walk(),
    "docs/serve.md": Walk({r"RUN\d": "CartPole-v1"}, leaves_out=".*--ray-serve|SESSION|curl"),
    "docs/start/laptop_to_cluster.md": Walk(
        leaves_out="srun|shoal (profile|train)",  # these by `test_site.py`
        prepare=lambda folder: write(folder / "first.yml", Page("docs/start/first_run.md").blocks("yaml")[0]),
    ),
    "docs/sweep_answer.md": Walk(prepare=examples, has_program=True),
    "docs/tuning.md": Walk(prepare=sweeps),
}
LONG = ("docs/tuning.md",)
QUICK = ("docs/cluster.md", "docs/diagnose.md", "docs/doctor.md")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a run of twelve iterations that breaks in the ninth, one of a user's own environment, and files."""
    home = tmp_path_factory.mktemp("trained")
    (environment,) = Page("README.md").blocks("python")
    write(home / "my_env.py", f"{environment}\n\nclass MyEnv(Thermostat):\n    pass\n")
    write(home / "my.yml", "mine:\n  env: CartPole-v1\n  stop: {timesteps_total: 1000}\n")
    shutil.copy(home / "my.yml", home / "x.yml")
    small = {"train_batch_size": 1024, "num_envs_per_worker": 8, "seed": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.chdir(home)
        for env, iterations, more in (
            ("CartPole-v1", ITERATIONS, {"lr_schedule": FALLS}),
            ("my_env.py:Thermostat", 1, {}),
        ):
            name = env.replace(".py:", ".")
            tree = {
                "name": name,
                "env": env,
                "checkpoint_freq": 4,
                "stop": {"training_iteration": iterations},
                "report": False,
            }
            list(shoal.run({**tree, "config": {**small, **more}}))
    return home


@pytest.fixture
def home(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that home, which is the working folder too."""
    folder = Path(shutil.copytree(trained, tmp_path / "home"))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PATH", f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return folder


def as_typed(line: str, walk: Walk, folder: Path) -> str:
    """The line, with names that there are, and shortened."""
    for stands, name in walk.swaps.items():
        line = re.sub(stands, lambda _, name=name: next(iter(map(str, folder.glob(name))), name), line)
    line = re.sub(r"\bRUN\b", "CartPole-v1", line)
    for old, new in SHORTER.items():
        line = re.sub(old, new, line)
    return line


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * (name not in QUICK) + [pytest.mark.long] * (name in LONG)


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name), id=name) for name in WALKS])
def test_the_lines_of_a_page_end_well(name: str, home: Path, request: pytest.FixtureRequest) -> None:
    page, walk = Page(name), WALKS[name]
    if any("kernel=compiled" in line for line in page.typed()):
        request.getfixturevalue("compiled_kernels")
    if walk.prepare is not None:
        walk.prepare(home)
    if "my_sweep" in walk.swaps and find_spec("ray"):
        end_well(as_typed("shoal tune -f sweep.yml", walk, home), "")
    lines = [
        line for line in page.typed() if re.match(r"(?!pip |python )", line) and not re.match(walk.leaves_out, line)
    ]
    for line in lines:
        if any(words in line and find_spec(package) is None for words, package in NEEDS.items()):
            continue
        short = as_typed(line, walk, home)
        if re.match("shoal (board|serve)", short):
            answers_and_ends(short, home)
        elif short.startswith("shoal ") and words_of(short) == shlex.split(short):
            end_well(short, walk.answers)
        else:
            in_a_shell(short, home)
    for program in page.blocks("python") if walk.has_program else ():
        done = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        assert (done.returncode, done.stderr) == (0, "")


def end_well(line: str, answers: str) -> None:
    """Type a line in this process."""
    done = CliRunner().invoke(main, shlex.split(line)[1:], input=answers, prog_name="shoal")
    codes = (0, 1) if line.startswith(MAY_FIND) else (0,)
    assert done.exit_code in codes, f"{line}\n{done.output}\n{done.exception!r}"
    assert "Traceback" not in done.output
    said = next((words for begins, words in SAYS.items() if line.startswith(begins)), "")
    assert done.output, line
    assert said in done.output, f"{line}\n{done.output}"
    for file in re.findall(r" (?:-o|--video|--gif|--trajectories) (\S+)", line):
        assert Path(file).exists(), line


def in_a_shell(line: str, folder: Path) -> None:
    """Type a line that a shell has to connect, in the shell that it names."""
    shell = next((name for name in ("zsh", "fish") if name in line), "bash")
    if shutil.which(shell) is None:
        return
    words = {"zsh": f"autoload -U compinit; compinit -u; {line}"}.get(shell, line)
    done = subprocess.run(
        [shell, "-c", words], cwd=folder, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{line}\n{done.stdout}{done.stderr}"


def answers_and_ends(line: str, folder: Path) -> None:
    """Start a server, ask it for what it says that it has, and end it with Ctrl-C."""
    process = subprocess.Popen(
        [str(PYTHON.with_name("shoal")), *shlex.split(line)[1:]],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        told = ""
        while "Ctrl-C ends" not in told:
            more = process.stdout.readline()
            assert more, f"{line}\n{told}{process.communicate()}"
            told += more
        address = re.search(r"^(?:Open|Serving at) (http://\S+)", told, re.MULTILINE)
        if address is not None:
            health = "/healthz" if line.startswith("shoal serve") else ""
            with urllib.request.urlopen(f"{address[1]}{health}", timeout=60) as answer:
                assert answer.status == 200
        else:
            (path,) = re.findall(r"--socket (\S+)", line)
            assert (folder / path).is_socket()
        process.send_signal(signal.SIGINT)
        printed, complaints = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode in (0, 130), f"{line}\n{told}{printed}{complaints}"
    assert "Traceback" not in complaints
