"""Tasks, drawn values and hooks: the same for any number of workers, exact after a resume, refused in words."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from same_training import assert_restored_exactly, without_times_and_layout

import shoal
from shoal.errors import CallbackError, ShoalError
from shoal.sampling.episode_hooks import EpisodeHooks

FILE = Path(__file__).parents[1] / "shared" / "task_env.py"
NUM_ENVS = 4
CONFIG = {
    "num_envs_per_worker": NUM_ENVS,
    "train_batch_size": 100,
    "sgd_minibatch_size": 25,
    "num_sgd_iter": 2,
    "model": {"fcnet_hiddens": [8]},
    "seed": 11,
}
STAGES = [
    {"task": 2, "until": {"custom_metrics/rung_mean": 2}},
    {"task": 5, "until": {"timesteps_total": 500}},
    {"task": 9, "until": {"episode_len_mean": "<= 1000"}},
]
WIND, MASS = {"wind": {"uniform": [-1, 1]}}, {"mass": {"loguniform": [0.1, 10]}}
VARIANTS = {
    "function": {"env_task_fn": f"{FILE}:every_hundred_steps"},
    "drawn tasks": {"env_task_fn": f"{FILE}:drawn"},
    "stages": {"curriculum": {"stages": STAGES, "min_episodes": 15}},
    "options": {"randomize": {"options": WIND}},
    "env_config": {"randomize": {"options": WIND, "env_config": MASS}},
    "hooks": {"callbacks": f"{FILE}:Moves"},
    "all": {
        "env_task_fn": f"{FILE}:one_more",
        "randomize": {"options": WIND},
        "callbacks": f"{FILE}:Moves",
        "batch_mode": "complete_episodes",
    },
}


@pytest.fixture
def trainer_of(start_trainer):
    def make(name: str = "Ladder", num_workers: int = 0, run: str = "PPO", **changes) -> shoal.Trainer:
        layout = {"num_workers": num_workers, "num_envs_per_worker": NUM_ENVS // max(num_workers, 1)}
        layout |= {"num_cpus_per_worker": 0.5} if num_workers else {}
        env = f"{FILE}:{name}" if isinstance(name, str) else name
        return start_trainer(run, env, {**CONFIG, **layout, **changes})

    return make


def watched(trainer) -> list:
    """Every batch that the trainer's workers give from now on, as copies."""
    seen = []
    sample = trainer.workers.sample

    def watching(steps):
        found = sample(steps)
        batch = found.batch
        ends = batch.terminated | batch.truncated
        seen.append([np.array(x) for x in (batch.obs[0], batch.actions, ends, batch.valid)])
        return found

    trainer.workers.sample = watching
    return seen


@pytest.mark.repeats(3, slow=3)
@pytest.mark.parametrize("name", ["Ladder", "Failing"])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_k_save_load_k_is_two_k(trainer_of, tmp_path, name, changes) -> None:
    assert_restored_exactly(lambda: trainer_of(name, **changes), tmp_path, 4, num_before=6)


@pytest.mark.repeats(2, slow=2)
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_any_number_of_workers_sees_the_same(trainer_of, changes) -> None:
    trainers = [trainer_of(num_workers=count, **changes) for count in (0, 2)]
    batches = [watched(trainer) for trainer in trainers]
    for _ in range(4):
        first, *others = [without_times_and_layout(trainer.train()) for trainer in trainers]
        for other in others:
            for key in ("task", "stages_passed", "episodes_total", "episode_reward_mean"):
                assert first.get(key) == other.get(key)
            assert first["custom_metrics"] == pytest.approx(other["custom_metrics"])
    for mine, *theirs in zip(*batches, strict=True):
        for other in theirs:
            valid = mine[-1]  # what stands where an episode is over and others go on is nothing
            for one, two in zip(mine, other, strict=True):
                np.testing.assert_allclose(one[valid], two[valid], rtol=1e-4, atol=1e-4)


