"""A run that is forked, and one that is searched for the iteration where it broke."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.config.experiment import experiment_from
from shoal.data.results import plain_json
from shoal.errors import CheckpointError, ConfigError
from shoal.reports.records import results_of
from shoal.reports.run_report import leave_report
from shoal.runs.bisecting import Breakdown, WatchedIteration, _worst, bisect, breakdown
from shoal.runs.chain import CHAIN_FILE, read_chain
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.forks import fork
from shoal.runs.lineage import parent_of, read_lineage
from shoal.runs.reproducing import reproduce
from shoal.runs.run import Run
from shoal.runs.verifying import verify_run

JUMP = [[0, 1e-3], [511, 1e-3], [512, 3.0], [639, 3.0], [640, 1e-6]]  # in iteration 5 alone


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven iterations of 128 steps, the fifth with an absurd learning rate; checkpoints of 3, 6 and 7."""
    folder = tmp_path_factory.mktemp("forks")
    config = {"train_batch_size": 128, "num_envs_per_worker": 2, "num_sgd_iter": 1, "seed": 5, "lr_schedule": JUMP}
    tree: dict[str, Any] = {"name": "one", "env": "CartPole-v1", "results_dir": str(folder), "report": False}
    tree |= {"checkpoint_freq": 3, "stop": {"training_iteration": 7}, "config": config}
    opened = Run.open(experiment_from(tree))
    list(opened.results())
    return opened.folder


def test_a_fork_with_nothing_changed_is_the_run_itself(run: Path, tmp_path: Path) -> None:
    again: list[int] = []
    child = fork(run, tmp_path / "scratch", 5, {}, "same", tell=again.append)
    assert again == [4, 5]  # from checkpoint 3
    list(child.results())
    assert (child.folder / CHAIN_FILE).read_bytes() == (run / CHAIN_FILE).read_bytes()
    assert not [finding for finding in verify_run(child.folder) if finding.verdict == "problem"]


def test_a_fork_remembers_where_it_came_from_and_what_was_changed(run: Path, tmp_path: Path) -> None:
    child = fork(run, tmp_path / "scratch", 3, {"config.lr_schedule": None})
    list(child.results())
    lineage, there, here = read_lineage(child.folder), read_chain(run), read_chain(child.folder)
    assert lineage is not None
    assert there is not None
    assert here is not None
    assert (child.experiment.name, lineage.iteration, lineage.link) == ("one-fork", 3, there.links[3].link)
    assert [change.partition(":")[0] for change in lineage.changes] == ["config.lr_schedule"]
    assert parent_of(child.folder) == run
    assert [there.links[at] == here.links[at] for at in range(1, 8)] == [True] * 3 + [False] * 4
    found = reproduce(child.folder, tmp_path / "again", 20)
    assert (found.began_after, found.identical_to, found.differs_at) == (3, 7, None)
    leave_report(child.folder)
    page = (child.folder / "report.html").read_text()
    assert f"It continues {run} from iteration 3" in page
    assert "2 runs" in page


def test_what_a_damaged_chain_cannot_show_is_not_forked(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / CHAIN_FILE).write_bytes(b"\xff\xfe\n[1]\n")
    with pytest.raises(CheckpointError, match=r"chain.jsonl is damaged \(line 1"):
        fork(copy, tmp_path / "scratch", 5, {}, "same")


@pytest.mark.parametrize(
    ("iteration", "changes", "told"),
    [
        (8, {}, "has 7 iterations"),
        (7, {}, "its stop criterion is met at iteration 7 already"),
        (3, {"config.num_envs_per_worker": 4}, "cannot change in a run that continues"),
    ],
)
def test_a_fork_that_cannot_be_leaves_nothing(
    run: Path, tmp_path: Path, iteration: int, changes: dict[str, Any], told: str
) -> None:
    before = sorted(run.parents[1].iterdir())
    with pytest.raises(ConfigError, match=told):
        fork(run, tmp_path / "scratch", iteration, changes, "none")
    assert sorted(run.parents[1].iterdir()) == before


def test_a_run_that_trains_otherwise_again_is_not_forked(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.algorithms.optimizer import Adam

    step = Adam.step
    monkeypatch.setattr(Adam, "step", lambda self, params, gradient, lr: step(self, params, gradient, lr * 2))
    with pytest.raises(CheckpointError, match="iteration 4 has another weights and optimiser"):
        fork(run, tmp_path / "scratch", 5, {}, "other")


def results(*returns: float, **learner: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "training_iteration": place + 1,
            "episode_reward_mean": value,
            "learner": {name: values[place] for name, values in learner.items()},
        }
        for place, value in enumerate(returns)
    ]


def test_the_rules() -> None:
    assert breakdown(results(10, 20, 30, 25, 21)) is None
    fell = breakdown(results(10, 50, 100, 40, 90, 54, 30, 20))
    assert fell is not None
    assert (fell.kind, fell.after, fell.iteration) == ("collapse", 2, 6)  # it recovered from the first fall
    refused = breakdown(results(10, 20, 30, refused_minibatches=[0.0, 2.0, 0.0]))
    assert refused is not None
    assert (refused.kind, refused.after, refused.iteration) == ("not finite", 1, 2)
    lost = breakdown(plain_json(results(10, 20, vf_loss=[1.0, float("nan")])))
    assert lost is not None
    assert lost.sentence == "learner/vf_loss is not a number in iteration 2"


def test_without_a_kl_the_largest_gradient_is_to_blame_wherever_in_its_iteration_it_was() -> None:
    early, late = WatchedIteration(3, norms=[9.0, 1.0, None]), WatchedIteration(4, norms=[1.0, 1.0, 2.0])
    assert _worst([early, late], Breakdown("collapse", 2, 4, "")) is early


