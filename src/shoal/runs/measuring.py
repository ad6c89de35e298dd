"""What an iteration is made of, measured one by one in this process: environment, policy, learner, isolation, cores.

It runs in a process of its own (`runs/profiling.py`), which may hang or die with the simulator.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Thread
from time import perf_counter, process_time, sleep, time
from typing import Any

import numpy as np
import psutil
from threadpoolctl import ThreadpoolController

from shoal.config.changing import unchecked
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Batch, Sample
from shoal.data.throughput import Costs, Crowding, IsolationCosts, SamplingLayout, act_s, predicted
from shoal.envs.making import EnvMaker, strip
from shoal.envs.native import NativeVector
from shoal.errors import ConfigError
from shoal.machine.cores import cores
from shoal.parallel.group import Alone
from shoal.runs.learners import make_learner
from shoal.runs.recorded_steps import RecordedVector, RecordedWorkers, Recording
from shoal.sampling.sampler import Sampler
from shoal.sampling.worker import Worker

MOST_KEPT = 20_000  # times of single steps
FEWEST_LEARNED = 256  # rows of a first, small update
MOST_UPDATES = 7
LARGER_MINIBATCH = 4  # times the minibatch that is asked for
SIGN_OF_LIFE_S = 0.5
COUNTED_EVERY = 16
SLOW_CALL_S = 2e-4
IDLE = 0.9  # of a core, that a process gets if nobody else computes
SPIN_S = 0.15
SPIN_ROUNDS = 3
SHORT_S = 3.0  # of a budget that does not allow for so many
LATE_CHECK_S = 0.1
STARTING_S = 0.2  # for the processes that spin, to be there when all begin

SPIN = """
import sys, time
index, begin, lasting, rounds = int(sys.argv[1]), *map(float, sys.argv[2:4]), int(sys.argv[4])
for turn in range(2 * rounds):
    while time.time() < begin + turn * lasting:
        time.sleep(0.001)
    if turn % 2 == 0 and index > 0:
        continue
    cpu, done, until = time.process_time(), 0, begin + (turn + 1) * lasting
    while time.time() < until:
        for _ in range(1000):
            done += 1
    print(turn, done, time.process_time() - cpu)
