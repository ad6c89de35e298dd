"""What the processes of a trial take, and whether there is room for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.config.layout import Bundle, fits, layout_of
from shoal.config.settings import AlgorithmConfig
from shoal.errors import ConfigError


def bundles_of(config: AlgorithmConfig) -> list[Bundle]:
    """What a trial takes: first the process that it runs in, then each that this one starts."""
    if config.num_workers == "auto":
        raise ConfigError("config.num_workers: auto would give every trial all cores; use a number")
    return layout_of(config).bundles


def bundle_of(resources: Mapping[str, float]) -> Bundle:
    """What the trials of a user's function take, from the classic `{"cpu": 2, "gpu": 1}`."""
    known = {"cpu": "CPU", "gpu": "GPU"}
    wrong = [name for name in resources if str(name).lower() not in known]
    if wrong:
        raise ConfigError(f"resources_per_trial: has cpu and gpu (got {wrong[0]!r})")
    bundle = {known[name.lower()]: float(count) for name, count in resources.items() if count}
    return bundle or {"CPU": 1.0}


def check_room(trial: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> None:
    """Refuse a trial that would wait for ever, with the arithmetic."""
    for name, words in (("CPU", "CPUs"), ("GPU", "GPUs")):
        wanted = [bundle.get(name, 0.0) for bundle in trial]
        have = [node.get(name, 0.0) for node in nodes]
        needed, there = sum(wanted), sum(have)
        parts = f"{wanted[0]:g} for itself and {needed - wanted[0]:g} for what it starts"
        if needed > there:
            raise ConfigError(
                f"a trial needs {needed:g} {words if needed != 1 else name} ({parts}), and there are {there:g} in all; "
                f"{_advice(name)}, or use more nodes"
            )
        if wanted and max(wanted) > max(have, default=0.0):
            raise ConfigError(
                f"one process of a trial needs {max(wanted):g} {words} of one node, and the largest has "
                f"{max(have, default=0.0):g}; {_advice(name)}"
            )
    if not fits(trial, nodes):
        sizes = ", ".join(f"{node.get('CPU', 0.0):g}" for node in nodes)
        wanted_sizes = ", ".join(f"{bundle.get('CPU', 0.0):g}" for bundle in trial)
        raise ConfigError(
            f"a trial's processes need {wanted_sizes} CPUs, which cannot be put onto nodes of {sizes}; {_advice('CPU')}"
        )


def most_at_once(trial: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> int:
    """How many such trials there is room for, about."""
    counts = [
        sum(node.get(name, 0.0) for node in nodes) / needed
        for name in ("CPU", "GPU")
        if (needed := sum(bundle.get(name, 0.0) for bundle in trial))
    ]
    return max(1, int(min(counts, default=1)))


def _advice(name: str) -> str:
    return "use fewer workers (config.num_workers)" if name == "CPU" else "use fewer GPUs (config.num_gpus)"
