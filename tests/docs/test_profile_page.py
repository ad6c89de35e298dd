"""docs/profile.md names options that there are, and shows output of the form that the command prints."""

from __future__ import annotations

import re
from pathlib import Path

from shoal.cli.profile import profile
from shoal.runs.forecast import ALMOST, LIMITS, SHORTEST_FRAGMENT

PAGE = (Path(__file__).parents[2] / "docs/profile.md").read_text()


def test_every_option_exists() -> None:
    there = {name for parameter in profile.params for name in parameter.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert {"--seconds", "--nodes", "--cores-per-node", "--steps", "--json", "--with-workers"} <= named <= there


def test_its_numbers_are_those_of_the_code() -> None:
    assert f"({ALMOST:.0%})".replace("%", " %") in PAGE
    assert f"at least {SHORTEST_FRAGMENT} steps" in PAGE


def test_the_output_has_the_form_of_the_commands() -> None:
    (shown,) = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^ +\d+ +\d+ +\S+ +\S+ to \S+ +\S+ +\S+ to \S+ +(\w+) +\S+ \(\S+ to \S+\)$", shown, re.MULTILINE)
    assert len(rows) == 4
    assert set(rows) <= set(LIMITS)
