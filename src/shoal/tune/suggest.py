"""Searchers by the names of Ray Tune: each gives the mapping that stands for it in a file.

>>> OptunaSearch(n_startup_trials=5)
{'type': 'optuna', 'n_startup_trials': 5}
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NoReturn

from shoal.tune.search_functions import checked_options

BasicVariantGenerator = partial(checked_options, "search_alg", "random")
"""Grids in full, and random draws of the rest."""
OptunaSearch = partial(checked_options, "search_alg", "optuna")
"""Optuna's tree of Parzen estimators."""
HyperOptSearch = partial(checked_options, "search_alg", "hyperopt")
"""HyperOpt's tree of Parzen estimators."""
BayesOptSearch = partial(checked_options, "search_alg", "bayesopt")
"""Bayesian optimisation by a Gaussian process."""
TuneBOHB = partial(checked_options, "search_alg", "bohb")
"""Kernel densities, with `shoal.tune.schedulers.HyperBandForBOHB`."""
NevergradSearch = partial(checked_options, "search_alg", "nevergrad")
"""Nevergrad's evolutionary and other optimisers."""
AxSearch = partial(checked_options, "search_alg", "ax")
"""Bayesian optimisation by Ax and BoTorch."""

if not TYPE_CHECKING:  # a type checker is to find unknown names itself

    def __getattr__(name: str) -> NoReturn:
        from shoal.config.foreign_names import missing

        raise missing(__name__, name, globals())
