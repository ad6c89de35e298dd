"""How many steps a second a layout of processes will give: a small model of measured costs, with error bars.

An iteration samples, in one round or in several (DQN), T steps of E environments in each of W workers, and learns:

    sample      of the slowest worker: T acts on E rows, and
                in the worker's process    sum over T E steps and resets, each with its guard
                in processes of their own  the largest sum over T of any environment, + T E handle + T latency
    messages    round + H host + W max(driver + hosted / H, (driver + hosted + worker) / cores) + W fragment
    learn       learn x rows / measured rows / min(L, cores)
                where L > 1: + hand + L learner, and an all-reduce for each minibatch

    iteration   sample + messages + learn; with sample_async max(sample + messages, learn)

Sums are drawn from the measured steps (bootstrap), so uneven steps cost what waiting for the slowest costs. Of a step's
time, the share that computes slows down when more processes compute than a node has cores (`Crowding`); the share that
waits does not. `MESSAGES` and what learners say to each other were measured by benchmarks/scaling.py, whose model for
many workers and learners this is; benchmarks/profile.py holds it against runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import ceil, log2
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Limit = Literal["environment", "policy", "messages", "learner"]

DRAWS = 200
MOST_DRAWN = 4096  # terms of a replicate that are drawn one by one; sums of more are normal
MESSAGE_SPREAD = 0.3  # of the costs below, which another machine has otherwise
TAIL = 2.5  # percent, on each side of an interval


@dataclass(frozen=True)
class MessageCosts:
    """Seconds of what processes say to each other (benchmarks/results/scaling.json)."""

    round: float = 2.5e-3
    host: float = 3.7e-4  # of the driver, for each host
    driver: float = 1.0e-5  # for each worker
    hosted: float = 8.1e-5  # its host's work for a message
    worker: float = 5.9e-4  # its own
    fragment: float = 3.8e-5  # to fetch and join
    hand: float = 5.4e-3
    learner: float = 4.2e-4
    hop: float = 5.2e-4  # of an all-reduce

    def times(self, factor: float) -> MessageCosts:
        """All of them so many times as large."""
        return MessageCosts(**{name: factor * value for name, value in asdict(self).items()})


MESSAGES = MessageCosts()


@dataclass(frozen=True)
class Crowding:
    """How much slower a process computes beside others.

    `alone` is the share of a core that one process gets, `together` that of each of `cores` processes at once, in work
    done: less than 1 where cores are half a core (hyper-threads) or somebody else computes too. `others` is how many
    processes of other people's that is worth.
    """

    cores: int = 1
    alone: float = 1.0
    together: float = 1.0
    others: float = 0.0

    def slowdown(self, busy: float) -> float:
        """How many times as long a process computes beside so many busy ones, itself included, as alone."""
        at_cores = max(self.alone / self.together, 1.0)
        if busy <= 1:
            return 1.0
        if busy <= self.cores:
            return 1 + (at_cores - 1) * (busy - 1) / (self.cores - 1)
        return at_cores * (busy + self.others) / (self.cores + self.others)


@dataclass(frozen=True)
class IsolationCosts:
    """What a step costs beside the environment's own time when that has a process of its own."""

    handle_s: float  # of the worker, for each step, beside acting; below 0 where the processes act by themselves
    latency_s: float  # of a step, until both sides are awake
    env_s: float  # of the environment's process, for each step, beside the step


@dataclass(frozen=True)
class Costs:
    """What was measured of an environment, a policy and a learner on one machine, in seconds.

    With `native_envs`, the environment steps that many at once, and steps, resets and guard are those of all of them.
    """

    step_s: tuple[float, ...]
    reset_s: tuple[float, ...]
    resets_per_step: float
    cpu_share: float  # of a step's time; above 1 where it takes several cores
    guard_s: float  # checking and packing, for each step
    act_s: tuple[float, float]  # for each act, and for each of its rows
    learn_s: tuple[float, ...]  # of whole iterations
    learn_rows: int
    crowding: Crowding = Crowding()
    isolation: IsolationCosts | None = None
    native_envs: int | None = None
    env_bytes: int = 0  # of memory, for each environment
    made_s: float = 0.0  # to make one environment and reset it
    larger_minibatch: tuple[int, float] | None = None  # rows of one, and seconds to learn from `learn_rows` with it
    messages: MessageCosts = MESSAGES

    def tree(self) -> dict[str, Any]:
        """The costs as JSON values."""
        return asdict(self)

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Costs:
        """The costs of such a tree."""
        values = {field.name: tree[field.name] for field in fields(cls)}
        for name in ("step_s", "reset_s", "act_s", "learn_s"):
            values[name] = tuple(values[name])
        values["crowding"] = Crowding(**values["crowding"])
        values["messages"] = MessageCosts(**values["messages"])
        if values["larger_minibatch"] is not None:
            values["larger_minibatch"] = tuple(values["larger_minibatch"])
        values["isolation"] = None if values["isolation"] is None else IsolationCosts(**values["isolation"])
        return cls(**values)


