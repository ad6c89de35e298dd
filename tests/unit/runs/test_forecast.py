"""From a configuration and its costs to a table, a verdict and settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shoal.config.experiment import algorithm_config
from shoal.config.settings import AlgorithmConfig
from shoal.data.throughput import Costs, Crowding, IsolationCosts
from shoal.runs.forecast import (
    Hosts,
    auto_workers,
    layout_for,
    minibatch_advice,
    node_hours,
    recommended,
    scaling,
    settings_of,
    verdict,
    worker_counts,
)

HOSTS = Hosts(nodes=1, cores=8, memory=64 << 30)


def config(run: str = "PPO", **settings: Any) -> AlgorithmConfig:
    return algorithm_config(run, {"env": "CartPole-v1", **settings})


def costs(step_s: float, learn_s: float, cpu_share: float = 1.0, **more: Any) -> Costs:
    return Costs(
        step_s=(step_s,) * 5,
        reset_s=(step_s,),
        resets_per_step=0.0,
        cpu_share=cpu_share,
        guard_s=1e-6,
        act_s=(3e-5, 1e-6),
        learn_s=(learn_s,) * 3,
        learn_rows=2048,
        crowding=Crowding(cores=8),
        **more,
    )


SLOW = costs(0.1, 0.2)
QUICK = costs(1e-5, 0.2)
WAITING = costs(0.1, 0.2, cpu_share=0.0, isolation=IsolationCosts(2e-5, 1e-4, 1e-5))


def test_an_iteration_is_that_of_the_trainer() -> None:
    layout = layout_for(config(), 4, 8, False, 1, 8)
    assert (layout.steps, layout.rounds, layout.rows, layout.minibatches) == (64, 1, 2048, 320)
    assert layout_for(config(num_learners=2, num_workers=4), 4, 8, False, 1, 8).learners == 2
    dqn = layout_for(config("DQN"), 2, 8, False, 1, 8)
    assert (dqn.steps, dqn.rounds, dqn.rows) == (12, 6, 1152)
    trpo = layout_for(config("TRPO"), 0, 8, True, 1, 8)
    assert trpo.is_isolated
    assert trpo.rows == 2048


@pytest.mark.parametrize(
    ("most", "counts"),
    [(1, [0, 1]), (2, [0, 1, 2]), (3, [0, 1, 2, 3]), (8, [0, 1, 2, 4, 8]), (36, [0, 1, 2, 4, 8, 16, 32, 36])],
)
def test_numbers_of_workers(most: int, counts: list[int]) -> None:
    assert worker_counts(most) == counts


def test_the_table_and_its_verdict() -> None:
    rows = scaling(config(), SLOW, worker_counts(256), cores=8)
    rates = [row.plain.steps_per_s.middle for row in rows]
    assert rates[1:8] == sorted(rates[1:8])
    assert [row.nodes for row in rows] == [1, 1, 1, 1, 1, 2, 4, 8, 16, 32]
    assert rows[-1].isolated is None
    assert rates[4] == pytest.approx(8 * rates[1], rel=0.1)
    slow_learner = scaling(config(), replace(SLOW, learn_s=(2.0,)), worker_counts(256), cores=8)
    assert verdict(slow_learner, False) == "Beyond 64 workers the learner is the limit."
    learner = scaling(config(), QUICK, worker_counts(64), cores=8)
    assert verdict(learner, False).startswith("Already without workers the learner is the limit")
    assert verdict(rows[:4], False) == "With up to 4 workers the environments are the limit."


def test_node_hours() -> None:
    row = scaling(config(), SLOW, [16], cores=8)[0]
    hours = node_hours(row.plain, 1e6)
    assert hours.middle == pytest.approx(2 * 1e6 / row.plain.steps_per_s.middle / 3600)
    assert hours.low <= hours.middle <= hours.high


def test_what_computes_long_gets_all_cores() -> None:
    best = recommended(config(), SLOW, HOSTS)
    assert best.layout.workers == 8
    assert settings_of(config(), best.layout, HOSTS)["num_workers"] == 8


def test_what_the_learner_limits_stays_as_it_is() -> None:
    best = recommended(config(), QUICK, HOSTS)
    assert settings_of(config(), best.layout, HOSTS) == {"num_workers": 0, "num_envs_per_worker": 8}


def test_what_waits_gets_processes_and_no_fragment_is_too_short() -> None:
    best = recommended(config(), WAITING, HOSTS)
    settings = settings_of(config(), best.layout, HOSTS)
    assert settings["env_isolation"] == "process"
    assert best.layout.steps >= 32
    now = scaling(config(), WAITING, [0], 8)[0].plain
    assert best.steps_per_s.middle > 20 * now.steps_per_s.middle


def test_memory_bounds_what_is_recommended() -> None:
    greedy = replace(WAITING, env_bytes=8 << 30)
    layout = recommended(config(), greedy, HOSTS).layout
    assert layout.samplers * layout.envs <= 8


def test_deadlines_keep_their_processes_and_native_vectors_their_number() -> None:
    limited = config(env_step_timeout_s=5.0)
    assert recommended(limited, WAITING, HOSTS).layout.is_isolated
    assert "env_isolation" not in settings_of(limited, recommended(limited, WAITING, HOSTS).layout, HOSTS)
    native = replace(SLOW, native_envs=12)
    assert recommended(config(), native, HOSTS).layout.envs == 12


def test_a_larger_minibatch_is_named_where_the_learner_limits() -> None:
    now = scaling(config(), QUICK, [0], 8)[0].plain
    faster = replace(QUICK, larger_minibatch=(256, 0.1))
    assert "--set sgd_minibatch_size=256 would learn 2.0 times as fast" in minibatch_advice(config(), faster, now)
    assert not minibatch_advice(config(), replace(QUICK, larger_minibatch=(256, 0.19)), now)
    slow = scaling(config(), SLOW, [0], 8)[0].plain
    assert not minibatch_advice(config(), faster, slow)


def test_auto_takes_what_fits_only_where_it_is_faster() -> None:
    count, why = auto_workers(config(num_workers="auto"), SLOW, 8, 8)
    assert count == 8
    assert "the environments are the limit" in why
    count, why = auto_workers(config(num_workers="auto"), QUICK, 8, 8)
    assert count == 1
    assert "the learner is the limit; with 8, which would fit," in why
    assert auto_workers(config(num_workers="auto", num_learners=2), QUICK, 8, 8)[0] == 2
    assert auto_workers(config(num_workers="auto"), SLOW, 1, 1)[0] == 1
