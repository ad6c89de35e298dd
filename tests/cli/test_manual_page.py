"""The manual page: written from the help, kept in the sources, and shown by `man`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.main import COMMANDS, main

PAGE = Path(__file__).parents[2] / "src/man/shoal.1"


def shown(*command: str) -> str:
    words = [*command, str(PAGE)]
    return subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=60, env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100"}
    ).stdout


def test_the_page_is_what_the_help_says() -> None:
    printed = CliRunner().invoke(main, ["help", "--man"], prog_name="shoal")
    assert printed.exit_code == 0, printed.output
    assert printed.output == PAGE.read_text(), "the help has changed: type `make man`"


def test_it_is_one_page_of_all_commands() -> None:
    refused = CliRunner().invoke(main, ["help", "--man", "train"], prog_name="shoal")
    assert refused.exit_code == 2
    assert "--man is one page of all commands: leave train out." in refused.output


@pytest.mark.skipif(not Path("/usr/bin/man").exists(), reason="needs man")
def test_man_shows_every_command() -> None:
    text = shown("man", "--local-file")
    for name in COMMANDS:
        assert f"\n   shoal {name} [OPTIONS]" in text, name
    assert "--num-workers N|AUTO" in text
    assert "shoal train -f custom.yml --num-workers 3\n" in text, "an example keeps its line"
    assert "\x08" not in text


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="needs mandoc")
def test_mandoc_finds_nothing_wrong() -> None:
    found = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", PAGE], capture_output=True, text=True, check=False)
    told = [line for line in found.stdout.splitlines() if "missing date" not in line]
    assert told == [], "the page has no date, for then it would not follow from the help alone"