@pytest.mark.repeats(1)
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", ["Ladder", "Failing"])
def test_a_task_reaches_every_environment_at_its_next_reset(trainer_of, name, num_workers) -> None:
    trainer = trainer_of(name, num_workers, env_task_fn=f"{FILE}:one_more")
    batches = watched(trainer)
    results = [trainer.train() for _ in range(6)]
    assert [result["task"] for result in results] == list(range(6))
    episode_ends = np.zeros(NUM_ENVS, bool)
    rungs = np.zeros(NUM_ENVS)
    for task, (obs, _, ends, valid) in enumerate(batches):
        for t in range(len(obs)):
            now = obs[t, :, 1]
            assert (now[~episode_ends] == rungs[~episode_ends]).all(), "within an episode"
            if t:  # an episode that ended with the last step of a batch began before the new task was known
                # Nor is the row of a step that failed one of a new episode.
                assert (now[episode_ends & valid[t]] == task).all()
            rungs, episode_ends = now, ends[t]
    assert trainer.workers.foreach_env(lambda env: env.get_task()) == [5] * NUM_ENVS
    assert "rung_mean" in results[-1]["custom_metrics"]


@pytest.mark.usefixtures("ray_session")
def test_a_replaced_worker_has_the_task(trainer_of) -> None:
    trainer = trainer_of(num_workers=2, curriculum={"stages": [{"task": 8}]})
    trainer.train()
    pids = trainer.workers.foreach_worker(lambda worker: os.getpid())
    os.kill(pids[1], signal.SIGKILL)
    for _ in range(3):
        trainer.train()
    assert trainer.workers.foreach_env(lambda env: env.rung) == [8] * NUM_ENVS
    assert trainer.workers.num_remote_worker_restarts == 1


def test_stages_follow_their_rules(trainer_of) -> None:
    trainer = trainer_of(curriculum={"stages": STAGES, "min_episodes": 30})
    results = [trainer.train() for _ in range(12)]
    tasks = [result["task"] for result in results]
    assert tasks == sorted(tasks)
    assert set(tasks) == {2, 5, 9}
    own = 0
    for before, after in pairwise(results):
        assert before["custom_metrics"]["rung_mean"] == before["task"], "statistics are those of the stage"
        own = own + before["episodes_this_iter"] if before["task"] == 2 else own
        if (before["task"], after["task"]) == (2, 5):
            assert own >= 30
        if (before["task"], after["task"]) == (5, 9):
            assert before["timesteps_total"] >= 500
    assert results[-1]["stages_passed"] == 3


def test_an_evaluation_can_end_a_stage_and_has_its_task(tmp_path) -> None:
    stages = [
        {"task": 4, "until": {"evaluation/custom_metrics/rung_min": 4}},
        {"task": 6, "until": {"evaluation/custom_metrics/rung_max": 1000}},
    ]
    tree = {
        "env": f"{FILE}:Ladder",
        "results_dir": str(tmp_path),
        "config": {**CONFIG, "curriculum": {"stages": stages}, "evaluation_interval": 2, "evaluation_duration": 2},
    }
    parts = {}
    for name, ends in (("whole", [5]), ("parts", [2, 5])):
        for end in ends:
            results = list(shoal.run({**tree, "name": name, "stop": {"training_iteration": end}}))
            parts.setdefault(name, []).extend(without_times_and_layout(result) for result in results)
    assert [result["task"] for result in parts["whole"]] == [4, 4, 6, 6, 6]
    assert parts["whole"][3]["evaluation"]["custom_metrics"]["rung_mean"] == 6
    assert parts["parts"] == parts["whole"]


def test_evaluation_may_have_a_task_of_its_own(trainer_of) -> None:
    trainer = trainer_of(curriculum={"stages": [{"task": 1}]}, evaluation_config={"task": 30})
    assert trainer.train()["custom_metrics"]["rung_max"] == 1
    assert trainer.evaluate(episodes=3)["custom_metrics"]["rung_min"] == 30


