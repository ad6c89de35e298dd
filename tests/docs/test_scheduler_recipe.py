"""CONTRIBUTING's recipe for a scheduler, carried out as it is written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MOONSHOT = r'''
"""Moonshot, which nobody has."""

from shoal.cluster.host_lists import hosts_of_lines
from shoal.cluster.scheduler import (
    COUNT_FILE, Commands, HostVariables, Scheduler, Script, Start, clock, given, variable_file
)


def _hosts(environ):
    return hosts_of_lines(variable_file(environ, "MOON_NODES"), "MOON_NODES")


def _moonrun(hosts, words, environ):
    return [["moonrun", "--on", host, *words] for host in hosts]


def _directives(job):
    return [f"--crew {job.nodes}", f"--until {clock(job.walltime)}", *given("--pays {}", job.account)]


MOONSHOT = Scheduler(
    name="moonshot",
    title="Moonshot",
    job_variable="MOON_ID",
    host_variables=(HostVariables(("MOON_NODES",), _hosts),),
    starts=(Start("moonrun", _moonrun),),
    script=Script(
        word="#MOON",
        submit="mooncast job.sh",
        directives=_directives,
        opening="job_id=$MOON_ID\nlog=@LOG@",
        requeues="requeues a job that ends with 75",
        again=f'echo "$job_id" >>{COUNT_FILE} && exit 75',
        requeue_code=75,
    ),
    commands=Commands(
        submit=("mooncast",),
        job_id=r"^flight (\d+)$",
        cancel="moonend",
        questions=(lambda ids: ["moonlist", *ids],),
        answer=r"^(\d+) (\w+)",
        ended=frozenset(("landed",)),
    ),
)
'''
STAND_INS = r"""
    "moonshot": {
        "mooncast": 'cp "$1" $DESK/taken && echo flying >$DESK/state && echo "flight 41"',
        "moonlist": 'read -r state <$DESK/state; echo "41 $state"',
        "moonend": '[ "$1" = 41 ] && echo landed >$DESK/state',
    },
"""


def recipe(title: str) -> list[str]:
    """The steps of a recipe, without their numbers."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.search(rf"^\*\*{title}\.\*\*\n\n((?:\d\. .*\n)+)", text, re.MULTILINE)
    assert found is not None, title
    return [line.partition(". ")[2] for line in found[1].splitlines()]


def named(step: str) -> list[str]:
    """What stands in backticks in a step."""
    return re.findall(r"`([^`]+)`", step)


@pytest.mark.slow
def test_the_recipe_for_a_scheduler_is_true(tmp_path: Path) -> None:
    file, table, stand_ins, golden = recipe("A scheduler")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("unit/cluster", "contract"):
        shutil.copytree(
            ROOT / "tests" / folder, tmp_path / "tests" / folder, ignore=shutil.ignore_patterns("conftest*")
        )
    rooms = tmp_path / "src/shoal"

    assert named(file) == ["cluster/", "Scheduler", "cluster/slurm.py", "cluster/scheduler.py"]
    assert "class Scheduler:" in (rooms / named(file)[3]).read_text()
    (rooms / named(file)[0] / "moonshot.py").write_text(MOONSHOT)

    variable, path, _ = named(table)
    edited = insert(rooms / path, rf"^{variable}.*\(SLURM, ", "MOONSHOT, ")
    (rooms / path).write_text(edited.replace("\nGROUP =", "\nfrom shoal.cluster.moonshot import MOONSHOT\n\nGROUP ="))

    variable, path = named(stand_ins)
    (tmp_path / path).write_text(insert(tmp_path / path, rf"^{variable}.* = {{", STAND_INS))

    first, second = named(golden)
    told = run(first, tmp_path, 1)
    assert re.search(r"golden/moonshot.sh was missing and is written now: read it", told), told
    script = (tmp_path / "tests/unit/cluster/golden/moonshot.sh").read_text()
    assert script.startswith("#!/bin/bash --login\n#MOON --crew 3\n#MOON --until 00:20:00\n#MOON --pays rlwater\n")
    run(first, tmp_path, 0)
    run(second, tmp_path, 0)


def insert(path: Path, after: str, text: str) -> str:
    """A file's text with something put in after the one place that fits."""
    before = path.read_text()
    (place,) = re.finditer(after, before, re.MULTILINE)
    return before[: place.end()] + text + before[place.end() :]


def run(command: str, folder: Path, code: int) -> str:
    """What a pytest command prints about the new scheduler alone; the others are tested elsewhere."""
    done = subprocess.run(
        [sys.executable, "-m", *command.split(), "-q", "-k", "moonshot", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert "moonshot" in done.stdout or code == 0
    return done.stdout
