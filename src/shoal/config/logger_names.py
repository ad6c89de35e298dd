"""The loggers that `loggers` may name: three of other people's, and those that installed packages add."""

from __future__ import annotations

from shoal.config.vocabulary import nearest

LOGGERS = {
    "wandb": "shoal.runs.loggers:WandbLogger",
    "mlflow": "shoal.runs.loggers:MlflowLogger",
    "trackio": "shoal.runs.loggers:TrackioLogger",
}
ENTRY_POINTS = "shoal.loggers"
"""The entry points by which a package adds a logger: its name, and where its class is."""


def logger_places() -> dict[str, str]:
    """Each logger and where its class is; nothing is imported. A name of ours stays ours."""
    from importlib.metadata import entry_points

    return {**{point.name: point.value for point in entry_points(group=ENTRY_POINTS)}, **LOGGERS}


def known_loggers(names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a logger that nobody has, and one that is named twice."""
    for name in names:
        if name in LOGGERS:
            continue
        known = logger_places()
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(sorted(known))}"
            own = "; TensorBoard's files are always written" if "tensorboard" in name.lower() else ""
            raise ValueError(f"there is no logger {name!r}; {hint}{own}")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"names {twice} twice; name it once")
    return names
