"""What a program types: `shoal.tune.run`, with the classic words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import ConfigError
from shoal.runs.interrupts import exit_code

if TYPE_CHECKING:
    from shoal.tune.analysis import Analysis
    from shoal.tune.records import Event


def run(
    run_or_function: str | Callable[[dict[str, Any]], Any],
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
    search_path: Sequence[str | Path] = (),
    show: Callable[[Event], None] = lambda _: None,
    **keys: Any,
) -> Analysis:
    """Run many trials of an algorithm (`"PPO"`) or of a function of one's own, and give what came of them.

    Values in `config` may be `shoal.tune.grid_search([...])`, `uniform(a, b)` and the like. Further `keys` are those
    of an experiment, such as `checkpoint_freq`; `show=print` tells of every event. With `resume`, the newest unfinished
    sweep of the same description goes on. After Ctrl-C all is saved and KeyboardInterrupt raised, after SIGTERM or
    SIGUSR1 SystemExit.
    """
    from shoal.config.sweep import sweep_from
    from shoal.tune.sweeping import PAUSING, SweepRun

    is_function = not isinstance(run_or_function, str)
    given = {
        "config": dict(config or {}),
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
        if not callable(run_or_function):
            raise ConfigError(
                f"shoal.tune.run: takes the name of an algorithm, or a function (got {run_or_function!r})"
            )
        tree["name"] = name or getattr(run_or_function, "__name__", type(run_or_function).__name__).strip("<>")
        sweep = sweep_from(tree, check_experiment=False)
        if sweep.scheduler.type in PAUSING:
            raise ConfigError(
                f"scheduler: {sweep.scheduler.type} pauses trials and lets them go on, which a function cannot; "
                "use asha or median, or an algorithm such as PPO"
            )
    else:
        if resources_per_trial is not None:
            raise ConfigError("resources_per_trial: follow from config.num_workers and config.num_gpus; leave it out")
        tree["run"] = run_or_function
        tree["name"] = name or run_or_function
        sweep = sweep_from(tree)
    opened = SweepRun.open(sweep, not resume, search_path)
    if is_function:
        opened.function, opened.resources = run_or_function, dict(resources_per_trial or {})  # type: ignore[assignment]
    analysis = opened.run(show)
    number = opened.outcome.signal if opened.outcome is not None else None
    if number is not None:
        code = exit_code(number)
        raise KeyboardInterrupt if code == 130 else SystemExit(code)
    return analysis
