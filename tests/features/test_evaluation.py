"""Evaluation: by this process or by workers, beside training, of cases, on film; and a policy by itself."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import shoal
from shoal.cli.main import main
from shoal.envs.cases import Case
from shoal.envs.recording import RecordingOptions
from shoal.errors import CheckpointError, ConfigError
from shoal.runs.evaluation import EvaluationSetup, start_cases, start_evaluation

ENVS = Path(__file__).parents[1] / "shared" / "evaluation_env.py"
RECORDING = RecordingOptions(trajectories=True)
SMALL = {"num_envs_per_worker": 4, "train_batch_size": 64, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}}


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def trainer_of(start_trainer):
    def make(name: str = "Falling", **changes: Any) -> shoal.PPO:
        return start_trainer("PPO", f"{ENVS}:{name}", {**SMALL, **changes})

    return make


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four iterations with a checkpoint after each."""
    folder = tmp_path_factory.mktemp("results")
    experiment = {
        "name": "stones",
        "env": f"{ENVS}:Falling",
        "results_dir": str(folder),
        "checkpoint_freq": 1,
        "stop": {"training_iteration": 4},
        "config": SMALL,
    }
    assert len(list(shoal.run(experiment))) == 4
    (found,) = (folder / "stones").iterdir()
    return found


def test_train_evaluates_where_it_is_due(trainer_of) -> None:
    trainer = trainer_of(evaluation_interval=2, evaluation_duration=5)
    results = [trainer.train() for _ in range(4)]
    assert ["evaluation" in result for result in results] == [False, True, False, True]
    evaluation = results[1]["evaluation"]
    assert evaluation["episodes_this_iter"] == 5
    assert evaluation["episode_reward_ci_low"] <= evaluation["episode_reward_mean"]
    assert evaluation["episode_reward_mean"] <= evaluation["episode_reward_ci_high"]
    assert evaluation["custom_metrics"]["impact_mean"] > 0


def test_the_unit_may_be_timesteps(trainer_of) -> None:
    evaluation = trainer_of(evaluation_duration=33, evaluation_duration_unit="timesteps").evaluate()
    assert evaluation["timesteps_this_iter"] == 33
    assert sum(evaluation["episode_lengths"]) <= 33


def test_evaluation_config_changes_the_environment(trainer_of) -> None:
    heavy = trainer_of(evaluation_config={"env_config": {"gravity": 100.0}})
    assert set(heavy.evaluate()["episode_lengths"]) == {1}
    short = trainer_of(evaluation_config={"horizon": 2})
    assert set(short.evaluate()["episode_lengths"]) == {2}


def test_an_environment_of_another_form_is_refused(trainer_of) -> None:
    other, words = {"env_config": {"width": 3}}, "has other observations than the policy was trained on"
    trainer = trainer_of("Wide", evaluation_config=other)
    with pytest.raises(ConfigError, match=words):
        trainer.evaluate()
    with pytest.raises(ConfigError, match=words):
        trainer_of("Wide", evaluation_config=other, evaluation_interval=10)


def test_an_environment_of_old_gym_has_trajectories_and_cases(trainer_of) -> None:
    old = Path(__file__).parents[1] / "unit" / "envs" / "old_gym.py"
    with shoal.PPO(env=f"{old}:my_environment", config={**SMALL, "env_config": {"Scalar": 2}}) as trainer:
        setup = EvaluationSetup(trainer.config, trainer.env_maker, trainer.get_policy(), trainer.evaluators)
        result, whole = start_evaluation(setup, episodes=5, recording=RECORDING).results()
        assert [len(trajectory.obs) for trajectory in whole.trajectories] == [
            length + 1 for length in result["episode_lengths"]
        ]
        cases = [Case({"Scalar": 2}, seed=1), Case({"Scalar": 5})]
        _, found = start_cases(setup, cases, recording=RECORDING).results()
        assert [len(trajectory.actions) for trajectory in found.trajectories] == [4, 4]
        assert found.episodes[0].reward != found.episodes[1].reward
        with pytest.raises(ConfigError, match="its reset takes no options"):
            start_cases(setup, [Case(options={"height": 1})]).results()


