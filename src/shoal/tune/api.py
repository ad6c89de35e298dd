"""What a program types: `shoal.tune.run`, with the classic words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import ConfigError
from shoal.machine.signals import exit_code

if TYPE_CHECKING:
    from shoal.reports.analysis import Analysis
    from shoal.reports.records import Event
    from shoal.runs.trainer import Trainer


def run(
    run_or_function: str | type[Trainer] | Callable[[dict[str, Any]], Any],
    *,
    config: Mapping[str, Any] | None = None,
    stop: Mapping[str, Any] | None = None,
    name: str | None = None,
    num_samples: int = 1,
    metric: str | None = None,
    mode: str | None = None,
    scheduler: str | Mapping[str, Any] | None = None,
    search_alg: str | Mapping[str, Any] | None = None,
    max_concurrent_trials: int | None = None,
    seeds: int = 1,
    resources_per_trial: Mapping[str, float] | None = None,
    results_dir: str | None = None,
    resume: bool = False,
    trust: bool = False,
    search_path: Sequence[str | Path] = (),
    show: Callable[[Event], None] = lambda _: None,
    **keys: Any,
) -> Analysis:
    """Run many trials of an algorithm (`"PPO"`, `shoal.PPO`) or of a function of one's own, and give what came of them.

    Values in `config` may be `shoal.tune.grid_search([...])`, `uniform(a, b)` and the like. With none of them there is
    one trial, and with `num_samples=3` there are three, which differ in the seed alone. Further `keys` are those of an
    experiment, such as `checkpoint_freq`; `show=print` tells of every event. With `resume`, the newest unfinished
    sweep of the same description goes on; one that this user has not started there only with `trust`. After Ctrl-C
    all is saved and KeyboardInterrupt raised, after SIGTERM or SIGUSR1 SystemExit.
    """
    from shoal.config.experiment import as_said
    from shoal.config.sweep import sweep_from
    from shoal.envs.importing import UserCode
    from shoal.tune.sweep_run import PAUSING, OwnFunction, SweepRun

    what = _algorithm_or_function(run_or_function)
    is_function = not isinstance(what, str)
    _refuse_foreign(keys)
    given = {
        "config": dict(config or {}) if is_function else as_said(str(what), config or {}),
        "stop": dict(stop or {}),
        "num_samples": num_samples,
        "metric": metric,
        "mode": mode,
        "scheduler": scheduler,
        "search_alg": search_alg,
        "max_concurrent_trials": max_concurrent_trials,
        "seeds": seeds,
        "results_dir": results_dir,
        **keys,
    }
    tree: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if is_function:
        tree["name"] = name or getattr(what, "__name__", type(what).__name__).strip("<>")
        sweep = sweep_from(tree, check_experiment=False)
        if sweep.scheduler.type in PAUSING:
            raise ConfigError(
                f"scheduler: {sweep.scheduler.type} pauses and resumes trials, which a function cannot do; "
                "use asha or median, or an algorithm such as PPO"
            )
    else:
        if resources_per_trial is not None:
            raise ConfigError("resources_per_trial: follow from config.num_workers and config.num_gpus; leave it out")
        tree["run"] = what
        tree["name"] = name or what
        sweep = sweep_from(tree, may_be_single=True)
    function = None if isinstance(what, str) else OwnFunction(what, dict(resources_per_trial or {}))
    opened = SweepRun.open(sweep, not resume, UserCode.at(*search_path), function, trust=trust)
    analysis = opened.run(show)
    number = opened.outcome.signal if opened.outcome is not None else None
    if number is not None:
        code = exit_code(number)
        raise KeyboardInterrupt if code == 130 else SystemExit(code)
    return analysis


def _algorithm_or_function(given: str | type[Trainer] | Callable[..., Any]) -> str | Callable[..., Any]:
    """The name of an algorithm, also where its trainer's class is given, or a function of the user's own."""
    from shoal.runs.trainer import TRAINERS, Trainer

    if isinstance(given, type) and issubclass(given, Trainer):
        name = next((name for name, trainer in TRAINERS.items() if trainer is given), None)
        if name is None:
            raise ConfigError(
                f"shoal.tune.run: trials run one of {', '.join(TRAINERS)}, not a trainer of your own "
                f"(got {given.__name__}); give a function that makes it and calls shoal.tune.report"
            )
        return name
    if isinstance(given, Trainer):
        raise ConfigError(
            f"shoal.tune.run: every trial makes a trainer of its own (got {given!r}); use {given.algorithm!r}"
        )
    if not isinstance(given, str) and not callable(given):
        raise ConfigError(f"shoal.tune.run: needs the name of an algorithm, or a function (got {given!r})")
    return given


def _refuse_foreign(keys: Mapping[str, Any]) -> None:
    """Refuse the words of Ray's `tune.run` that do not stand in a file, with what to write instead."""
    problems = [f"{key}: shoal.tune.run does not take it; {FOREIGN[key]}" for key in keys if key in FOREIGN]
    if problems:
        raise ConfigError(problems)


_NOTHING = "leave it out"
FOREIGN: Mapping[str, str] = {
    "verbose": "leave it out, or set show=print to see every event",
    "progress_reporter": "set show=print to see every event",
    "callbacks": "set show=function, which is called with every event; hooks of a run are config['callbacks']",
    "loggers": "leave it out: results are in result.json, progress.csv and TensorBoard's events",
    "log_to_file": "leave it out: what a trial prints is in its log.txt",
    "local_dir": "use results_dir",
    "restore": "leave it out; the same call with resume=True continues an unfinished sweep",
    "fail_fast": "leave it out: a trial that fails does not end the others",
    "raise_on_failed_trial": "leave it out: an error is raised if all trials fail, and trial.status names each state",
    "max_failures": "leave it out: a trial whose process is lost continues from its checkpoint, up to three times",
    "reuse_actors": _NOTHING,
    "queue_trials": _NOTHING,
    "sync_config": "leave it out: all hosts see results_dir",
    "trial_name_creator": "leave it out: trials have numbers",
    "trial_dirname_creator": "leave it out: trials have numbers",
    "export_formats": "leave it out, or use shoal.Policy.load on a trial's folder",
    "time_budget_s": "set stop={'time_total_s': '90m'}, for each trial",
    "local_mode": "leave it out: a trial with num_workers 0 is one process",
}
"""The arguments of Ray's `tune.run` that `shoal.tune.run` does without."""
