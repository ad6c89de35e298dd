"""Schedulers by the names of Ray Tune: each gives the mapping that stands for it in a file.

>>> ASHAScheduler(grace_period=4000)
{'type': 'asha', 'grace_period': 4000}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from shoal.tune.search_functions import Option, checked_options


def ASHAScheduler(**options: Any) -> Option:
    """Stops bad trials early, without waiting for others; the one to begin with."""
    return checked_options("scheduler", "asha", options)


def AsyncHyperBandScheduler(**options: Any) -> Option:
    """The same by its longer name."""
    return checked_options("scheduler", "asha", options)


def FIFOScheduler(**options: Any) -> Option:
    """Lets every trial train to its end."""
    return checked_options("scheduler", "fifo", options)


def HyperBandScheduler(**options: Any) -> Option:
    """Stops bad trials early, in rounds that wait for each other."""
    return checked_options("scheduler", "hyperband", options)


def MedianStoppingRule(**options: Any) -> Option:
    """Stops a trial whose best is worse than the median of the others' means."""
    return checked_options("scheduler", "median", options)


def PopulationBasedTraining(**options: Any) -> Option:
    """Lets bad trials copy good ones, and change their settings, during training."""
    return checked_options("scheduler", "pbt", options)


def PB2(**options: Any) -> Option:
    """The same, but a Gaussian process chooses the new settings."""
    return checked_options("scheduler", "pb2", options)


def HyperBandForBOHB(**options: Any) -> Option:
    """HyperBand for `shoal.tune.suggest.TuneBOHB`."""
    return checked_options("scheduler", "bohb", options)


if not TYPE_CHECKING:  # a type checker is to find unknown names itself

    def __getattr__(name: str) -> NoReturn:
        from shoal.config.foreign_names import missing

        raise missing(__name__, name, globals())
