"""A profile as a person reads it, and as a program does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from shoal.config.changing import unchecked
from shoal.data.number_text import call_time_text, counted, rate_text
from shoal.data.throughput import Costs, Prediction, Range, act_s, lockstep_s, predicted
from shoal.runs.folders import env_text
from shoal.runs.forecast import (
    Hosts,
    ScalingRow,
    envs_of,
    layout_for,
    minibatch_advice,
    node_hours,
    recommended,
    scaling,
    settings_of,
    verdict,
    worker_counts,
)
from shoal.runs.measuring import IDLE

if TYPE_CHECKING:
    from shoal.config.experiment import Experiment
    from shoal.config.settings import AlgorithmConfig
    from shoal.reports.run_facts import RunFacts

WIDTH = 13
SEVERAL_CORES = 1.1
UNEVEN = 3.0  # how many times the mean the slowest twentieth of the steps takes


def show_forecast(experiment: Experiment, costs: Costs, hosts: Hosts, max_workers: int, steps: float) -> None:
    """Print what was measured, the iteration as it is set, the table, the verdict and what to set."""
    config = experiment.config
    click.echo(
        f"{experiment.run} {env_text(config.env)}: {getattr(config, config.batch_key):,} steps an iteration, "
        f"{envs_of(config, costs)} environments for each worker"
    )
    _tell("measured", *_measured(config, costs, hosts))
    now = predicted(costs, _layout_now(config, costs, hosts))
    _tell("an iteration", *_iteration(now))
    rows = scaling(config, costs, worker_counts(max_workers), hosts.cores)
    _table(rows, config.isolates_envs, steps)
    click.echo(verdict(rows, config.isolates_envs))
    best = recommended(config, costs, hosts)
    _tell("recommended", *_recommendation(config, costs, hosts, best, now, steps))


def forecast_tree(
    config: AlgorithmConfig, costs: Costs, hosts: Hosts, max_workers: int, steps: float
) -> dict[str, Any]:
    """All of it as JSON values."""
    now = predicted(costs, _layout_now(config, costs, hosts))
    rows = scaling(config, costs, worker_counts(max_workers), hosts.cores)
    best = recommended(config, costs, hosts)
    return {
        "env": env_text(config.env),
        "hosts": asdict(hosts),
        "costs": _summary(costs),
        "now": asdict(now),
        "scaling": [
            {
                "workers": row.workers,
                "nodes": row.nodes,
                "steps_per_s": asdict(row.plain.steps_per_s),
                "isolated_steps_per_s": None if row.isolated is None else asdict(row.isolated.steps_per_s),
                "limit": row.chosen(config.isolates_envs).limit,
                "node_hours": asdict(node_hours(row.chosen(config.isolates_envs), steps)),
            }
            for row in rows
        ],
        "verdict": verdict(rows, config.isolates_envs),
        "recommended": {
            "settings": settings_of(config, best.layout, hosts),
            **asdict(best),
            "node_hours": asdict(node_hours(best, steps)),
            "minibatch": minibatch_advice(config, costs, best),
        },
    }


def show_comparison(facts: RunFacts, costs: Costs, hosts: Hosts) -> None:
    """Print what is predicted for a run's configuration beside what its results say."""
    tree = comparison_tree(facts, costs, hosts)
    click.echo(
        f"{facts.algorithm} {facts.env}: {counted(tree['workers'], 'worker')}, "
        f"{tree['envs_per_worker']} environments for each, {counted(facts.iterations, 'iteration')}"
    )
    click.echo(f"{'':<{WIDTH}}{'predicted':>12}{'95 %':>22}{'real':>12}{'off by':>9}")
    for name, row in tree["rows"].items():
        text = rate_text if name == "steps/s" else call_time_text
        spread = f"{text(row['low'])} to {text(row['high'])}" if "low" in row else ""
        off = f"{row['predicted'] / row['real'] - 1:+.0%}" if row["real"] else "-"
        click.echo(f"{name:<{WIDTH}}{text(row['predicted']):>12}{spread:>22}{text(row['real']):>12}{off:>9}")
    click.echo("Predicted is what this machine would do now; real is the median of the run's iterations.")
    for line in _busy(costs):
        click.echo(line.capitalize())


def comparison_tree(facts: RunFacts, costs: Costs, hosts: Hosts) -> dict[str, Any]:
    """Predicted and real seconds of an iteration's parts, and steps per second."""
    config = facts.config
    workers = int(facts.last("num_healthy_workers")) if config.num_workers == "auto" else config.num_workers
    envs = envs_of(config, costs)
    known = unchecked(config, num_workers=workers, num_envs_per_worker=envs)
    found = predicted(costs, layout_for(known, workers, envs, config.isolates_envs, hosts.nodes, hosts.cores))
    real = {name: float(np.median(facts.late(name))) if len(facts.late(name)) else 0.0 for name in _REAL.values()}
    rows: dict[str, dict[str, float]] = {}
    for name, result in _REAL.items():
        if name == "steps/s":
            rows[name] = _beside(found.steps_per_s, real[result])
        elif name == "iteration":
            rows[name] = _beside(found.iteration_s, real[result])
        else:
            rows[name] = {"predicted": dict(found.parts)[name], "real": real[result]}
    return {"workers": workers, "envs_per_worker": envs, "limit": found.limit, "rows": rows}


_REAL: Mapping[Any, str] = {
    "steps/s": "timesteps_per_s",
    "iteration": "time_this_iter_s",
    "environment": "timers/env_s",
    "policy": "timers/policy_s",
    "messages": "timers/communicate_s",
    "learner": "timers/learn_s",
}
"""Where a run's results have what is predicted."""