def test_the_best_checkpoint_is_found(tmp_path) -> None:
    keys = {
        "name": "best",
        "env": "CartPole-v1",
        "results_dir": str(tmp_path),
        "checkpoint_freq": 1,
        "keep_checkpoints_num": 1,
        "checkpoint_score_attr": "min-training_iteration",
        "stop": {"training_iteration": 4},
        "config": SMALL,
    }
    list(shoal.run(keys))
    (folder,) = (tmp_path / "best").iterdir()
    assert sorted(path.name for path in folder.glob("checkpoint_*")) == ["checkpoint_000001", "checkpoint_000004"]
    best, newest = typed("evaluate", str(folder), "--best"), typed("evaluate", str(folder))
    assert "checkpoint_000001\nbest by min-training_iteration 1\n" in best.output
    assert "checkpoint_000004" in newest.output
    first, last = shoal.Policy.load(folder, best=True), shoal.Policy.load(folder)
    assert any((weights != last.get_weights()[name]).any() for name, weights in first.get_weights().items())


def test_without_a_score_the_best_is_that_of_the_largest_return(run) -> None:
    scores = {
        float(json.loads((path / "manifest.json").read_text())["summary"]["episode_reward_mean"]): path.name
        for path in run.glob("checkpoint_*")
    }
    assert scores[max(scores)] in typed("evaluate", str(run), "--best").output


def test_cases_give_a_row_each_and_a_summary(run, tmp_path) -> None:
    cases, output = tmp_path / "cases.csv", tmp_path / "results.csv"
    cases.write_text("options.height,env_config.gravity,seed\n10,1,\n10,2,\n101,100,\n,1,3\n,1,3\n")
    done = typed("evaluate", str(run), "--cases", str(cases), "--output", str(output))
    assert done.exit_code == 0, done.output
    assert "5 cases, 1 failed" in done.output
    assert "case 3: environment 2 failed at step 2" in done.output
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["case"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [row["options.height"] for row in rows] == ["10", "10", "101", "", ""]
    assert [row["episode_len"] for row in rows[:3]] == ["4", "3", ""]
    assert [row["episode_reward"] for row in rows[:2]] == ["-4.0", "-3.0"]
    assert "fell through the floor" in rows[2]["error"]
    assert rows[3]["begun_at"] == rows[4]["begun_at"] != "10.0"
    (report,) = [json.loads(path.read_text()) for path in run.glob("evaluation_*.json") if "cases" in path.read_text()]
    summary = report["cases"]["impact"]
    assert summary["ci_low"] <= summary["mean"] <= summary["ci_high"]
    assert list(report["failed"]) == ["3"]


def test_results_replace_no_file_but_results(run, tmp_path) -> None:
    cases, output = tmp_path / "cases.csv", tmp_path / "results.csv"
    cases.write_text("options.height,env_config.gravity\n10,1\n")
    source = tmp_path / "my_env.py"
    source.write_text("class MyEnv: ...\n")
    link = tmp_path / "link.csv"
    link.symlink_to(cases)
    for place in (cases, source, link):
        before = place.read_text()
        done = typed("evaluate", str(run), "--cases", str(cases), "--output", str(place))
        assert done.exit_code == 2, done.output
        assert f"--output {place}: is there already, and is no file of results" in " ".join(done.output.split())
        assert place.read_text() == before
    output.touch()  # as mktemp does
    for heights in ("10,1\n", "10,1\n10,2\n"):
        cases.write_text(f"options.height,env_config.gravity\n{heights}")
        done = typed("evaluate", str(run), "--cases", str(cases), "--output", str(output))
        assert done.exit_code == 0, done.output
        assert len(output.read_text().splitlines()) == 1 + heights.count("\n")


def test_cases_that_all_fail_are_an_error_that_leaves_their_results(run, tmp_path) -> None:
    cases, output = tmp_path / "cases.csv", tmp_path / "results.csv"
    cases.write_text("options.height,env_config.gravity\n101,100\n102,100\n")
    done = typed("evaluate", str(run), "--cases", str(cases), "--output", str(output))
    assert done.exit_code == 1
    assert "all 2 cases failed; the first: environment 0 failed at step 2" in done.output
    assert output.read_text().count("fell through the floor") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cases", "CASES", "--episodes", "2"], "Use only one of --episodes, --steps and --cases."),
        (["--output", "x.csv"], "--output is for the results of --cases"),
        (["--video", "x.mp4", "--num-workers", "1"], "A video is made in one process"),
        (["--video", "x.avi"], "a video's name must end in .mp4"),
        (["--video", "x.gif"], "x.gif: --video makes an .mp4; type --gif x.gif"),
        (["--gif", "x.mp4"], "x.mp4: a video's name must end in .gif"),
        (["--trajectories", "x.csv"], "must end in .parquet"),
        (["--trajectories", "no/such/folder/x.parquet"], "there is no folder"),
        (["--trajectories", "/proc/x.parquet"], "/proc cannot be written"),
        (["--cases", "CASES", "--output", "."], ".: is a folder; write the name of a file in it"),
        (["--cases", "no_such.csv"], "cannot be read: No such file"),
        (["--cases", "CASES"], "column 'gravity' has an unknown meaning; write env_config.gravity"),
    ],
)
def test_what_evaluate_refuses(run, tmp_path, monkeypatch, arguments, words) -> None:
    if ".mp4" in arguments[1]:
        pytest.importorskip("av")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "CASES").write_text("gravity\n1\n")
    done = typed("evaluate", str(run), *arguments)
    assert done.exit_code == 2
    assert words in done.output


