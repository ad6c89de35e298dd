"""The parts that an iteration with many workers and learners is made of, each measured by itself, and the whole."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import task
from processes import below, cpu_s

import shoal
from shoal.data.batch import concatenate
from shoal.parallel.host import HostAnswer
from shoal.parallel.ray_workers import HostSlot
from shoal.parallel.tcp_sums import SocketGroup, listen
from shoal.runs.learners import make_learner

SIMULATOR = f"{Path(__file__).with_name('simulators.py')}:SleepingVector"


def config_of(num_workers: int, num_envs: int, steps: int, sleep_s: float = 0.0, **config: Any) -> dict[str, Any]:
    """`num_envs` environments and `steps` steps for each worker; workers share the cores there are."""
    cores = {"num_cpus_per_worker": min(1.0, 2 / num_workers)} if num_workers else {}
    return {
        "env_config": {"num_envs": num_envs, "sleep_s": sleep_s},
        "num_workers": num_workers,
        "num_envs_per_worker": num_envs,
        "train_batch_size": max(num_workers, 1) * num_envs * steps,
        "log_level": "ERROR",
        **cores,
        **config,
    }


@contextmanager
def hosts(number: int) -> Iterator[None]:
    """So many nodes of Ray on this machine, each of which counts as a host; one is shoal's own Ray."""
    if number == 1:
        yield
        return
    from shoal.parallel.private_ray import SETTINGS

    os.environ |= SETTINGS  # as shoal's own Ray has it
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 64, "object_store_memory": 200_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    for _ in range(number - 1):
        cluster.add_node(**node, wait=False)
    try:
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def spent_by(name: str) -> float:
    """The processor time of all processes below this one whose command line begins so, or holds it as a program."""
    return sum(
        cpu_s(pid) for pid, command in below(os.getpid()).items() if command.startswith(name) or f"/{name} " in command
    )


def rounds(num_workers: int, num_envs: int, repeats: int) -> task.Answer:
    """A round of messages without any sampling to speak of, seen by the whole and by the driver alone.

    `round_s`: ask, one step of each worker, answers. `driver_s`: asking, and taking answers that wait already.
    `merge_s`: fetching and joining the fragments, once with few bytes and once with many. `worker_cpu_s`, `host_cpu_s`:
    of each worker and of their host's actor, for each worker and round.
    """
    few, many = 1, 64
    with shoal.PPO(env=SIMULATOR, config=config_of(num_workers, num_envs, few)) as trainer:
        workers: Any = trainer.workers
        ray = workers.session.ray
        workers.sample(few)
        cpu = sum(workers.foreach_worker(lambda _: process_time()))
        host_cpu = spent_by("ray::HostActor")
        whole = [seconds(workers.sample_apart, few) for _ in range(repeats)]
        host_cpu = spent_by("ray::HostActor") - host_cpu
        cpu = sum(workers.foreach_worker(lambda _: process_time())) - cpu
        ask, take = [], []
        for _ in range(repeats):
            started = perf_counter()
            asked = workers._ask_for_fragments(few)
            ask.append(perf_counter() - started)
            ray.wait(list(asked.asked), num_returns=len(asked.asked))
            take.append(seconds(workers._collect, asked))
        merge = {}
        for steps in (few, many):
            times = []
            for _ in range(repeats):
                fragments, _ = workers.sample_apart(steps)
                ray.wait([fragments[0].batches])
                times.append(seconds(lambda each: concatenate(workers._fetched(each)), fragments))
            joined = concatenate(workers._fetched(fragments))
            merge[str(_megabytes(joined))] = statistics.median(times)
    return {
        "round_s": statistics.median(whole),
        "worker_cpu_s": cpu / repeats / num_workers,
        "host_cpu_s": host_cpu / repeats / num_workers,
        "ask_s": statistics.median(ask),
        "take_s": statistics.median(take),
        "merge_s": merge,
    }


class PlayedHost:
    """A host actor that always has the same answer, as if so many workers had just sampled."""

    def __init__(self, answer: HostAnswer, batch: Any, num_workers: int) -> None:
        told = answer.fragments[0]
        indices = range(1, num_workers + 1)
        fragments = [dataclasses.replace(told, index=index) for index in indices]
        self.answer = dataclasses.replace(answer, up=list(indices), fragments=fragments)
        self.batches = [batch] * num_workers

    def sample(self, *_: Any) -> Any:
        return self.answer, self.batches


PLAYERS = 4


