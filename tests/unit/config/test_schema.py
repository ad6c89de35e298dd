"""The schema of experiment files: it accepts what the loader accepts, and marks the usual mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.init import KINDS, make_project
from shoal.cli.init import SCHEMA as PROJECT_SCHEMA
from shoal.config.algorithms import BUILT_IN
from shoal.config.experiment import as_tree, experiment_from
from shoal.config.presets import all_presets
from shoal.config.schema import schema_text
from shoal.config.yaml_files import SCHEMA, load_file, load_text, schema_line

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


def test_the_line_names_a_file_that_is_there() -> None:
    from urllib.parse import unquote, urlparse

    address = schema_line().partition("$schema=")[2]
    assert address.endswith("\n")
    assert " " not in address
    assert Path(unquote(urlparse(address.strip()).path)) == SCHEMA
