"""What every set of workers keeps, in this process and as Ray actors."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from shoal.config.on_policy import OnPolicyConfig
from shoal.config.ppo import PPOConfig
from shoal.config.trpo import TRPOConfig
from shoal.data.state import State
from shoal.envs.making import env_maker
from shoal.errors import CheckpointError, EnvError, ShoalError, WorkerError
from shoal.parallel.group import Alone
from shoal.parallel.start import start_workers
from shoal.runs.learners import make_learner

PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"
NUM_ENVS = 4


def config_for(num_workers: int, name: str = "Walk", kind: type[OnPolicyConfig] = PPOConfig, **changes):
    standard = {
        "env": f"{PROBES}:{name}",
        "num_workers": num_workers,
        "num_envs_per_worker": NUM_ENVS // max(num_workers, 1),
        "num_cpus_per_worker": 0.5,
        "train_batch_size": 16 * NUM_ENVS,
        "sgd_minibatch_size": 32,
        "num_sgd_iter": 2,
        "model": {"fcnet_hiddens": [8]},
        "seed": 4,
    }
    return kind(**{**standard, **changes})


def start(num_workers: int, name: str = "Walk", **changes):
    config = config_for(num_workers, name, **changes)
    return start_workers(config, env_maker(config.env))


@pytest.fixture(params=[0, 2], ids=["local", "ray"])
def num_workers(request) -> int:
    if request.param:
        request.getfixturevalue("ray_session")
    return request.param


@pytest.fixture
def begin(num_workers):
    """Starts workers that are stopped when the test is over."""
    started = []

    def make(name: str = "Walk", **changes):
        started.append(start(num_workers, name, **changes))
        return started[-1]

    yield make
    for workers in started:
        workers.stop()


def test_a_sample_has_every_environment_in_order(begin) -> None:
    workers = begin()
    sample = workers.sample(30)
    batch = sample.batch
    assert batch.rewards.shape == (30, NUM_ENVS)
    assert batch.obs[0].shape == (30, NUM_ENVS, 3)
    assert batch.actions.shape == (30, NUM_ENVS, 1)
    assert batch.dist_inputs.shape == (30, NUM_ENVS, 3)
    assert batch.num_steps == 30 * NUM_ENVS
    assert {e.env_index for e in sample.episodes} == set(range(NUM_ENVS))
    assert batch.final_at[:, 1].max() < NUM_ENVS
    for k, (t, n) in enumerate(batch.final_at.tolist()):
        if t + 1 < 30 and not batch.truncated[t, n]:
            np.testing.assert_array_equal(batch.final_obs[0][k], batch.obs[0][t + 1, n])
    assert sample.env_time_s > 0
    assert sample.policy_time_s > 0


def test_environments_know_where_they_are(begin, num_workers) -> None:
    places = begin().foreach_env(lambda env: env.place)
    assert [place[2] for place in places] == list(range(NUM_ENVS))
    assert {place[3] for place in places} == {num_workers}
    if num_workers:
        assert [place[:2] for place in places] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    else:
        assert [place[:2] for place in places] == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_the_number_of_environments_follows_a_native_vector(begin, num_workers) -> None:
    workers = begin("vector", num_envs_per_worker="auto")
    assert workers.config.num_envs_per_worker == 4
    sample = workers.sample(40)
    assert sample.batch.rewards.shape == (40, 4 * max(num_workers, 1))
    assert {e.env_index for e in sample.episodes} == set(range(4 * max(num_workers, 1)))


def test_foreach_worker_runs_where_the_worker_is(begin, num_workers) -> None:
    found = begin().foreach_worker(lambda worker: (worker.worker_index, os.getpid()))
    assert [index for index, _ in found] == ([1, 2] if num_workers else [0])
    assert all((pid == os.getpid()) == (num_workers == 0) for _, pid in found)


@pytest.mark.usefixtures("ray_session")
def test_workers_of_a_host_are_processes_below_one_actor_and_take_their_cores() -> None:
    import ray

    cores = ray.cluster_resources()["CPU"]
    await_true(lambda: ray.available_resources()["CPU"] == cores)  # what tests before this one had is given back
    workers = start(4, num_cpus_per_worker=0.5)
    try:
        assert len(set(workers.places().values())) == 1
        pids = workers.foreach_worker(lambda worker: os.getpid())
        assert len(set(pids)) == 4
        actors = {next(pid for pid in ancestors(pid) if command_of(pid).startswith("ray::Host")) for pid in pids}
        assert len(actors) == 1
        await_true(lambda: ray.available_resources()["CPU"] == cores - 4 * 0.5)
    finally:
        workers.stop()
    await_true(lambda: ray.available_resources()["CPU"] == cores)
    await_true(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def await_true(condition: Callable[[], bool]) -> None:
    """Ray's own numbers come a little later than what they tell of."""
    deadline = monotonic() + 60
    while not condition():
        assert monotonic() < deadline