def _beside(predicted_range: Range, real: float) -> dict[str, float]:
    return {"predicted": predicted_range.middle, "low": predicted_range.low, "high": predicted_range.high, "real": real}


def _layout_now(config: AlgorithmConfig, costs: Costs, hosts: Hosts) -> Any:
    return layout_for(
        config, config.worker_count, envs_of(config, costs), config.isolates_envs, hosts.nodes, hosts.cores
    )


def _tell(name: str, *lines: str) -> None:
    for count, line in enumerate(lines):
        click.echo(f"{'' if count else name:<{WIDTH}}{line}")


def _measured(config: AlgorithmConfig, costs: Costs, hosts: Hosts) -> list[str]:
    steps = np.array(costs.step_s)
    whose = f" of all {costs.native_envs} environments" if costs.native_envs else ""
    step = f"a step{whose} takes {call_time_text(steps.mean())} (95 %: {call_time_text(np.quantile(steps, 0.95))})"
    if costs.resets_per_step:
        reset = call_time_text(float(np.mean(costs.reset_s)))
        step += f", a reset {reset}, one in {1 / costs.resets_per_step:.0f} steps"
    if costs.cpu_share > SEVERAL_CORES:
        step += f"; it takes {costs.cpu_share:.1f} cores"
    else:
        step += f"; it computes {min(costs.cpu_share, 1):.0%} of the time"
    envs = envs_of(config, costs)
    learn = float(np.mean(costs.learn_s))
    lines = [
        step,
        f"acting on {envs} rows takes {call_time_text(act_s(costs, envs))}, "
        f"learning from {costs.learn_rows:,} steps {call_time_text(learn)}",
    ]
    lines += _busy(costs)
    crowding = costs.crowding
    if crowding.cores > 1:
        together = crowding.cores * crowding.together / crowding.alone
        lines.append(f"{crowding.cores} processes at once do the work of {together:.1f}")
    if costs.isolation is not None:
        extra = costs.isolation
        text = f"in a process of its own, a step costs its worker {call_time_text(extra.handle_s)} more"
        if np.quantile(steps, 0.95) > UNEVEN * np.median(steps):
            rounds = 100
            paces = predicted(costs, layout_for(config, 0, envs, True, 1, hosts.cores))
            ready = paces.parts["environment"] / paces.layout.steps / paces.layout.rounds
            gain = lockstep_s(costs, envs, rounds) / rounds / max(ready, 1e-9)
            text += f"; steps are uneven, and stepping who is ready is {gain:.1f} times as fast as lockstep"
        lines.append(text)
    if config.batch_mode == "complete_episodes":
        lines.append("batch_mode is complete_episodes: the rest of the last episodes is not counted here")
    return lines


def _busy(costs: Costs) -> list[str]:
    """A warning where others compute on the same cores."""
    share = costs.crowding.alone
    return [] if share > IDLE else [f"this machine is busy: one process gets {share:.0%} of a core, so all is slower"]


def _iteration(now: Prediction) -> list[str]:
    whole = sum(now.parts.values())
    parts = ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in now.parts.items())
    workers = now.layout.workers
    return [
        f"with {counted(workers, 'worker')} takes {_range(now.iteration_s, call_time_text)}: "
        f"{_range(now.steps_per_s, rate_text)} steps/s",
        parts,
    ]


def _table(rows: list[ScalingRow], is_isolated: bool, steps: float) -> None:
    with_processes = any(row.isolated is not None for row in rows)
    head = f"{'workers':>8}{'nodes':>7}{'steps/s':>10}{'95 %':>16}"
    if with_processes:
        head += f"{'in processes':>15}{'95 %':>16}"
    click.echo(f"{head}  {'limit':<13}node-hours to {steps:,.0f} steps")
    for row in rows:
        line = f"{row.workers:>8}{row.nodes:>7}{_columns(row.plain, 10)}"
        if row.isolated is not None:
            line += _columns(row.isolated, 15)
        chosen = row.chosen(is_isolated)
        hours = node_hours(chosen, steps)
        click.echo(f"{line}  {chosen.limit:<13}{_range(hours, _hours)}")


def _columns(prediction: Prediction, width: int) -> str:
    rate = prediction.steps_per_s
    interval = f"{rate_text(rate.low)} to {rate_text(rate.high)}"
    return f"{rate_text(rate.middle):>{width}}{interval:>16}"


def _recommendation(
    config: AlgorithmConfig, costs: Costs, hosts: Hosts, best: Prediction, now: Prediction, steps: float
) -> list[str]:
    settings = settings_of(config, best.layout, hosts)
    words = " ".join(f"--set {key}={value}" for key, value in settings.items())
    nodes = f"{hosts.nodes} node{'s' * (hosts.nodes != 1)} of {hosts.cores} cores"
    lines = [
        f"{words}   (on {nodes})",
        f"{_range(best.steps_per_s, rate_text)} steps/s, "
        f"{best.steps_per_s.middle / now.steps_per_s.middle:.1f} times what is set; fragments of {best.layout.steps} "
        f"steps; {steps:,.0f} steps take {_range(node_hours(best, steps), _hours)} node-hours",
    ]
    advice = minibatch_advice(config, costs, best)
    return [*lines, advice] if advice else lines


def _range(values: Range, text: Any) -> str:
    return f"{text(values.middle)} ({text(values.low)} to {text(values.high)})"


def _hours(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _summary(costs: Costs) -> dict[str, Any]:
    """The costs without every single time."""
    tree = costs.tree()
    for name in ("step_s", "reset_s"):
        values = np.array(tree.pop(name) or [0.0])
        tree[name] = {
            "count": len(values),
            "mean": float(values.mean()),
            "median": float(np.median(values)),
            "p95": float(np.quantile(values, 0.95)),
            "max": float(values.max()),
        }
    return tree
