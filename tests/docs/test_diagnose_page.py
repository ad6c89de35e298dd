"""docs/diagnose.md lists every finding, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import shoal.reports
from shoal.envs import examination
from shoal.runs import probing

PAGE = (Path(__file__).parents[2] / "docs/diagnose.md").read_text()


def test_every_finding_is_on_the_page() -> None:
    sources = [*Path(shoal.reports.__file__).parent.glob("symptoms_*.py"), Path(probing.__file__)]
    found = {name for path in sources for name in re.findall(r'Finding\(\s*"([\w ]+)"', path.read_text())}
    assert re.search(r'Finding\("seeding"', Path(examination.__file__).read_text())
    _, _, tables = PAGE.partition("## What it looks for")
    rows = re.findall(r"^\| ([\w ,]+) \|", tables, re.MULTILINE)
    told = {name for row in rows for name in row.split(", ")} - {"finding"}
    assert told == found | {"seeding"}


def test_the_output_on_the_page_has_the_form_of_the_commands() -> None:
    (shown,) = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = shown.splitlines()
    names = [line[:18].strip() for line in lines[2:-1:2]]
    assert names == ["same answer", "values", "time limit", "observation scale"]
    assert all(line[26:28] == "->" for line in lines[3:-1:2])
