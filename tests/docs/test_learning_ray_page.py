"""What docs/seeds/learning-ray.md shows works, and no parameter of the article is left out."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.config.experiment import config_tree
from shoal.config.ppo import PPOConfig
from shoal.config.yaml_files import parse_value

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "seeds" / "learning-ray.md").read_text()
COMMON = """gamma lr train_batch_size optimizer env env_task_fn render_env record_env framework explore
    exploration_config evaluation_interval evaluation_duration evaluation_duration_unit model"""
PPO = """lr_schedule use_critic use_gae lambda_ kl_coeff sgd_minibatch_size num_sgd_iter shuffle_sequences vf_loss_coeff
    entropy_coeff entropy_coeff_schedule clip_param vf_clip_param grad_clip kl_target"""


def run(command: list[str], folder: Path) -> str:
    """What a command prints in a folder that is its home too; it must end well."""
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def table(title: str) -> dict[str, str]:
    """The keys of a section's table, and what stands under `here`."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", section, re.MULTILINE))


@pytest.mark.slow
def test_the_commands_run(tmp_path: Path) -> None:
    for name in ("custom.yml", "custom_env.py"):
        shutil.copy(ROOT / "examples" / "learning-ray" / name, tmp_path)
    train, evaluate = (shlex.split(line) for line in re.findall(r"^ {4}shoal (.*)$", PAGE, re.MULTILINE))
    run([sys.executable, "-m", "shoal", *train], tmp_path)
    (folder,) = (tmp_path / "shoal_results" / "custom_env").glob("DQN_custom_env.CustomEnv_*")
    evaluate[1] = evaluate[1].replace("~", str(tmp_path)).replace("DQN_custom_env.CustomEnv_id_date", folder.name)
    assert "episodes, 100 steps" in run([sys.executable, "-m", "shoal", *evaluate], tmp_path)


@pytest.mark.slow
def test_a_ray_of_ones_own_is_used_and_left(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert run([sys.executable, "-c", program], tmp_path).splitlines() == ["2 workers", "Ray still runs: True"]


@pytest.mark.parametrize(("title", "keys"), [("Common parameters", COMMON), ("PPO's parameters", PPO)])
def test_the_parameters_of_the_article_have_these_defaults(title: str, keys: str) -> None:
    shown, defaults = table(title), config_tree(PPOConfig())
    assert list(shown) == keys.split()
    for key, text in shown.items():
        value: Any = parse_value(text)
        default = defaults[key]
        assert {name: default[name] for name in value} == value if isinstance(value, dict) else default == value, key
