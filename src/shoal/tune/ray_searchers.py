"""Ray Tune's searchers, made from a sweep."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater, SearchAlgorithm, Searcher

from shoal.config.sweep import Sweep
from shoal.config.sweep_options import SEARCHERS
from shoal.errors import ConfigError
from shoal.tune.ray_classes import ray_class
from shoal.tune.ray_spaces import first_seed, param_space

MOST_IN_VAIN = 20
"""How often a searcher may have nothing to suggest, with no trial under way, before it counts as finished."""
NEVER = 10**9


def make_search(sweep: Sweep, max_concurrent: int | None) -> SearchAlgorithm | Searcher:
    """The sweep's search, which suggests at most `max_concurrent` trials at once, and each as often as it has seeds.

    Tune's own `num_samples` must then be `num_samples * seeds`, but for the random search.
    """
    kind = sweep.search_alg.type
    options = {"seed": first_seed(sweep), **sweep.search_alg.options}
    if kind == "random":
        return ResumableDraws(
            max_concurrent=max_concurrent or 0, constant_grid_search=True, random_state=options["seed"]
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that Ray has not kept up with; the user can do nothing about it
        # Without a result Ax takes a trial that failed for one that still runs.
        nothing = {sweep.metric: math.nan} if kind == "ax" else None
        searcher: Searcher = GuardedSearcher(_MAKERS[kind](sweep, options), nothing)
    if sweep.seeds > 1:
        searcher = Repeater(searcher, repeat=sweep.seeds)
    return ResumableLimit(searcher, max_concurrent) if max_concurrent else searcher


class ResumableDraws(BasicVariantGenerator):
    """Ray's grids and draws, but how many may run is up to the command that continues a sweep."""

    def set_state(self, state: dict[str, Any]) -> None:
        """See `SearchAlgorithm`."""
        super().set_state({**state, "max_concurrent": self.max_concurrent})  # type: ignore[no-untyped-call]


class ResumableLimit(ConcurrencyLimiter):
    """Ray's limit, but it is that of the command that continues a sweep."""

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Searcher`."""
        super().set_state({**state, "max_concurrent": self.max_concurrent})


class GuardedSearcher(Searcher):
    """A searcher that hears only of results that have the metric as a number, and that ends instead of hanging."""

    def __init__(self, searcher: Searcher, nothing: dict[str, Any] | None = None) -> None:
        super().__init__(metric=searcher.metric, mode=searcher.mode)
        self.searcher = searcher
        self._nothing = nothing  # what it is told of a trial that failed
        self._live: set[str] = set()
        self._in_vain = 0

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """See `Searcher`; one that has its space already keeps it."""
        self.searcher.set_search_properties(metric, mode, config, **spec)
        return True

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """See `Searcher`."""
        return bool(self.searcher.set_max_concurrency(max_concurrent))

    def suggest(self, trial_id: str) -> Any:
        """See `Searcher`."""
        suggestion = self.searcher.suggest(trial_id)
        if isinstance(suggestion, dict):
            self._live.add(trial_id)
            self._in_vain = 0
        elif suggestion is None and not self._live:
            self._in_vain += 1
            if self._in_vain > MOST_IN_VAIN:
                return Searcher.FINISHED
        return suggestion

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """See `Searcher`."""
        if self._has_metric(result):
            self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """See `Searcher`."""
        self._live.discard(trial_id)
        if result is not None and not error and self._has_metric(result):
            self.searcher.on_trial_complete(trial_id, result=result, error=False)
        else:
            self.searcher.on_trial_complete(trial_id, result=self._nothing, error=True)

    def on_pause(self, trial_id: str) -> None:
        """Tell BOHB."""
        self.searcher.on_pause(trial_id)  # type: ignore[attr-defined]

    def on_unpause(self, trial_id: str) -> None:
        """Tell BOHB."""
        self.searcher.on_unpause(trial_id)  # type: ignore[attr-defined]

    def get_state(self) -> dict[str, Any]:
        """See `Searcher`."""
        return {"_live": set(self._live), "_in_vain": self._in_vain}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Searcher`."""
        self.__dict__.update(state)

    def save(self, checkpoint_path: str) -> None:
        """See `Searcher`."""
        self.searcher.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """See `Searcher`."""
        self.searcher.restore(checkpoint_path)

    def _has_metric(self, result: Mapping[str, Any]) -> bool:
        value = result.get(self.searcher.metric)
        return isinstance(value, int | float) and math.isfinite(value)


def _optuna(sweep: Sweep, options: dict[str, Any]) -> Searcher:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=options["seed"], n_startup_trials=options.get("n_startup_trials", 10))
    return _made(sweep, sampler=sampler)


def _hyperopt(sweep: Sweep, options: dict[str, Any]) -> Searcher:
    return _made(sweep, random_state_seed=options.pop("seed"), **options)


def _bayesopt(sweep: Sweep, options: dict[str, Any]) -> Searcher:
    class BayesOptWithFailures(ray_class(SEARCHERS["bayesopt"])):  # type: ignore[misc]
        """One that draws another random trial in place of one that failed, where Ray's would wait for it for ever."""

        def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
            if error and len(self._buffered_trial_results) < self.random_search_trials:
                self._total_random_search_trials -= 1
            super().on_trial_complete(trial_id, result=result, error=error)

    # It suggests the same again while it waits for results, which its `patience` would take for the end.
    return BayesOptWithFailures(
        metric=sweep.metric,
        mode=sweep.mode,
        random_state=options.pop("seed"),
        patience=NEVER,
        skip_duplicate=True,
        **options,
    )


def _bohb(sweep: Sweep, options: dict[str, Any]) -> Searcher:
    return _made(sweep, **options)


def _nevergrad(sweep: Sweep, options: dict[str, Any]) -> Searcher:
    import nevergrad

    name = options.get("optimizer", "NGOpt")
    if name not in nevergrad.optimizers.registry:
        from shoal.config.vocabulary import nearest

        close = nearest(name, nevergrad.optimizers.registry)
        hint = f"; did you mean {close}?" if close else "; leave it out for NGOpt"
        raise ConfigError(f"search_alg.optimizer: nevergrad has no {name}{hint}")
    # It has no seed of its own, but its space has one.
    space = ray_class(SEARCHERS["nevergrad"]).convert_search_space(param_space(sweep))
    space.random_state.seed(options["seed"] % 2**32)
    budget = {"budget": sweep.num_samples}
    return _made(sweep, optimizer=nevergrad.optimizers.registry[name], optimizer_kwargs=budget, space=space)


def _ax(sweep: Sweep, options: dict[str, Any]) -> Searcher:
    return _made(sweep, random_seed=options["seed"], verbose_logging=False)


def _made(sweep: Sweep, **arguments: Any) -> Searcher:
    made: Searcher = ray_class(SEARCHERS[sweep.search_alg.type])(metric=sweep.metric, mode=sweep.mode, **arguments)
    return made


_MAKERS: dict[str, Callable[[Sweep, dict[str, Any]], Searcher]] = {
    "optuna": _optuna,
    "hyperopt": _hyperopt,
    "bayesopt": _bayesopt,
    "bohb": _bohb,
    "nevergrad": _nevergrad,
    "ax": _ax,
}
