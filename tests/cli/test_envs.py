"""`shoal envs`: what can be trained here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.cli.main import main

CLASSES = """
import gymnasium, numpy as np
from gymnasium import spaces

class Seen(gymnasium.Env):
    observation_space, action_space = spaces.Box(0, 255, (64, 64, 3), np.uint8), spaces.Discrete(3)
    def reset(self, *, seed=None, options=None): ...
    def step(self, action): ...

class Told(Seen):
    observation_space = spaces.Text(5)
"""


def shoal(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="shoal")


def test_ids_with_their_spaces() -> None:
    result = shoal("envs", "cartpole")
    assert result.exit_code == 0
    head, first, *_, last = result.output.splitlines()
    assert head.split() == ["id", "observations", "actions", "needs"]
    assert first.split() == ["CartPole-v1", "Box(4)", "Discrete(2)"]
    assert "; --all also shows 2 older versions" in last
    assert max(len(line) for line in result.output.splitlines()) <= 80
    assert "\nCartPole-v0 " in shoal("envs", "cartpole", "--all").output
    assert shoal("envs", "CartPole-v0").output.splitlines()[1].startswith("CartPole-v0")
    assert "HalfCheetah-v5" in shoal("envs", "half*").output


def test_programs_get_json() -> None:
    rows = json.loads(shoal("envs", "Acrobot*", "--json").output)
    assert rows == [
        {"id": "Acrobot-v1", "observation_space": "Box(6)", "action_space": "Discrete(3)", "needs": "", "problem": ""}
    ]


def test_the_classes_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CLASSES)
    _, seen, told, last = shoal("envs", "mine.py").output.splitlines()
    assert seen.split("  ")[0] == "mine.py:Seen"
    assert seen.endswith("torch")
    assert "Text" in told
    assert last == "2 environments"
    (tmp_path / "empty.py").write_text("")
    assert "defines no environment" in shoal("envs", "empty.py").output
