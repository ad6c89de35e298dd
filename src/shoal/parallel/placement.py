"""Where workers are: each has a bundle of resources on some node, and all on one node belong to one host actor.

Workers are processes that Ray does not know, so their resources are reserved for them: in a placement group of our
own, or in that of the trial which this runs in. Ray finds the nodes, and another one for what was on a lost node.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from shoal.config.layout import cpus_per_worker
from shoal.config.settings import AlgorithmConfig

PATIENCE_S = 1.0  # of one wait for a reservation; signals are heard in between
LEAST = {"memory": 1.0}  # bytes, of a worker that takes no CPU: a bundle cannot be empty


class Placement:
    """The bundles of a set of workers."""

    def __init__(self, ray: Any, config: AlgorithmConfig) -> None:
        from ray.util.placement_group import placement_group

        self._ray = ray
        self._own: Any = None
        cpus, count = cpus_per_worker(config), config.worker_count
        trial = ray.util.get_current_placement_group()
        if trial is not None:
            self._group = trial
            # The first bundle is the trial's own process; workers that take nothing have none.
            self._bundles = range(1, 1 + count) if cpus else [0] * count
            return
        bundle = {"CPU": cpus} if cpus else LEAST
        self._group = self._own = placement_group([bundle] * count, strategy="SPREAD")
        self._bundles = range(count)
        while not self._group.wait(PATIENCE_S):
            pass

    def rooms(self) -> dict[str, list[int]]:
        """The bundles that are on nodes now, by node, the node of the first bundle first."""
        from ray.util.placement_group import placement_group_table

        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        nodes: Mapping[int, str] = placement_group_table(self._group)["bundles_to_node_id"]
        rooms: dict[str, list[int]] = {}
        for bundle in self._bundles:
            if nodes.get(bundle) in alive:
                rooms.setdefault(nodes[bundle], []).append(bundle)
        return rooms

    def strategy(self, bundle: int) -> Any:
        """For an actor that is to be where a bundle is, and takes nothing of it."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)

    def remove(self) -> None:
        """Give back what was reserved; may be called twice."""
        group, self._own = self._own, None
        if group is not None:
            from ray.util.placement_group import remove_placement_group

            with contextlib.suppress(Exception):
                remove_placement_group(group)


def shared_among(rooms: Mapping[str, int], workers: list[int], placed: list[str]) -> dict[str, list[int]]:
    """A node for each worker that has none, as far as there is room; neighbours stay together.

    `rooms` is how many workers each node has room for, `placed` the node of each worker that has one.
    """
    taken = Counter(placed)
    found: dict[str, list[int]] = {}
    left = list(workers)
    for node, room in rooms.items():
        count = max(0, room - taken[node])
        if left and count:
            found[node], left = left[:count], left[count:]
    return found
