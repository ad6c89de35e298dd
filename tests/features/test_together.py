"""Features that meet: masks, crowds, curricula, draws, hooks, explorations and evaluation, each with others."""

from __future__ import annotations

import csv
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import shoal
from shoal.cli.main import main

ENVS = Path(__file__).parents[1] / "shared" / "meeting_env.py"
NUM_ENVS = 4
SMALL: dict[str, Any] = {
    "num_envs_per_worker": NUM_ENVS,
    "train_batch_size": 100,
    "sgd_minibatch_size": 50,
    "num_sgd_iter": 2,
    "model": {"fcnet_hiddens": [8]},
    "seed": 3,
}
DRAWS = {"options": {"wind": {"uniform": [-0.1, 0.1]}}, "env_config": {"mass": {"uniform": [1, 2]}}}


@pytest.fixture
def trainer_of(start_trainer):
    def make(name: str = "Course", run: str = "PPO", **changes: Any) -> shoal.Trainer:
        config = {**SMALL, **changes} if run != "DQN" else {"seed": 3, **changes}
        return start_trainer(run, f"{ENVS}:{name}", config)

    return make


def evaluated(path: str, *arguments: str) -> dict[str, Any]:
    """What `shoal evaluate` reports."""
    done = CliRunner().invoke(main, ["evaluate", path, *arguments])
    assert done.exit_code == 0, done.output
    found = json.loads(Path(done.output.splitlines()[-1].removeprefix("written to ")).read_text())
    assert found["env_failures"] == 0
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("name", ["Course", "Crowded"])
def test_evaluation_workers_know_masks_tasks_draws_and_hooks(trainer_of, name) -> None:
    if name == "Crowded":
        pytest.importorskip("torch")
    changes = {"randomize": DRAWS, "env_task_fn": f"{ENVS}:one_farther", "callbacks": f"{ENVS}:Highest"}
    alone = trainer_of(name, **changes)
    workers = {"evaluation_num_workers": 2, "num_envs_per_worker": 2, "num_cpus_per_worker": 0.5}
    two = trainer_of(name, **changes, **workers)
    for trainer in (alone, two):
        trainer.train()
        trainer.train()
    two.get_policy().set_state(alone.get_policy().get_state())
    wanted = alone.evaluate(episodes=10, explore=True)
    assert two.evaluate(episodes=10, explore=True) == wanted
    assert wanted["env_failures"] == 0
    metrics = wanted["custom_metrics"]
    assert metrics["goal_min"] == metrics["goal_max"] == 7
    assert metrics["mass_min"] < metrics["mass_max"]
    assert {"highest_mean", "highest_min", "highest_max"} <= metrics.keys()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_an_evaluation_beside_training_has_the_task_of_its_iteration(trainer_of) -> None:
    trainer = trainer_of(
        env_task_fn=f"{ENVS}:one_farther",
        evaluation_interval=1,
        evaluation_num_workers=1,
        evaluation_parallel_to_training=True,
        evaluation_duration=2,
        num_cpus_per_worker=0.5,
    )
    for task in (6, 7, 8):
        result = trainer.train()
        assert result["task"] == task
        assert result["evaluation"]["custom_metrics"]["goal_mean"] == task


@pytest.mark.usefixtures("ray_session")
def test_cases_with_masks_a_task_and_hooks(trainer_of, tmp_path) -> None:
    stages = [{"task": 3, "until": {"timesteps_total": 100}}, {"task": 5}]
    trainer = trainer_of(curriculum={"stages": stages}, callbacks=f"{ENVS}:Highest", randomize=DRAWS)
    trainer.train()
    trainer.train()
    path = trainer.save(tmp_path)
    (tmp_path / "cases.csv").write_text("options.wind,env_config.mass\n0.05,1.5\n-0.05,\n,3\n")
    for workers in ("0", "2"):
        output = tmp_path / f"{workers}.csv"
        arguments = ("--output", str(output), "--num-workers", workers)
        found = evaluated(path, "--cases", str(tmp_path / "cases.csv"), *arguments)
        assert set(found["cases"]) >= {"highest", "goal", "wind", "mass"}
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert output.read_text() == (tmp_path / "0.csv").read_text()
    assert [float(row["goal"]) for row in rows] == [5, 5, 5]
    assert [float(row["wind"]) for row in rows] == [0.05, -0.05, 0]
    assert [float(row["mass"]) for row in rows] == [1.5, 1, 3]
    assert all(0 <= float(row["highest"]) <= 3 for row in rows)


