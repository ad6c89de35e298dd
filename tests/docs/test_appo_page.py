"""What docs/appo.md says: its commands are experiments, keys and results exist, figures are those that are kept."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from shoal.config.algorithms import ALGORITHMS
from shoal.config.experiment import experiment_from
from shoal.config.overrides import parse_override
from shoal.config.result_names import result_names

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "appo.md").read_text()


def test_the_commands_are_experiments() -> None:
    lines = re.findall(r"^(shoal train .*)$", PAGE, re.MULTILINE)
    runs = []
    for line in lines:
        words = shlex.split(line)
        run, workers = words[words.index("--run") + 1], int(words[words.index("--num-workers") + 1])
        said = [parse_override(words[place + 1]) for place, word in enumerate(words) if word == "--set"]
        tree = {"env": "CartPole-v1", "run": run, "config": {"num_workers": workers}}
        runs.append(experiment_from(tree, said).run)
    assert runs == ["APPO", "SAC"]


def test_keys_and_results_exist() -> None:
    keys = {key for name in ("APPO", "SAC") for key in ALGORITHMS[name].model_fields}
    for key in ("max_staleness", "vtrace_clip_rho_threshold", "max_overfit_ratio", "training_intensity"):
        assert f"`{key}" in PAGE
        assert key in keys
    named = re.findall(r"`((?:learner|timers)/\w+|simulator_calls_total|episode_reward_per_call)`", PAGE)
    assert {*named} <= {*result_names()}
    assert len({*named}) >= 7


def test_the_figures_are_those_that_are_kept() -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "appo.json").read_text())
    ratio = kept["results"]["pace"]["ratios"]["PPO"]["median"]
    assert f"({ratio:.1f} times PPO)" in PAGE
    wait = json.loads((ROOT / "benchmarks" / "results" / "fill_the_wait.json").read_text())["results"]["wait"]
    full = wait["auto, max_overfit_ratio null"][0]["wait_share"]
    assert f"{full:.1%}".replace("%", " %") in PAGE
    assert all(bar["met"] for bar in kept["bars"])