def test_a_case_that_the_constructor_does_not_take_ends_it_all(tmp_path) -> None:
    with shoal.PPO(env="CartPole-v1", config=SMALL) as trainer:
        path = trainer.save(tmp_path)
    cases = tmp_path / "cases.csv"
    cases.write_text("env_config.gravity\n1\n")
    done = typed("evaluate", path, "--cases", str(cases))
    assert done.exit_code == 2
    assert "env_config.gravity: env CartPole-v1 takes no such argument" in done.output


def test_a_native_vector_environment_has_no_cases(tmp_path) -> None:
    with shoal.PPO(env=f"{ENVS}:vector", config={**SMALL, "num_envs_per_worker": 2}) as trainer:
        path = trainer.save(tmp_path)
        assert trainer.evaluate(episodes=3)["episodes_this_iter"] == 3
    (tmp_path / "cases.csv").write_text("seed\n1\n")
    done = typed("evaluate", path, "--cases", str(tmp_path / "cases.csv"))
    assert done.exit_code == 2
    assert "a native vector environment has no cases" in done.output


def test_trajectories_are_all_that_happened(run, tmp_path, monkeypatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "out.parquet"
    done = typed("evaluate", str(run), "--episodes", "6", "--trajectories", str(file))
    assert done.exit_code == 0, done.output
    assert "trajectories in ~/out.parquet\n" in done.output
    rows = parquet.read_table(file).to_pylist()
    report = json.loads(max(run.glob("evaluation_*.json"), key=lambda path: path.stat().st_mtime_ns).read_text())
    episodes = [[row for row in rows if row["episode"] == k] for k in range(6)]
    assert [len(steps) - 1 for steps in episodes] == report["episode_lengths"]
    assert [sum(row["reward"] for row in steps[:-1]) for steps in episodes] == report["episode_rewards"]
    for steps in episodes:
        assert [row["step"] for row in steps] == list(range(len(steps)))
        assert steps[0]["obs"][1] == 0
        assert [row["terminated"] for row in steps] == [False] * (len(steps) - 2) + [True, None]
        assert steps[-1]["obs"][0] <= 0
        assert steps[-1]["action"] is None
        assert {row["action"] for row in steps[:-1]} <= {0, 1}


def test_trajectories_of_composite_spaces_have_a_column_for_each_leaf(tmp_path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with shoal.PPO(env=f"{ENVS}:Composite", config=SMALL) as trainer:
        path = trainer.save(tmp_path)
    done = typed("evaluate", path, "--episodes", "2", "--trajectories", str(tmp_path / "out.parquet"))
    assert done.exit_code == 0, done.output
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names[:4] == ["episode", "step", "obs.grid", "obs.stone"]
    assert table.column_names[4:6] == ["action.0", "action.1"]
    assert table.schema.field("obs.grid").metadata == {b"shape": b"2,3"}
    assert len(table.column("obs.grid")[0].as_py()) == 6
    truncated = [row["truncated"] for row in table.to_pylist()]
    assert truncated[-2:] == [True, None]


def test_a_video_and_a_gif_show_every_episode(run, tmp_path) -> None:
    av = pytest.importorskip("av")
    files = [tmp_path / "out.gif", tmp_path / "out.mp4"]
    done = typed("evaluate", str(run), "--episodes", "3", "--gif", str(files[0]), "--video", str(files[1]))
    assert done.exit_code == 0, done.output
    report = json.loads(max(run.glob("evaluation_*.json"), key=lambda path: path.stat().st_mtime_ns).read_text())
    for file in files:
        with av.open(str(file)) as video:
            frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
        assert len(frames) == sum(length + 1 for length in report["episode_lengths"])
        assert frames[0].shape == (32, 64, 3)
        assert len({frame.tobytes() for frame in frames}) > 3
        assert f"video in {file}" in done.output
    assert sorted(tmp_path.iterdir()) == files


def test_a_video_of_cases(run, tmp_path) -> None:
    av = pytest.importorskip("av")
    (tmp_path / "cases.csv").write_text("options.height\n10\n15\n")
    done = typed("evaluate", str(run), "--cases", str(tmp_path / "cases.csv"), "--video", str(tmp_path / "out.mp4"))
    assert done.exit_code == 0, done.output
    with av.open(str(tmp_path / "out.mp4")) as video:
        assert len(list(video.decode(video=0))) == 5 + 6


def test_evaluations_are_recorded(tmp_path) -> None:
    pytest.importorskip("av")
    config = {**SMALL, "evaluation_interval": 2, "record_env": True}
    keys = {"name": "film", "env": "CartPole-v1", "results_dir": str(tmp_path), "stop": {"training_iteration": 4}}
    list(shoal.run({**keys, "config": config}))
    (folder,) = (tmp_path / "film").iterdir()
    names = ["iteration_000002.mp4", "iteration_000004.mp4"]
    assert sorted(path.name for path in (folder / "videos").iterdir()) == names


def test_a_video_that_fails_changes_nothing_else(run, tmp_path, caplog) -> None:
    pytest.importorskip("av")
    with shoal.PPO(env=f"{ENVS}:Fading", config={**SMALL, "record_env": str(tmp_path / "films")}) as trainer:
        filmed = trainer.evaluate(episodes=5)
        path = trainer.save(tmp_path)
    assert "iteration_000000.mp4 was not made: RuntimeError: the lens broke" in caplog.text
    with shoal.PPO(env=f"{ENVS}:Fading", config=SMALL) as trainer:
        assert trainer.evaluate(episodes=5) == filmed
    done = typed("evaluate", path, "--episodes", "2", "--video", str(tmp_path / "out.mp4"))
    assert done.exit_code == 1
    assert "2 episodes" in done.output
    assert "out.mp4 was not made: RuntimeError: the lens broke" in done.output
    assert not list(tmp_path.glob("*.mp4"))
    with pytest.raises(ConfigError, match=r"config\.record_env: /proc/films cannot be written"):
        shoal.PPO(env=f"{ENVS}:Falling", config={**SMALL, "record_env": "/proc/films"})


def test_evaluations_of_one_second_have_a_file_each(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("time.strftime", lambda *_: "now")
    for _ in range(2):
        assert typed("evaluate", str(run), "--episodes", "1").exit_code == 0
    assert len(list(run.glob("evaluation_now*.json"))) == 2


def test_what_cannot_be_drawn_is_refused_before_training(trainer_of, monkeypatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(ConfigError, match=r"config\.render_env: there is no screen here"):
        trainer_of(render_env=True)
    monkeypatch.setenv("DISPLAY", ":0")
    for name in ("Blind", "Falling"):  # one forgets its render_mode, the other knows no window
        with pytest.raises(ConfigError, match="has no window"):
            trainer_of(name, render_env=True)
    pytest.importorskip("av")
    with pytest.raises(ConfigError, match=r"its render\(\) must return an array of uint8 .* \(got NoneType\)"):
        trainer_of("Blind", record_env=True)


def test_the_first_environment_shows_itself(trainer_of, monkeypatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    trainer = trainer_of("Windowed", render_env=True)
    assert trainer.workers.foreach_env(lambda env: env.render_mode) == ["human", None, None, None]
    trainer.evaluate(episodes=1)


def test_a_policy_acts_without_its_environment_without_ray_and_torch(tmp_path) -> None:
    file = tmp_path / "gone.py"
    file.write_text(ENVS.read_text())
    with shoal.PPO(env=f"{file}:Falling", config=SMALL) as trainer:
        path = trainer.save(tmp_path)
    file.unlink()
    program = f"""
import sys
import numpy as np
import shoal
policy = shoal.Policy.load({path!r})
print(policy.compute_single_action(np.array([3.0, 1.0], np.float32), explore=False))
print(policy.compute_actions({{"a": [3.0, 1.0], "b": [4.0, 1.0]}}, explore=False))
print(policy.compute_actions(np.ones((3, 2), np.float32)))
print(type(policy).__name__, sorted({{"ray", "torch"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    single, by_key, batch, end = done.stdout.splitlines()
    assert single in ("0", "1")
    assert by_key.startswith("{'a': ")
    assert len(json.loads(batch)) == 3
    assert end == "LoadedPolicy []"


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_loaded_policy_acts_as_the_trainer_does(tmp_path, algorithm, framework) -> None:
    if framework == "torch":
        pytest.importorskip("torch")
    config = {"framework": framework, "observation_filter": "MeanStdFilter", "model": {"fcnet_hiddens": [8]}}
    with getattr(shoal, algorithm)(env="CartPole-v1", config=config) as trainer:
        trainer.train()
        policy = shoal.Policy.load(trainer.save(tmp_path))
        observations = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
        assert policy.compute_actions(observations, explore=False) == trainer.compute_actions(
            list(observations), explore=False
        )
        assert policy.compute_actions(observations) == trainer.compute_actions(observations)
        named = dict(enumerate(observations))
        assert list(trainer.compute_actions(named, explore=False)) == list(range(20))
        assert policy.compute_actions([]) == []
        assert str(policy.model.summary()) == str(trainer.get_policy().model.summary())
        weights = policy.get_weights()
        policy.set_weights({name: np.zeros_like(value) for name, value in weights.items()})
        assert not policy.network.params.any()
        with pytest.raises(ValueError, match="no parameter is called"):
            policy.set_weights({"nobody": np.zeros(1)})


def test_a_checkpoint_without_spaces_needs_its_environment(run, tmp_path) -> None:
    from shoal.runs.checkpoints import read_checkpoint, write_checkpoint

    old = read_checkpoint(run)
    del old.state.values["spaces"]
    path = write_checkpoint(tmp_path, old.state, old.experiment_tree, old.summary)
    with pytest.raises(CheckpointError, match="does not record the spaces of its environment"):
        shoal.Policy.load(path)
    done = typed("evaluate", str(path), "--episodes", "1")
    assert done.exit_code == 0, done.output


def test_the_model_of_a_run_is_shown(run) -> None:
    done = typed("model", str(run))
    assert done.exit_code == 0, done.output
    assert "Box(-100.0, 100.0, (2,), float32)" in done.output
    assert "policy.hidden0.weight" in done.output
    assert done.output.splitlines()[-1].split() == ["total", "75"]
