"""`shoal config` and the frame of the command line, as a person meets them: by a process, its output and its code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from any_algorithm import ANY_ALGORITHM

from shoal.config.model import ModelConfig
from shoal.config.reference import config_rows


def shoal(*args: str, debug: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shoal.cli.main", *args]
    env = {**os.environ, "SHOAL_DEBUG": "1" if debug else ""}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_help_lists_the_commands_and_imports_none_of_them() -> None:
    code = (
        "import sys; sys.argv = ['shoal', '--help']\n"
        "from shoal.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'gymnasium', 'torch', 'ray', 'rich', 'pydantic', 'shoal.cli.train'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("train", "resume", "evaluate", "model", "config", "completion"):
        assert f"\n  {name} " in done.stdout


def test_config_show_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['shoal', 'config', 'show']\n"
        "from shoal.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'numpy', 'gymnasium', 'torch', 'ray', 'rich', 'ruamel.yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "model.fcnet_hiddens" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("key", ["lr", "config.lr"])
def test_config_show_one_key(key: str) -> None:
    done = shoal("config", "show", key)
    assert done.stdout.startswith("lr  number > 0, <= 1000  0.0007  Learning rate")
    assert len(done.stdout.splitlines()) == 1


def test_config_show_a_key_with_keys_inside() -> None:
    assert len(shoal("config", "show", "model").stdout.splitlines()) == 1 + len(ModelConfig.model_fields)
    assert "stop.timesteps_total" in shoal("config", "show", "stop").stdout


def test_config_show_is_grouped_and_fits_80_columns() -> None:
    for run, lr in (("PPO", "0.0007"), ("trpo", "0.001"), ("DQN", "0.001")):
        lines = shoal("config", "show", "--run", run).stdout.splitlines()
        assert max(map(len, lines)) <= 80
        titles = [line for line in lines if line and not line.startswith(" ")]
        assert titles[:4] == ["Experiment", "config: Environments", "config: Processes", titles[3]]
        assert f"config: {run.upper()} itself" in titles
        keys = {line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("   ")}
        assert {row.key for row in config_rows(run.upper())} <= keys
        at = lines.index(f"  lr = {lr}  (number > 0, <= 1000)")
        assert "config: Learning" in lines[:at]
        assert lines[at + 1].startswith("      Learning rate")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_config_show_pages_on_a_terminal_alone(tmp_path: Path, is_terminal: bool) -> None:
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\ncat > {tmp_path}/paged\n")
    pager.chmod(0o700)
    command = f"{sys.executable} -m shoal.cli.main config show"
    # `script` gives the command a terminal.
    words = ["script", "-qec", command, "/dev/null"] if is_terminal else ["sh", "-c", command]
    environment = {**os.environ, "PAGER": str(pager), "TERM": "xterm"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    assert (tmp_path / "paged").exists() == is_terminal
    assert ("checkpoint_freq" in done.stdout) != is_terminal


@pytest.mark.repeats(3)
@pytest.mark.parametrize(
    ("args", "fragment"),
    [
        (("config", "show", "learning_rate"), "Error: learning_rate: unknown key; did you mean config.lr?"),
        (
            ("config", "show", "--run", "PP0"),
            f"Error: run: must be {ANY_ALGORITHM} (got 'PP0'); did you mean PPO?",
        ),
        (("config", "schema", "--files", "*.yml"), "Error: --files is for --vscode."),
        (("config", "schema", "--vscode", "-o", "a.json"), "Error: --vscode has its own place for the schema"),
        (("config", "check", "nowhere.yml"), "Error: nowhere.yml: there is no such file"),
        (("confg",), "There is no command 'confg'; did you mean config?"),
        (
            ("fly",),
            "There is no command 'fly'; there are init, train, tune, resume, evaluate, play, ",
        ),
        (("config", "check"), "Missing argument 'FILE'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(args: tuple[str, ...], fragment: str) -> None:
    done = shoal(*args)
    assert done.returncode == 2
    assert fragment in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_config_check_lists_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "bad.yml"
    path.write_text("a:\n  env: X-v0\n  config: {lr: -1, gama: 1}\nb:\n  env: X-v0\n  stop: {steps: 3}\n")
    done = shoal("config", "check", str(path))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"Error: {path}:3: a.config.lr: must be more than 0 (got -1)",
        f"Error: {path}:3: a.config.gama: unknown key; did you mean config.gamma?",
        f"Error: {path}:6: b.stop.steps: no result has this name; did you mean timesteps_total?",
    ]


def test_config_check_of_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "good.yml"
    path.write_text("a: {env: X-v0}\nb: {env: Y-v0, run: PPO}\n")
    done = shoal("config", "check", str(path))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{path}: 2 experiments, no problems\n", "")


def test_the_schema_is_printed_or_written(tmp_path: Path) -> None:
    printed = shoal("config", "schema")
    assert json.loads(printed.stdout)["$schema"] == "http://json-schema.org/draft-07/schema#"
    done = shoal("config", "schema", "-o", str(tmp_path / "mine.json"))
    assert done.stdout.endswith("begins with: # yaml-language-server: $schema=mine.json\n")
    assert (tmp_path / "mine.json").read_text() == printed.stdout


def test_debug_shows_the_traceback() -> None:
    done = shoal("config", "check", "nowhere.yml", debug=True)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_version() -> None:
    from shoal.version import __version__

    assert shoal("--version").stdout == f"shoal, version {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    done = shoal("completion", shell)
    assert done.returncode == 0
    assert "_SHOAL_COMPLETE" in done.stdout


def test_completion_completes() -> None:
    env = {**os.environ, "_SHOAL_COMPLETE": "bash_complete", "COMP_WORDS": "shoal config s", "COMP_CWORD": "2"}
    command = [sys.executable, "-m", "shoal.cli.main"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.stdout == "plain,schema\nplain,show\n"


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m shoal.cli.main config show | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "Experiment\n"
    assert done.stderr == ""


def test_ctrl_c_is_quiet(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yml"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "shoal.cli.main", "config", "check", str(pipe)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        pipe.open("w"),  # opens only when the command reads from the other end
    ):
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (130, "", "")