def ancestors(pid: int) -> Iterator[int]:
    """The processes above this one, the nearest first."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def command_of(pid: int) -> str:
    """What a process calls itself."""
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_a_method_can_be_called_on_every_environment(begin) -> None:
    workers = begin()
    workers.sample(3)

    workers.foreach_env(lambda env: env.set_goal(10 * env.index))
    assert workers.foreach_env(lambda env: env.goal) == [0, 10, 20, 30]


def test_workers_act_with_the_learners_weights(begin) -> None:
    workers = begin()
    workers.policy.network.params[:] = 0
    workers.policy.set_weights({"policy.bias": [0, 50, 0]})
    assert (workers.sample(5).batch.actions == 1).all()
    workers.policy.set_weights({"policy.bias": [0, 0, 50]})
    assert (workers.sample(5).batch.actions == 2).all()
    (first, *_) = workers.foreach_worker(lambda worker: worker.get_policy().get_weights()["policy.bias"].tolist())
    assert first == [0, 0, 50]


def arrays_of(sample) -> dict:
    names = ("actions", "rewards", "terminated", "truncated", "valid", "log_probs", "final_at")
    return {name: np.array(getattr(sample.batch, name)) for name in names} | {"obs": sample.batch.obs[0].copy()}


@pytest.mark.repeats(2)
@pytest.mark.parametrize("name", ["Walk", "Opaque"])
def test_saved_workers_go_on_exactly_where_they_were(begin, name) -> None:
    first, second = begin(name), begin(name)
    first.sample(7)
    states = [State(json.loads(json.dumps(s.values)), dict(s.arrays)) for s in first.get_state()]
    assert second.set_state(states) == 0
    if name == "Opaque":
        assert max(second.foreach_env(lambda env: env.calls)) <= 1, "only the first look has made a step"
    for _ in range(3):
        one, two = first.sample(7), second.sample(7)
        mine, theirs = arrays_of(one), arrays_of(two)
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
        assert one.episodes == two.episodes


def test_states_of_other_workers_are_refused(begin) -> None:
    workers = begin()
    with pytest.raises(CheckpointError, match="3 workers"):
        workers.set_state([workers.get_state()[0]] * 3)
    assert workers.sample(2).batch.num_steps == 2 * NUM_ENVS


def test_complete_episodes(begin) -> None:
    sample = begin(batch_mode="complete_episodes").sample(5)
    batch = sample.batch
    assert sum(e.length for e in sample.episodes) == batch.num_steps
    assert batch.terminated[~batch.valid].all()
    assert not batch.truncated[~batch.valid].any()


def test_failures_of_environments_are_reported_and_survived(begin, num_workers) -> None:
    workers = begin("Failing")
    sample = workers.sample(12)
    assert sorted(i.env_index for i in sample.incidents) == list(range(NUM_ENVS))
    assert {i.worker_index for i in sample.incidents} == ({1, 2} if num_workers else {0})
    assert {i.cause for i in sample.incidents} == {"RuntimeError: diverged"}
    assert np.count_nonzero(~sample.batch.valid) == NUM_ENVS


def test_failures_beyond_the_budget_end_it_in_their_own_words(begin) -> None:
    workers = begin("Failing", max_env_failures=0)
    with pytest.raises(EnvError) as caught:
        workers.sample(12)
    assert "RuntimeError: diverged" in str(caught.value)
    assert "max_env_failures is 0" in str(caught.value)


@pytest.mark.repeats(2)
@pytest.mark.parametrize("name", ["Broken", "BrokenInSecondWorker"])
def test_a_constructor_that_fails_is_an_env_error_with_its_own_words(begin, num_workers, name) -> None:
    if not num_workers and name == "BrokenInSecondWorker":
        workers = begin(name)
        assert workers.sample(1).batch.num_steps == NUM_ENVS
        return
    words = "licence has run out" if name == "Broken" else "no mesh for the second worker"
    with pytest.raises(EnvError, match=words):
        begin(name)


def test_an_error_in_the_users_function_arrives(begin, num_workers) -> None:
    workers = begin()
    with pytest.raises(ShoalError if num_workers else ZeroDivisionError, match="division by zero"):
        workers.foreach_worker(lambda worker: 1 / 0)
    assert workers.sample(1).batch.num_steps == NUM_ENVS


def test_stopping_closes_every_environment_and_may_be_done_twice(begin, tmp_path) -> None:
    workers = begin(env_config={"closing_note": f"{tmp_path}/closed"})
    workers.sample(2)
    workers.stop()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"closed{k}" for k in range(NUM_ENVS)]
    workers.stop()


def trained(num_workers: int, iterations: int = 3, name: str = "Walk", kind=PPOConfig, **changes):
    config = config_for(num_workers, name, kind, **changes)
    workers = start_workers(config, env_maker(config.env))
    try:
        learner = make_learner(config, workers.policy, Alone())
        samples = []
        for _ in range(iterations):
            sample = workers.sample(config.steps_per_iteration)
            samples.append(arrays_of(sample))
            learner.update(sample.batch, 0)
        return samples, workers.policy.network.params.copy(), workers.policy.get_state().arrays
    finally:
        workers.stop()


@pytest.mark.repeats(1, slow=2)
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Walk", {"observation_filter": "MeanStdFilter"}),
        ("Walk", {"batch_mode": "complete_episodes"}),
        ("WalkInBox", {"observation_filter": "MeanStdFilter"}),
        ("FailingNowAndThen", {}),
        ("Walk", {"env_isolation": "process"}),
        ("Walk", {"kind": TRPOConfig, "observation_filter": "MeanStdFilter"}),
        ("WalkInBox", {"kind": TRPOConfig, "fisher_subsample": 2}),
    ],
)
def test_the_number_of_workers_does_not_change_the_result(name, changes) -> None:
    samples, params, state = trained(0, name=name, **changes)
    others, other_params, other_state = trained(2, name=name, **changes)
    for mine, theirs in zip(samples, others, strict=True):
        for name in ("terminated", "truncated", "valid"):
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
        for name in ("actions", "rewards", "log_probs", "obs"):
            # A product of matrices with other numbers of rows may round otherwise in the last bit.
            where = mine["valid"]
            np.testing.assert_allclose(mine[name][where], theirs[name][where], rtol=1e-4, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(params, other_params, rtol=1e-3, atol=1e-4)
    for name in ("filter.mean", "filter.m2"):
        if name in state:
            np.testing.assert_allclose(state[name], other_state[name], rtol=1e-5)


def kill_the_second(workers) -> None:
    pid = workers.foreach_worker(lambda worker: os.getpid())[1]
    os.kill(pid, signal.SIGKILL)


def sample_until(workers, num_steps: int, steps: int = 5):
    """Samples until one has as many steps; those before it."""
    deadline = monotonic() + 120
    samples = [workers.sample(steps)]
    while samples[-1].num_steps != num_steps:
        assert monotonic() < deadline
        samples.append(workers.sample(steps))
    return samples[:-1], samples[-1]


@pytest.mark.usefixtures("ray_session")
def test_a_killed_worker_costs_its_fragment_and_is_replaced_where_it_stood() -> None:
    calm, struck = start(2), start(2)
    try:
        for workers in (calm, struck):
            workers.sample(5)
        kill_the_second(struck)
        without, whole = sample_until(struck, 5 * NUM_ENVS)
        assert without
        assert {sample.num_steps for sample in without} == {5 * NUM_ENVS // 2}, "the first worker went on"
        expected = calm.sample(5).batch
        for name in ("actions", "rewards", "log_probs"):
            np.testing.assert_array_equal(getattr(whole.batch, name)[:, 2:], getattr(expected, name)[:, 2:])
        assert (struck.num_healthy_workers, struck.num_remote_worker_restarts) == (2, 1)
        assert (calm.num_healthy_workers, calm.num_remote_worker_restarts) == (2, 0)
    finally:
        calm.stop()
        struck.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_replaced_worker_has_the_state_that_its_environments_told() -> None:
    calm, struck = start(2, "Opaque"), start(2, "Opaque")
    try:
        struck.sample(5)
        calm.set_state(struck.get_state())
        kill_the_second(struck)
        whole = sample_until(struck, 5 * NUM_ENVS)[1]
        expected = calm.sample(5).batch
        for name in ("actions", "rewards", "log_probs"):
            np.testing.assert_array_equal(getattr(whole.batch, name)[:, 2:], getattr(expected, name)[:, 2:])
    finally:
        calm.stop()
        struck.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_worker_that_is_lost_between_samples_is_asked_again() -> None:
    workers = start(2)
    try:
        workers.sample(5)
        kill_the_second(workers)
        assert workers.foreach_env(lambda env: env.index) == list(range(NUM_ENVS))
        assert len(workers.get_state()) == 2
    finally:
        workers.stop()


@pytest.mark.usefixtures("ray_session")
def test_the_only_worker_is_waited_for() -> None:
    workers = start(1)
    try:
        workers.sample(5)
        os.kill(workers.foreach_worker(lambda worker: os.getpid())[0], signal.SIGKILL)
        assert workers.sample(5).num_steps == 5 * NUM_ENVS
        assert workers.num_remote_worker_restarts == 1
    finally:
        workers.stop()


@pytest.mark.usefixtures("ray_session")
def test_no_more_workers_are_replaced_than_allowed() -> None:
    workers = start(2, max_worker_restarts=0)
    try:
        kill_the_second(workers)
        with pytest.raises(WorkerError, match="max_worker_restarts is 0"):
            workers.sample(5)
    finally:
        workers.stop()


@pytest.mark.usefixtures("ray_session")
def test_the_others_go_on_without_a_killed_worker_if_that_is_asked() -> None:
    workers = start(2, recreate_failed_workers=False, ignore_worker_failures=True)
    try:
        workers.sample(5)
        kill_the_second(workers)
        assert workers.sample(5).batch.num_steps == 5 * NUM_ENVS // 2
        assert len(workers.get_state()) == 1
    finally:
        workers.stop()


@pytest.mark.usefixtures("ray_session")
def test_a_killed_worker_ends_the_run_if_that_is_asked() -> None:
    workers = start(2, recreate_failed_workers=False)
    try:
        kill_the_second(workers)
        with pytest.raises(WorkerError, match="lost"):
            workers.sample(5)
    finally:
        workers.stop()


@pytest.mark.usefixtures("ray_session")
def test_weights_that_are_set_on_workers_are_set_for_all() -> None:
    workers = start(2)
    try:
        bias = workers.policy.get_weights()["policy.bias"] + 1
        workers.foreach_worker(lambda worker: worker.get_policy().set_weights({"policy.bias": bias}))
        everywhere = workers.foreach_worker(lambda worker: worker.get_policy().get_weights()["policy.bias"])
        for found in (*everywhere, workers.policy.get_weights()["policy.bias"]):
            np.testing.assert_array_equal(found, bias)
    finally:
        workers.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_worker_that_dies_time_and_again_is_a_worker_error() -> None:
    workers = start(2, "Dying")
    try:
        with pytest.raises(WorkerError, match="times in a row"):
            sample_until(workers, 10 * NUM_ENVS, steps=10)
    finally:
        workers.stop()


@pytest.mark.usefixtures("ray_session")
def test_the_last_words_of_a_worker_are_told(caplog) -> None:
    workers = start(2, "DyingWithWords")
    try:
        workers.sample(10)
        assert "Floating point exception in the solver" in caplog.text
        assert f"worker 2 on {socket.gethostname()}" in caplog.text
    finally:
        workers.stop()


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_that_sample_ahead_are_one_update_behind(num_workers) -> None:
    """Each sample is made with the weights of the call before, whatever the timing."""
    workers = start(num_workers, sample_async=True)
    try:
        workers.policy.network.params[:] = 0
        chosen, staleness = [], []
        for k in (0, 1, 2, 0):
            workers.policy.set_weights({"policy.bias": 50.0 * np.eye(3)[k]})
            sample = workers.sample(5)
            chosen.append(set(sample.batch.actions.reshape(-1).tolist()))
            staleness.append(sample.staleness)
        assert chosen == [{0}, {0}, {1}, {2}]
        assert staleness == [0, 1, 1, 1]
    finally:
        workers.stop()


def finished(workers, count: int):
    """So many fragments, of whichever workers; nobody who rests is asked for another."""
    deadline = monotonic() + 120
    samples = []
    while len(samples) < count:
        assert monotonic() < deadline
        samples += workers.finished_fragments()
    return samples


def test_fragments_come_as_they_are_finished(begin, num_workers) -> None:
    workers, expected = begin(), begin()
    count = max(num_workers, 1)
    assert workers.finished_fragments(wait=False) == []
    workers.begin_fragments(6, version=7)
    samples = finished(workers, count)
    assert workers.oldest_pending_version is None
    assert [sample.weights_version for sample in samples] == [7] * count
    assert workers.finished_fragments() == [], "nothing else was asked for"
    whole = expected.sample(6).batch
    width = NUM_ENVS // count
    for sample in samples:
        assert sample.num_steps == 6 * width
        columns = range(NUM_ENVS) if sample.batch.columns is None else sample.batch.columns
        np.testing.assert_array_equal(sample.batch.actions, whole.actions[:, list(columns)])
        np.testing.assert_array_equal(sample.batch.rewards, whole.rewards[:, list(columns)])


def test_fragments_of_one_version_have_the_same_weights(begin, num_workers) -> None:
    """Whoever begins while the learner is in the middle of an update has the weights of before it."""
    workers = begin()
    workers.policy.network.params[:] = 0
    workers.policy.set_weights({"policy.bias": [0, 50, 0]})
    workers.begin_fragments(3, version=1)
    assert workers.oldest_pending_version == (1 if num_workers else None)
    assert {int(action) for s in finished(workers, max(num_workers, 1)) for action in s.batch.actions.flat} == {1}
    if num_workers:
        workers.policy.set_weights({"policy.bias": [0, 0, 50]})
        workers.begin_fragments(3, version=1)
        assert {int(action) for s in finished(workers, 2) for action in s.batch.actions.flat} == {1}
    workers.policy.set_weights({"policy.bias": [0, 0, 50]})
    workers.begin_fragments(3, version=2)
    assert {int(action) for s in finished(workers, max(num_workers, 1)) for action in s.batch.actions.flat} == {2}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_worker_that_dies_with_its_fragment_is_replaced_and_begins_again() -> None:
    workers = start(2)
    try:
        workers.begin_fragments(5, version=0)
        finished(workers, 2)
        kill_the_second(workers)
        seen: set[int] = set()
        deadline = monotonic() + 120
        for version in range(1, 10_000):
            workers.begin_fragments(5, version)
            for sample in workers.finished_fragments():
                seen |= {*sample.batch.columns.tolist()} if version > 1 else set()
            if seen == set(range(NUM_ENVS)) and workers.num_remote_worker_restarts:
                break
            assert monotonic() < deadline
        assert (workers.num_healthy_workers, workers.num_remote_worker_restarts) == (2, 1)
    finally:
        workers.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_saved_workers_that_sample_ahead_go_on_after_the_last_sample() -> None:
    first, second = start(2, sample_async=True), start(2)
    try:
        first.sample(7)
        kept = first.get_state()
        assert second.set_state(kept) == 0
        mine, theirs = arrays_of(first.sample(7)), arrays_of(second.sample(7))
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
    finally:
        first.stop()
        second.stop()
