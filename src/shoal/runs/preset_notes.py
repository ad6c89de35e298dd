"""What is told of a preset: what it sets, what the user has set instead, and the return to expect."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from shoal.config.algorithms import ALGORITHMS
from shoal.config.experiment import Experiment
from shoal.config.presets import Preset, all_presets, flat, unused_preset, value_at
from shoal.data.number_text import number_text
from shoal.runs.resuming import typed_value


def preset_note(experiment: Experiment) -> str | None:
    """The line with which a run begins whose experiment has a preset; None if it has none."""
    if experiment.preset is None:
        return None
    preset = all_presets().get(experiment.preset)
    if preset is None:  # the run was started by another version
        return f"The settings began with the preset {experiment.preset}, which this version of shoal does not have."
    here = {path: value_at(experiment.config, path) for path in flat(preset.config)}
    others = [f"{path} {typed_value(here[path])}" for path, value in flat(preset.config).items() if here[path] != value]
    kept = [f"{path} {typed_value(value)}" for path, value in changes(preset).items() if here[path] == value]
    note = f"Preset {preset.name} sets {', '.join(kept) or 'nothing here'}"
    if others:
        return f"{note}; you set {', '.join(others)} instead, so its return may not be reached."
    if experiment.config.env != preset.env:
        return f"{note}; it was found for {preset.env}, so the return that it reaches here is not known."
    measured = preset.measured
    steps = f"{measured.timesteps_total:,} steps"
    return (
        f"{note}. Expect a return of {spread_text(measured.returns)} in `shoal evaluate` after {steps}; "
        f"the defaults reach {number_text(statistics.median(measured.default_returns))}."
    )


def preset_hint(experiment: Experiment) -> str | None:
    """One line for who trains a known environment with the defaults; None for all others."""
    config = experiment.config
    if experiment.preset is not None or not isinstance(config.env, str):
        return None
    preset = unused_preset(config.env, experiment.run, config.model_fields_set)
    if preset is None:
        return None
    return f"Tuned settings are known for {preset.env}: --preset takes them, `shoal presets {preset.name}` shows them."


def changes(preset: Preset) -> dict[str, object]:
    """The settings of a preset that are not the algorithm's defaults, by dotted key."""
    defaults = ALGORITHMS[preset.run]()
    return {path: value for path, value in flat(preset.config).items() if value_at(defaults, path) != value}


def spread_text(returns: Sequence[float]) -> str:
    """`481.2 (460 to 500, 5 seeds)`: median, lowest and highest."""
    middle, low, high = (number_text(number) for number in (statistics.median(returns), min(returns), max(returns)))
    return f"{middle} ({low} to {high}, {len(returns)} seeds)"
