"""A trained policy by itself: read from a checkpoint, without its environment, its learner or Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.config.algorithms import load
from shoal.config.changing import unchecked
from shoal.config.foreign_names import missing_method
from shoal.config.settings import AlgorithmConfig
from shoal.envs.making import EnvMaker, spaces_of
from shoal.envs.randomizing import first_draw
from shoal.envs.space_trees import space_from
from shoal.envs.spaces import Space
from shoal.errors import CheckpointError, ConfigError
from shoal.models.build import build_policy
from shoal.models.policy import Policy
from shoal.parallel.capacity import check_network
from shoal.parallel.ray_workers import without_gpu
from shoal.runs.checkpoint_folders import checkpoint_folder
from shoal.runs.checkpoints import Checkpoint, best_checkpoint, read_checkpoint, understood
from shoal.runs.folders import DEFAULT_RESULTS, find_named, find_run
from shoal.runs.resuming import experiment_of, stored_tree

DEFAULT_SCORE = "episode_reward_mean"


class LoadedPolicy(Policy):
    """A policy as a program uses it, under the name `shoal.Policy`: `Policy.load(path).compute_single_action(obs)`."""

    if not TYPE_CHECKING:  # a checker shall go on to report names that are not there

        def __getattr__(self, name: str) -> Any:
            found = missing_method("Policy", "Policy", name)
            if found is not None:
                raise found
            return object.__getattribute__(self, name)  # which raises again what it has raised before

    @classmethod
    def load(cls, path: str | Path, best: bool = False, trust: bool = False, policy_id: str | None = None) -> Policy:
        """The policy of a checkpoint, or of the newest or best of a run, or of the newest run of a name that has one.

        The environment it was trained on is not needed, nor is Ray; PyTorch only if its network is one of PyTorch's.
        Nothing that the checkpoint names is imported, but a model of one's own; a stranger's needs `trust`.
        Where agents have several policies, `policy_id` is the name of one; without it, it is the first, with the
        others.
        """
        return policy_of(find_checkpoint(path, best), trust=trust, policy_id=policy_id)


def policy_of(
    checkpoint: Checkpoint, maker: EnvMaker | None = None, trust: bool = False, policy_id: str | None = None
) -> Policy:
    """The policy of a checkpoint that is read already; `maker` helps where it does not tell its spaces.

    A model of the user's own is found where the maker finds its environments.
    """
    experiment, user_code = experiment_of(checkpoint.experiment_tree, trust)
    if experiment.config.policy:
        if policy_id is not None:
            raise ConfigError(f"policy_id: {checkpoint.path} has one policy; leave policy_id out (got {policy_id!r})")
        read: Callable[[Checkpoint, bool], Policy] = load(experiment.config.policy)
        with understood(checkpoint.path):
            return read(checkpoint, trust)
    if maker is not None:
        user_code = maker.user_code
    config = unchecked(without_gpu(experiment.config), kernel="numpy")  # acting alone needs no compiler
    check_network(config)
    with understood(checkpoint.path):
        observations, actions = _spaces(checkpoint, experiment.config, maker)
        others = {}
        for name, trees in checkpoint.state.values.get("other_spaces", {}).items():
            others[name] = space_from(trees[0]), space_from(trees[1])
        loaded = build_policy(observations, actions, config, user_code, kind=LoadedPolicy, others=others)
        assert isinstance(loaded, LoadedPolicy)
        loaded.set_state(checkpoint.state.part("policy"))
    return loaded if policy_id is None else _called(policy_id, loaded, config.multiagent.names)


def _called(policy_id: str, loaded: LoadedPolicy, names: Sequence[str]) -> LoadedPolicy:
    """The one of several policies that has this name, alone."""
    if policy_id not in names:
        raise ConfigError(f"policy_id: there is no policy {policy_id!r}; use {' or '.join(names)}")
    found = loaded.others.get(policy_id, loaded)
    assert isinstance(found, LoadedPolicy)
    found.others = {}
    return found


def _spaces(checkpoint: Checkpoint, config: AlgorithmConfig, maker: EnvMaker | None) -> tuple[Space, Space]:
    """The spaces of the environment that the policy was trained on."""
    trees = checkpoint.state.values.get("spaces") or [None]
    if None not in trees:
        observations, actions = map(space_from, trees)
        return observations, actions
    if maker is None:
        raise CheckpointError(
            f"{checkpoint.path} does not record the spaces of its environment; "
            "make a trainer with that environment, and restore the checkpoint into it."
        )
    drawn = first_draw(config, maker.user_code)
    return spaces_of(maker, {**config.env_config, **drawn.env_config}, config.env_ranks)


def find_checkpoint(path: str | Path, best: bool = False, results_dir: str = DEFAULT_RESULTS) -> Checkpoint:
    """The checkpoint that a person means by its folder, a run, or an experiment's folder or name: newest or best."""
    place = find_named(path, results_dir, is_trained=True)
    if not best:
        return read_checkpoint(place if checkpoint_folder(place) is not None else find_run(place))
    run = find_run(place)
    score = score_of(stored_tree(run) or {})
    found = best_checkpoint(run, score)
    if found is None:
        raise CheckpointError(
            f"no checkpoint of {run} has the result {score}, so there is no best one; leave best out."
        )
    return read_checkpoint(found)


def score_of(tree: Mapping[str, Any]) -> str:
    """The result by which a run's checkpoints are compared."""
    return tree.get("checkpoint_score_attr") or DEFAULT_SCORE
