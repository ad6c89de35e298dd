"""What a run that learns from recorded steps, or records some, is told before it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from shoal.config.experiment import Experiment, with_settings
from shoal.config.offline import OfflineConfig
from shoal.envs.experience_files import MINARI, find_steps

OFFLINE_STOP: Mapping[str, float] = MappingProxyType({"learner/num_epochs": 20.0})
"""When a run ends that learns from recorded steps and is not told."""


def offline_stop_note() -> str:
    """What to tell of it."""
    return (
        f"No stop is given: the run ends after {OFFLINE_STOP['learner/num_epochs']:g} passes over the recorded steps."
    )


def with_recorded_paths(experiment: Experiment) -> Experiment:
    """The experiment with `input` and `output` in full, so that it continues wherever it is resumed.

    A ConfigError says that there is nothing to learn from.
    """
    config = experiment.config
    changes: dict[str, Any] = {}
    if config.output is not None:
        changes["output"] = _in_full(config.output)
    if isinstance(config, OfflineConfig):
        source = config.input
        if source is None or not _is_minari(source):
            find_steps(source)
        if isinstance(source, str):
            changes["input"] = _in_full(source)
        elif source is not None:
            changes["input"] = [_in_full(each) for each in source]
    same = all(getattr(config, key) == value for key, value in changes.items())
    return experiment if same else with_settings(experiment, changes)


def _is_minari(source: str | tuple[str, ...]) -> bool:
    return isinstance(source, str) and source.startswith(MINARI)


def _in_full(place: str) -> str:
    """A path from the root on; a dataset's name as it is."""
    if place.startswith(MINARI):
        return place
    return os.path.abspath(os.path.expanduser(os.path.expandvars(place)))
