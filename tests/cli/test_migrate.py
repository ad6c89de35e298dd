"""`shoal migrate`: the new file, the report, and what is not overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shoal.cli.main import main
from shoal.config.yaml_files import schema_line

OLD = """\
cartpole-ppo:
    env: CartPole-v1
    run: PPO
    stop: {training_iteration: 1}
    config:
        framework: tf
        lambda: 0.9
        train_batch_size: 400
        num_workers: 0
"""


@pytest.fixture(autouse=True)
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.yml").write_text(OLD)
    return tmp_path / "old.yml"


def migrate(*words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["migrate", *words], input=text, prog_name="shoal")


def test_the_new_file_trains(desk: Any) -> None:
    (desk.work / "old.yml").write_text(OLD)
    done = desk.shoal("migrate", "old.yml", "-o", "new.yml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "    2  same     env: CartPole-v1\n" in done.stdout
    assert "    7  renamed  config.lambda: 0.9 -> config.lambda_: 0.9\n" in done.stdout
    assert "    6  gone     config.framework: tf; TensorFlow is not supported" in done.stdout
    assert "          clip_param: 0.3 there, 0.2 here\n" in done.stdout
    assert done.stdout.endswith("Written to new.yml; run it: shoal train -f new.yml\n")
    text = (desk.work / "new.yml").read_text()
    assert text.splitlines()[0].startswith("# yaml-language-server: $schema=file://")
    assert "# gone from cartpole-ppo: config.framework: tf; " in text
    assert desk.shoal("train", "-f", "new.yml", "--quiet").returncode == 0


def test_without_a_name_the_file_goes_to_standard_output() -> None:
    done = migrate("-", text=OLD)
    assert done.exit_code == 0
    assert done.stdout.startswith(schema_line())
    assert "renamed" not in done.stdout
    assert "standard input: RLlib 1.x, 1 experiment\n" in done.stderr


def test_a_file_is_replaced_only_on_request() -> None:
    Path("new.yml").write_text("precious")
    done = migrate("old.yml", "-o", "new.yml")
    assert (done.exit_code, Path("new.yml").read_text()) == (2, "precious")
    assert "Error: new.yml exists already; give another name, or --force to replace it\n" in done.output
    assert migrate("old.yml", "-o", "new.yml", "--force").exit_code == 0
    assert Path("new.yml").read_text().startswith(schema_line())


def test_the_report_for_programs() -> None:
    told = json.loads(migrate("old.yml", "--json").stdout)
    assert (told["from"], told["counts"]["gone"], told["counts"]["renamed"]) == ("rllib1", 1, 1)
    (experiment,) = told["experiments"]
    (gone,) = (one for one in experiment["settings"] if one["what"] == "gone")
    assert (gone["line"], gone["there"], gone["value"]) == (6, "config.framework", "tf")
    assert {"key": "config.clip_param", "there": 0.3, "here": 0.2} in experiment["defaults"]
    assert "lambda_: 0.9" in told["text"]
    told = json.loads(migrate("old.yml", "--json", "-o", "new.yml").stdout)
    assert (told["text"], told["written"]) == (None, "new.yml")


def test_strict_ends_with_1_where_something_is_gone() -> None:
    assert migrate("old.yml", "--strict", "-o", "new.yml").exit_code == 1
    assert Path("new.yml").exists()
    assert migrate("-", "--strict", text=OLD.replace("        framework: tf\n", "")).exit_code == 0


def test_sections_for_many_environments_are_left_out() -> None:
    text = "atari: {n_steps: 8, policy: CnnPolicy}\nCartPole-v1: {n_steps: 8, n_timesteps: 100}\n"
    done = migrate("-", "--run", "PPO", text=text)
    assert "atari: left out, for it is for many environments; --only atari --env ENV" in done.stderr
    assert "ALE/Pong-v5" in migrate("-", "--run", "PPO", "--only", "atari", "--env", "ALE/Pong-v5", text=text).stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere.yml"], "nowhere.yml: there is no such file"),
        (["."], ".: is a folder"),
        (["params.pkl"], "is not UTF-8 text; params.pkl is a pickle"),
        (["old.yml", "--from", "sb3", "--only", "cart"], "there is no experiment 'cart'"),
        (["old.yml", "-o", "none/new.yml"], "none/new.yml cannot be written"),
        (["old.yml", "--from", "keras"], "'keras' is not one of"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], problem: str) -> None:
    Path("params.pkl").write_bytes(b"\x80\x04\x95")
    done = migrate(*words)
    assert done.exit_code == 2
    assert problem in done.output
    assert "Traceback" not in done.output


def test_what_is_infinite_is_said_in_the_words_of_the_old_file(tmp_path: Path) -> None:
    old = tmp_path / "old.yml"
    old.write_text("cart: {env: CartPole-v1, run: PPO, config: {lr: .inf, gamma: .nan, vf_clip_param: .inf}}\n")
    done = CliRunner().invoke(main, ["migrate", str(old)])
    assert done.exit_code == 0
    assert "config.lr: inf; it stays at its default, because it must be a finite number (got inf)" in done.stderr
    assert "config.gamma: nan; it stays at its default, because it must be a finite number (got nan)" in done.stderr
    assert "vf_clip_param: null" in done.stderr, "which means no limit"