@dataclass(frozen=True)
class SamplingLayout:
    """Processes, and what each samples in an iteration; no workers: one process samples and learns."""

    workers: int
    envs: int  # of each worker
    steps: int  # of each environment and round
    rounds: int = 1
    is_isolated: bool = False
    is_async: bool = False
    learners: int = 1
    minibatches: int = 1  # of an iteration
    nodes: int = 1
    cores: int = 1  # of each node

    @property
    def samplers(self) -> int:
        """Processes that sample."""
        return max(self.workers, 1)

    @property
    def rows(self) -> int:
        """Steps of an iteration, over all environments."""
        return self.rounds * self.steps * self.envs * self.samplers


@dataclass(frozen=True)
class Range:
    """A number with its 95 % interval."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Numbers) -> Range:
        """The median of replicates, and what 95 % of them lie in."""
        low, middle, high = np.percentile(values, [TAIL, 50, 100 - TAIL])
        return cls(float(middle), float(low), float(high))


@dataclass(frozen=True)
class Prediction:
    """An iteration of one layout; `parts` are its mean seconds, which with `sample_async` overlap."""

    layout: SamplingLayout
    steps_per_s: Range
    iteration_s: Range
    parts: Mapping[Limit, float]
    limit: Limit


def predicted(costs: Costs, layout: SamplingLayout, seed: int = 0, draws: int = DRAWS) -> Prediction:
    """The iteration of a layout, from `draws` bootstrap replicates of what was measured."""
    rng = np.random.default_rng(seed)
    env, policy = _sampling(costs, layout, rng, draws)
    messages = message_s(costs, layout) * np.exp(MESSAGE_SPREAD * rng.standard_normal(draws))
    learn = _learning(costs, layout, rng, draws)
    if layout.is_async and layout.workers:
        seconds = np.maximum(env + policy + messages, learn)
    else:
        seconds = env + policy + messages + learn
    limits: list[tuple[Limit, Numbers]] = [
        ("environment", env),
        ("policy", policy),
        ("messages", messages),
        ("learner", learn),
    ]
    parts = {name: float(values.mean()) for name, values in limits}
    limit = max(parts, key=lambda name: parts[name])
    return Prediction(layout, Range.of(layout.rows / seconds), Range.of(seconds), parts, limit)


def lockstep_s(costs: Costs, envs: int, steps: int, seed: int = 0, draws: int = DRAWS) -> float:
    """Seconds of `steps` steps of `envs` processes that all wait for the slowest at each: the sum of maxima."""
    rng = np.random.default_rng(seed)
    shape = draws * 16, envs
    seconds = rng.choice(np.array(costs.step_s), shape)
    if costs.reset_s:
        is_reset = rng.random(shape) < costs.resets_per_step
        seconds += is_reset * rng.choice(np.array(costs.reset_s), shape)
    return float(seconds.max(axis=1).mean()) * steps


def act_s(costs: Costs, rows: int) -> float:
    """Seconds of one act on so many rows."""
    fixed, each = costs.act_s
    return fixed + rows * each


def _sampling(costs: Costs, layout: SamplingLayout, rng: np.random.Generator, draws: int) -> tuple[Numbers, Numbers]:
    """Seconds `[draws]` that the slowest worker's environments take in all rounds, and its policy."""
    acting = layout.steps * act_s(costs, layout.envs)
    if layout.is_isolated:
        return _isolated_sampling(costs, layout, rng, draws)
    batches = costs.native_envs or 1
    terms = layout.steps * layout.envs // batches
    own = _sums(costs, layout.samplers, terms, rng, draws) + terms * costs.guard_s
    computing = min(costs.cpu_share, 1.0)
    share = (own.mean() * costs.cpu_share + acting) / (own.mean() + acting)
    busy = share * layout.samplers / layout.nodes
    slow = _slowdown(costs, layout, busy)
    # Where more is computed than the cores can do, even waiting takes as long as that.
    env = own * max(1 + computing * (slow - 1), busy / layout.cores)
    return layout.rounds * env.max(axis=1), np.full(draws, layout.rounds * acting * slow)


