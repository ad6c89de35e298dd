"""What a configuration's costs come to: steps/s by the number of workers, what limits them, and what to set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from shoal.config.changing import unchecked
from shoal.config.layout import workers_in
from shoal.config.settings import AlgorithmConfig
from shoal.data.number_text import rate_text
from shoal.data.throughput import Costs, Limit, Prediction, Range, SamplingLayout, predicted

ALMOST = 0.85  # of the fastest: what is simpler and almost as fast is better, and error bars are as wide
SHORTEST_FRAGMENT = 32  # steps of an environment in a batch; shorter ones bootstrap from guesses
MOST_ENVS = 64  # of a worker
WORKER_BYTES = 100 << 20
FASTER = 1.3  # how many times as fast learning must be for a larger minibatch to be worth a sentence
GRID_DRAWS = 40
LIMITS: Mapping[Limit, str] = {
    "environment": "environments are",
    "policy": "policy is",
    "messages": "messages between processes are",
    "learner": "learner is",
}


@dataclass(frozen=True)
class Hosts:
    """What a run may have: nodes, cores of each, and memory of each in bytes."""

    nodes: int
    cores: int
    memory: int


@dataclass(frozen=True)
class ScalingRow:
    """A number of workers, with environments in their workers' processes and in processes of their own."""

    workers: int
    nodes: int
    plain: Prediction
    isolated: Prediction | None

    def chosen(self, is_isolated: bool) -> Prediction:
        """The one that a configuration asks for."""
        return self.isolated if is_isolated and self.isolated is not None else self.plain


def layout_for(
    config: AlgorithmConfig, workers: int, envs: int, is_isolated: bool, nodes: int, cores: int
) -> SamplingLayout:
    """The configuration's iteration with so many workers and environments of each."""
    chosen = unchecked(config, num_workers=workers, num_envs_per_worker=envs)
    rounds = getattr(chosen, "rounds_per_iteration", 1)
    steps = chosen.steps_per_iteration // rounds
    rows = chosen.steps_per_iteration * chosen.num_envs
    passes = getattr(config, "num_sgd_iter", 1)
    return SamplingLayout(
        workers=workers,
        envs=envs,
        steps=steps,
        rounds=rounds,
        is_isolated=is_isolated,
        is_async=config.sample_async,
        learners=min(config.num_learners, max(workers, 1)),
        minibatches=passes * ceil(rows / getattr(config, "sgd_minibatch_size", rows)),
        nodes=nodes,
        cores=cores,
    )


def nodes_for(config: AlgorithmConfig, workers: int, cores: int) -> int:
    """How many nodes so many workers need."""
    return max(1, ceil(workers * config.num_cpus_per_worker / cores))


def envs_of(config: AlgorithmConfig, costs: Costs) -> int:
    """Environments of each worker."""
    return costs.native_envs or config.envs_per_worker


def worker_counts(most: int) -> list[int]:
    """0, 1, 2, 4, ... and `most`."""
    counts = {0, most}
    power = 1
    while power < most:
        counts.add(power)
        power *= 2
    return sorted(counts)


def scaling(config: AlgorithmConfig, costs: Costs, counts: Sequence[int], cores: int) -> list[ScalingRow]:
    """The prediction for each number of workers, on as many nodes as they need."""
    envs = envs_of(config, costs)
    rows = []
    for workers in counts:
        nodes = nodes_for(config, workers, cores)
        plain = predicted(costs, layout_for(config, workers, envs, False, nodes, cores))
        isolated = None
        if costs.isolation is not None:
            isolated = predicted(costs, layout_for(config, workers, envs, True, nodes, cores))
        rows.append(ScalingRow(workers, nodes, plain, isolated))
    return rows


def verdict(rows: Sequence[ScalingRow], is_isolated: bool) -> str:
    """One sentence: what limits, and from how many workers on."""
    chosen = [row.chosen(is_isolated) for row in rows]
    last = chosen[-1].limit
    words = f"the {LIMITS[last]} the limit"
    beyond = len(rows)
    while beyond and chosen[beyond - 1].limit == last:
        beyond -= 1
    if beyond:
        before = rows[beyond - 1].workers
        return f"Beyond {before:,} worker{'s' * (before != 1)} {words}."
    gain = max(each.steps_per_s.middle for each in chosen) / chosen[0].steps_per_s.middle
    if last == "learner":
        gains = f"{gain:.1f} times" if gain >= 1.05 else "nothing"
        return f"Already without workers {words}: more of them bring {gains} in steps/s."
    return f"With up to {rows[-1].workers:,} workers {words}."


