"""The schema of experiment files: it accepts what the loader accepts, and marks the usual mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_sweeps import LR, NET, fill, sweep

from shoal.cli.init import KINDS, make_project
from shoal.cli.init import SCHEMA as PROJECT_SCHEMA
from shoal.cli.main import main
from shoal.config.algorithms import BUILT_IN
from shoal.config.experiment import as_tree, experiment_from
from shoal.config.presets import all_presets
from shoal.config.schema import schema_text
from shoal.config.sweep import sweep_from, sweeps_from_file
from shoal.config.yaml_files import SCHEMA, load_file, load_text, schema_line
from shoal.envs.importing import UserCode
from shoal.reports.answer_files import write_answer
from shoal.reports.records import write_sweep
from shoal.runs.run_folder import RunFolder

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[3]
EXAMPLES = [path for path in ROOT.glob("examples/**/*.yml") if path.name != "job.yml"]


@pytest.fixture(scope="module")
def schema() -> Any:
    found = json.loads(SCHEMA.read_text())
    jsonschema.Draft7Validator.check_schema(found)
    return jsonschema.Draft7Validator(found)


def test_the_shipped_file_is_what_the_code_says() -> None:
    command = "write it anew: shoal config schema -o src/shoal/config/experiments.schema.json"
    assert SCHEMA.read_text() == schema_text(), command


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_our_examples_are_valid(schema: Any, path: Path) -> None:
    schema.validate(load_file(path).tree)


def test_our_presets_and_templates_are_valid(schema: Any, tmp_path: Path) -> None:
    presets = all_presets()
    assert presets
    schema.validate(
        {name: {"env": one.env, "run": one.run, "config": dict(one.config)} for name, one in presets.items()}
    )
    schema.validate({name: dict(one.sweep) for name, one in presets.items()})
    for kind in KINDS:
        make_project(tmp_path / kind, kind)
        text = (tmp_path / kind / "experiment.yml").read_text()
        assert text.startswith(schema_line(PROJECT_SCHEMA))
        assert (tmp_path / kind / PROJECT_SCHEMA).read_text() == SCHEMA.read_text()
        schema.validate(load_text(text, kind).tree)


@pytest.mark.parametrize("run", BUILT_IN)
def test_a_resolved_experiment_is_valid(schema: Any, run: str) -> None:
    own: dict[str, Any] = {"input": "folder"} if run in ("BC", "MARWIL") else {"evaluation_config": {"task": 3}}
    stop = {"training_iteration": 3, "custom_metrics/a": 1}
    tree = as_tree(experiment_from({"env": "X-v0", "run": run, "stop": stop, "config": own}))
    schema.validate({tree.pop("name"): tree})


GOOD = [
    {"env": "custom_env.CustomEnv", "run": "DQN", "checkpoint_freq": 1, "stop": {"timesteps_total": 10000}},
    {"env": {"command": ["./solver"]}, "config": {"lr": {"grid_search": [1e-3, 1e-4]}}, "num_samples": 2},
    {"env": "X-v0", "config": {"model": None, "evaluation_duration": None, "seed": None}},
    {"env": "X-v0", "run": {"grid_search": ["PPO", "DQN"]}, "config": {"gamma": 0.9}},
    {"env": "X-v0", "config": {"curriculum": {"stages": [{"task": 1, "until": {"episode_len_mean": "<= 3"}}]}}},
]
BAD = [
    {"config": {"lrr": 1}},
    {"config": {"lr": -1}},
    {"config": {"lr": "fast"}},
    {"config": {"num_env_runners": 2}},
    {"config": {"max_kl": 0.01}},
    {"config": {"model": {"fcnet_hiddens": [0]}}},
    {"run": "DQN", "config": {"clip_param": 0.2}},
    {"stop": {"steps": 1}},
    {"run": "ppo"},
    {"checkpoint_frequency": 3},
    {"learning_rate": 1e-3},
]


@pytest.mark.parametrize("tree", GOOD, ids=str)
def test_what_is_right_is_not_marked(schema: Any, tree: dict[str, Any]) -> None:
    schema.validate({"x": tree})


@pytest.mark.parametrize("tree", BAD, ids=str)
def test_a_mistake_is_marked(schema: Any, tree: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        schema.validate({"x": tree})


SPACES = {"lr": {"loguniform": [1e-5, 1e-2]}, "model": {"fcnet_hiddens": {"choice": [[32, 32], [64, 64]]}}}
SWEEPS = [
    {"config": SPACES, "num_samples": 3, "seeds": 2, "metric": "episode_len_mean", "mode": "min"},
    {"config": SPACES, "scheduler": {"type": "asha", "grace_period": 500}},
    {"config": {"lr": {"loguniform": [1e-5, 1e-2]}}, "scheduler": "pbt", "num_samples": 4, "max_concurrent_trials": 2},
    {
        "config": {},
        "num_samples": 4,
        "scheduler": {
            "type": "pbt",
            "hyperparam_mutations": {"lr": [1e-4, 1e-3], "clip_param": {"uniform": [0.1, 0.3]}},
        },
    },
]


@pytest.mark.parametrize("words", SWEEPS, ids=["plain", "asha", "pbt", "mutations"])
def test_the_file_of_a_sweep_is_valid_and_can_be_tuned_again(
    schema: Any, tmp_path: Path, words: dict[str, Any]
) -> None:
    made = sweep_from({"env": "CartPole-v1", "name": "mine", "stop": {"timesteps_total": 10000}, **words})
    write_sweep(tmp_path, made, UserCode(()), None)
    (again,) = sweeps_from_file(tmp_path / "sweep.yaml")
    assert again == made
    schema.validate(load_file(tmp_path / "sweep.yaml").tree)


def test_every_yaml_file_that_we_write_names_the_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = experiment_from({"env": "CartPole-v1", "name": "mine", "results_dir": str(tmp_path)})
    with RunFolder(tmp_path, experiment, UserCode(())).held():
        pass
    fill(tmp_path, sweep(LR, NET), 3)
    write_sweep(tmp_path, sweep(LR, NET), UserCode(()), None)
    write_answer(tmp_path)
    Path("old.yml").write_text("old: {env: CartPole-v1, run: PPO, config: {framework: tf}}")
    shoal = CliRunner()
    assert shoal.invoke(main, ["migrate", "old.yml", "-o", "new.yml"], prog_name="shoal").exit_code == 0
    Path("old.yml").unlink()
    preset = next(iter(all_presets()))
    Path("found.yml").write_text(shoal.invoke(main, ["presets", preset, "--sweep"], prog_name="shoal").output)
    written = sorted(path.name for path in (*tmp_path.glob("*.yaml"), *tmp_path.glob("*.yml")))
    assert written == ["best.yml", "config.yaml", "found.yml", "new.yml", "sweep.yaml"]
    assert all(Path(name).read_text().startswith(schema_line()) for name in written)
    # Whoever writes YAML is one of those above, or prints what it would train.
    used = re.compile(r"(?<!def )\b(?:dump_yaml|dump_alike|experiments?_yaml|sweep_yaml|best_yaml)\(")
    sources = {path: path.read_text() for path in (ROOT / "src" / "shoal").rglob("*.py")}
    assert {str(path.relative_to(ROOT / "src/shoal")) for path, text in sources.items() if used.search(text)} == {
        "cli/presets.py",
        "cli/train.py",
        "cli/tune.py",
        "config/experiment.py",
        "config/migration.py",
        "config/sweep.py",
        "config/yaml_files.py",
        "reports/answer_files.py",
        "reports/records.py",
        "runs/run_folder.py",
    }


def test_the_line_names_a_file_that_is_there() -> None:
    from urllib.parse import unquote, urlparse

    address = schema_line().partition("$schema=")[2]
    assert address.endswith("\n")
    assert " " not in address
    assert Path(unquote(urlparse(address.strip()).path)) == SCHEMA
