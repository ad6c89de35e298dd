"""`shoal compare`, with further seeds really trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_runs import fake_run

import shoal
from shoal.cli.main import main


def typed(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, words)], prog_name="shoal")


def test_settings_scores_and_one_sentence(tmp_path: Path) -> None:
    for seed in range(5):
        fake_run(tmp_path, "slow", seed, lambda at, seed=seed: at + seed, config={"lr": 1e-4, "gamma": 0.9})
        fake_run(tmp_path, "fast", seed, lambda at, seed=seed: 3.0 * at + seed)
    done = typed("slow", "fast", "--results-dir", tmp_path)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        "  gamma: 0.9 -> 0.99",
        "  lr: 0.0001 -> 0.0007",
        "episode_reward_mean at timesteps_total 1000, interquartile mean over runs:",
        "  slow  12 (95 % interval 10.33 to 13.67, 5 runs), seeds 0, 1, 2, 3, 4",
        "  fast  32 (95 % interval 30.33 to 33.67, 5 runs), seeds 0, 1, 2, 3, 4",
        "  a run of fast is better with probability 1.00 (95 % interval 1.00 to 1.00)",
        "  permutation test of the means: p = 0.00794",
        "fast is better than slow, by more than luck (episode_reward_mean 32 and 12 at 1000 steps; permutation test, "
        "p < 0.01): a run of it is better with probability 1.00.",
    ]
    found = json.loads(typed("slow", "fast", "--results-dir", tmp_path, "--json", "--mode", "min").output)
    assert (found["better"], found["sure"], found["timesteps_total"]) == ("slow", True, 1000)
    assert found["differences"] == {"config.gamma": [0.9, 0.99], "config.lr": [1e-4, 7e-4]}


def test_runs_of_one_experiment_are_called_by_what_differs(tmp_path: Path) -> None:
    low, high, long = (
        fake_run(tmp_path, "cart", 0, lambda at, lr=lr: lr * at, config={"lr": lr, **more})
        for lr, more in ((1e-4, {}), (1e-3, {}), (1e-3, {"env_config": {"a": "b" * 50}}))
    )
    done = typed(low, high)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        "  lr: 0.0001 -> 0.001",
        "episode_reward_mean at timesteps_total 1000, interquartile mean over runs:",
        "  lr 0.0001  0.001 (1 run), seed 0",
        "  lr 0.001   0.01 (1 run), seed 0",
        "lr 0.001 looks better than lr 0.0001 (episode_reward_mean 0.01 and 0.001 at 1000 steps), better in 1 of 1 "
        "pair of runs, but so few may be luck; about 3 more seeds of each would tell.",
    ]
    assert f"{long.name} looks better than {low.name} (" in typed(low, long).output


@pytest.mark.slow
def test_further_seeds_are_trained_until_it_is_decided(tmp_path: Path) -> None:
    """A learning rate of nearly 0 learns nothing, so that only the metric's sign decides: the rate itself."""
    small = {"num_envs_per_worker": 2, "train_batch_size": 32, "sgd_minibatch_size": 32, "num_sgd_iter": 1}
    for name, lr in (("none", 1e-9), ("some", 1e-3)):
        tree = {"env": "CartPole-v1", "name": name, "results_dir": str(tmp_path), "stop": {"training_iteration": 1}}
        for _ in shoal.run({**tree, "report": False, "config": {**small, "lr": lr}}):
            pass
    words = ["none", "some", "--results-dir", tmp_path, "--metric", "learner/cur_lr", "--until-sure"]
    spent = typed(*words, "--max-seeds", 2)
    assert spent.exit_code == 0, spent.output
    assert spent.output.splitlines()[-1].startswith("Not decided: some won 2 of 2 pairs of seeds")
    done = typed(*words, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["pairs"]["won"] == [0, 7]
    assert found["sure"]
    assert len(list((tmp_path / "none").iterdir())) == len(list((tmp_path / "some").iterdir())) == 7


def test_what_was_interrupted_counts_as_far_as_it_has_gone_on(tmp_path: Path) -> None:
    small = {"num_envs_per_worker": 2, "train_batch_size": 32, "sgd_minibatch_size": 32, "num_sgd_iter": 1}
    for name, lr in (("none", 1e-9), ("some", 1e-3)):
        for seed in (0, 1):
            tree = {"env": "CartPole-v1", "name": name, "results_dir": str(tmp_path), "stop": {"training_iteration": 3}}
            config = {**small, "lr": lr, "seed": seed}
            results = shoal.run({**tree, "report": False, "checkpoint_freq": 1, "config": config})
            for _ in results:
                if seed == 1:
                    break
            results.close()
        (left,) = (path for path in (tmp_path / name).glob("*/outcome.json") if "left" in path.read_text())
        left.unlink()  # as after a kill
    assert "at timesteps_total 32," in typed("none", "some", "--results-dir", tmp_path).output
    words = ["none", "some", "--results-dir", tmp_path, "--metric", "learner/cur_lr", "--until-sure"]
    done = typed(*words, "--max-seeds", 2)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1].startswith("Not decided: some won 2 of 2 pairs of seeds")
    assert "learner/cur_lr at timesteps_total 96, interquartile mean over runs:" in done.output


