"""A node that is lost takes its workers with it, and the run goes on; when there is room again, they come back.

Those of a node that is asked to leave move before it goes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("ray")
PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"

CLUSTER = """
    import faulthandler, sys, time
    faulthandler.dump_traceback_later(220, exit=True)  # what hangs says where
    import ray
    from ray.cluster_utils import Cluster
    import shoal

    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 1000,
             "health_check_failure_threshold": 2}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": quick,
                                                             "temp_dir": sys.argv[2]})
    second = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
"""

LOSING = """
    config = {"num_workers": 2, "num_envs_per_worker": 2, "num_cpus_per_worker": 0.7, "train_batch_size": 64}
    if sys.argv[3] != "1":
        config |= {"num_learners": int(sys.argv[3]), "num_cpus_per_learner": 0.1}

    def until(wanted):
        deadline = time.monotonic() + 90
        while True:
            result = trainer.train()
            if result["timesteps_this_iter"] == wanted:
                return result
            assert time.monotonic() < deadline, result

    with shoal.PPO(env=sys.argv[1], config=config) as trainer:
        assert trainer.train()["timesteps_this_iter"] == 64
        assert len(set(trainer.workers.places().values())) == 2, "a worker on each node"
        cluster.remove_node(second, allow_graceful=False)
        lost = until(32)
        assert lost["num_remote_worker_restarts"] == 1, lost
        assert lost["num_healthy_workers"] == 1, lost
        cluster.add_node(num_cpus=1)
        back = until(64)
        assert back["num_healthy_workers"] == 2, back
    ray.shutdown()
    cluster.shutdown()
"""

LEAVING = """
    from ray._raylet import GcsClient

    PREEMPTION = 2
    config = {"num_workers": 2, "num_envs_per_worker": 2, "num_cpus_per_worker": 0.7, "train_batch_size": 64}
    with shoal.PPO(env=sys.argv[1], config=config) as trainer:
        trainer.train()
        places = trainer.workers.places()
        assert set(places.values()) >= {second.node_id}, places
        third = cluster.add_node(num_cpus=1)
        soon = int(1000 * time.time()) + 60_000
        is_accepted, words = GcsClient(address=cluster.address).drain_node(second.node_id, PREEMPTION, "test", soon)
        assert is_accepted, words
        deadline = time.monotonic() + 90
        while second.node_id in trainer.workers.places().values():
            result = trainer.train()
            assert (result["timesteps_this_iter"], result["num_remote_worker_restarts"]) == (64, 0), result
            assert time.monotonic() < deadline
        wanted = {index: third.node_id if node == second.node_id else node for index, node in places.items()}
        assert trainer.workers.places() == wanted
        cluster.remove_node(second, allow_graceful=False)
        result = trainer.train()
        assert (result["timesteps_this_iter"], result["num_remote_worker_restarts"]) == (64, 0), result
    ray.shutdown()
    cluster.shutdown()
"""

VECTOR = """
    import logging, threading
    import numpy as np

    told = []
    logging.getLogger("shoal").addFilter(lambda record: told.append(record.getMessage()) or True)

    def place(env):
        return ray.get_runtime_context().get_node_id()

    def places():
        return list(envs.call_each(dict.fromkeys(range(4), place)).values())

    envs = shoal.make_vec(sys.argv[1], num_envs=4, num_workers=2, num_cpus_per_worker=0.7)
    envs.reset(seed=1)
    envs.step([0, 1, 2, 0])
    first = places()
    assert len(set(first)) == 2 and second.node_id in first, first
    gone = [node == second.node_id for node in first]
    cluster.remove_node(second, allow_graceful=False)

    def step_until_lost():
        while not steps or "incident" not in steps[-1][-1]:
            steps.append(envs.step([1, 1, 1, 1]))

    steps = []
    stepping = threading.Thread(target=step_until_lost)
    stepping.start()
    deadline = time.monotonic() + 90
    while not any("waits for a host" in text for text in told):
        assert time.monotonic() < deadline, told
        time.sleep(0.1)
    cluster.add_node(num_cpus=1)  # by the main thread: what Ray starts ends with the thread that has started it
    stepping.join(90)
    obs, rewards, terminated, truncated, infos = steps[-1]
    assert truncated[gone].all() and not rewards[gone].any(), (truncated, rewards)
    assert "was lost" in infos["incident"][gone.index(True)], infos
    now = places()
    assert len(set(now)) == 2 and second.node_id not in now, now
    assert [node for node, lost in zip(now, gone) if not lost] == [node for node, lost in zip(first, gone) if not lost]
    for _ in range(30):
        obs, *_ = envs.step([0, 1, 2, 0])
    assert obs.shape == (4, 3) and np.isfinite(obs).all()
    envs.close()
    ray.shutdown()
    cluster.shutdown()
"""


@pytest.mark.slow
def test_a_vector_of_environments_lives_on_simulated_nodes_and_outlives_one() -> None:
    _run(VECTOR)


@pytest.mark.slow
@pytest.mark.parametrize("num_learners", [1, 2])
def test_a_lost_node_costs_its_fragments(num_learners) -> None:
    _run(LOSING, str(num_learners))


@pytest.mark.slow
def test_workers_of_a_leaving_node_move_and_nothing_is_lost() -> None:
    _run(LEAVING)


def _run(program: str, *arguments: str) -> None:
    variables = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="n-") as folder:
        # Ray's test cluster writes its address into Ray's own folder, and does not make it.
        variables["RAY_TMPDIR"] = folder
        own = Path(folder, "ray")
        own.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CLUSTER + program), f"{PROBES}:Walk", str(own), *arguments],
            capture_output=True,
            text=True,
            timeout=240,
            env=variables,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