def driver(num_hosts: int, num_workers: int, num_envs: int, repeats: int) -> task.Answer:
    """What the driver alone does for so many hosts of so many workers, when all have answered; actors play them."""
    with shoal.PPO(env=SIMULATOR, config=config_of(1, num_envs, 1)) as trainer:
        workers: Any = trainer.workers
        ray = workers.session.ray
        workers.sample(1)
        (told,), ((_, batches),) = zip(*workers._ask_for_fragments(1).asked.items(), strict=True)
        played = ray.remote(num_cpus=0)(PlayedHost)
        players = [played.remote(ray.get(told), ray.get(batches)[0], num_workers) for _ in range(PLAYERS)]
        real, indices = workers._hosts, list(range(1, num_workers + 1))
        workers._deaths = dict.fromkeys(indices, 0)
        workers._hosts = [
            HostSlot(real[0].node, players[k % PLAYERS], indices, None, up=indices) for k in range(num_hosts)
        ]
        ask, take = [], []
        for repeat in range(-1, repeats):
            started = perf_counter()
            asked = workers._ask_for_fragments(1)
            ask.append(perf_counter() - started)
            ray.wait(list(asked.asked), num_returns=len(asked.asked))
            take.append(seconds(workers._collect, asked))
            if repeat < 0:  # the first call of each actor waits for it to start
                ask, take = [], []
        workers._hosts = real
    return {"ask_s": statistics.median(ask), "take_s": statistics.median(take)}