def test_a_budget_that_is_spent_ends_it_undecided(tmp_path: Path) -> None:
    for name, lr in (("none", 1e-9), ("some", 1e-3)):
        tree = {"env": "CartPole-v1", "name": name, "results_dir": str(tmp_path), "stop": {"timesteps_total": 4096}}
        for _ in shoal.run({**tree, "report": False, "config": {"lr": lr}}):
            pass
    words = ["none", "some", "--results-dir", tmp_path, "--metric", "learner/cur_lr", "--until-sure"]
    done = typed(*words, "--budget", "0.3s")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert "The time of --budget is spent; with more, the same command continues." in lines
    pairs = len(list((tmp_path / "some").iterdir()))
    assert 1 <= pairs < 7
    assert lines[-1].startswith(f"Not decided: some won {pairs} of {pairs} pair")
    assert len(list((tmp_path / "none").iterdir())) == pairs
    assert typed(*words, "--max-seeds", 1).output.count("The number of --max-seeds is reached; with more") == 1


@pytest.mark.parametrize(("words", "counts"), [([], [1, 4]), (["--budget", "1h"], [1, 2, 3, 4])])
def test_seeds_that_are_needed_in_any_case_train_together(tmp_path: Path, words: list[str], counts: list[int]) -> None:
    """With a budget, which may end it after any of them, they follow one after another."""
    small = {"num_envs_per_worker": 2, "train_batch_size": 32, "sgd_minibatch_size": 32, "num_sgd_iter": 1}
    for name, lr in (("none", 1e-9), ("some", 1e-3)):
        tree = {"env": "CartPole-v1", "name": name, "results_dir": str(tmp_path), "stop": {"training_iteration": 1}}
        for _ in shoal.run({**tree, "report": False, "config": {**small, "lr": lr}}):
            pass
    asked = ["none", "some", "--results-dir", tmp_path, "--metric", "learner/cur_lr", "--until-sure", "--max-seeds", 4]
    done = typed(*asked, *words)
    assert done.exit_code == 0, done.output
    told = [line for line in done.output.splitlines() if " pairs: " in line]
    assert [int(line.split()[0]) for line in told] == counts
    assert told[-1].startswith("4 pairs: 0 to 4")
    alone = {"env": "CartPole-v1", "name": "alone", "results_dir": str(tmp_path), "stop": {"training_iteration": 1}}
    for _ in shoal.run({**alone, "report": False, "config": {**small, "lr": 1e-3, "seed": 3}}):
        pass
    assert last_link(tmp_path / "alone", 3) == last_link(tmp_path / "some", 3)


def last_link(experiment: Path, seed: int) -> str:
    """The last link of the chain of the experiment's run with this seed."""
    for chain in experiment.glob("*/chain.jsonl"):
        head, *lines = (json.loads(line) for line in chain.read_text().splitlines())
        if head["seed"] == seed:
            return str(lines[-1]["link"])
    raise AssertionError(f"no run of seed {seed} in {experiment}")


def test_a_strangers_code_is_not_run(tmp_path: Path) -> None:
    for name, lr in (("a", 0.1), ("b", 0.2)):
        fake_run(tmp_path, name, env="strange_module:Env", config={"lr": lr})
    done = typed("a", "b", "--results-dir", tmp_path, "--until-sure")
    assert done.exit_code != 0
    assert "--trust" in done.output
    assert "No module named" not in done.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["a", "nobody"], "there is no run at"),
        (["a", "a"], "a and a have a run in common"),
        (["a", "b", "--metric", "reward"], "did you mean"),
        (["a", "mixed"], "mixed: has runs of 2 configurations (lr 0.1; lr 0.2)"),
        (["a", "b", "--budget", "2h"], "--budget: nothing is trained without --until-sure"),
        (["a", "b", "--budget", "soon", "--until-sure"], "--budget soon: is no length of time"),
        (["a", "b", "--at", "99999"], "--at: not all runs have reached"),
        (["a", "same", "--until-sure"], "so there is nothing to decide"),
        (
            ["a", "pend"],
            "a and pend are of two environments (CartPole-v1 and Pendulum-v1), whose results do not compare",
        ),
        (["a", "pend", "--until-sure"], "whose results do not compare"),
    ],
)
def test_what_is_refused(tmp_path: Path, words: list[str], sentence: str) -> None:
    fake_run(tmp_path, "a")
    fake_run(tmp_path, "same", 1)
    fake_run(tmp_path, "b", config={"lr": 0.5})
    fake_run(tmp_path, "pend", env="Pendulum-v1")
    for lr in (0.1, 0.2):
        fake_run(tmp_path, "mixed", config={"lr": lr})
    done = typed(*words, "--results-dir", tmp_path)
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert sentence in line


