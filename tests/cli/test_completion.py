"""Completion in bash, zsh and fish, as it is after each has read what `shoal completion` prints."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
from pathlib import Path

import pytest
from desks import DEADLINE_S, Desk

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


IN_FISH = {
    "shoal tra": ["train\tTrain an agent on an environment, or the experiments of a file."],
    "shoal train CartP": ["CartPole-v1"],
    "shoal train my": ["mydir/", "my_env.py", "my_file.yml"],
    "shoal train -f my_n": ["my_notes.txt"],
    "shoal train X --set config.gam": ["config.gamma="],
    "shoal train X --run dqn --set target": ["target_network_update_freq="],
    "shoal train X --checkpoint-f": [
        "--checkpoint-freq\tNumber of iterations between checkpoints; 0: none during the run."
    ],
    "shoal resume first": ["first_run"],
}

IN_ZSH = {
    "shoal tra": "shoal train ",
    "shoal train CartP": "shoal train CartPole-v1 ",
    "shoal train -f my_n": "shoal train -f my_notes.txt ",
    "shoal train no_such": "shoal train no_such",
    "shoal train X --set config.gam": "shoal train X --set config.gamma=",
    "shoal train --set lr=1 --set config.mod": "shoal train --set lr=1 --set config.model.",
    "shoal resume first": "shoal resume first_run ",
    "shoal model ./m": "shoal model ./mydir/",
}

ZSH_SETUP = """
autoload -U compinit && compinit -u -D
eval "$(shoal completion zsh)"
_tell() { print -r -- "$BUFFER" >> told; BUFFER="" }
zle -N _tell && bindkey '^X' _tell && bindkey '^I' expand-or-complete
"""
"""What a person's ~/.zshrc does, and a key that writes down what the line has become."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """One with two experiments, a folder and three files."""
    desk = Desk.new(tmp_path_factory.mktemp("completing"))
    for place in ("first_run/PPO_X_00000_2026-01-01_00-00-00", "second_run"):
        (desk.home / "shoal_results" / place).mkdir(parents=True)
    (desk.work / "mydir").mkdir()
    for name in ("my_env.py", "my_file.yml", "my_notes.txt"):
        (desk.work / name).touch()
    return desk


def environment(desk: Desk, **more: str) -> dict[str, str]:
    return desk.environment(PATH=f"{Path(desk.command).parent}:/usr/bin:/bin", **more)


@pytest.fixture(scope="module")
def completed(desk: Desk) -> dict[str, list[str]]:
    """What bash offers for each line, all in one shell."""
    lines = "".join(f"{line}\n" for line in COMPLETED)
    done = subprocess.run(
        ["bash", "--norc", "-c", SCRIPT],
        cwd=desk.work,
        env=environment(desk),
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


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes(desk: Desk) -> None:
    ask = [f'echo "== {line}"; complete --do-complete "{line}"' for line in IN_FISH]
    program = "; ".join(["shoal completion fish | source", *ask])
    done = subprocess.run(
        ["fish", "--no-config", "-c", program],
        cwd=desk.work,
        env=environment(desk),
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    offered: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("== "):
            offered[line[3:]] = []
        else:
            [*offered.values()][-1].append(line)
    assert offered == IN_FISH


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes(desk: Desk) -> None:
    """A real line editor is typed into, with a real TAB after each line."""
    (desk.home / ".zshrc").write_text(ZSH_SETUP)
    keyboard, terminal = pty.openpty()
    shell = subprocess.Popen(
        ["zsh", "-d", "-i"],
        cwd=desk.work,
        env=environment(desk, TERM="xterm", ZDOTDIR=str(desk.home)),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    told = desk.work / "told"
    try:
        shown = ""
        for number, line in enumerate(IN_ZSH, start=1):
            os.write(keyboard, f"{line}\t\x18".encode())
            while not told.exists() or told.read_text().count("\n") < number:
                ready, _, _ = select.select([keyboard], [], [], DEADLINE_S)
                assert ready, shown
                shown += os.read(keyboard, 4096).decode(errors="replace")
        assert dict(zip(IN_ZSH, told.read_text().splitlines(), strict=True)) == IN_ZSH, shown
    finally:
        shell.kill()
        shell.wait()
        os.close(keyboard)
