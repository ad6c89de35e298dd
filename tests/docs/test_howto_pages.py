"""The pages on speed, resuming, trouble and file formats: their commands run, and what they name is there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from shoal.cli.main import COMMANDS, main
from shoal.config.algorithms import ALGORITHMS
from shoal.runs.resuming import CHANGEABLE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SPEED, RESUME, TROUBLE, FORMATS = (
    (DOCS / f"{name}.md").read_text() for name in ("speed", "resume", "trouble", "file_formats")
)
SOURCE = "\n".join(path.read_text() for path in (ROOT / "src" / "shoal").rglob("*.py"))
KEYS = {key for algorithm in ALGORITHMS.values() for key in algorithm.model_fields}


def lines_of(page: str) -> list[str]:
    return [re.split(r" +# ", line)[0] for line in re.findall(r"^ {4}(shoal .*)$", page, re.MULTILINE)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shoal(line: str) -> str:
    done = CliRunner().invoke(main, shlex.split(line)[1:], prog_name="shoal")
    assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
    return done.output


@pytest.mark.slow
def test_the_commands_of_the_page_on_speed_end_well(home: Path) -> None:
    measured, _, compared = (shoal(line) for line in lines_of(SPEED))
    assert "recommended" in measured
    assert "steps/s" in compared


@pytest.mark.slow
def test_the_commands_of_the_page_on_resuming_end_well(home: Path) -> None:
    first, again, further, other, second, job = (shoal(line) for line in lines_of(RESUME))
    assert "Finished: timesteps_total" in first
    assert "is finished" in again
    assert "Finished: timesteps_total" in further
    assert "Finished: timesteps_total" in other
    (run,) = (home / "shoal_results" / "first").iterdir()
    assert json.loads((run / "result.json").read_text().splitlines()[-1])["timesteps_total"] >= 20_000
    assert len(list((home / "shoal_results" / "second").iterdir())) == 1
    assert "Finished" in second
    assert "#SBATCH --signal=B:USR1@120" in job


def test_the_page_on_resuming_has_every_key_that_may_change() -> None:
    listed = {*re.findall(r"`(\w+)`", RESUME.partition("may also change:")[2].partition("What arrays")[0])}
    wanted = {key.removeprefix("config.") for key in CHANGEABLE if key.startswith("config.")}
    free = {"log_level", "record_env", "render_env"}
    assert wanted - listed == free
    assert listed - wanted <= {key for algorithm in ALGORITHMS.values() for key in algorithm.mutable}
    assert all(f"`{key}`" in RESUME for key in free)
    codes = {int(code) for code in re.findall(r"\| (\d+)(?::[^|]*)? \|$", RESUME, re.MULTILINE)}
    assert codes == {1, 85, 129, 130, 143}


def test_the_page_on_speed_names_settings_that_there_are() -> None:
    table = SPEED.partition("| setting |")[2]
    named = {*re.findall(r"^\| `(\w+)[`:]", table, re.MULTILINE), *re.findall(r"`(\w+): ", SPEED)}
    assert len(named) >= 12
    assert named <= KEYS


def test_what_the_page_on_trouble_quotes_and_types_is_there() -> None:
    rows = [row.strip("|").split(" | ") for row in TROUBLE.splitlines() if row.startswith("| ")][1:]
    assert len(rows) >= 20
    assert all(len(row) == 3 for row in rows)
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row[0])]
    for phrase in (part.strip(" :'") for text in quoted for part in re.split(r"\.\.\.|; ", text)):
        plain = phrase.removeprefix("processes of 1 CPUs").strip()  # a number stands between
        assert plain in SOURCE or plain in ("Error", "mpirun", "env_failures_total"), phrase
    for line in re.findall(r"`(shoal [^`]+)`", TROUBLE):
        _, name, *words = line.split()
        assert name in COMMANDS, line
        context = main.make_context("shoal", [name], resilient_parsing=True)
        command = main.get_command(context, name)
        assert command is not None
        known = {
            option for parameter in command.params if isinstance(parameter, click.Option) for option in parameter.opts
        }
        assert {word for word in words if word.startswith("--")} <= known, line
    assert {*re.findall(r"--set (?:config\.)?(\w+)=", TROUBLE)} <= KEYS


def test_the_formats_are_those_of_a_run(home: Path) -> None:
    shoal("shoal train CartPole-v1 --stop training_iteration=1 --set train_batch_size=256 --quiet")
    shoal("shoal evaluate CartPole-v1 --episodes 2")
    (run,) = (home / "shoal_results" / "CartPole-v1").iterdir()
    section = FORMATS.partition("## A run")[2].partition("## A checkpoint")[0]
    for path in run.iterdir():
        name = re.sub(r"tfevents.*", "tfevents...", re.sub(r"_\d{4}-.*\.", "_DATE.", path.name))
        assert f"`{re.sub(r'checkpoint_.*', 'checkpoint_000010/', name)}`" in section, path.name
    saved = FORMATS.partition("## A checkpoint")[2].partition("## Incidents")[0]
    files = {path.name for path in (run / "checkpoint_000001").iterdir()}
    assert files == {*re.findall(r"^\| `([\w.]+)` \|", saved, re.MULTILINE)}
    manifest = json.loads((run / "checkpoint_000001" / "manifest.json").read_text())
    assert all(f"`{key}`" in saved for key in manifest)


def test_the_program_of_the_formats_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", FORMATS, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "256"