def _isolated_sampling(
    costs: Costs, layout: SamplingLayout, rng: np.random.Generator, draws: int
) -> tuple[Numbers, Numbers]:
    extra = costs.isolation or IsolationCosts(0.0, 0.0, 0.0)
    own = _sums(costs, layout.samplers * layout.envs, layout.steps, rng, draws)
    own = own.reshape(draws, layout.samplers, layout.envs)
    handling = layout.steps * max(act_s(costs, layout.envs) + layout.envs * extra.handle_s, 0.0)
    pace = own.max(axis=2) + layout.steps * (extra.latency_s + extra.env_s)
    # What all of a node's processes compute, in the time that it would take with a core for each.
    computed = layout.envs * (own.mean() * costs.cpu_share + layout.steps * extra.env_s) + handling
    busy = computed / (pace.mean() + handling) * layout.samplers / layout.nodes
    slow = _slowdown(costs, layout, busy)
    waiting = own.max(axis=2) * max(1 - costs.cpu_share, 0.0) + layout.steps * extra.latency_s
    env = np.maximum(waiting + (pace - waiting) * slow, pace * busy / layout.cores)
    return layout.rounds * env.max(axis=1), np.full(draws, layout.rounds * handling * slow)


def _sums(costs: Costs, units: int, terms: int, rng: np.random.Generator, draws: int) -> Numbers:
    """Sums `[draws, units]` of so many steps with their resets, each replicate from a resample of what was measured."""
    steps, resets = np.array(costs.step_s), np.array(costs.reset_s or (0.0,))
    found = np.empty((draws, units))
    for replicate in range(draws):
        drawn = rng.choice(steps, len(steps))
        if units * terms <= MOST_DRAWN:
            sums = rng.choice(drawn, (units, terms)).sum(axis=1)
        else:
            sums = rng.normal(terms * drawn.mean(), np.sqrt(terms) * drawn.std(), units)
        counts = rng.binomial(terms, min(costs.resets_per_step, 1.0), units)
        found[replicate] = np.maximum(sums, terms * drawn.min()) + counts * rng.choice(resets, len(resets)).mean()
    return found


def _slowdown(costs: Costs, layout: SamplingLayout, busy: float) -> float:
    """How much slower each of so many busy processes of a node computes; who learns meanwhile is one more."""
    if layout.is_async and layout.workers:
        busy += 1
    crowding = replace(costs.crowding, cores=layout.cores)
    return crowding.slowdown(busy)


def message_s(costs: Costs, layout: SamplingLayout) -> float:
    """Seconds of all messages of an iteration."""
    if not layout.workers:
        return 0.0
    m, cores = costs.messages, layout.cores * layout.nodes
    each = max(m.driver + m.hosted / layout.nodes, (m.driver + m.hosted + m.worker) / cores) + m.fragment
    return layout.rounds * (m.round + layout.nodes * m.host + layout.workers * each)


def _learning(costs: Costs, layout: SamplingLayout, rng: np.random.Generator, draws: int) -> Numbers:
    """Seconds `[draws]` of learning from an iteration's rows."""
    measured = np.array(costs.learn_s)
    mean = rng.choice(measured, (draws, len(measured))).mean(axis=1)
    at_once = min(layout.learners, layout.cores * layout.nodes)
    learn: Numbers = mean * layout.rows / costs.learn_rows / at_once
    if layout.learners > 1:
        hops = ceil(log2(layout.learners)) * layout.minibatches
        messages = costs.messages
        learn = learn + messages.hand + layout.learners * messages.learner + hops * messages.hop
    return learn