def test_names_of_anybodys_cannot_command_the_terminal(tmp_path: Path) -> None:
    for name, lr in (("a", 0.1), ("b", 0.2)):
        file = fake_run(tmp_path, name, config={"lr": lr}) / "experiment.json"
        tree = json.loads(file.read_text())
        tree["name"], tree["config"]["env_config"] = f"{name}\x1b[31m\nred", {"key\x1b[2J": lr}
        file.write_text(json.dumps(tree))
    done = typed("a", "b", "--results-dir", tmp_path)
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    assert r"  a\x1b[31m\nred  10 (1 run), seed 0" in done.output.splitlines()
    assert r"  key\x1b[2J: 0.1 -> 0.2" in done.output.splitlines()


def test_runs_and_seeds_that_are_told_are_those_with_data(tmp_path: Path) -> None:
    _, empty = (fake_run(tmp_path, "a", seed) for seed in (0, 1))
    (empty / "result.json").write_text("")
    fake_run(tmp_path, "b", 0, lambda at: at + 1.0, config={"lr": 0.5})
    done = typed("a", "b", "--results-dir", tmp_path)
    assert done.exit_code == 0, done.output
    assert "  a  10 (1 run), seed 0" in done.stdout.splitlines()
    sentence = "1 of 2 runs has no episode_reward_mean by timesteps_total 1000 and is left out"
    assert done.stderr == f"Warning: {sentence}: {empty.name}.\n"
    assert json.loads(typed("a", "b", "--results-dir", tmp_path, "--json").stdout)["better"] == "b"
    late = fake_run(tmp_path, "a", 2) / "result.json"
    late.write_text("".join(late.read_text().splitlines(keepends=True)[5:]))
    done = typed("a", "b", "--results-dir", tmp_path, "--at", 500)
    assert "  a  5 (1 run), seed 0" in done.stdout.splitlines()
    assert "2 of 3 runs have no episode_reward_mean by timesteps_total 500 and are left out: " in done.stderr


def test_pairs_are_of_runs_with_data(tmp_path: Path) -> None:
    for name, lr in (("a", 0.1), ("b", 0.2)):
        folders = [fake_run(tmp_path, name, seed, lambda at, lr=lr: at * lr, config={"lr": lr}) for seed in range(8)]
    (folders[7] / "result.json").write_text("")
    done = typed("a", "b", "--results-dir", tmp_path, "--until-sure")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "7 pairs: 0 to 7, evidence 26.8"
    assert "7 of 7 pairs of seeds; evidence" in done.stdout.splitlines()[-1]


def test_returns_that_are_not_finite_are_told(tmp_path: Path) -> None:
    folder = fake_run(tmp_path, "a", 0)
    fake_run(tmp_path, "b", 0, config={"lr": 0.5})
    lines = (folder / "result.json").read_text().splitlines()
    for place, value in ((4, "Infinity"), (9, "NaN")):
        lines[place] = lines[place].replace(f'"episode_reward_mean": {place + 1}.0', f'"episode_reward_mean": {value}')
    (folder / "result.json").write_text("\n".join(lines) + "\n")
    done = typed("a", "b", "--results-dir", tmp_path)
    assert done.exit_code == 0, done.output
    (warning,) = done.stderr.splitlines()
    assert warning == (
        f"Warning: 2 results are left out, whose episode_reward_mean is not finite or beyond 1e+38: {folder.name}."
    )


def test_a_place_before_the_first_result_that_is_not_damaged(tmp_path: Path) -> None:
    damaged = fake_run(tmp_path, "a", 0)
    lines = (damaged / "result.json").read_text().splitlines()
    fake_run(tmp_path, "b", 0, iterations=3, config={"lr": 0.5})
    (damaged / "result.json").write_text("\n".join(["{", "{", "{", *lines[3:]]) + "\n")
    done = typed("a", "b", "--results-dir", tmp_path)
    assert done.exit_code == 2
    assert done.stderr == (
        "Error: no run of a has episode_reward_mean at timesteps_total 300: "
        f"result.json of {damaged.name} is damaged (3 of its 10 lines are no results)\n"
    )
    (damaged / "result.json").write_text("\n".join(lines[3:]) + "\n")
    assert "at timesteps_total 300, where the shortest run ends; " in typed("a", "b", "--results-dir", tmp_path).stderr
