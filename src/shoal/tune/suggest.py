"""Searchers by the names of Ray Tune: each gives the mapping that stands for it in a file.

>>> OptunaSearch(n_startup_trials=5)
{'type': 'optuna', 'n_startup_trials': 5}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from shoal.tune.search_functions import Option, checked_options


def BasicVariantGenerator(**options: Any) -> Option:
    """Grids in full, and random draws of the rest."""
    return checked_options("search_alg", "random", options)


def OptunaSearch(**options: Any) -> Option:
    """Optuna's tree of Parzen estimators."""
    return checked_options("search_alg", "optuna", options)


def HyperOptSearch(**options: Any) -> Option:
    """HyperOpt's tree of Parzen estimators."""
    return checked_options("search_alg", "hyperopt", options)


def BayesOptSearch(**options: Any) -> Option:
    """Bayesian optimisation by a Gaussian process."""
    return checked_options("search_alg", "bayesopt", options)


def TuneBOHB(**options: Any) -> Option:
    """Kernel densities, with `shoal.tune.schedulers.HyperBandForBOHB`."""
    return checked_options("search_alg", "bohb", options)


def NevergradSearch(**options: Any) -> Option:
    """Nevergrad's evolutionary and other optimisers."""
    return checked_options("search_alg", "nevergrad", options)


def AxSearch(**options: Any) -> Option:
    """Bayesian optimisation by Ax and BoTorch."""
    return checked_options("search_alg", "ax", options)


if not TYPE_CHECKING:  # a type checker is to find unknown names itself

    def __getattr__(name: str) -> NoReturn:
        from shoal.config.foreign_names import missing

        raise missing(__name__, name, globals())
