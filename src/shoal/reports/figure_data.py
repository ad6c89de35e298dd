"""The figures of a report: which there are, and their numbers as the page's script reads them, thinned and packed."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.config.algorithms import ALGORITHMS
from shoal.config.result_names import EVALUATION_NAMES, POLICY_REWARDS, RESULT_NAMES
from shoal.reports.bands import band_of, thinned
from shoal.reports.curves import Curve, Floats
from shoal.reports.plot_data import WORDS
from shoal.reports.reported_runs import ReportedRun, RunGroup

AXES = ("timesteps_total", "time_total_s")
POINTS_IN_ALL, FEWEST_POINTS, MOST_POINTS = 40_000, 60, 1200
"""Points of one figure over all its lines, and at least and at most of one line: about two for each of its pixels."""
KNOTS = 200
MOST_WITH_BOUNDS = 4  # runs that stand alone and are drawn with their lowest and highest
BAND_POINTS, BAND_RESAMPLES = 200, 300
AGENTS = "policy_reward_mean/"


@dataclass(frozen=True)
class FigureSpec:
    """One figure: the result that it shows, and those that bound it where a run stands alone."""

    title: str
    metric: str
    low: str = ""
    high: str = ""
    is_big: bool = False
    section: str = "learning"


KNOWN = (
    FigureSpec("Return", "episode_reward_mean", "episode_reward_min", "episode_reward_max", True),
    FigureSpec(
        "Return in evaluation",
        "evaluation/episode_reward_mean",
        "evaluation/episode_reward_ci_low",
        "evaluation/episode_reward_ci_high",
        section="evaluation",
    ),
    FigureSpec("Returns tried", "learner/return_mean", "learner/return_min", "learner/return_max"),
    FigureSpec("Episode length", "episode_len_mean"),
    FigureSpec("Loss", "learner/total_loss"),
    FigureSpec("Policy loss", "learner/policy_loss"),
    FigureSpec("Value loss", "learner/vf_loss"),
    FigureSpec("Critic loss", "learner/critic_loss"),
    FigureSpec("Value of the actions", "learner/mean_q"),
    FigureSpec("Error of the values", "learner/mean_td_error"),
    FigureSpec("Overfitting of the values", "learner/overfit_ratio"),
    FigureSpec("KL divergence", "learner/kl"),
    FigureSpec("Entropy", "learner/entropy"),
    FigureSpec("Explained variance", "learner/vf_explained_var"),
    FigureSpec("Gradient norm", "learner/grad_gnorm"),
    FigureSpec("Gradient norm of the critics", "learner/critic_gnorm"),
    FigureSpec("Part of the step that is taken", "learner/step_fraction"),
    FigureSpec("Limit of the KL divergence", "learner/max_kl"),
    FigureSpec("Refused steps", "learner/refused_steps"),
    FigureSpec("Refused minibatches", "learner/refused_minibatches"),
    FigureSpec("Clip fraction", "learner/clip_fraction"),
    FigureSpec("Clip parameter", "learner/clip_param"),
    FigureSpec("Passes", "learner/num_passes"),
    FigureSpec("Weight of the steps", "learner/mean_rho"),
    FigureSpec("Staleness", "learner/staleness_mean"),
    FigureSpec("Weight of the recorded actions", "learner/mean_weight"),
    FigureSpec("Size of the advantages", "learner/advantage_norm"),
    FigureSpec("Scale of the rewards", "learner/reward_scale"),
    FigureSpec("Spread of the search", "learner/noise_stdev"),
    FigureSpec("Step of the parameters", "learner/update_norm"),
    FigureSpec("Learning rate", "learner/cur_lr"),
    FigureSpec("Coefficient of the KL penalty", "learner/cur_kl_coeff"),
    FigureSpec("Weight of the entropy", "learner/entropy_coeff"),
    FigureSpec("Spread of the actions", "learner/cur_stddev"),
    FigureSpec("Share of random actions", "learner/cur_epsilon"),
    FigureSpec("Temperature", "learner/cur_alpha"),
    FigureSpec("Temperature of the choices", "learner/cur_alpha_choices"),
    FigureSpec("Steps in replay", "learner/replay_size"),
    FigureSpec("Updates of an iteration", "learner/num_updates"),
    FigureSpec("Transitions learned from per step", "learner/training_intensity"),
    FigureSpec("Throughput", "timesteps_per_s", section="time"),
    FigureSpec("Running workers", "num_healthy_workers", section="time"),
    FigureSpec("Environment failures", "env_failures_total", section="time"),
    FigureSpec("Task", "task", section="curriculum"),
    FigureSpec("Stages passed", "stages_passed", section="curriculum"),
)
STILL = (
    "env_failures_total",
    "num_healthy_workers",
    *(
        f"learner/{name}"
        for name in (
            "clip_fraction", "clip_param", "cur_alpha", "cur_alpha_choices", "cur_epsilon", "cur_kl_coeff", "cur_lr",
            "cur_stddev", "entropy_coeff", "grad_gnorm", "max_kl", "mean_rho", "mean_weight", "noise_stdev",
            "num_passes", "num_updates", "refused_minibatches", "refused_steps", "replay_size", "reward_scale",
            "staleness_mean", "step_fraction", "training_intensity",
        )
    ),
)  # fmt: skip
"""Results that say nothing where they never move."""
MOST_POLICIES = 6  # that have figures of their own


def figures_of(runs: Sequence[ReportedRun]) -> list[FigureSpec]:
    """The figures of which some run has at least two points, and those of each policy and of the user's own metrics."""
    names = {name for run in runs for name in run.columns}
    own = sorted(name for name in names if name.startswith("custom_metrics/") and name.endswith("_mean"))
    found = [spec for spec in KNOWN if spec.metric in names]
    for policy in _policies(names)[:MOST_POLICIES]:
        found += [spec for spec in _of_policy(policy) if spec.metric in names]
    for name in own:
        base = name.removesuffix("_mean")
        found.append(FigureSpec(base.partition("/")[2], name, f"{base}_min", f"{base}_max", section="metrics"))
    return [spec for spec in found if any(_is_shown(run, spec.metric) for run in runs)]


