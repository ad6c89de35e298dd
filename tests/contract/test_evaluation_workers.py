"""Evaluation by Ray workers of its own: the same as in one process, beside training, and with workers that die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import shoal
from shoal.cli.main import main
from shoal.errors import WorkerError
from shoal.parallel.evaluators import LocalEvaluators

ENVS = Path(__file__).parents[1] / "shared" / "evaluation_env.py"
SMALL = {"num_envs_per_worker": 4, "train_batch_size": 64, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}}

pytestmark = pytest.mark.usefixtures("ray_session")


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def trainer_of(start_trainer):
    def make(name: str = "Falling", **changes: Any) -> shoal.PPO:
        return start_trainer("PPO", f"{ENVS}:{name}", {**SMALL, "num_cpus_per_worker": 0.5, **changes})

    return make


def test_workers_of_their_own_give_the_same_evaluation(trainer_of) -> None:
    alone = trainer_of("Steered", num_envs_per_worker=4)
    one = trainer_of("Steered", evaluation_num_workers=1)
    two = trainer_of("Steered", num_envs_per_worker=2, evaluation_num_workers=2)
    for episodes in (1, 3, 10):
        wanted = alone.evaluate(episodes=episodes, explore=True)
        assert one.evaluate(episodes=episodes, explore=True) == wanted
        assert two.evaluate(episodes=episodes, explore=True) == wanted
    by_steps = trainer_of(evaluation_num_workers=2, evaluation_duration=21, evaluation_duration_unit="timesteps")
    assert by_steps.evaluate()["timesteps_this_iter"] == 21


def test_evaluation_workers_have_the_present_policy(trainer_of, monkeypatch) -> None:
    trainer = trainer_of("Steered", evaluation_num_workers=1, num_workers=1, observation_filter="MeanStdFilter", lr=0.1)
    for _ in range(3):
        trainer.train()
        there = trainer.evaluate(episodes=4, explore=True)
        with monkeypatch.context() as here:
            here.setattr(trainer, "evaluators", LocalEvaluators())
            assert trainer.evaluate(episodes=4, explore=True) == there


def test_training_goes_on_while_workers_evaluate(trainer_of, tmp_path) -> None:
    place = tmp_path / "place"
    trainer = trainer_of(
        "Meeting",
        env_config={"place": str(place)},
        evaluation_interval=1,
        evaluation_num_workers=1,
        evaluation_parallel_to_training=True,
        evaluation_duration=1,
    )
    place.mkdir()
    result = trainer.train()
    assert result["evaluation"]["episodes_this_iter"] == 1
    assert result["env_failures_total"] == result["evaluation"]["env_failures"] == 0


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_its_share_run_again(trainer_of, tmp_path) -> None:
    note = tmp_path / "note"
    trainer = trainer_of("Mortal", env_config={"note": str(note)}, evaluation_num_workers=2)
    wanted = trainer_of().evaluate(episodes=6)
    found = trainer.evaluate(episodes=6)
    assert note.exists()
    assert found["episode_rewards"] == wanted["episode_rewards"]


@pytest.mark.slow
def test_a_worker_that_always_dies_is_an_error(trainer_of) -> None:
    with pytest.raises(WorkerError, match="an evaluation worker was lost"):
        trainer_of("Doomed", evaluation_num_workers=1).evaluate(episodes=1)


def test_cases_do_not_depend_on_the_number_of_workers(trainer_of, tmp_path) -> None:
    path = trainer_of("Steered").save(tmp_path)
    cases = tmp_path / "cases.csv"
    cases.write_text("case,options.height\n" + "".join(f"c{k},{k + 3}\n" for k in range(11)))
    found = []
    for workers in ("0", "2"):
        output = tmp_path / f"{workers}.csv"
        done = typed(
            *("evaluate", path, "--cases", str(cases), "--output", str(output)),
            *("--explore", "--num-workers", workers),
        )
        assert done.exit_code == 0, done.output
        found.append(output.read_text())
    assert found[0] == found[1]
    assert len(found[0].splitlines()) == 12


def test_an_evaluation_that_workers_do_is_recorded_too(trainer_of, tmp_path) -> None:
    pytest.importorskip("av")
    trainer = trainer_of(record_env=str(tmp_path / "films"), evaluation_num_workers=2)
    trainer.evaluate(episodes=5)
    assert [path.name for path in (tmp_path / "films").iterdir()] == ["iteration_000000.mp4"]