"""


@dataclass(frozen=True)
class ProfileBudget:
    """About how many seconds to measure for, and whether also what the configuration does not ask for is measured.

    That is environments in processes of their own, and larger minibatches.
    """

    seconds: float
    with_others: bool


@dataclass
class CallTimes:
    """Seconds of an environment's own calls; `alive` is called now and then before one of them."""

    alive: Callable[[], None]
    step_s: list[float] = field(default_factory=list)
    reset_s: list[float] = field(default_factory=list)
    limit: int | None = None  # steps of an episode, where Gymnasium knows it
    counted: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of some calls, and what this process computed in them; of all, looking would cost as much as a step."""
    said_at: float = 0.0
    calls: int = 0
    present: tuple[str, float] | None = None  # the call that goes on, and when it began

    def watch(self, env: Any) -> Any:
        """The environment, whose calls are timed from now on."""
        bare: Any
        bare, self.limit = strip(env)
        with suppress(AttributeError):  # of one that takes no attributes, only sums are known
            bare.step = self._timed("step()", bare.step, self.step_s)
            bare.reset = self._timed("reset()", bare.reset, self.reset_s)
            bare.close = self._named("close()", bare.close)
        return env

    def make(self, create: Callable[[Any], Any], ctx: Any) -> Any:
        """An environment that is made now, whose calls are timed from then on."""
        return self.watch(self._named("the constructor", create)(ctx))

    def _named(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def named(*given: Any, **keywords: Any) -> Any:
            self.present = name, perf_counter()
            try:
                return call(*given, **keywords)
            finally:
                self.present = None

        return named

    def cpu_share(self, core_share: float) -> float:
        """The share of its calls in which it computes, where a process gets this share of a core."""
        if not self.counted:
            return 1.0
        seconds, computed = np.array(self.counted).T
        share = float(computed.sum() / seconds.sum())
        if core_share > IDLE:
            return share
        # Beside others, a few calls are cut off for long; most are not.
        return max(share, float(np.median(computed / seconds)))

    def _timed(self, name: str, call: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            began = perf_counter()
            if began - self.said_at > SIGN_OF_LIFE_S:
                self.said_at = began
                self.alive()
                began = perf_counter()
            self.calls += 1
            is_counted = self.calls % COUNTED_EVERY == 0 or times[-1:] > [SLOW_CALL_S]
            cpu = process_time() if is_counted else 0.0
            self.present = name, began
            result = call(*given, **named)
            self.present = None
            took = perf_counter() - began
            times.append(took)
            if is_counted:
                self.counted.append((took, process_time() - cpu))
            return result

        return timed


@dataclass(frozen=True)
class EnvTimes:
    """What was found of an environment in the process of its worker."""

    worker: Worker
    recorded: Batch
    steps: int  # of single environments
    lengths: tuple[int, ...]  # of finished episodes
    env_s: float
    own_s: float  # of that, in the environment's own calls
    below_share: float  # that other processes of its own computed, of that
    made_s: float
    env_bytes: int


@dataclass(frozen=True)
class CallLimits:
    """Seconds that calls of the environment may take: the configured ones, and `timeout_s` where there are none."""

    timeout_s: float
    step_timeout_s: float | None = None
    reset_timeout_s: float | None = None

    def passed(self, call: str, took_s: float) -> str:
        """That a call takes too long, in a sentence; empty if it does not."""
        key, limit = "", None
        if call == "step()":
            key, limit = "env_step_timeout_s", self.step_timeout_s
        elif call in ("reset()", "the constructor"):
            key, limit = "env_reset_timeout_s", self.reset_timeout_s
        if limit is None:
            key, limit = "--timeout", self.timeout_s
        if took_s <= limit:
            return ""
        return (
            f"{call} of the environment did not answer within {limit:g} s; try shoal check, or give it longer ({key})"
        )

    @property
    def longest_s(self) -> float:
        """Seconds that any call may take."""
        steps, resets = self.step_timeout_s or self.timeout_s, self.reset_timeout_s or self.timeout_s
        return max(steps, resets)

    @classmethod
    def of(cls, config: AlgorithmConfig, timeout_s: float) -> CallLimits:
        """Those of a configuration."""
        return cls(timeout_s, config.env_step_timeout_s, config.env_reset_timeout_s)


def watch_calls(times: CallTimes, limits: CallLimits, late: Callable[[str], None]) -> None:
    """Tell, from another thread, of a call that takes too long."""

    def watch() -> None:
        while True:
            sleep(LATE_CHECK_S)
            present = times.present
            told = "" if present is None else limits.passed(present[0], perf_counter() - present[1])
            if told:
                late(told)
                return

    Thread(target=watch, name="shoal-late-calls", daemon=True).start()


def measure(
    config: AlgorithmConfig,
    maker: EnvMaker,
    budget: ProfileBudget,
    alive: Callable[[], None],
    watch: Callable[[CallTimes], None] = lambda _: None,
) -> Costs:
    """All costs of a configuration with this environment, on this machine; `watch` is given its calls before."""
    # As a trainer does; threads of a matrix product that wait for the next one would also count as the environment's.
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        times = CallTimes(alive)
        watch(times)
        return _measure(config, maker, budget, times)


def _measure(config: AlgorithmConfig, maker: EnvMaker, budget: ProfileBudget, times: CallTimes) -> Costs:
    base, alive = in_one_process(config), times.alive
    shares = {"env": 0.35, "act": 0.1, "learn": 0.3, "isolation": 0.25}
    seconds = {name: share * budget.seconds for name, share in shares.items()}
    crowding = spin(cores(), 1 if budget.seconds < SHORT_S else SPIN_ROUNDS)
    alive()
    watched = replace(maker, create=lambda ctx: times.make(maker.create, ctx))
    found = _environment(base, watched, times, seconds["env"])
    worker = found.worker
    native = worker.vector.num_envs if isinstance(worker.vector, NativeVector) else None
    base = unchecked(base, num_envs_per_worker=native or config.envs_per_worker)
    batches = max(found.steps // (native or 1), 1)
    period = steps_per_episode(found.steps, found.lengths) or times.limit or config.horizon or 0
    # What a loaded machine takes from a computing process is no waiting of the environment's.
    share = times.cpu_share(crowding.alone) + found.below_share
    share = min(share / crowding.alone, max(share, 1.0))
    alive()
    recording = Recording(worker.policy, found.recorded, period)
    acts = _acting(base, recording, seconds["act"], native)
    alive()
    learn_s, rows = _learning(base, recording, seconds["learn"], alive)
    larger = None
    if budget.with_others:
        larger = _larger_minibatches(base, recording, seconds["learn"] / 2, alive, rows)
    costs = Costs(
        step_s=tuple(times.step_s[-MOST_KEPT:]) or (found.env_s / batches,),
        reset_s=tuple(times.reset_s[-MOST_KEPT:]),
        resets_per_step=0.0 if native or not period else 1 / period,
        cpu_share=share if share > 0.02 else 0.0,
        guard_s=max(found.env_s - found.own_s, 0.0) / batches if times.step_s else 0.0,
        act_s=acts,
        learn_s=learn_s,
        learn_rows=rows,
        larger_minibatch=larger,
        crowding=crowding,
        native_envs=native,
        env_bytes=found.env_bytes,
        made_s=found.made_s,
    )
    worker.stop()
    if native or not (budget.with_others or config.isolates_envs):
        return costs
    alive()
    return replace(costs, isolation=_isolation(config, base, maker, costs, seconds["isolation"], alive))


def steps_per_episode(steps: int, lengths: Sequence[int]) -> int:
    """How many steps of a sample make an episode, by the lengths of those that have ended in it; 0 if none has.

    Where lengths differ, the finished ones alone would be too short: long ones are those that are cut off by the end.
    """
    if len(set(lengths)) == 1:
        return lengths[0]
    return steps // len(lengths) if lengths else 0


def in_one_process(config: AlgorithmConfig) -> AlgorithmConfig:
    """The configuration of a process that samples and learns alone, with its environments in it."""
    return unchecked(
        config,
        num_workers=0,
        num_learners=1,
        num_gpus=min(config.num_gpus, 1),
        evaluation_num_workers=0,
        sample_async=False,
        render_env=False,
        env_isolation="none",
        env_step_timeout_s=None,
        env_reset_timeout_s=None,
        env_memory_limit_mb=None,
        env_restart_delay_s=0,
        batch_mode="truncate_episodes",
    )


def _environment(config: AlgorithmConfig, maker: EnvMaker, times: CallTimes, budget_s: float) -> EnvTimes:
    """Sample with the real environment until the time is up; a slow one is one environment alone."""
    began = perf_counter()
    worker = Worker(unchecked(config, num_envs_per_worker=1), maker, any_size=True)
    if worker.agents:
        worker.stop()
        raise ConfigError(
            f"env {maker.name}: it has several agents, and only environments of one are measured; set num_workers to a "
            "number, and train"
        )
    made_s = perf_counter() - began
    is_native = isinstance(worker.vector, NativeVector)
    worker.sample(1)
    slowest = made_s + max([*times.step_s[-1:], 0.0])
    many = config.envs_per_worker
    env_bytes = _memory_below()  # of one alone: what this process has is also the policy's
    if not is_native and many > 1 and slowest * many < budget_s / 2:
        policy = worker.policy
        worker.stop()
        before = _memory()
        worker = Worker(unchecked(config, num_envs_per_worker=many), maker, policy=policy)
        worker.sample(1)
        env_bytes = max(_memory() - before, 0) // many
    times.step_s.clear()
    times.reset_s[:-1] = []  # where no episode ends, the first reset is all that is known
    own = sum(times.step_s) + sum(times.reset_s)
    samples: list[Sample] = []
    below, until, chunk = _cpu_below_s(), perf_counter() + budget_s, 1
    times.counted.clear()
    wall = 0.0
    while perf_counter() < until or not samples:
        since = perf_counter()
        samples.append(worker.sample(chunk))
        if perf_counter() - since < budget_s / 16 and chunk < config.steps_per_iteration:
            chunk *= 2
        wall += samples[-1].env_time_s
    below = _cpu_below_s() - below
    return EnvTimes(
        worker=worker,
        recorded=samples[-1].batch,
        steps=sum(sample.batch.rewards.size for sample in samples),
        lengths=tuple(episode.length for sample in samples for episode in sample.episodes),
        env_s=wall,
        own_s=sum(times.step_s) + sum(times.reset_s) - own,
        below_share=below / max(wall, 1e-9),
        made_s=made_s,
        env_bytes=env_bytes,
    )


def _acting(config: AlgorithmConfig, recording: Recording, budget_s: float, native: int | None) -> tuple[float, float]:
    """Seconds of one act beside its rows, and of each row, by the real sampler on environments that cost nothing."""
    sizes = [native] if native else sorted({1, config.envs_per_worker, 4 * config.envs_per_worker})
    steps = max(8, min(config.steps_per_iteration, 64))
    found = []
    for size in sizes:
        sampler = Sampler(recording.policy, RecordedVector(recording, size), config.seed)
        sampler.sample(steps)
        times: list[float] = []
        until = perf_counter() + budget_s / len(sizes)
        while not times or perf_counter() < until:
            began = perf_counter()
            sample = sampler.sample(steps)
            times.append((perf_counter() - began - sample.env_time_s) / steps)
        found.append(float(np.median(times)))
    if native:
        return found[0] / 2, found[0] / 2 / native
    # Small relative errors, and most of all at the size that is used.
    weights = np.array([3.0 if size == config.envs_per_worker else 1.0 for size in sizes]) / np.array(found)
    terms = np.array([[1.0, size] for size in sizes]) * weights[:, None]
    fixed, each = np.linalg.lstsq(terms, weights * np.array(found), rcond=None)[0]
    return max(float(fixed), 0.0), max(float(each), 0.0)


def _learning(
    config: AlgorithmConfig, recording: Recording, budget_s: float, alive: Callable[[], None]
) -> tuple[tuple[float, ...], int]:
    """Seconds of learning from one iteration, several times, and its rows: a batch, or as many as time allows."""
    whole = getattr(config, config.batch_key)
    fewer = max(FEWEST_LEARNED, 4 * getattr(config, "sgd_minibatch_size", 0))
    steps_so_far = getattr(config, "learning_starts", 0)
    until = perf_counter() + budget_s
    kept: list[float] = []
    rows = 1
    for size in sorted({min(fewer, whole), min(4 * fewer, whole), whole}):
        chosen = unchecked(config, **{config.batch_key: size})
        this = chosen.steps_per_iteration * chosen.num_envs
        if kept and 2 * kept[-1] * this / rows > until - perf_counter():
            break
        learner, workers = make_learner(chosen, recording.policy, Alone()), RecordedWorkers(chosen, recording)
        kept, rows = [learner.training_step(workers, steps_so_far).timers["learn"]], this
        alive()
    first = kept.pop()
    while len(kept) < MOST_UPDATES and perf_counter() + first < until:
        kept.append(learner.training_step(workers, steps_so_far).timers["learn"])
        alive()
    return tuple(kept) or (first,), rows  # the first one makes its arrays, and takes longer


def _larger_minibatches(
    config: AlgorithmConfig, recording: Recording, budget_s: float, alive: Callable[[], None], rows: int
) -> tuple[int, float] | None:
    """A larger minibatch, and the seconds in which so many rows are learned from with it; None: there is none."""
    size = LARGER_MINIBATCH * getattr(config, "sgd_minibatch_size", 0)
    if not 0 < size <= getattr(config, config.batch_key):
        return None
    larger = unchecked(config, sgd_minibatch_size=size)
    times, measured_rows = _learning(larger, recording, budget_s, alive)
    return size, float(np.median(times)) * rows / measured_rows


def _isolation(
    config: AlgorithmConfig,
    base: AlgorithmConfig,
    maker: EnvMaker,
    costs: Costs,
    budget_s: float,
    alive: Callable[[], None],
) -> IsolationCosts | None:
    """What a process of its own costs each step of an environment: what the model does not explain without."""
    envs = max(1, min(base.envs_per_worker, int(budget_s / 2 / max(costs.made_s, 1e-3))))
    isolated = unchecked(
        base,
        num_envs_per_worker=envs,
        env_isolation="process",
        env_step_timeout_s=config.env_step_timeout_s,
        env_reset_timeout_s=config.env_reset_timeout_s,
    )
    worker = Worker(isolated, maker)
    try:
        worker.sample(1)
        alive()
        below, wall, handling, chunk = _cpu_below_s(), 0.0, 0.0, 1
        chunks: Counter[int] = Counter()  # how often so many steps were sampled at once
        until = perf_counter() + budget_s
        while not chunks or perf_counter() < until:
            began = perf_counter()
            handling += worker.sample(chunk).policy_time_s
            took = perf_counter() - began
            wall += took
            chunks[chunk] += 1
            chunk = chunk * 2 if took < budget_s / 16 else chunk
            alive()
        below = _cpu_below_s() - below
    finally:
        worker.stop()
    rounds = sum(steps * times for steps, times in chunks.items())
    handle_s = (handling / rounds - act_s(costs, envs)) / envs
    share = costs.crowding.alone  # on a busy machine, computing takes longer than what is computed
    env_s = max(below / rounds / envs / share - float(np.mean(costs.step_s)) * costs.cpu_share, 0.0)
    known = replace(costs, isolation=IsolationCosts(handle_s, 0.0, env_s))
    for steps, times in chunks.items():
        layout = SamplingLayout(0, envs, steps, is_isolated=True, cores=costs.crowding.cores)
        parts = predicted(known, layout).parts
        wall -= times * (parts["environment"] + parts["policy"])
    return IsolationCosts(handle_s, max(wall, 0.0) / rounds, env_s)


def spin(count: int, rounds: int = SPIN_ROUNDS) -> Crowding:
    """How fast one process computes alone, and each of `count` at once; by turns, for both change with the hour."""
    words = [str(time() + STARTING_S), str(SPIN_S), str(rounds)]
    started = [
        subprocess.Popen([sys.executable, "-S", "-E", "-c", SPIN, str(k), *words], stdout=subprocess.PIPE, text=True)
        for k in range(count)
    ]
    answers = [line.split() for each in started for line in each.communicate()[0].splitlines()]
    done: dict[bool, list[float]] = {True: [], False: []}
    shares: dict[bool, list[float]] = {True: [], False: []}
    for turn, work, cpu in answers:
        is_alone = int(turn) % 2 == 0
        done[is_alone].append(float(work))
        shares[is_alone].append(float(cpu) / SPIN_S)
    alone = min(max(float(np.median(shares[True])), 0.01), 1.0)
    if count == 1:
        return Crowding(1, alone, alone)
    ratio = float(np.mean(done[False])) / max(float(np.mean(done[True])), 1.0)
    share = min(max(float(np.mean(shares[False])), 0.01), 1.0)
    # Beside as many as there are cores, what is missing of a core is somebody else's.
    return Crowding(count, alone, alone * min(max(ratio, 1 / count), 1.0), count * (1 - share) / share)


def _cpu_below_s() -> float:
    """What all processes below this one have computed."""
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            spent = child.cpu_times()
            total += spent.user + spent.system
    return total


def _memory() -> int:
    """Bytes of this process and all below it."""
    return int(psutil.Process().memory_info().rss) + _memory_below()


def _memory_below() -> int:
    total = 0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += child.memory_info().rss
    return total


def main() -> None:
    """The process: a pickled question on standard input, answers as lines of JSON on descriptor `argv[1]`."""
    import cloudpickle

    from shoal.envs.env_errors import error_text
    from shoal.errors import ConfigError, ShoalError
    from shoal.machine.processes import end_with_parent

    end_with_parent()
    answers = os.fdopen(int(sys.argv[1]), "w")

    def answer(kind: str, value: Any = None) -> None:
        answers.write(json.dumps([kind, value]) + "\n")
        answers.flush()

    try:
        config, maker, budget, limits = cloudpickle.load(sys.stdin.buffer)

        def watch(times: CallTimes) -> None:
            watch_calls(times, limits, lambda told: answer("failed", told))

        answer("costs", measure(config, maker, budget, lambda: answer("alive"), watch).tree())
    except ConfigError as error:
        answer("refused", error.problems)
    except ShoalError as error:
        answer("failed", str(error).splitlines()[0])
    except BaseException as error:
        answer("failed", error_text(error))
