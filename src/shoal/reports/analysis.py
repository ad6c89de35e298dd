"""What came of a sweep, in the classic words of ExperimentAnalysis, from its folder alone."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from shoal.config.sweep import Mode, Setting, Sweep, tree_with
from shoal.config.vocabulary import FOREIGN_RESULTS, nearest
from shoal.data.results import flat, number_in
from shoal.errors import ConfigError, ShoalError
from shoal.reports.curves import Curve, axis_of, fair_ranks, read_curves
from shoal.reports.importance import Importances, importances
from shoal.reports.labels import all_settings, differing
from shoal.reports.records import (
    OUTCOME_FILE,
    TRIALS_FILE,
    TrialRecord,
    begun_at,
    read_results,
    read_sweep,
    read_trials,
)
from shoal.reports.statistics import SeedGroup, ranked
from shoal.runs.checkpoints import best_checkpoint

if TYPE_CHECKING:
    import pandas as pd

ELSEWHERE: Mapping[str, str] = {
    "runner_data": "type stats()",
    "fetch_trial_dataframes": "type trial_dataframes",
    "get_trial_checkpoints_paths": "type get_best_checkpoint(trial) or get_last_checkpoint(trial)",
    "set_filetype": "results are JSON; leave it out",
    "default_metric": "type sweep.metric",
    "default_mode": "type sweep.mode",
    "experiment_path": "type folder",
    "get_best_result": "type best_result, or get_best_trial(metric, mode).last_result",
    "get_dataframe": "type dataframe()",
    "errors": "type [trial for trial in trials if trial.status == 'failed']",
    "num_errors": "type stats()['trials'].get('failed', 0)",
}
"""Words that other versions of Tune have for the same."""
LAST = {"last-5-avg": 5, "last-10-avg": 10}
SCOPES = ("last", "avg", *LAST, "all")


@dataclass(frozen=True)
class Trial:
    """One trial: its settings, how it ended, and where it is."""

    record: TrialRecord
    path: Path
    """Its folder: an ordinary run."""
    config: dict[str, Any]
    """The whole config that it was given, with the values that the search chose."""

    @property
    def trial_id(self) -> str:
        """Its number, as its folder has it."""
        return f"{self.record.index:05d}"

    @property
    def logdir(self) -> str:
        """Its folder."""
        return str(self.path)

    @property
    def status(self) -> str:
        """How it is: `running`, `finished`, `stopped early`, `failed`, ..."""
        return self.record.status

    @property
    def last_result(self) -> dict[str, float]:
        """The numbers of its last result, nested names as `a/b`."""
        return dict(self.record.last_result)


class Analysis:
    """The trials of the sweep at `folder`; `metric` and `mode` are the sweep's where they are not given.

    A trial's score is by `scope` its last value of the metric (`last`), the mean of all (`avg`), of the last 5 or 10
    (`last-5-avg`, `last-10-avg`), or the best it ever had (`all`). With seeds, the best configuration is the one with
    the best mean over its seeds, and the best trial is that configuration's best.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser().absolute()
        if not (self.folder / "sweep.json").is_file():
            raise ConfigError(
                f"{self.folder} is not a sweep (there is no sweep.json); give the folder of `shoal tune`."
            )
        self.sweep: Sweep = read_sweep(self.folder)
        self.records: list[TrialRecord] = read_trials(self.folder)

    def _repr_html_(self) -> str:
        """The sweep in a notebook, by who shows it: they read what is analysed here."""
        shown: str = import_module("shoal.reports.notebook").analysis_html(self)
        return shown

    @cached_property
    def trials(self) -> list[Trial]:
        """All trials, in order of their number."""
        return [
            Trial(record, self.folder / record.folder, _config(tree_of(self.sweep, record))) for record in self.records
        ]

    @property
    def best_trial(self) -> Trial:
        """The best trial by the sweep's own metric."""
        return self.get_best_trial()

    @property
    def best_config(self) -> dict[str, Any]:
        """The config of the best trial."""
        return self.get_best_config()

    @property
    def best_result(self) -> dict[str, float]:
        """The last result of the best trial."""
        return self.get_best_trial().last_result

    @property
    def best_checkpoint(self) -> Path | None:
        """The best checkpoint of the best trial."""
        return self.get_best_checkpoint()

    @property
    def best_logdir(self) -> str:
        """The folder of the best trial."""
        return self.get_best_logdir()

    @property
    def best_dataframe(self) -> pd.DataFrame:
        """All results of the best trial, one row each."""
        return self.trial_dataframes[self.best_trial.trial_id]

    @property
    def best_result_df(self) -> pd.DataFrame:
        """The last result of the best trial, as a row with its settings."""
        frame = self.dataframe()
        return frame[frame["trial_id"] == self.best_trial.trial_id]

    @property
    def results(self) -> dict[str, dict[str, float]]:
        """The last result of every trial."""
        return {trial.trial_id: trial.last_result for trial in self.trials}

    @property
    def results_df(self) -> pd.DataFrame:
        """The last result of every trial, one row each."""
        import pandas as pd

        return pd.DataFrame.from_dict(self.results, orient="index").rename_axis("trial_id")

    @cached_property
    def trial_dataframes(self) -> dict[str, pd.DataFrame]:
        """All results of each trial, one row each, nested names as `a/b`."""
        import pandas as pd

        return {
            trial.trial_id: pd.DataFrame([flat(result) for result in read_results(self.folder, trial.record)])
            for trial in self.trials
        }

    def get_best_trial(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> Trial:
        """The trial with the best score; trials that failed are left out."""
        groups = self.groups(metric, mode, scope)
        if not groups:
            raise ShoalError(f"no trial of {self.folder} has a score yet; see {self.folder / 'log.txt'}.")
        best = groups[0].trials[0]
        return next(trial for trial in self.trials if trial.record.index == best.index)

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any]:
        """The whole config of the trial with the best score."""
        return copy.deepcopy(self.get_best_trial(metric, mode, scope).config)

    def get_best_logdir(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> str:
        """The folder of the trial with the best score: an ordinary run."""
        return self.get_best_trial(metric, mode, scope).logdir

    def get_best_checkpoint(
        self, trial: Trial | str | Path | None = None, metric: str | None = None, mode: str | None = None
    ) -> Path | None:
        """The checkpoint, of those that a trial (the best, if none is given) has kept, with the best result.

        The newest, if no checkpoint has the metric; None if there is no checkpoint.
        """
        name, kind = self._metric(metric), self._mode(mode)
        folder = self._folder(trial, metric, mode)
        found = best_checkpoint(folder, name if kind == "max" else f"min-{name}")
        return found or best_checkpoint(folder, "training_iteration")

    def get_last_checkpoint(
        self, trial: Trial | str | Path | None = None, metric: str | None = None, mode: str | None = None
    ) -> Path | None:
        """The newest checkpoint of a trial, or of the best if none is given; None if there is no checkpoint."""
        return best_checkpoint(self._folder(trial, metric, mode), "training_iteration")

    def get_all_configs(self) -> dict[str, dict[str, Any]]:
        """The whole config of every trial."""
        return {trial.trial_id: copy.deepcopy(trial.config) for trial in self.trials}

    def stats(self) -> dict[str, Any]:
        """When the sweep began and last wrote something, in seconds since 1970, and what its trials have done."""
        written = [path for path in (self.folder / TRIALS_FILE, self.folder / OUTCOME_FILE) if path.exists()]
        return {
            "start_time": begun_at(self.folder),
            "timestamp": max((path.stat().st_mtime for path in written), default=begun_at(self.folder)),
            "num_trials": len(self.records),
            "trials": dict(Counter(record.status for record in self.records)),
            "timesteps_total": int(self._sum("timesteps_total")),
            "time_total_s": self._sum("time_total_s"),
        }

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> pd.DataFrame:
        """One row per trial: its last result, or with a metric and mode the one with the best value it ever had.

        Beside the result's numbers there are `trial_id`, `status`, `group`, `seed`, `logdir` and `config/...`.
        """
        import pandas as pd

        if (metric is None) != (mode is None):
            raise ConfigError("dataframe: give metric and mode together, or neither for the last results")
        rows = []
        for trial in self.trials:
            record = trial.record
            result = record.last_result if metric is None else self._best_row(record, self._metric(metric), mode)
            about = {"trial_id": trial.trial_id, "status": record.status, "group": record.group, "seed": record.seed}
            rows.append({**about, **result, **_columns(trial.config, "config/"), "logdir": trial.logdir})
        return pd.DataFrame(rows)

    def groups(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> list[SeedGroup]:
        """Configurations by the mean score of their seeds, best first; without seeds each trial is one."""
        name, kind = self._metric(metric), self._mode(mode)
        if scope not in SCOPES:
            raise ConfigError(f"scope: must be one of {', '.join(SCOPES)} (got {scope!r})")
        scored = [(record, self._score(record, name, kind, scope)) for record in self.records]
        return ranked(scored, kind, self.sweep.seeds)

    @cached_property
    def axis(self) -> str:
        """What curves are drawn over: `timesteps_total`, or `training_iteration` where there are no steps."""
        return axis_of(self.records)

    @cached_property
    def curves(self) -> dict[int, Curve]:
        """The course of the sweep's metric in each trial that has it, by its number, thinned where there are many."""
        if not self.sweep.metric:
            return {}
        return read_curves(self.folder, self.records, self.sweep.metric, self.axis)

    @cached_property
    def importances(self) -> Importances:
        """How much each setting explains of the differences between trials; see `shoal.reports.importance`."""
        if not self.sweep.metric:
            return Importances(note="the sweep has no metric")
        if any(record.exploits for record in self.records):
            return Importances(
                note="no setting has one value per trial, because trials took over others and changed theirs"
            )
        shown = [record for record in self.records if record.index in self.curves]
        groups: dict[int, list[float]] = {}
        if shown:
            ranks = fair_ranks([self.curves[record.index] for record in shown], self.sweep.mode)
            for record, rank in zip(shown, ranks.tolist(), strict=True):
                groups.setdefault(record.group, []).append(rank)
        settings = {record.group: record.settings for record in shown}
        means = [math.fsum(members) / len(members) for members in groups.values()]
        grids = [setting.path for setting in self.sweep.settings if setting.kind == "grid_search"]
        return importances(self.differing, [settings[group] for group in groups], means, grids)

    @cached_property
    def differing(self) -> list[str]:
        """The paths of the settings that are not the same in all trials."""
        return differing(self.settings, self.records)

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Everything that the search, or a population on the way, chooses."""
        return all_settings(self.sweep)

    if not TYPE_CHECKING:  # a type checker is to find unknown words itself

        def __getattr__(self, name: str) -> NoReturn:
            """Say what to type in place of a word that other versions of Tune have."""
            hint = f"; {ELSEWHERE[name]}" if name in ELSEWHERE else ""
            raise AttributeError(f"an Analysis has no attribute {name!r}{hint}", name=name)

    def _folder(self, trial: Trial | str | Path | None, metric: str | None, mode: str | None) -> Path:
        """The folder of a trial, of one that is given by its folder, or of the best."""
        if isinstance(trial, str | Path):
            return Path(trial).expanduser().absolute()
        return (trial or self.get_best_trial(metric, mode)).path

    def _sum(self, name: str) -> float:
        return math.fsum(record.last_result.get(name, 0.0) for record in self.records)

    def _score(self, record: TrialRecord, metric: str, mode: Mode, scope: str) -> float | None:
        if scope == "last" and metric in record.last_result:
            return record.last_result[metric]
        if scope == "last" and metric == self.sweep.metric:
            # Not every result has it: an evaluation comes only now and then.
            return float(self.curves[record.index].y[-1]) if record.index in self.curves else None
        values = [number_in(result, metric) for result in read_results(self.folder, record)]
        known = [value for value in values if value is not None]
        if not known:
            return None
        if scope == "all":
            return max(known) if mode == "max" else min(known)
        window = known[-LAST[scope] :] if scope in LAST else known[-1:] if scope == "last" else known
        return math.fsum(window) / len(window)

    def _best_row(self, record: TrialRecord, metric: str, mode: str | None) -> Mapping[str, Any]:
        results = [flat(result) for result in read_results(self.folder, record)]
        known = [result for result in results if number_in(result, metric) is not None]
        if not known:
            return {}
        best = max if self._mode(mode) == "max" else min
        return best(known, key=lambda result: result[metric])

    def _metric(self, metric: str | None) -> str:
        name = metric if metric is not None else self.sweep.metric
        if not name:
            raise ConfigError("metric: the sweep names none; give metric and mode, e.g. metric='score', mode='max'")
        names = {key for record in self.records for key in record.last_result}
        if metric is None or name in names or not names:
            return name
        if any(number_in(r, name) is not None for record in self.records for r in read_results(self.folder, record)):
            return name
        close = FOREIGN_RESULTS.get(name)
        close = close if close in names else nearest(name, names)
        hint = f"did you mean {close}?" if close else f"there are {_some(sorted(names))}"
        raise ConfigError(f"metric: no trial has reported {name}; {hint}")

    def _mode(self, mode: str | None) -> Mode:
        if mode is None:
            return self.sweep.mode
        if mode not in get_args(Mode):
            raise ConfigError(f"mode: must be max or min (got {mode!r})")
        return "max" if mode == "max" else "min"


def tree_of(sweep: Sweep, record: TrialRecord) -> dict[str, Any]:
    """The sweep's experiment with the values of one trial in it."""
    return tree_with(sweep, record.settings, record.seed)


def _config(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The config of an experiment, with the environment in it, wherever the user wrote that."""
    return {**({"env": tree["env"]} if "env" in tree else {}), **(tree.get("config") or {})}


def _columns(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found.update(_columns(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
