"""Where workers are: each has a bundle of resources on some node, and all on one node belong to one host actor.

Workers are processes that Ray does not know, so their resources are reserved for them: in a placement group of our
own, or in that of the trial which this runs in. Ray finds the nodes, and another one for what was on a lost node.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.config.layout import cpus_per_worker
from shoal.config.settings import AlgorithmConfig

PATIENCE_S = 1.0  # of one wait for a reservation; signals are heard in between
LEAST = {"memory": 1.0}  # bytes, of a worker that takes no CPU: a bundle cannot be empty
ROUNDING = 1e-6
Bundle = tuple[Any, int]  # a placement group, and the place in it


class Placement:
    """The bundles of a set of workers."""

    def __init__(self, ray: Any, config: AlgorithmConfig) -> None:
        self._ray = ray
        self._own: list[Any] = []  # groups
        self._left: set[str] = set()  # nodes that nothing is placed on any more
        cpus, count = cpus_per_worker(config), config.worker_count
        self._bundle = {"CPU": cpus} if cpus else LEAST
        trial = ray.util.get_current_placement_group()
        if trial is not None:
            self._bundles = [(trial, index) for index in places_in(trial.bundle_specs, cpus, count)]
            return
        self._bundles = []
        group = self._reserve(count)
        while not group.wait(PATIENCE_S):
            pass

    @property
    def may_move(self) -> bool:
        """Whether workers can be placed on other nodes than they have; those of a trial stay where Tune has them."""
        return bool(self._own)

    def rooms(self) -> dict[str, list[Bundle]]:
        """The bundles that are on nodes now, by node, the node of the first bundle first."""
        from ray.util.placement_group import placement_group_table

        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]} - self._left
        nodes: dict[Any, Mapping[int, str]] = {}
        rooms: dict[str, list[Bundle]] = {}
        for group, index in self._bundles:
            if group.id not in nodes:
                nodes[group.id] = placement_group_table(group)["bundles_to_node_id"]
            node = nodes[group.id].get(index)
            if node in alive:
                rooms.setdefault(str(node), []).append((group, index))
        return rooms

    def leave(self, nodes: set[str], count: int) -> None:
        """Use these nodes no longer, and have room for so many workers on others, as soon as there is.

        Ray keeps the bundles on such a node until it is gone, and moves them then: to where there is room for the next
        that are lost.
        """
        self._left |= nodes
        lacking = count - sum(len(room) for room in self.rooms().values())
        if lacking > 0:
            self._reserve(lacking)

    def strategy(self, bundle: Bundle) -> Any:
        """For an actor that is to be where a bundle is, and takes nothing of it."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group, index = bundle
        return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)

    def remove(self) -> None:
        """Give back what was reserved; may be called twice."""
        groups, self._own = self._own, []
        for group in groups:
            from ray.util.placement_group import remove_placement_group

            with contextlib.suppress(Exception):
                remove_placement_group(group)

    def _reserve(self, count: int) -> Any:
        """A group of bundles for so many workers; Ray makes it when there is room."""
        from ray.util.placement_group import placement_group

        group = placement_group([self._bundle] * count, strategy="SPREAD")
        self._own.append(group)
        self._bundles += [(group, index) for index in range(count)]
        return group


def places_in(bundles: Sequence[Mapping[str, float]], cpus: float, count: int) -> list[int]:
    """Which bundle of a trial each worker takes; the first is that of the trial's own process.

    Workers that take nothing need no other.
    """
    if not cpus:
        return [0] * count
    room = [int(bundle.get("CPU", 0.0) / cpus + ROUNDING) for bundle in bundles]
    return [index for index, workers in enumerate(room) if index for _ in range(workers)][:count]


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