def update(rows: int, num_envs: int, minibatches: int, epochs: int, repeats: int) -> task.Answer:
    """One learner's update on so many rows, in so many minibatches a pass."""
    config = config_of(0, num_envs, rows // num_envs, sgd_minibatch_size=rows // minibatches, num_sgd_iter=epochs)
    with shoal.PPO(env=SIMULATOR, config=config) as trainer:
        batch = trainer.workers.sample(rows // num_envs).batch
        learner = make_learner(trainer.config, trainer.get_policy(), None)  # type: ignore[arg-type]
        with trainer._thread_pools.limit(limits=1, user_api="blas"):
            learner.update(batch, 0)
            times = [seconds(learner.update, batch, 0) for _ in range(repeats)]
        params = len(trainer.get_policy().network.params)
    return {"update_s": statistics.median(times), "parameters": params}


def all_reduce(num_learners: int, sizes: list[int], repeats: int, work_s: float) -> task.Answer:
    """Seconds of one sum over the learners, for vectors of so many numbers, with some computing before each."""
    with get_context("spawn").Manager() as manager, get_context("spawn").Pool(num_learners) as pool:
        addresses = manager.dict()
        jobs = [(addresses, rank, num_learners, sizes, repeats, work_s) for rank in range(num_learners)]
        answers = pool.starmap(_sums, jobs, chunksize=1)
    return {"sum_s": dict(zip(map(str, sizes), np.mean(answers, axis=0).tolist(), strict=True))}


def _sums(addresses: Any, rank: int, size: int, lengths: list[int], repeats: int, work_s: float) -> list[float]:
    listener = listen("127.0.0.1")
    addresses[rank] = listener.getsockname()
    while len(addresses) < size:
        sleep(0.01)
    group = SocketGroup(listener, [addresses[k] for k in range(size)], rank, b"bench")
    matrix = np.ones((256, 64), np.float32)
    found = []
    for length in lengths:
        x = np.zeros(length, np.float32)
        spent = 0.0
        for repeat in range(-20, repeats):
            started = process_time()
            while process_time() - started < work_s:  # a share of a core is not a share of the work
                matrix @ matrix.T[:64, :64]
            started = perf_counter()
            group.sum(x)
            spent += (perf_counter() - started) * (repeat >= 0)
        found.append(spent / repeats)
    return found


def hand_over(num_learners: int, repeats: int) -> task.Answer:
    """An update by learners of next to nothing: their messages, and the way of the weights back to the driver."""
    config = config_of(4, 4, 4, num_learners=num_learners, num_sgd_iter=1, sgd_minibatch_size=64)
    with shoal.PPO(env=SIMULATOR, config=config) as trainer:
        learn = [trainer.train()["timers"]["learn_s"] for _ in range(repeats + 2)][2:]
    return {"learn_s": statistics.median(learn)}


class PlayedLearner:
    """A learner actor that has always just learned."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def update(self, *_: Any) -> Any:
        return self.answer


def many_learners(num_learners: int, repeats: int) -> task.Answer:
    """What the driver alone does for so many learners, which some actors play."""
    config = config_of(4, 4, 4, num_learners=2, num_sgd_iter=1, sgd_minibatch_size=64)
    with shoal.PPO(env=SIMULATOR, config=config) as trainer:
        learners: Any = trainer.learner
        ray = learners._ray
        stats = trainer.train()["learner"]
        fragments, _ = learners._workers.sample_apart(4)
        played = ray.remote(num_cpus=0)(PlayedLearner)
        first = played.remote((stats, trainer.get_policy().get_state(), learners.get_state()))
        players = [played.remote(None) for _ in range(PLAYERS)]
        real = learners._actors, learners._nodes
        learners._actors = [first, *(players[k % PLAYERS] for k in range(num_learners - 1))]
        learners._nodes = [real[1][0]] * num_learners
        times = [seconds(learners._try_update, fragments, 0) for _ in range(repeats + 2)][2:]
        learners._actors, learners._nodes = real
    return {"hand_s": statistics.median(times)}


def run(
    num_workers: int,
    num_learners: int,
    num_hosts: int,
    num_envs: int,
    steps: int,
    sleep_s: float,
    epochs: int,
    minibatches: int,
    iterations: int,
) -> task.Answer:
    """The whole: seconds of an iteration, and of its parts."""
    learning = {"num_sgd_iter": epochs, "sgd_minibatch_size": num_workers * num_envs * steps // minibatches}
    config = config_of(num_workers, num_envs, steps, sleep_s, num_learners=num_learners, **learning)
    with hosts(num_hosts), shoal.PPO(env=SIMULATOR, config=config) as trainer:
        assert len(set(trainer.workers.places().values())) == num_hosts, trainer.workers.places()
        for _ in range(2):
            trainer.train()
        cpu = sum(trainer.workers.foreach_worker(lambda _: process_time()))
        results = [trainer.train() for _ in range(iterations)]
        cpu = sum(trainer.workers.foreach_worker(lambda _: process_time())) - cpu
    found = {
        "iteration_s": statistics.median(result["time_this_iter_s"] for result in results),
        "worker_cpu_s": cpu / iterations / num_workers,
    }
    for name in ("env", "policy", "learn", "communicate"):
        found[f"{name}_s"] = statistics.median(result["timers"][f"{name}_s"] for result in results)
    return found


def first_sample(num_hosts: int, workers_per_host: int) -> task.Answer:
    """Seconds until the first sample of all workers, and what the two processes that all hosts share spend until then.

    `nodes_gcs_s` is Ray's head's time for the nodes to join, before.
    """
    count = num_hosts * workers_per_host
    with hosts(num_hosts):
        nodes_gcs = spent_by("gcs_server") if num_hosts > 1 else 0.0
        started, driver = perf_counter(), process_time()
        with shoal.PPO(env=SIMULATOR, config=config_of(count, 4, 1, num_cpus_per_worker=0.05)) as trainer:
            steps = trainer.workers.sample(1).num_steps
            first, driver = perf_counter() - started, process_time() - driver
            gcs = spent_by("gcs_server") - nodes_gcs
            assert steps == 4 * count, steps
    return {"first_s": first, "driver_s": driver, "gcs_s": gcs, "nodes_gcs_s": nodes_gcs}


def places(bundles: int) -> task.Answer:
    """Processor seconds of Ray's head to reserve so many workers' places, and of the driver to look them up."""
    import ray
    from ray.util.placement_group import placement_group, placement_group_table

    ray.init(num_cpus=bundles, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        before = spent_by("gcs_server")
        group = placement_group([{"CPU": 1.0}] * bundles, strategy="SPREAD")
        assert group.wait(500), "there is room for all"
        reserved, looked = spent_by("gcs_server") - before, process_time()
        placement_group_table(group)
        return {"gcs_s": reserved, "driver_s": process_time() - looked}
    finally:
        ray.shutdown()


def seconds(call: Callable[..., Any], *arguments: Any) -> float:
    """How long a call takes."""
    started = perf_counter()
    call(*arguments)
    return perf_counter() - started


def _megabytes(batch: Any) -> float:
    names = ("actions", "rewards", "terminated", "truncated", "valid", "log_probs", "dist_inputs", "final_at")
    arrays = [*batch.obs, *batch.final_obs, *(getattr(batch, name) for name in names)]
    return float(sum(array.nbytes for array in arrays) / 1e6)


if __name__ == "__main__":
    task.main(
        {
            f.__name__: f
            for f in (rounds, driver, update, all_reduce, hand_over, many_learners, run, first_sample, places)
        }
    )