def test_a_stage_that_waits_for_a_metric_that_is_not_there_says_so(trainer_of, caplog) -> None:
    stages = [{"task": 1, "until": {"custom_metrics/rung_maen": 2}}, {"task": 2}]
    trainer = trainer_of(curriculum={"stages": stages})
    for _ in range(3):
        trainer.train()
    name = "config.curriculum.stages[0].until.custom_metrics/rung_maen"
    assert f"{name}: no episode so far has this metric; did you mean custom_metrics/rung_mean?" in caplog.text


def test_no_episode_yet_is_a_number_to_a_function(trainer_of) -> None:
    trainer = trainer_of(env_task_fn=f"{FILE}:when_good", train_batch_size=4, sgd_minibatch_size=4)
    assert trainer.train()["episode_reward_mean"] is None
    assert trainer.train()["task"] == 3


def test_dqn_has_tasks_too(trainer_of) -> None:
    changes = {"learning_starts": 50, "timesteps_per_iteration": 96, "env_task_fn": f"{FILE}:one_more"}
    with shoal.DQN(env=f"{FILE}:Ladder", config={"seed": 1, "num_envs_per_worker": 4, **changes}) as trainer:
        assert [trainer.train()["task"] for _ in range(3)] == [0, 1, 2]


def test_drawn_values_are_drawn_for_every_episode_and_evaluation_can_do_without(trainer_of) -> None:
    drawn = {"options": WIND, "env_config": MASS}
    trainer = trainer_of(randomize=drawn, evaluation_config={"randomize": False})
    batches = watched(trainer)
    result = trainer.train()
    ((obs, _, ends, _),) = batches
    before, after, ended = obs[:-1, :, 2:], obs[1:, :, 2:], ends[:-1]
    assert (before[~ended] == after[~ended]).all()
    assert (before[ended] != after[ended]).all()
    assert (np.abs(obs[:, :, 2]) <= 1).all()
    assert len(np.unique(obs[0, :, 2:])) == 2 * NUM_ENVS, "each environment draws for itself"
    metrics = result["custom_metrics"]
    assert 0.1 <= metrics["mass_min"] < metrics["mass_max"] <= 10
    fixed = trainer.evaluate(episodes=4)["custom_metrics"]
    assert (fixed["wind_min"], fixed["wind_max"], fixed["mass_min"], fixed["mass_max"]) == (0, 0, 1, 1)


def test_what_evaluation_fixes_is_not_drawn_there(trainer_of) -> None:
    drawn = {"options": WIND, "env_config": MASS}
    trainer = trainer_of("NeedsMass", randomize=drawn, evaluation_config={"env_config": {"mass": 3}})
    trainer.train()
    found = trainer.evaluate(episodes=4)["custom_metrics"]
    assert found["mass_min"] == found["mass_max"] == 3
    assert found["wind_min"] < found["wind_max"]


def test_cases_come_from_a_file(trainer_of, tmp_path) -> None:
    (tmp_path / "cases.csv").write_text("options.wind, env_config.mass\n0.25,2\n\n-0.5,4\n")
    trainer = trainer_of("NeedsMass", randomize={"cases": str(tmp_path / "cases.csv")})
    batches = watched(trainer)
    trainer.train()
    assert set(map(tuple, batches[0][0][:, :, 2:].reshape(-1, 2).tolist())) == {(0.25, 2.0), (-0.5, 4.0)}


def test_a_failure_tells_what_was_drawn(trainer_of, caplog) -> None:
    trainer = trainer_of("Failing", randomize={"options": WIND}, curriculum={"stages": [{"task": 3}]})
    trainer.train()
    assert "task 3, options {'wind': " in caplog.text


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_hooks_are_called_where_they_belong(trainer_of, tmp_path, num_workers) -> None:
    trainer = trainer_of("Failing", num_workers, callbacks=f"{FILE}:Moves")
    result = trainer.train()
    metrics = result["custom_metrics"]
    assert metrics["same_min"] == metrics["same_max"] == 1
    assert metrics["moves_mean"] == pytest.approx(result["episode_reward_mean"])
    assert metrics["twice"] == 2
    evaluation = trainer.evaluate(episodes=2)
    assert evaluation["iteration"] == 1
    assert evaluation["custom_metrics"]["moves_mean"] == pytest.approx(evaluation["episode_reward_mean"])
    path = trainer.save(tmp_path)
    assert Path(f"{path}.seen").read_text() == "1"


