"""A new run that begins with the policy of another: which checkpoint is meant, whether it fits, and what is taken."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.config.changing import changed
from shoal.config.experiment import Experiment, config_tree
from shoal.config.settings import AlgorithmConfig
from shoal.data.state import State
from shoal.envs.catalogue import in_short
from shoal.envs.space_trees import space_from
from shoal.errors import ConfigError
from shoal.runs.checkpoints import Checkpoint, read_checkpoint, understood
from shoal.runs.folders import find_named, results_root
from shoal.runs.loaded_policy import find_checkpoint, policy_of
from shoal.runs.resuming import by_dotted_key, experiment_of

if TYPE_CHECKING:
    from shoal.runs.trainer import Trainer

SAME_KEYS = ("model", "observation_filter", "normalize_actions", "squash_actions")
"""The keys without which a policy's numbers mean something else; all others may differ."""
FREE_KEYS = ("model.max_seq_len", "model.log_std_init")
MOST_SHOWN = 4
CRITICS = re.compile(r"(critic|target)\d+")
"""The arrays of a learner that belong to a policy as its critics, and their targets."""


def with_source(experiment: Experiment) -> Experiment:
    """The experiment with the checkpoint that its `restore` means in full, if a policy of that kind fits it."""
    assert experiment.restore is not None
    checkpoint = find_checkpoint(experiment.restore, results_dir=experiment.results_dir)
    _check_settings(experiment, checkpoint)
    return changed(experiment, restore=str(checkpoint.path))


def place_of(text: str, results_dir: str) -> Path:
    """Where what a person means by `restore` is: a checkpoint, a run, or all runs of an experiment."""
    found = find_named(text, results_dir)
    given = Path(os.path.abspath(os.path.expanduser(text)))
    is_itself = found in (given, results_root(results_dir) / text)
    return found if is_itself else found.parent


def begin_with(trainer: Trainer, path: str) -> None:
    """Put weights, observation filter and reward scale of a checkpoint into a trainer that has not trained yet."""
    source = read_checkpoint(path)
    with understood(source.path):
        _take(trainer, source)


def _take(trainer: Trainer, source: Checkpoint) -> None:
    _check_spaces(trainer, source)
    theirs = policy_of(source, trainer.env_maker)
    policy = trainer.get_policy()
    mine = policy.network.named_params()
    found = theirs.network.named_params()
    differing = [name for name in {**mine, **found} if _shape(mine, name) != _shape(found, name)]
    if differing:
        told = "; ".join(
            f"{name} is {_shape(found, name)} there and {_shape(mine, name)} here" for name in differing[:2]
        )
        kinds = (type(theirs.network).__name__, type(policy.network).__name__)
        which = "" if kinds[0] == kinds[1] else f" ({kinds[0]} there, {kinds[1]} here: use the same config.framework)"
        raise ConfigError(f"restore: {source.path} has other layers: {told}{which}")
    policy.set_weights(theirs.get_weights())
    if policy.filter is not None and theirs.filter is not None:
        policy.filter.set_state(theirs.filter.get_state())
    # Learners of other processes get the policy with the state; a target network is a copy of it.
    state = trainer.learner.get_state()
    target = {"target": policy.network.params.copy()} if "target" in state.arrays else {}
    # Without the critics that it was learned with, a policy would unlearn what it can before new ones have learned.
    for name, array in source.state.part("learner").arrays.items():
        if CRITICS.fullmatch(name) and name in state.arrays and state.arrays[name].shape == array.shape:
            target[name] = array
    # Values are in units of the scale that they were learned with. The sums of unfinished episodes stay behind.
    scale = source.state.values["learner"].get("rewards")
    rewards = {"rewards": scale} if scale and state.values.get("rewards") else {}
    trainer.learner.set_state(State({**state.values, **rewards}, {**state.arrays, **target}))


