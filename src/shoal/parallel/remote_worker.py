"""What runs inside a worker's actor."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Batch, SampleSummary
from shoal.data.state import State
from shoal.envs.making import EnvMaker
from shoal.machine.broadcasts import leave_ending_to_starter
from shoal.models.build import PolicySpaces
from shoal.sampling.worker import Worker


@dataclass(frozen=True)
class WorkerLocation:
    """Where a worker runs."""

    host: str
    pid: int
    node: str
    num_envs: int
    agents: tuple[str, ...] = ()  # of each environment, if there are several
    others: PolicySpaces = field(default_factory=dict)  # the spaces of their policies, but for the first

    def resolved(self, config: AlgorithmConfig) -> AlgorithmConfig:
        """The configuration with what only the environments could tell."""
        return config.with_envs_per_worker(self.num_envs).with_agents(self.agents)


class RemoteWorker:
    """What runs inside an actor: a worker, and the policy state it was last sent."""

    def __init__(self, config: AlgorithmConfig, maker: EnvMaker, worker_index: int, generation: int) -> None:
        from threadpoolctl import ThreadpoolController

        leave_ending_to_starter()
        self._threads = ThreadpoolController().limit(limits=max(1, int(config.num_cpus_per_worker)))
        self._config, self._maker = config, maker
        self._worker_index, self._generation = worker_index, generation
        self.worker: Worker

    def start(self, state: State | None) -> tuple[WorkerLocation, Any, Any]:
        """Make the environments and bring them to where they stood; the place and the spaces of them.

        Not in the constructor: of what is raised there Ray keeps the text alone.
        """
        import ray

        config, node = self._config, ray.get_runtime_context().get_node_id()
        host_slots = slots_of(ray, node) if config.env_ranks else None
        self.worker = Worker(config, self._maker, self._worker_index, host_slots=host_slots)
        if state is not None:
            self.worker.set_state([state])
        worker = self.worker
        location = WorkerLocation(
            socket.gethostname(), os.getpid(), node, worker.num_envs, worker.agents, worker.other_spaces
        )
        return location, self.worker.observation_space, self.worker.action_space

    def sample(self, steps: int, policy_state: State, task: Any) -> tuple[tuple[int, SampleSummary, State], Batch]:
        """One fragment with the given weights and filter; who made it, what it holds, and the worker's state after."""
        self.worker.policy.set_state(policy_state)
        self.worker.task = task
        sample = self.worker.sample(steps)
        return (self._generation, sample.summary, self.get_state()), sample.batch

    def apply(self, fn: Callable[[Worker], Any], policy_state: State) -> tuple[Any, State | None]:
        """The result of `fn(worker)`, and the policy's state if it has set the weights."""
        policy = self.worker.policy
        policy.set_state(policy_state)
        result = fn(self.worker)
        changed = not policy.has_weights_of(policy_state)
        return result, policy.get_state() if changed else None

    def get_state(self) -> State:
        """The worker's state."""
        return self.worker.get_state()[0]

    def set_state(self, state: State) -> int:
        """Take over a saved state."""
        return self.worker.set_state([state])

    def stop(self) -> None:
        """Close the environments."""
        self.worker.stop()


def slots_of(ray: Any, node_id: str) -> int:
    """How many CPUs a node of the cluster offers, which are the slots of its environments' ranks."""
    (node,) = [node for node in ray.nodes() if node["NodeID"] == node_id]
    return int(node["Resources"].get("CPU", 0))
