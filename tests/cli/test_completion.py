"""Completion, in bash, as it is after `eval "$(shoal completion bash)"`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
eval "$(shoal completion bash)"
compopt() { told+=" $1 $2"; }
while read -ra COMP_WORDS; do
    [[ ${COMP_WORDS[-1]} == _ ]] && COMP_WORDS[-1]=""
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )) COMPREPLY=() told=""
    _shoal_completion shoal
    echo "${COMPREPLY[@]}$told"
done
"""
"""Readline's part: it sets the words, bash's own way of cutting `a=b` included, and calls the function."""

COMPLETED = {
    "shoal train CartP": ["CartPole-v1"],
    "shoal train my": ["mydir/", "my_env.py", "my_file.yml"],
    "shoal train -f my": ["-o", "default"],
    "shoal train no_such": ["-o", "default"],
    "shoal train --set config.gamma = 0.9 CartP": ["CartPole-v1"],
    "shoal train X --set config.gam": ["config.gamma=", "-o", "nospace"],
    "shoal train X --set config.mod": ["config.model.", "-o", "nospace"],
    "shoal train X --set fcnet_h": [],
    "shoal train X --set model.fcnet_h": ["model.fcnet_hiddens=", "-o", "nospace"],
    "shoal train X --set checkpoint_f": ["checkpoint_freq=", "-o", "nospace"],
    "shoal train X --run dqn --set target": ["target_network_update_freq=", "-o", "nospace"],
    "shoal train X --stop episode_reward_m": ["episode_reward_mean=", "episode_reward_max=", "episode_reward_min="],
    "shoal train X --run t": ["TRPO"],
    "shoal resume first": ["first_run"],
    "shoal evaluate first_run/PPO": ["first_run/PPO_X_00000_2026-01-01_00-00-00"],
    "shoal model ./m": ["./mydir/", "-o", "nospace"],
    "shoal train X --restore se": ["second_run"],
    "shoal tune --set num_sa": ["num_samples=", "-o", "nospace"],
    "shoal envs Acro": ["Acrobot-v1"],
    "shoal train MountainCarContinuous-v0 --preset m": ["mountaincar_continuous_ppo"],
    "shoal presets mount": ["mountaincar_continuous_ppo"],
    "shoal config show --run p": ["PPO"],
}


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory, trained: tuple[Any, Any, Path]) -> dict[str, list[str]]:
    """What bash offers for each line, all in one shell."""
    folder = tmp_path_factory.mktemp("completing")
    desk = type(trained[0])(folder / "home", folder / "work")
    for place in ("home/shoal_results/first_run/PPO_X_00000_2026-01-01_00-00-00", "home/shoal_results/second_run"):
        (folder / place).mkdir(parents=True)
    (desk.work / "mydir").mkdir(parents=True)
    for name in ("my_env.py", "my_file.yml", "my_notes.txt"):
        (desk.work / name).touch()
    path = f"{Path(desk.command).parent}:/usr/bin:/bin"
    lines = "".join(f"{line}\n" for line in COMPLETED)
    done = subprocess.run(
        ["bash", "--norc", "-c", SCRIPT],
        cwd=desk.work,
        env=desk.environment(PATH=path),
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return {line: words.split() for line, words in zip(COMPLETED, done.stdout.splitlines(), strict=True)}


@pytest.mark.parametrize("line", COMPLETED)
def test_bash_completes(completed: dict[str, list[str]], line: str) -> None:
    assert completed[line] == COMPLETED[line]