def _policies(names: Iterable[str]) -> list[str]:
    """The policies of several agents, by what their learners and their returns are called."""
    of_learners = {name.split("/")[1] for name in names if name.startswith("learner/") and name.count("/") > 1}
    of_returns = {name.removeprefix(AGENTS) for name in names if name.startswith(AGENTS)}
    return sorted(of_learners | of_returns)


def _of_policy(policy: str) -> list[FigureSpec]:
    """Its agents' return, and what is told of a lone policy's learner."""
    mean, low, high = (f"policy_reward_{kind}/{policy}" for kind in ("mean", "min", "max"))
    found = [FigureSpec(f"{policy}: Return of an agent", mean, low, high, section="policies")]
    for spec in KNOWN:
        if spec.metric.startswith("learner/"):
            names = (name.replace("learner/", f"learner/{policy}/") for name in (spec.metric, spec.low, spec.high))
            metric, low, high = names
            found.append(FigureSpec(f"{policy}: {spec.title}", metric, low, high, section="policies"))
    return found


def _is_shown(run: ReportedRun, metric: str) -> bool:
    values = run.column(metric)
    values = values[~np.isnan(values)]
    place, _, rest = metric.partition("/")
    of_all = f"learner/{rest.rpartition('/')[2]}" if place == "learner" else metric
    return len(values) > 0 and (of_all not in STILL or bool(np.ptp(values) > 0))


