"""What docs/commands.md says of options is what the command answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
ROWS = re.findall(r"^\| `(--[^`]+)` \| `(--[^`]+)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("typed", "instead"), ROWS)
def test_the_table_of_options(typed: str, instead: str) -> None:
    result = CliRunner().invoke(main, ["train", "CartPole-v1", *typed.split()], prog_name="shoal")
    assert result.output.splitlines()[-1] == f"Error: There is no option {typed.split()[0]}; write {instead}"


def test_the_table_is_found() -> None:
    assert len(ROWS) > 10