def test_without_hooks_of_episodes_nobody_observes_the_vector(trainer_of) -> None:
    assert trainer_of().workers.vector.observer is None
    assert trainer_of(callbacks=f"{FILE}:BadResult").workers.vector.observer is None
    assert isinstance(trainer_of(callbacks=f"{FILE}:Moves").workers.vector.observer, EpisodeHooks)


FAILING_HOOKS = {
    "BadStart": "the hook BadStart.on_episode_start failed in environment 0 at step 0 of its episode: KeyError",
    "BadStep": "the hook BadStep.on_episode_step failed in environment 0 at step 3 of its episode: KeyError: 'step'",
    "BadEnd": "the hook BadEnd.on_episode_end failed in environment",
    "BadMetric": "custom_metrics of BadMetric: 'path' must be a number (got list)",
    "BadResult": "the hook BadResult.on_train_result failed: KeyError: 'result'",
}


@pytest.mark.parametrize("hook", FAILING_HOOKS)
def test_an_error_in_a_hook_is_named_with_the_hook(trainer_of, hook) -> None:
    trainer = trainer_of(callbacks=f"{FILE}:{hook}")
    with pytest.raises(CallbackError) as caught:
        trainer.train()
    assert FAILING_HOOKS[hook] in str(caught.value)
    if hook != "BadMetric":
        assert "task_env.py:" in str(caught.value)


@pytest.mark.usefixtures("ray_session")
def test_an_error_in_a_hook_comes_from_a_worker_in_the_same_words(trainer_of) -> None:
    trainer = trainer_of(num_workers=1, callbacks=f"{FILE}:BadStep")
    with pytest.raises(CallbackError, match=r"the hook BadStep.on_episode_step failed in environment 0 at step 3"):
        trainer.train()


def test_an_error_in_the_hook_of_checkpoints_ends_the_run_saved(tmp_path) -> None:
    config = {**CONFIG, "callbacks": f"{FILE}:BadCheckpoint"}
    tree = {"env": f"{FILE}:Ladder", "results_dir": str(tmp_path), "checkpoint_freq": 2, "config": config}
    with pytest.raises(CallbackError, match=r"BadCheckpoint\.on_checkpoint failed"):
        list(shoal.run({**tree, "stop": {"training_iteration": 5}}))
    assert len(list(tmp_path.glob("**/checkpoint_000002/manifest.json"))) == 1


