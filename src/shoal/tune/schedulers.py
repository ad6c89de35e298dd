"""Schedulers by the names of Ray Tune: each gives the mapping that stands for it in a file.

>>> ASHAScheduler(grace_period=4000)
{'type': 'asha', 'grace_period': 4000}
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NoReturn

from shoal.tune.search_functions import checked_options

ASHAScheduler = partial(checked_options, "scheduler", "asha")
"""Stops bad trials early, without waiting for others; the one to begin with."""
AsyncHyperBandScheduler = partial(checked_options, "scheduler", "asha")
"""The same by its longer name."""
FIFOScheduler = partial(checked_options, "scheduler", "fifo")
"""Lets every trial train to its end."""
HyperBandScheduler = partial(checked_options, "scheduler", "hyperband")
"""Stops bad trials early, in rounds that wait for each other."""
MedianStoppingRule = partial(checked_options, "scheduler", "median")
"""Stops a trial whose best is worse than the median of the others' means."""
PopulationBasedTraining = partial(checked_options, "scheduler", "pbt")
"""Lets bad trials copy good ones, and change their settings, during training."""
PB2 = partial(checked_options, "scheduler", "pb2")
"""The same, but a Gaussian process chooses the new settings."""
HyperBandForBOHB = partial(checked_options, "scheduler", "bohb")
"""HyperBand for `shoal.tune.suggest.TuneBOHB`."""

if not TYPE_CHECKING:  # a type checker is to find unknown names itself

    def __getattr__(name: str) -> NoReturn:
        from shoal.config.foreign_names import missing

        raise missing(__name__, name, globals())