def test_trajectories_of_crowds_in_environments_made_anew(trainer_of, tmp_path) -> None:
    pytest.importorskip("torch")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = trainer_of("Crowded", randomize=DRAWS).save(tmp_path)
    file = tmp_path / "out.parquet"
    report = evaluated(path, "--episodes", "10", "--explore", "--trajectories", str(file))
    rows = parquet.read_table(file).to_pylist()
    episodes = [list(steps) for _, steps in groupby(rows, key=lambda row: row["episode"])]
    assert [len(steps) - 1 for steps in episodes] == report["episode_lengths"]
    assert [sum(row["reward"] for row in steps[:-1]) for steps in episodes] == report["episode_rewards"]
    masses = []
    for steps in episodes:
        assert all(row["obs.action_mask"][row["action"]] for row in steps[:-1])
        assert all(len(row["obs.others"]) in (0, 2, 4, 6) for row in steps)
        assert len({row["obs.observations"][2] for row in steps}) == 1
        masses.append(steps[0]["obs.observations"][2])
    assert len(set(masses)) == len(episodes)


def test_a_video_of_environments_made_anew_shows_as_many_episodes_as_are_wanted(trainer_of, tmp_path) -> None:
    av = pytest.importorskip("av")
    trainer = trainer_of(randomize=DRAWS, record_env=str(tmp_path / "films"))
    for episodes in (9, None):
        if episodes is None:
            report = evaluated(trainer.save(tmp_path), "--episodes", "3", "--video", str(tmp_path / "films" / "b.mp4"))
        else:
            report = trainer.evaluate(episodes=episodes)
        film = max((tmp_path / "films").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        with av.open(str(film)) as video:
            frames = len(list(video.decode(video=0)))
        shown = report["episode_lengths"][: 1 if episodes else 3]
        assert frames == sum(length + 1 for length in shown)


@pytest.mark.parametrize("temperature", [1e-6, 1.0, 1e10])
def test_softq_takes_no_closed_action(trainer_of, temperature) -> None:
    trainer = trainer_of(
        run="DQN",
        num_envs_per_worker=4,
        learning_starts=50,
        timesteps_per_iteration=400,
        exploration_config={"type": "SoftQ", "temperature": temperature},
        evaluation_config={"explore": True},
    )
    assert trainer.train()["env_failures_total"] == 0
    assert trainer.evaluate(episodes=20)["env_failures"] == 0


@pytest.mark.parametrize("name", ["Course", "Crowded", "Offering"])
def test_a_policy_of_masks_crowds_and_offers_acts_by_itself(trainer_of, tmp_path, name) -> None:
    if name != "Course":
        pytest.importorskip("torch")
    trainer = trainer_of(name, observation_filter="MeanStdFilter")
    trainer.train()
    policy = shoal.Policy.load(trainer.save(tmp_path))
    space = trainer.get_policy().obs_spec.space
    assert policy.obs_spec.space == space
    space.seed(0)
    observations = [space.sample() for _ in range(30)]
    for obs in observations:
        obs["action_mask"][np.random.default_rng(1).integers(4)] = 1
    actions = policy.compute_actions(observations, explore=False)
    assert actions == trainer.compute_actions(observations, explore=False)
    assert all(obs["action_mask"][action] for obs, action in zip(observations, actions, strict=True))


MEMORIES = {
    "lstm": {"use_lstm": True, "lstm_cell_size": 8, "lstm_use_prev_action": True, "lstm_use_prev_reward": True},
    "attention": {"use_attention": True, "attention_memory_inference": 3, "attention_dim": 8},
}


def with_memory(memory: str = "lstm") -> dict[str, Any]:
    return {"model": {"fcnet_hiddens": [8], "max_seq_len": 5, **MEMORIES[memory]}}


def trained(trainer: shoal.Trainer, iterations: int) -> tuple[list[Any], np.ndarray]:
    """Observations and actions of some iterations, and the weights after them."""
    seen = []
    sample = trainer.workers.sample

    def watched(steps: int) -> Any:
        found = sample(steps)
        seen.append([np.array(part) for part in (*found.batch.obs, found.batch.actions, *found.batch.carried.states)])
        return found

    trainer.workers.sample = watched
    for _ in range(iterations):
        assert trainer.train()["env_failures_total"] == 0
    return seen, trainer.get_policy().network.params.copy()


@pytest.mark.repeats(0, slow=2)
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("memory", "run", "name"),
    [
        ("lstm", "PPO", "Course"),
        ("lstm", "TRPO", "Offering"),
        ("lstm", "TRPO", "Course"),
        ("attention", "PPO", "Course"),
        ("lstm", "PPO", "Crowded"),
    ],
)
@pytest.mark.slow
def test_memory_behind_masks_is_the_same_in_any_layout(trainer_of, memory, run, name) -> None:
    pytest.importorskip("torch")
    trajectories, weights = trained(trainer_of(name, run, **with_memory(memory)), 2)
    for num_workers in (1, 2):
        layout = {"num_workers": num_workers, "num_envs_per_worker": NUM_ENVS // num_workers}
        changes = {**with_memory(memory), **layout, "num_cpus_per_worker": 0.5}
        others, other_weights = trained(trainer_of(name, run, **changes), 2)
        for mine, theirs in zip(trajectories, others, strict=True):
            for wanted, found in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(other_weights, weights, rtol=0, atol=1e-4)


@pytest.mark.repeats(1)
@pytest.mark.parametrize("run", ["PPO", "TRPO"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_memory_with_masks_tasks_draws_and_hooks_goes_on_bit_for_bit(trainer_of, tmp_path, memory, run) -> None:
    pytest.importorskip("torch")
    stages = [
        {"task": 3, "until": {"timesteps_total": 200}},
        {"task": 5, "until": {"timesteps_total": 400}},
        {"task": 8},
    ]
    changes = {**with_memory(memory), "randomize": DRAWS, "callbacks": f"{ENVS}:Highest"}
    changes |= {"curriculum": {"stages": stages}, "exploration_config": {"type": "StochasticSampling"}}
    whole, resumed = (trainer_of("Course", run, **changes) for _ in range(2))
    for _ in range(3):
        whole.train()
    saved = whole.save(tmp_path)
    resumed.train()
    resumed.restore(saved)
    for task in (5, 8, 8):
        one, two = whole.train(), resumed.train()
        assert one["task"] == two["task"] == task
        for key in ("learner", "custom_metrics", "episode_reward_mean", "episodes_total"):
            assert one[key] == two[key]
        np.testing.assert_array_equal(whole.get_policy().network.params, resumed.get_policy().network.params)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_evaluation_workers_cases_and_policies_by_themselves_remember(trainer_of, tmp_path) -> None:
    pytest.importorskip("torch")
    alone = trainer_of(**with_memory(), observation_filter="MeanStdFilter")
    workers = {"evaluation_num_workers": 2, "num_envs_per_worker": 2, "num_cpus_per_worker": 0.5}
    two = trainer_of(**with_memory(), **workers, observation_filter="MeanStdFilter")
    alone.train()
    two.get_policy().set_state(alone.get_policy().get_state())
    wanted = alone.evaluate(episodes=7)
    found = two.evaluate(episodes=7)
    assert found["episode_lengths"] == wanted["episode_lengths"]
    assert found["episode_rewards"] == wanted["episode_rewards"]
    path = alone.save(tmp_path)
    (tmp_path / "cases.csv").write_text("seed\n" + "".join(f"{seed}\n" for seed in range(5)))
    tables = []
    for workers_ in ("0", "2"):
        output = tmp_path / f"{workers_}.csv"
        evaluated(path, "--cases", str(tmp_path / "cases.csv"), "--output", str(output), "--num-workers", workers_)
        tables.append(output.read_text())
    assert tables[0] == tables[1]
    rewards = [float(row["episode_reward"]) for row in csv.DictReader(tables[0].splitlines())]

    policy = shoal.Policy.load(path)
    for seed, reward in enumerate(rewards):
        env = alone.env_maker.make(shoal.EnvContext({}))
        obs, _ = env.reset(seed=seed)
        state, before, total, done = policy.get_initial_state(), {}, 0.0, False
        while not done:
            action, state, _ = policy.compute_single_action(obs, state, **before, explore=False)
            obs, gained, terminated, truncated, _ = env.step(action)
            before = {"prev_action": action, "prev_reward": gained}
            total, done = total + gained, terminated or truncated
        assert total == reward


def test_correlated_noise_and_memory_go_on_together(trainer_of, tmp_path) -> None:
    pytest.importorskip("torch")
    changes = {**with_memory(), "exploration_config": {"type": "OrnsteinUhlenbeckNoise"}, "squash_actions": True}
    whole, resumed = (trainer_of("Throwing", **changes) for _ in range(2))
    whole.train()
    saved = whole.save(tmp_path)
    resumed.restore(saved)
    assert whole.train()["learner"] == resumed.train()["learner"]
    np.testing.assert_array_equal(whole.get_policy().network.params, resumed.get_policy().network.params)
