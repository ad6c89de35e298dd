"""docs/rllib.md says what the tables of the code say, and its experiment is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from shoal.cli.main import main
from shoal.config.algorithms import RLLIB
from shoal.config.experiment import experiments_from_file
from shoal.config.rllib import INSTEAD, MODEL_PASSED_ON, PASSED_ON, WITHOUT_COUNTERPART, in_rllibs_words

PAGE = (Path(__file__).parents[2] / "docs" / "rllib.md").read_text()


def test_every_algorithm_and_every_word_is_on_the_page() -> None:
    assert set(re.findall(r"`(rllib:\w+)`", PAGE)) == set(RLLIB)
    words = PAGE.partition("## Words")[2].partition("## What RLlib sees")[0]
    named = set(re.findall(r"`(?:model\.)?(\w+)`", words))
    for table in (PASSED_ON, PASSED_ON.values(), INSTEAD, MODEL_PASSED_ON):
        assert set(table) <= named
    refused = words.partition("refused by name")[2].partition(": ")[2].partition(";")[0]
    assert set(re.findall(r"`(\w+)`", refused)) <= set(WITHOUT_COUNTERPART)


def test_the_experiment_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "cartpole.yml").write_text(text)
    (experiment,) = experiments_from_file(tmp_path / "cartpole.yml")
    assert experiment.run == "rllib:IMPALA"
    assert in_rllibs_words(experiment.config)["entropy_coeff"] == 0.01  # type: ignore[arg-type]


def test_the_commands_are_right(tmp_path: Path) -> None:
    lines = re.findall(r"^shoal .*$", PAGE, re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        _, name, *words = shlex.split(line)
        context = main.make_context("shoal", [name, *words])
        command = main.get_command(context, name)
        assert command is not None
        if name != "config":
            command.make_context(name, list(words), parent=context)
        if name == "train":
            done = CliRunner().invoke(main, [name, *words, "--dry-run", "--results-dir", str(tmp_path)])
            assert done.exit_code == 0, done.output