def collapsed(run: Path) -> list[dict[str, Any]]:
    """Its results with a collapse; so short a run has none of its own."""
    told = results_of(run)
    for result in told:
        result["episode_reward_mean"] = 100.0 if result["training_iteration"] == 4 else 10.0
    told[0]["episode_reward_mean"] = 0.0
    told[-1]["episode_reward_mean"] = 1.0
    return told


def test_the_iteration_to_blame_is_found_and_shown_by_a_script(run: Path) -> None:
    found = bisect(run, collapsed(run))
    assert found is not None
    assert found.watch is not None
    assert found.script is not None
    assert found.watch.iteration == 5
    assert len(found.watch.norms) == len([norm for norm in found.watch.norms if norm is not None]) > 0
    done = subprocess.run([sys.executable, found.script], capture_output=True, text=True, check=True, timeout=120)
    lines = done.stdout.splitlines()
    assert lines[0] == found.watch.lines()[0]
    assert lines[-1] == f"{len(found.watch.norms)} {found.watch.norms[-1]}"


def test_what_a_run_is_called_is_no_code_of_the_script_and_links_are_not_followed(run: Path, tmp_path: Path) -> None:
    canary, elsewhere = tmp_path / "canary", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("precious")
    code = f"\nimport pathlib; pathlib.Path(bytes.fromhex('{os.fsencode(canary).hex()}').decode()).touch()\n"
    folder = tmp_path / f'PPO\\N"""{code}"""'
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("bisect"))
    (folder / "bisect").symlink_to(elsewhere)
    found = bisect(folder, collapsed(run))
    assert found is not None
    assert found.script is not None
    done = subprocess.run([sys.executable, found.script], capture_output=True, text=True, check=False, timeout=120)
    assert not canary.exists()
    assert done.returncode == 0, done.stderr
    assert [child.name for child in elsewhere.iterdir()] == ["mine"]


SURGING = """
import gymnasium
import numpy as np

class Surging(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward=0.0, obs=0.0):
        self.reward, self.obs = reward, obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.surges = 0, self.np_random.random() < 0.08
        return self.look(), {}

    def look(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        self.episode += 1
        surges = self.surges and self.episode == 7
        obs = self.look()
        if surges and self.obs:
            obs[0] = self.obs
        return obs, self.reward * surges + 0.01 * float(action), False, self.episode == 20, {}
"""


def surged(folder: Path, algorithm: str, capacity: int, seed: int, **surge: float) -> Path:
    """Eight iterations of an environment with a few steps that are beyond all measure; every checkpoint is kept."""
    (folder / "surging.py").write_text(SURGING)
    config = {
        "env_config": surge,
        "num_envs_per_worker": 1,
        "timesteps_per_iteration": 64,
        "learning_starts": 32,
        "train_batch_size": 16,
        "training_intensity": 4.0,
        "replay_buffer_config": {"capacity": capacity},
        "normalize_rewards": False,
        "model": {"fcnet_hiddens": [8], "fcnet_activation": "relu"},
        "seed": seed,
    }
    tree: dict[str, Any] = {"name": algorithm, "run": algorithm, "env": f"{folder}/surging.py:Surging"}
    tree |= {"results_dir": str(folder / "results"), "report": False, "config": config}
    tree |= {"checkpoint_freq": 1, "keep_checkpoints_num": 20, "stop": {"training_iteration": 8}}
    opened = Run.open(experiment_from(tree))
    list(opened.results())
    return opened.folder


@pytest.mark.parametrize("algorithm", ["DQN", "SAC"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_replay_that_met_what_no_network_can_multiply_is_bisected_to_its_iteration(
    tmp_path: Path, algorithm: str
) -> None:
    folder = surged(tmp_path, algorithm, 1000, seed=4, obs=3e38)
    told = results_of(folder)
    refused = [int(result["learner"]["refused_minibatches"]) for result in told]
    first = next(place for place, count in enumerate(refused, start=1) if count)
    assert first > 2, "it is trained again from a checkpoint, with a replay"
    found = bisect(folder, told)
    assert found is not None
    assert found.breakdown.iteration == first
    assert found.watch is not None
    assert found.watch.iteration == first
    assert sum(norm is None for norm in found.watch.norms) == refused[first - 1]
    name = f"checkpoint_{first - 1:06d}"
    assert same_arrays(folder / "bisect" / name, folder / name)


def test_what_is_left_of_an_iteration_long_before_the_end_has_the_replay_of_that_time(tmp_path: Path) -> None:
    """A replay is saved by reference, and is written over while the stretch behind the iteration is trained again."""
    folder = surged(tmp_path, "DQN", 64, seed=2, reward=1e4)
    told = results_of(folder)
    for result, value in zip(told, [0, 100, 10, 10, 10, 10, 10, 1], strict=True):
        result["episode_reward_mean"] = float(value)
    found = bisect(folder, told)
    assert found is not None
    assert found.watch is not None
    gradients = [result["learner"]["grad_gnorm"] for result in told]
    assert found.watch.iteration == gradients.index(max(gradients)) + 1 == 2
    assert same_arrays(folder / "bisect" / "checkpoint_000001", folder / "checkpoint_000001")


def same_arrays(one: Path, other: Path) -> bool:
    """Whether two checkpoints hold the same numbers."""
    here, there = read_checkpoint(one).state.arrays, read_checkpoint(other).state.arrays
    assert here.keys() == there.keys()
    assert any("replay" in name for name in here)
    return all(np.array_equal(here[name], there[name]) for name in here)
