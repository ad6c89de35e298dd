"""The state that a checkpoint holds, read for a trainer that shall have it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from shoal.config.settings import AlgorithmConfig
from shoal.data.state import State
from shoal.envs.spaces import Space
from shoal.errors import CheckpointError, ConfigError
from shoal.models.build import needs_torch
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.resuming import experiment_of


def read_state(path: str | Path, config: AlgorithmConfig, obs_space: Space) -> State:
    """The state, if its network is of the library that a trainer with `config` has, as far as that is known."""
    checkpoint = read_checkpoint(Path(path))
    if "layers" in checkpoint.state.values["policy"]:  # then the policy compares them one by one
        return checkpoint.state
    with suppress(ConfigError):  # an experiment that is not understood tells nothing
        theirs, _ = experiment_of(checkpoint.experiment_tree)
        there, here = (needs_torch(obs_space, each) is not None for each in (theirs.config, config))
        if there != here:
            names = ("torch", "numpy") if there else ("numpy", "torch")
            raise CheckpointError(
                f"{path} has a network of {names[0]}, this trainer has one of {names[1]}; "
                f"make the trainer with framework: {names[0]}"
            )
    return checkpoint.state
