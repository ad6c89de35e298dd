"""Saving and restoring a trainer that is not inside a run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.config.experiment import Experiment
from shoal.data.state import State
from shoal.errors import CheckpointError, ConfigError
from shoal.models.build import needs_torch
from shoal.runs.checkpoints import read_checkpoint, write_checkpoint
from shoal.runs.folders import make_run_folder, results_folder
from shoal.runs.resuming import experiment_of, tree_of

if TYPE_CHECKING:
    from shoal.runs.trainer import Trainer


def save(trainer: Trainer, folder: str | Path | None = None) -> Path:
    """Write a checkpoint into `folder`, by default a new run folder under ~/shoal_results."""
    experiment = _experiment(trainer)
    folder = folder_of(trainer) if folder is None else Path(folder).expanduser()
    summary = {"training_iteration": trainer.iteration, "timesteps_total": trainer.timesteps_total}
    path = write_checkpoint(folder, trainer.get_state(), tree_of(experiment, trainer.user_code), summary)
    trainer.call_hook("on_checkpoint", checkpoint=str(path))
    return path


def folder_of(trainer: Trainer) -> Path:
    """Where a trainer writes what it is not told a place for: its run, or a new run folder under ~/shoal_results."""
    if trainer.folder is None:
        experiment = _experiment(trainer)
        parent = results_folder(experiment.results_dir, experiment.name)
        trainer.folder = make_run_folder(parent, experiment.run, trainer.config.env)
    return trainer.folder


def _experiment(trainer: Trainer) -> Experiment:
    return Experiment(name=trainer.env_maker.name, run=trainer.algorithm, config=trainer.config)


def restore(trainer: Trainer, path: str | Path) -> None:
    """Put a trainer into the state that a checkpoint holds."""
    trainer.set_state(_read(trainer, path))


def read_policy(trainer: Trainer, path: str | Path) -> State:
    """The policy's part of a checkpoint, which must be of the same algorithm."""
    state = _read(trainer, path)
    if state.values["algorithm"] != trainer.algorithm:
        raise CheckpointError(f"{path} is a checkpoint of {state.values['algorithm']}, this is {trainer.algorithm}")
    return state.part("policy")


def _read(trainer: Trainer, path: str | Path) -> State:
    """The state of a checkpoint whose network is of the library that the trainer's is of, as far as that is known."""
    checkpoint = read_checkpoint(Path(path))
    if "layers" in checkpoint.state.values["policy"]:  # then the policy compares them one by one
        return checkpoint.state
    with suppress(ConfigError):  # an experiment that is not understood tells nothing
        theirs, _ = experiment_of(checkpoint.experiment_tree)
        space = trainer.get_policy().obs_spec.space
        there, here = (needs_torch(space, config) is not None for config in (theirs.config, trainer.config))
        if there != here:
            names = ("torch", "numpy") if there else ("numpy", "torch")
            raise CheckpointError(
                f"{path} has a network of {names[0]}, this trainer has one of {names[1]}; "
                f"make the trainer with framework: {names[0]}"
            )
    return checkpoint.state
