"""The model of an iteration on costs whose answers are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.data.throughput import (
    MESSAGES,
    Costs,
    Crowding,
    IsolationCosts,
    SamplingLayout,
    lockstep_s,
    message_s,
    predicted,
)

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
STEP_S, RESET_S, GUARD_S, LEARN_S = 0.01, 0.5, 0.001, 2.0

WAITING = Costs(
    step_s=(STEP_S,) * 10,
    reset_s=(RESET_S,),
    resets_per_step=0.0,
    cpu_share=0.0,
    guard_s=GUARD_S,
    act_s=(2e-4, 1e-5),
    learn_s=(LEARN_S,) * 3,
    learn_rows=1000,
    crowding=Crowding(cores=2),
)
COMPUTING = replace(WAITING, cpu_share=1.0)
FREE = replace(WAITING, guard_s=0.0, act_s=(0.0, 0.0))


def uneven(share: float = 0.05, slow: float = 10.0) -> tuple[float, ...]:
    count = 1000
    return (STEP_S,) * int(count * (1 - share)) + (slow * STEP_S,) * int(count * share)


def test_steps_of_one_process_are_a_sum_and_what_does_not_vary_has_no_error() -> None:
    found = predicted(WAITING, SamplingLayout(0, envs=8, steps=125))
    env, policy = 1000 * (STEP_S + GUARD_S), 125 * (2e-4 + 8e-5)
    assert found.parts == pytest.approx({"environment": env, "policy": policy, "messages": 0, "learner": LEARN_S})
    assert found.iteration_s.middle == pytest.approx(env + policy + LEARN_S)
    assert found.steps_per_s.low == pytest.approx(found.steps_per_s.high) == pytest.approx(1000 / (env + policy + 2))
    assert found.limit == "environment"


def test_resets_count_as_often_as_they_happen() -> None:
    found = predicted(replace(WAITING, resets_per_step=0.1), SamplingLayout(0, envs=1, steps=1000))
    assert found.parts["environment"] == pytest.approx(1000 * (STEP_S + GUARD_S) + 100 * RESET_S, rel=0.02)


def test_workers_share_the_steps_and_cost_messages() -> None:
    layout = SamplingLayout(4, envs=5, steps=50, nodes=2, cores=2)
    found = predicted(WAITING, layout)
    assert layout.rows == 1000
    assert found.parts["environment"] == pytest.approx(250 * (STEP_S + GUARD_S))
    in_turn = MESSAGES.driver + MESSAGES.hosted / 2
    each = max(in_turn, (MESSAGES.driver + MESSAGES.hosted + MESSAGES.worker) / 4) + MESSAGES.fragment
    assert message_s(WAITING, layout) == pytest.approx(MESSAGES.round + 2 * MESSAGES.host + 4 * each)
    assert found.parts["messages"] == pytest.approx(message_s(WAITING, layout), rel=0.2)
    assert found.steps_per_s.low < found.steps_per_s.middle < found.steps_per_s.high


def test_many_workers_make_the_learner_or_their_messages_the_limit() -> None:
    counts = {w: predicted(WAITING, SamplingLayout(w, 1, max(1000 // w, 1), nodes=w)).limit for w in (1, 10, 500, 4000)}
    assert counts == {1: "environment", 10: "learner", 500: "learner", 4000: "learner"}
    quick = replace(WAITING, learn_s=(1e-3,))
    assert predicted(quick, SamplingLayout(4000, 1, 1, nodes=4000)).limit == "messages"


def test_the_slowest_worker_is_waited_for() -> None:
    costs = replace(FREE, step_s=uneven())
    mean = STEP_S * (0.95 + 0.5)
    found = predicted(costs, SamplingLayout(64, envs=1, steps=20, nodes=64)).parts["environment"]
    assert 1.5 * 20 * mean < found < 64 * 20 * mean  # of 64 sums of 20, the largest
    alone = predicted(costs, SamplingLayout(0, envs=64, steps=20)).parts["environment"]
    assert alone == pytest.approx(64 * 20 * mean, rel=0.02)


def test_in_processes_the_slowest_sum_counts_and_in_lockstep_the_sum_of_the_slowest() -> None:
    costs = replace(FREE, step_s=uneven(), isolation=IsolationCosts(0.0, 0.0, 0.0))
    envs, steps = 16, 400
    mean = STEP_S * (0.95 + 0.5)
    expected_slowest = STEP_S * (1 + 9 * (1 - 0.95**envs))
    assert lockstep_s(costs, envs, steps) == pytest.approx(steps * expected_slowest, rel=0.05)
    ready_first = predicted(costs, SamplingLayout(0, envs, steps, is_isolated=True)).parts["environment"]
    # Means of 400 have a standard deviation of 2 sqrt(.05 .95) / 20 of the mean; the largest of 16 is 1.8 of them up.
    spread = 9 * STEP_S * np.sqrt(0.05 * 0.95 / steps)
    assert ready_first == pytest.approx(steps * (mean + 1.77 * spread), rel=0.03)
    assert ready_first < 0.35 * lockstep_s(costs, envs, steps)


def test_what_a_process_of_its_own_costs() -> None:
    costs = replace(WAITING, isolation=IsolationCosts(handle_s=1e-4, latency_s=3e-4, env_s=2e-4))
    found = predicted(costs, SamplingLayout(0, envs=8, steps=100, is_isolated=True, cores=100))
    assert found.parts["environment"] == pytest.approx(100 * (STEP_S + 3e-4 + 2e-4))
    assert found.parts["policy"] == pytest.approx(100 * (2e-4 + 8e-5 + 8e-4))


@pytest.mark.parametrize(("costs", "factor"), [(COMPUTING, 4.0), (WAITING, 1.0)])
def test_only_what_computes_is_slower_on_crowded_cores(costs: Costs, factor: float) -> None:
    alone = predicted(replace(costs, act_s=(0.0, 0.0)), SamplingLayout(1, 1, 100, cores=2)).parts["environment"]
    crowded = predicted(replace(costs, act_s=(0.0, 0.0)), SamplingLayout(8, 1, 100, cores=2)).parts["environment"]
    assert crowded == pytest.approx(factor * alone)


def test_slowdown_of_busy_processes() -> None:
    even = Crowding(cores=4)
    assert [even.slowdown(busy) for busy in (0.1, 1, 2, 4, 8)] == [1, 1, 1, 1, 2]
    hyper_threads = Crowding(cores=4, alone=1.0, together=0.5)
    assert [hyper_threads.slowdown(busy) for busy in (1, 2.5, 4, 8)] == [1, 1.5, 2, 4]
    beside_others = Crowding(cores=2, alone=0.5, together=0.25, others=2.0)
    assert beside_others.slowdown(2) == 2
    assert beside_others.slowdown(4) == 3  # four of six processes on two cores, where two had half


def test_asynchronous_sampling_overlaps_learning() -> None:
    layout = SamplingLayout(2, envs=5, steps=100, is_async=True, cores=8)
    found = predicted(WAITING, layout)
    parts = found.parts
    assert found.iteration_s.middle == pytest.approx(sum(parts.values()) - parts["learner"], rel=0.01)
    slow = replace(WAITING, learn_s=(100.0,))
    assert predicted(slow, layout).iteration_s.middle == pytest.approx(100.0)


def test_learners_share_the_learning_and_sum_their_gradients() -> None:
    one = predicted(WAITING, SamplingLayout(8, 5, 25, minibatches=100)).parts["learner"]
    four = predicted(WAITING, SamplingLayout(8, 5, 25, minibatches=100, learners=4, cores=8)).parts["learner"]
    assert one == pytest.approx(LEARN_S)
    assert four == pytest.approx(LEARN_S / 4 + MESSAGES.hand + 4 * MESSAGES.learner + 200 * MESSAGES.hop)


def test_more_learners_than_cores_share_these() -> None:
    found = predicted(WAITING, SamplingLayout(8, 5, 25, learners=4, cores=2)).parts["learner"]
    assert found == pytest.approx(LEARN_S / 2 + MESSAGES.hand + 4 * MESSAGES.learner + 2 * MESSAGES.hop)


def test_a_native_vector_steps_all_at_once() -> None:
    found = predicted(replace(FREE, native_envs=10), SamplingLayout(0, envs=10, steps=100))
    assert found.parts["environment"] == pytest.approx(100 * STEP_S)


def test_more_measurements_give_narrower_intervals() -> None:
    rng = np.random.default_rng(1)
    drawn = tuple(rng.exponential(STEP_S, 10_000))
    few, many = (replace(FREE, step_s=drawn[:count], learn_s=(0.0,)) for count in (10, 10_000))
    layout = SamplingLayout(0, 8, 1000)
    widths = []
    for costs in (few, many):
        rate = predicted(costs, layout).steps_per_s
        widths.append((rate.high - rate.low) / rate.middle)
    assert widths[1] < 0.1 < 0.5 < widths[0]


def test_large_sums_are_normal_and_agree_with_drawn_ones() -> None:
    costs = replace(FREE, step_s=uneven())
    drawn = predicted(costs, SamplingLayout(0, 4, 1000)).parts["environment"]
    normal = predicted(costs, SamplingLayout(0, 4, 1100)).parts["environment"]
    assert normal / 1100 == pytest.approx(drawn / 1000, rel=0.02)


def test_costs_survive_json() -> None:
    costs = replace(WAITING, isolation=IsolationCosts(1.0, 2.0, 3.0), larger_minibatch=(256, 1.5))
    assert Costs.from_tree(json.loads(json.dumps(costs.tree()))) == costs


def kept(name: str) -> Any:
    """What a benchmark measured on an idle machine of two cores."""
    return json.loads((RESULTS / f"{name}.json").read_text())


RUNS = kept("scaling")["results"]["runs"]


def predicted_s(run: dict[str, Any]) -> float:
    """Seconds of an iteration of a kept run, with the costs that were measured with it."""
    file = kept("scaling")
    settings, measured = file["settings"], file["results"]["costs"]
    rows = run["workers"] * settings["num_envs"] * settings["steps"]
    updates = settings["epochs"] * settings["minibatches"]
    learn = rows * (measured["row"] + settings["epochs"] * measured["row_pass"]) + updates * measured["minibatch"]
    costs = Costs(
        step_s=(measured["step"],),
        reset_s=(),
        resets_per_step=0.0,
        cpu_share=measured["busy"] / settings["steps"] / measured["step"],
        guard_s=0.0,
        act_s=(0.0, 0.0),
        learn_s=(learn,),
        learn_rows=rows,
        crowding=Crowding(cores=2),
        native_envs=settings["num_envs"],
    )
    layout = SamplingLayout(
        run["workers"],
        settings["num_envs"],
        settings["steps"],
        learners=run["learners"],
        minibatches=updates,
        cores=2,
    )
    return predicted(costs, layout).iteration_s.middle


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['workers']}-{run['learners']}-{run['hosts']}")
def test_workers_and_learners_cost_what_they_cost_in_the_benchmarks_model(run: dict[str, Any]) -> None:
    assert predicted_s(run) == pytest.approx(run["model_s"], rel=0.1)


def test_kept_runs_with_workers_and_learners() -> None:
    """How far the benchmark's model is from each run is told by the bars that are kept with them."""
    off = [abs(predicted_s(run) / run["run_s"] - 1) for run in RUNS]
    assert np.median(off) < 0.1
    assert max(off) < 0.35


def test_kept_rates_of_uneven_simulators() -> None:
    """16 that wait 5 ms, and 50 ms in 5 % of their steps, 200 steps each (benchmarks/isolation.py)."""
    rates = kept("isolation")["results"]["uneven_steps_per_s"]
    step_s, slow_s, late_s = 0.005, 0.05, 1e-4
    waits = tuple(wait + late_s for wait in [step_s] * 95 + [slow_s] * 5)
    costs = replace(FREE, step_s=waits, act_s=(1e-4, 0.0), isolation=IsolationCosts(2e-5, 1e-4, 5e-5))
    parts = predicted(costs, SamplingLayout(0, 16, 200, is_isolated=True, cores=2)).parts
    ready_first = 16 * 200 / (parts["environment"] + parts["policy"])
    assert ready_first == pytest.approx(rates["ready_first"]["median"], rel=0.25)
    assert 16 * 200 / lockstep_s(costs, 16, 200) == pytest.approx(rates["lockstep"]["median"], rel=0.25)