def figure_data(groups: Sequence[RunGroup], specs: Sequence[FigureSpec]) -> dict[str, Any]:
    """All that the script of the page needs."""
    count = sum(len(group.runs) for group in groups)
    most = min(max(POINTS_IN_ALL // max(count, 1), FEWEST_POINTS), MOST_POINTS)
    axes = [axis for axis in AXES if any(axis in run.columns for group in groups for run in group.runs)]
    return {
        "axes": [{"name": axis, "label": WORDS[axis]} for axis in axes],
        "groups": [{"label": group.label, "runs": [_run(run, axes) for run in group.runs]} for group in groups],
        "figures": [_figure(spec, groups, axes, most) for spec in specs],
    }


def _figure(spec: FigureSpec, groups: Sequence[RunGroup], axes: Sequence[str], most: int) -> dict[str, Any]:
    shown = []
    for place, group in enumerate(groups):
        runs = [
            {"run": at, **series}
            for at, run in enumerate(group.runs)
            if (series := _series(run, spec, most)) is not None
        ]
        if runs:
            is_alone = len(group.runs) == 1
            if not is_alone or len(groups) > MOST_WITH_BOUNDS:
                runs = [{key: one[key] for key in ("run", "at", "y")} for one in runs]
            shown.append({"group": place, "runs": runs, "bands": {} if is_alone else _bands(group, spec.metric, axes)})
    return {
        "title": spec.title,
        "metric": spec.metric,
        "file": re.sub(r"\W+", "-", spec.metric).strip("-"),
        "note": _note(spec, _meaning(spec.metric, groups), groups),
        "big": spec.is_big,
        "groups": shown,
    }


@dataclass(frozen=True)
class OwnLine:
    """A line of a figure that shows neither runs nor groups: of a trial, or of an episode.

    `kind` is its class in the style sheet. Lines and rows of the page with the same `t` are highlighted together.
    """

    title: str
    kind: str
    t: int
    curve: Curve
    bounds: tuple[Floats, Floats] | None = None
    rests: tuple[Curve, ...] = ()
    end: str = ""  # the mark at its end: `dot`, `early` or `failed`


def own_figure(spec: FigureSpec, axis: tuple[str, str], note: str, lines: Sequence[OwnLine], named: bool) -> Any:
    """A figure with lines and an axis (its name, and its words) of its own; `named` ones keep the names when saved."""
    return {
        "title": spec.title,
        "metric": spec.metric,
        "file": re.sub(r"\W+", "-", spec.metric).strip("-"),
        "note": note,
        "big": spec.is_big,
        "axis": {"name": axis[0], "label": axis[1]},
        "named": named,
        "lines": [_own_line(line) for line in lines],
    }


def _own_line(line: OwnLine) -> dict[str, Any]:
    found: dict[str, Any] = {"title": line.title, "kind": line.kind, "t": line.t, **_points(line.curve)}
    if line.bounds is not None:
        found |= {name: packed(one.astype(np.float32)) for name, one in zip(("low", "high"), line.bounds)}
    if line.rests:
        found["rests"] = [_points(rest) for rest in line.rests]
    if line.end:
        found["end"] = line.end
    return found


def _points(curve: Curve) -> dict[str, str]:
    return {"x": packed(curve.x.astype(np.float64)), "y": packed(curve.y.astype(np.float32))}


def _meaning(metric: str, groups: Sequence[RunGroup]) -> str:
    """What a result means; of learners' results as their own algorithm says, so that no other is imported."""
    if metric.startswith(AGENTS):
        return POLICY_REWARDS[AGENTS.rstrip("/")]
    if not metric.startswith("learner/"):
        return RESULT_NAMES.get(metric, EVALUATION_NAMES.get(metric, ""))
    names = dict.fromkeys(run.algorithm for group in groups for run in group.runs)
    found = (ALGORITHMS[name].results.get(metric.rpartition("/")[2]) for name in names if name in ALGORITHMS)
    return next((meaning for meaning in found if meaning), "")


def _note(spec: FigureSpec, meaning: str, groups: Sequence[RunGroup]) -> str:
    note = f"{spec.metric}: {meaning}" if meaning else spec.metric
    if any(len(group.runs) > 1 for group in groups):
        return note
    if spec.metric == "evaluation/episode_reward_mean":
        return f"{note}; the band is its 95 % interval"
    return f"{note}; the band is lowest to highest" if spec.low and len(groups) <= MOST_WITH_BOUNDS else note


def _series(run: ReportedRun, spec: FigureSpec, most: int) -> dict[str, str] | None:
    """One run's points: the numbers of the lines that are kept, and their values."""
    values = run.column(spec.metric)
    places = np.flatnonzero(~np.isnan(values))
    if not len(places):
        return None
    kept = thinned(Curve(places.astype(np.float64), values[places]), most)
    at = kept.x.astype(np.uint32)
    found = {"at": packed(at), "y": packed(kept.y.astype(np.float32))}
    bounds = [run.column(name)[at] for name in (spec.low, spec.high) if name and name in run.columns]
    if len(bounds) == 2 and not any(np.isnan(bound).any() for bound in bounds):
        found |= {name: packed(bound.astype(np.float32)) for name, bound in zip(("low", "high"), bounds)}
    return found


def _run(run: ReportedRun, axes: Sequence[str]) -> dict[str, Any]:
    """A run's axes at some of its lines, between which they are as good as straight."""
    count = max((len(run.column(axis)) for axis in axes), default=0)
    knots = np.unique(np.linspace(0, count - 1, min(count, KNOTS)).round().astype(np.uint32)) if count else np.empty(0)
    columns = {axis: _filled(run.column(axis), count) for axis in axes}
    label = f"seed {run.seed}" if run.seed is not None else run.path.name
    at = knots.astype(np.uint32)
    return {"label": label, "knots": packed(at), "axes": {axis: packed(column[at]) for axis, column in columns.items()}}


def _filled(values: Floats, count: int) -> Floats:
    """A column without gaps; one that lacks altogether counts the lines."""
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return np.arange(1, count + 1, dtype=np.float64)
    return np.asarray(np.interp(np.arange(count), known, values[known]))


def _bands(group: RunGroup, metric: str, axes: Sequence[str]) -> dict[str, dict[str, str]]:
    found = {}
    for axis in axes:
        curves = [thinned(curve, 4 * BAND_POINTS) for curve in group.curves(metric, axis)]
        band = band_of(curves, "iqm", BAND_POINTS, BAND_RESAMPLES) if len(curves) > 1 else None
        if band is not None:
            parts = {"middle": band.middle, "low": band.low, "high": band.high}
            found[axis] = {"x": packed(band.x), **{name: packed(one.astype(np.float32)) for name, one in parts.items()}}
    return found


def packed(values: np.ndarray) -> str:
    """Numbers as base64 of their bytes, least significant first, as every browser's arrays have them."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return base64.b64encode(little.tobytes()).decode()
