"""`shoal presets`, and `--preset` of `shoal train` and `shoal tune`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from desks import Desk

from shoal.cli.main import main
from shoal.config.ppo import PPOConfig
from shoal.config.presets import all_presets
from shoal.config.yaml_files import load_file, load_text

ENV, NAME = "MountainCarContinuous-v0", "mountaincar_continuous_ppo"
PRESET = all_presets()[NAME]
LR = PRESET.config["lr"]
QUICK = ("--stop", "training_iteration=1", "--set", "num_sgd_iter=1")
SWEEP = f"mine: {{env: {ENV}, stop: {{training_iteration: 1}}, config: {{gamma: {{choice: [0.9, 0.99]}}}}}}"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def shoal(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="shoal")


def refused(*arguments: str) -> str:
    """The one sentence of a command that is refused."""
    result = shoal(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.output.splitlines()[-1]


def test_all_of_them_in_a_table() -> None:
    head, *rows = shoal("presets").output.splitlines()
    assert head.split()[:4] == ["name", "environment", "algorithm", "steps"]
    assert [row.split()[0] for row in rows] == list(all_presets())
    (row,) = (row for row in rows if row.startswith(f"{NAME} "))
    assert row.split()[1:4] == [ENV, "PPO", f"{PRESET.measured.timesteps_total:,}"]
    assert f"{len(PRESET.measured.seeds)} seeds)" in row
    assert max(len(line) for line in (head, *rows)) <= 120


def test_some_of_them() -> None:
    assert (
        shoal("presets", "MOUNTAINCARC").output.splitlines()[1:]
        == shoal("presets", "mountaincar_c").output.splitlines()[1:]
    )
    (row,) = json.loads(shoal("presets", "mountaincar_c", "--json").output)
    assert row == PRESET.model_dump(mode="json")
    assert refused("presets", "mountaincar_continuous_pop") == (
        f"Error: no preset matches 'mountaincar_continuous_pop'; did you mean {NAME}?"
    )
    assert refused("presets", "zzzz") == "Error: no preset matches 'zzzz'; `shoal presets` lists all of them"


def test_one_with_its_settings_and_the_command_that_found_it(tmp_path: Path) -> None:
    shown = shoal("presets", NAME).output
    (line,) = (line.split() for line in shown.splitlines() if line.startswith("  lr "))
    assert line == ["lr", str(LR), "(default", f"{PPOConfig().lr})"]
    assert f"shoal presets {NAME} --sweep > sweep.yml && shoal tune sweep.yml" in shown
    assert f"shoal train {ENV} --preset --stop timesteps_total={PRESET.measured.timesteps_total}" in shown
    (tmp_path / "sweep.yml").write_text(shoal("presets", NAME, "--sweep").output)
    assert load_file(tmp_path / "sweep.yml").tree == {NAME: PRESET.sweep}
    tried = shoal("tune", "sweep.yml", "--dry-run")
    assert tried.exit_code == 0, tried.output
    assert tried.output.startswith(f"{NAME}: ")
    assert refused("presets", "mount", "--sweep").startswith("Error: --sweep needs the whole name of a preset")
    assert refused("presets", NAME, "--sweep", "--json").startswith("Error: --sweep prints YAML")


def test_the_dry_run_has_its_settings_and_its_name() -> None:
    def config(*words: str) -> tuple[str | None, float, float]:
        result = shoal("train", ENV, *words, "--dry-run")
        assert result.exit_code == 0, result.output
        assert result.stderr.startswith(f"Preset {NAME} sets ") is bool(words)
        (tree,) = load_text(result.stdout, "output").tree.values()
        return tree["preset"], tree["config"]["lr"], tree["config"]["gamma"]

    gamma = PRESET.config["gamma"]
    assert config("--preset") == config("--preset", NAME) == (NAME, LR, gamma)
    assert config("--preset", "--set", "lr=0.5") == (NAME, 0.5, gamma)
    assert config("--set", "preset=true") == (NAME, LR, gamma)
    name, lr, _ = config()
    assert (name, lr == LR) == (None, False)


def test_mistakes_at_the_command_line() -> None:
    assert refused("train", ENV, "--run", "DQN", "--preset") == (
        f"Error: preset: there is none for {ENV} with DQN, but with --run PPO"
    )
    assert refused("train", "MountainCarContinuous-v1", "--preset").startswith(
        "Error: preset: there is none for MountainCarContinuous-v1; did "
    )
    assert f"did you mean {NAME}?" in refused("train", ENV, "--preset", "mountaincar_c")
    assert refused("train", "--preset", ENV) == (
        f"Error: --preset takes the word after it for its name; type `shoal train {ENV} --preset`."
    )
    assert refused("train", "--preset", NAME) == (
        f"Error: --preset takes the word after it for its name; type `shoal train {ENV} --preset {NAME}`."
    )
    assert refused("tune", "--preset", "sweep.yml") == (
        "Error: --preset takes the word after it for its name; type `shoal tune sweep.yml --preset`."
    )
    assert "There is no environment" in refused("train", "--preset")


def test_a_sweep_tells_of_its_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(SWEEP)
    result = shoal("tune", "mine.yml", "--preset", "--dry-run")
    assert result.exit_code == 0, result.output
    assert f"Preset {NAME} sets " in result.stderr
    assert f"lr: {LR}" in result.stdout
    assert f"preset: {NAME}" in result.stdout
    assert "Preset" not in shoal("tune", "mine.yml", "--dry-run").output


@pytest.mark.slow
def test_a_run_with_it_and_one_without(desk: Desk) -> None:
    """It says so at the start and in the run's folder; without it, one line says that it could be had."""
    done = desk.shoal("train", ENV, "--preset", *QUICK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Preset {NAME} sets ")
    assert "you set num_sgd_iter 1 instead" in done.stdout
    assert "Tuned settings are known" not in done.stdout
    (run,) = desk.runs()
    (tree,) = load_file(run / "config.yaml").tree.values()
    assert (tree["preset"], tree["config"]["lr"]) == (NAME, LR)
    assert f"Preset {NAME} sets " in (run / "log.txt").read_text()

    hint = f"Tuned settings are known for {ENV}: --preset takes them, `shoal presets {NAME}` shows them.\n"
    plain = ("train", ENV, "--stop", "training_iteration=1")
    assert desk.shoal(*plain, "--new").stdout.count(hint) == 1
    assert hint not in desk.shoal(*plain, "--set", "lr=1e-3").stdout, "who sets it knows what he wants"


def test_programs_take_it_too(tmp_path: Path) -> None:
    import shoal as package

    tree = {
        "env": ENV,
        "preset": True,
        "results_dir": str(tmp_path),
        "stop": {"training_iteration": 1},
    }
    (result,) = package.run({**tree, "config": {"num_sgd_iter": 1}})
    assert result["timesteps_this_iter"] == PRESET.config["train_batch_size"]
    with package.PPO(ENV, {"num_sgd_iter": 1}, preset=True) as trainer:
        assert (trainer.config.lr, trainer.preset) == (LR, NAME)
        path = trainer.save(tmp_path)
    saved = json.loads((Path(path) / "experiment.json").read_text())
    assert (saved["preset"], saved["config"]["lr"]) == (NAME, LR)
    with pytest.raises(package.ConfigError, match="preset: there is no 'nothing'"):
        package.PPO(ENV, preset="nothing")
    with pytest.raises(package.ConfigError, match=f"preset: there is none for {ENV} with DQN"):
        package.DQN(ENV, preset=True)
