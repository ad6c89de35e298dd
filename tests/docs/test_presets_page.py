"""docs/presets.md shows the presets that there are, and what it tells to type works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from shoal.cli.main import main
from shoal.config.experiment import experiments_from_file
from shoal.config.presets import all_presets

PAGE = (Path(__file__).parents[2] / "docs" / "presets.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_table_is_what_the_command_prints() -> None:
    (table,) = re.findall(r"<!-- shoal presets -->\n```\n(.*?)```", PAGE, re.DOTALL)
    assert CliRunner().invoke(main, ["presets"]).output == table


def test_the_names_are_there() -> None:
    named = set(re.findall(r"--preset (\w+_ppo)|shoal presets (\w+_ppo)", PAGE))
    assert {one or other for one, other in named} <= all_presets().keys()


def test_the_experiment(tmp_path: Path) -> None:
    (text,) = blocks("yaml")
    (tmp_path / "x.yml").write_text(text)
    (experiment,) = experiments_from_file(tmp_path / "x.yml")
    assert (experiment.preset, experiment.config.gamma) == ("mountaincar_continuous_ppo", 0.98)
    assert experiment.config.lr == all_presets()["mountaincar_continuous_ppo"].config["lr"]


def test_the_program(tmp_path: Path) -> None:
    (program,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mountaincar_continuous_ppo ")