REFUSED = {
    "no tasks": ("Plain", {"env_task_fn": f"{FILE}:one_more"}, "the environment has no get_task and no set_task"),
    "no tasks for stages": (
        "Plain",
        {"curriculum": {"stages": [{"task": 1}]}},
        "stages[0].task: the environment has no",
    ),
    "a stage that is no task": (
        "Ladder",
        {"curriculum": {"stages": [{"task": 1, "until": {"timesteps_total": 1}}, {"task": 99}]}},
        "config.curriculum.stages[1].task: set_task refuses 99: ValueError: there is no rung 99",
    ),
    "no task for evaluation": (
        "Ladder",
        {"evaluation_config": {"task": "hard"}},
        "config.evaluation_config.task: set_task refuses 'hard'",
    ),
    "a simulator that leaves": (
        "Leaving",
        {"curriculum": {"stages": [{"task": 3}]}},
        "config.curriculum.stages[0].task: set_task refuses 3: SystemExit: 4",
    ),
    "a task that changes the spaces": (
        "Growing",
        {"curriculum": {"stages": [{"task": 3}]}},
        "3 changes the environment's spaces",
    ),
    "tasks of a vector": (
        "vector",
        {"env_task_fn": f"{FILE}:one_more"},
        "a native vector environment, or one of several agents, has no tasks",
    ),
    "draws for a vector": ("vector", {"randomize": {"options": WIND}}, "config.randomize: a native vector environment"),
    "hooks of a vector": ("vector", {"callbacks": f"{FILE}:Moves"}, "so on_episode_end cannot be called"),
    "arguments": (
        "Ladder",
        {"env_task_fn": f"{FILE}:too_few_arguments"},
        "is called with train_results, task_settable",
    ),
    "no function": ("Ladder", {"env_task_fn": f"{FILE}:one_mre"}, "has no 'one_mre'; did you mean one_more"),
    "no function of that name": (
        "Ladder",
        {"env_task_fn": f"{FILE}:zzz"},
        "has no 'zzz'; its names are: Ladder, Failing, ",
    ),
    "options that reset refuses": (
        "NeedsMass",
        {"env_config": {"mass": 1}, "randomize": {"options": {"rain": {"choice": [3]}}}},
        "its first reset(), with options {'rain': 3}, failed: AssertionError",
    ),
    "a name alone": ("Ladder", {"env_task_fn": "one_more"}, "type my_module.name or my_file.py:name"),
    "no such module": ("Ladder", {"env_task_fn": "no_such.module"}, "no module 'no_such'"),
    "no callbacks": ("Ladder", {"callbacks": f"{FILE}:NoCallbacks"}, "must be a subclass of shoal.DefaultCallbacks"),
    "a function as callbacks": ("Ladder", {"callbacks": f"{FILE}:raises"}, "(a function is none)"),
    "no such hook": ("Ladder", {"callbacks": f"{FILE}:Misspelt"}, "did you mean on_episode_end?"),
    "hooks of classic RLlib": (
        "Ladder",
        {"callbacks": f"{FILE}:Classic"},
        "Classic.on_episode_end is called with worker, env, episode as keywords",
    ),
    "no file of cases": ("Ladder", {"randomize": {"cases": "no.csv"}}, "config.randomize.cases: no file 'no.csv'"),
}


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_before_training(trainer_of, name, changes, words) -> None:
    with pytest.raises(ShoalError) as caught:
        trainer_of(name, **changes)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


TASKS_REFUSED = {
    "raises": "env_task_fn raises failed: ZeroDivisionError: division by zero (",
    "gives_nothing": "env_task_fn gives_nothing returned None: a task is a number, text",
    "gives_a_tuple": "env_task_fn gives_a_tuple returned (1, 2): a task is a number",
    "too_high": "env_task_fn too_high: set_task refuses 99: ValueError: there is no rung 99 (",
}


@pytest.mark.parametrize("function", TASKS_REFUSED)
def test_a_function_that_gives_no_task_ends_the_run_saved(tmp_path, function) -> None:
    config = {**CONFIG, "env_task_fn": f"{FILE}:{function}"}
    tree = {"env": f"{FILE}:Ladder", "results_dir": str(tmp_path), "config": config}
    with pytest.raises(CallbackError) as caught:
        list(shoal.run({**tree, "stop": {"training_iteration": 5}}))
    assert TASKS_REFUSED[function] in str(caught.value)
    assert len(list(tmp_path.glob("**/checkpoint_000001/manifest.json"))) == 1


def test_functions_and_classes_of_a_program_serve_as_well(trainer_of) -> None:
    seen = []

    class Watching(shoal.DefaultCallbacks):
        def on_episode_end(self, *, worker, env, episode, **kwargs) -> None:
            seen.append((episode.env_index, episode.task))

    trainer = trainer_of(env_task_fn=lambda results, env, ctx: 10 + ctx.env_index, callbacks=Watching)
    trainer.train()
    trainer.train()
    assert {index for index, _ in seen} == set(range(NUM_ENVS))
    assert {task for _, task in seen} == {None, 9}
    assert trainer.get_config()["env_task_fn"].endswith("<lambda>")