def taken(path: str) -> str:
    """What a run takes from a checkpoint, in a sentence."""
    new = "optimiser, counters, episodes and curriculum are new"
    return f"It starts with the weights, observation filter and reward scale of {path}; {new}."


def _check_settings(experiment: Experiment, checkpoint: Checkpoint) -> None:
    """Refuse a policy of an algorithm or with settings that do not fit, before anything starts."""
    tree = checkpoint.experiment_tree
    theirs, _ = experiment_of(tree)
    if theirs.config.trainer or experiment.config.trainer:
        raise ConfigError(
            f"restore: a policy of {theirs.run} cannot begin a run of {experiment.run}; leave restore out, and type "
            "the command of a run again to continue it"
        )
    if theirs.config.multiagent.policies or experiment.config.multiagent.policies:
        raise ConfigError(
            f"restore: a new run begins with the policy of {checkpoint.path} only where all agents share one; leave "
            "restore, or multiagent.policies, out"
        )
    if theirs.config.acts_by_value != experiment.config.acts_by_value:
        raise ConfigError(
            f"restore: {checkpoint.path} is of {theirs.run}, whose network {experiment.run} cannot use; "
            f"set --run {theirs.run}, or leave restore out"
        )
    there, here = (_same(config_tree(config)) for config in (theirs.config, experiment.config))
    differing = [key for key in sorted({*there, *here}) if there.get(key) != here.get(key)]
    if not differing:
        return
    told = ", ".join(f"{key} is {there.get(key)} there and {here.get(key)} here" for key in differing[:MOST_SHOWN])
    more = f" and {len(differing) - MOST_SHOWN} more" if len(differing) > MOST_SHOWN else ""
    fixed = [key for key in differing if _is_refused(experiment.config, key, there.get(key))]
    ways = []
    if fixed:
        ways.append(f"{experiment.run} takes no other: train {theirs.run} again with {_sets(here, fixed)}")
    if len(fixed) < len(differing):
        ways.append(f"add {_sets(there, [key for key in differing if key not in fixed])}")
    raise ConfigError(f"restore: {checkpoint.path} does not fit: {told}{more}; {'; here '.join(ways)}")


def _is_refused(config: AlgorithmConfig, key: str, value: Any) -> bool:
    """Whether this algorithm cannot have that value of a key, so that nobody is told to set it."""
    section, _, name = key.partition(".")
    try:
        if name:
            value = changed(getattr(config, section), **{name: value})
        changed(config, **{section: value})
    except (ConfigError, ValueError):
        return True
    return False


def _sets(values: Mapping[str, Any], keys: list[str]) -> str:
    """What to type for these keys to have these values."""
    return " ".join(f"--set {_typed(f'config.{key}', values.get(key))}" for key in keys)


def _same(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same, by dotted key."""
    kept = by_dotted_key({key: tree[key] for key in SAME_KEYS if key in tree})
    return {key: value for key, value in kept.items() if key not in FREE_KEYS}


def _typed(key: str, value: Any) -> str:
    return shlex.quote(f"{key}={value if isinstance(value, str) else json.dumps(value)}")


def _check_spaces(trainer: Trainer, source: Checkpoint) -> None:
    """Refuse the policy of an environment with other observations or actions."""
    policy = trainer.get_policy()
    trees = source.state.values.get("spaces") or [None, None]
    forms = source.state.values["policy"]["spaces"]
    mine = policy.get_state().values["spaces"]
    spaces = (policy.obs_spec.space, policy.action_spec.space)
    for what, theirs, own, tree, here in zip(("observations", "actions"), forms, mine, trees, spaces, strict=True):
        if theirs != own:
            there = theirs if tree is None else in_short(space_from(tree))
            raise ConfigError(f"restore: {source.path} has other {what}: {there} there, {in_short(here)} here")


def _shape(params: Mapping[str, Any], name: str) -> Any:
    return list(np.shape(params[name])) if name in params else "missing"