def fastest(predictions: Sequence[Prediction], now: int) -> Prediction:
    """The simplest layout that is almost as fast as the fastest: few workers, no processes, `now` environments."""
    best = max(each.steps_per_s.middle for each in predictions)
    good = [each for each in predictions if each.steps_per_s.middle >= ALMOST * best]
    return min(good, key=lambda each: (each.layout.workers, each.layout.is_isolated, abs(each.layout.envs - now)))


def recommended(config: AlgorithmConfig, costs: Costs, hosts: Hosts) -> Prediction:
    """The best layout on some hosts, of those whose fragments are not too short and whose memory is there."""
    now = envs_of(config, costs)
    found = [predicted(costs, layout, draws=GRID_DRAWS) for layout in _possible(config, costs, hosts)]
    return predicted(costs, fastest(found, now).layout)


def _possible(config: AlgorithmConfig, costs: Costs, hosts: Hosts) -> Iterator[SamplingLayout]:
    now = envs_of(config, costs)
    most = max(workers_in(config, hosts.cores * hosts.nodes), config.num_learners, 1)
    counts = [count for count in worker_counts(most) if count >= config.num_learners or config.num_learners == 1]
    sizes = [now] if costs.native_envs else sorted({now, *(2**k for k in range(7))})
    ways = [False, True] if costs.isolation is not None else [False]
    if config.isolates_envs and costs.isolation is not None:
        ways = [True]  # a deadline or a limit asks for it
    shortest = min(SHORTEST_FRAGMENT, layout_for(config, max(config.worker_count, 0), now, False, 1, 1).steps)
    for workers in counts:
        if config.sample_async and not workers:
            continue
        for envs in sizes:
            for is_isolated in ways:
                layout = layout_for(config, workers, envs, is_isolated, min(hosts.nodes, max(workers, 1)), hosts.cores)
                memory = layout.samplers * (WORKER_BYTES + envs * costs.env_bytes) / layout.nodes
                fits = layout.steps >= shortest and envs <= MOST_ENVS and memory < hosts.memory
                if fits or (envs == now and workers <= 1):
                    yield layout


def settings_of(config: AlgorithmConfig, chosen: SamplingLayout, hosts: Hosts) -> dict[str, Any]:
    """The keys that have to be set for a layout, with their values."""
    found: dict[str, Any] = {"num_workers": chosen.workers, "num_envs_per_worker": chosen.envs}
    if chosen.is_isolated != config.isolates_envs:
        found["env_isolation"] = "process" if chosen.is_isolated else "none"
    room = hosts.cores * hosts.nodes
    if chosen.workers * config.num_cpus_per_worker > room:
        found["num_cpus_per_worker"] = round(room / chosen.workers, 3)
    if config.rollout_fragment_length != "auto":
        found["rollout_fragment_length"] = "auto"
    return found


def node_hours(prediction: Prediction, steps: float) -> Range:
    """Hours of all nodes until so many steps are taken."""
    rate, nodes = prediction.steps_per_s, prediction.layout.nodes
    return Range(*(nodes * steps / each / 3600 for each in (rate.middle, rate.high, rate.low)))


def minibatch_advice(config: AlgorithmConfig, costs: Costs, now: Prediction) -> str:
    """A sentence where learning limits, and a larger minibatch would make it faster; else empty."""
    if now.limit != "learner" or costs.larger_minibatch is None:
        return ""
    size, seconds = costs.larger_minibatch
    gain = sum(costs.learn_s) / len(costs.learn_s) / seconds
    if gain < FASTER:
        return ""
    fewer = size // int(getattr(config, "sgd_minibatch_size", size))
    return (
        f"--set sgd_minibatch_size={size} would learn {gain:.1f} times as fast, by a {_part(fewer)} of the gradient "
        "steps: a batch may then teach less"
    )


def _part(fewer: int) -> str:
    return {2: "half", 4: "quarter"}.get(fewer, f"{fewer}th")


def auto_workers(config: AlgorithmConfig, costs: Costs, fit: int, cores: int) -> tuple[int, str]:
    """What `num_workers: auto` is, of at most `fit`, and why."""
    least = max(config.num_learners, 1)
    counts = [count for count in worker_counts(max(fit, least)) if count >= least]
    envs, is_isolated = envs_of(config, costs), config.isolates_envs
    found = []
    for workers in counts:
        nodes = nodes_for(config, workers, cores)
        found.append(predicted(costs, layout_for(config, workers, envs, is_isolated, nodes, cores), draws=GRID_DRAWS))
    chosen = fastest(found, envs)
    most = found[-1]
    why = f"about {rate_text(chosen.steps_per_s.middle)} steps/s, and the {LIMITS[chosen.limit]} the limit"
    if most.layout.workers != chosen.layout.workers:
        why += f"; with {most.layout.workers:,}, which would fit, {rate_text(most.steps_per_s.middle)}"
    return chosen.layout.workers, why
