"""A policy that another library has learned, as plain numbers, and what is made of it: an ordinary run of ours.

Who reads a library's files (`sb3_models.py`, `rllib_states.py`) says which of its layers are which; nobody else knows
of that library. Weights of dense layers are `[in, out]`, those of convolutions `[out, in, height, width]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.config.changing import unchecked
from shoal.config.experiment import Experiment, experiment_from
from shoal.config.overrides import Override
from shoal.data.filters import CLIP
from shoal.data.state import State
from shoal.envs.spaces import Space
from shoal.errors import ConfigError
from shoal.models.network import Network
from shoal.runs.atomic_files import remove_folder, write_file
from shoal.runs.folders import make_run_folder, results_folder
from shoal.runs.outcomes import Outcome, write_outcome
from shoal.runs.run_folder import RunFolder
from shoal.runs.trainer import TRAINERS, Trainer

LARGEST_LIMIT = 1e30
"""Of deviations at which observations may be clipped; without a limit it is this."""

IMPORT_FILE = "imported.json"
"""Where a run's policy came from."""


@dataclass(frozen=True)
class ForeignLayer:
    """A dense layer: `x @ weight + bias`."""

    weight: NDArray[Any]  # [in, out]
    bias: NDArray[Any]  # [out]


@dataclass(frozen=True)
class ObsScale:
    """What observations are shifted and scaled by: `clip((x - mean) / std, -limit, limit)`."""

    count: float
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    limit: float = CLIP


@dataclass(frozen=True)
class SpaceFacts:
    """What a library has written down of a space; None where it has not."""

    kind: str  # Box, Discrete, ...
    shape: tuple[int, ...] | None = None
    choices: tuple[int, ...] | None = None
    low: NDArray[Any] | None = None
    high: NDArray[Any] | None = None


@dataclass(frozen=True)
class ForeignPolicy:
    """All that a policy of another library does, layer by layer."""

    library: str  # name and version
    algorithm: str  # as it is called there
    run: str  # the algorithm of ours that goes on with it
    config: Mapping[str, Any]  # the keys by which our policy is the same
    hidden: Sequence[ForeignLayer]  # the policy's own layers, after convolutions if there are any
    output: ForeignLayer
    activation: str
    value_hidden: Sequence[ForeignLayer] = ()
    value_output: ForeignLayer | None = None  # None: it has none that fits
    log_std: NDArray[Any] | None = None
    convolutions: Sequence[ForeignLayer] = ()
    conv_filters: Sequence[Sequence[Any]] = ()  # as in a configuration, each with its padding
    image_type: str = "uint8"  # bytes are scaled to 0 to 1, and floats taken as they are, there as here
    critics: Sequence[Sequence[ForeignLayer]] = ()
    targets: Sequence[Sequence[ForeignLayer]] = ()
    log_alpha: float | None = None
    scale: ObsScale | None = None
    reward_deviation: float | None = None  # that rewards were divided by
    spaces: tuple[SpaceFacts, SpaceFacts] | None = None
    notes: Sequence[str] = field(default_factory=tuple)  # what did not come along

    @property
    def widths(self) -> list[int]:
        """Widths of the policy's hidden layers."""
        return [len(layer.bias) for layer in self.hidden]


def import_policy(
    policy: ForeignPolicy,
    env: Any,
    source: Mapping[str, Any],
    overrides: Sequence[Override] = (),
    results_dir: str | None = None,
    name: str | None = None,
) -> tuple[Path, Experiment]:
    """Make a run whose one checkpoint, of iteration 0, has this policy; its folder and its experiment.

    `source` is written down in the folder. What does not fit the environment is refused, and leaves nothing behind.
    """
    tree: dict[str, Any] = {"run": policy.run, "env": env, "config": _config_tree(policy)}
    tree |= {key: value for key, value in (("results_dir", results_dir), ("name", name)) if value is not None}
    experiment = experiment_from(tree, overrides)
    with TRAINERS[policy.run](config=experiment.config) as trainer:
        _check_spaces(policy, trainer)
        _put_into(policy, trainer)
        experiment = unchecked(experiment, name=name or trainer.env_maker.name, config=trainer.config)
        folder = _written(policy, trainer, experiment, source)
    return folder, experiment


def _written(policy: ForeignPolicy, trainer: Trainer, experiment: Experiment, source: Mapping[str, Any]) -> Path:
    """The folder of a new run with the trainer's state in it."""
    folder = make_run_folder(results_folder(experiment.results_dir, experiment.name), policy.run, experiment.config.env)
    told = {**source, "library": policy.library, "algorithm": policy.algorithm, "notes": list(policy.notes)}
    try:
        run = RunFolder(folder, experiment, trainer.user_code)
        with run.held():
            trainer.save(folder)
            write_file(folder / IMPORT_FILE, (json.dumps(told, indent=1) + "\n").encode())
            write_outcome(folder, Outcome("stopped", f"imported from {policy.library}, {policy.algorithm}"))
    except BaseException:
        remove_folder(folder)
        raise
    return folder


def _config_tree(policy: ForeignPolicy) -> dict[str, Any]:
    """The keys by which our policy has the layers of the other."""
    model: dict[str, Any] = dict(policy.config.get("model", {}))
    if policy.convolutions:
        model |= {"conv_filters": policy.conv_filters, "post_fcnet_hiddens": policy.widths}
        model["conv_activation"] = policy.activation
    else:
        model |= {"fcnet_hiddens": policy.widths, "fcnet_activation": policy.activation}
    tree: dict[str, Any] = {**policy.config, "model": model}
    if policy.scale is not None:
        tree["observation_filter"] = "MeanStdFilter"
    return tree


def _check_spaces(policy: ForeignPolicy, trainer: Trainer) -> None:
    """Refuse an environment whose spaces are not those that the policy was learned in."""
    own = trainer.get_policy()
    seen, acted = own.obs_spec.space, own.action_spec.space
    if not isinstance(seen, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise _misfit(trainer, f"its observations are a {type(seen).__name__}, whose parts each library orders its way")
    if bool(own.obs_spec.image_shapes) != bool(policy.convolutions):
        has, wants = ("images", "numbers") if own.obs_spec.image_shapes else ("numbers", "images")
        raise _misfit(trainer, f"its observations are {has}, and the policy sees {wants}")
    if not policy.convolutions and own.encoder.scale is not None:
        raise _misfit(trainer, "its observations are integers, which shoal scales to 0 to 1 and others do not")
    if policy.convolutions:
        _check_image(policy, seen, trainer)
    for facts, space, what in zip(policy.spaces or (), (seen, acted), ("observations", "actions"), strict=False):
        problem = _difference(facts, space, with_bounds=what == "actions")
        if problem:
            raise _misfit(trainer, f"its {what} are {space}, and the policy's {problem}")


def _check_image(policy: ForeignPolicy, space: Space, trainer: Trainer) -> None:
    assert isinstance(space, spaces.Box)
    if space.dtype != policy.image_type:
        raise _misfit(trainer, f"its images are of {space.dtype}, and the policy sees {policy.image_type}")


def _difference(facts: SpaceFacts, space: Space, with_bounds: bool) -> str:
    """What is different in a space from what was written down; empty if nothing is known to be."""
    if facts.kind != type(space).__name__:
        return f"are a {facts.kind}"
    choices = tuple(np.ravel(getattr(space, "n", getattr(space, "nvec", ()))).tolist())
    if facts.choices is not None and facts.choices != choices:
        return f"have {', '.join(map(str, facts.choices))} choices"
    is_image = isinstance(space, spaces.Box) and len(space.shape) == 3  # with its channels at either end
    if facts.shape is not None and not is_image and facts.shape != tuple(space.shape or ()):
        return f"have the shape {facts.shape}"
    if with_bounds and isinstance(space, spaces.Box):
        for told, bound, name in ((facts.low, space.low, "from"), (facts.high, space.high, "up to")):
            if told is not None and told.shape == bound.shape and not np.allclose(told, bound):
                return f"are {name} {np.ravel(told)[:8].tolist()}"
    return ""


def _misfit(trainer: Trainer, what: str) -> ConfigError:
    return ConfigError(f"env {trainer.env_maker.name}: {what}")


def _put_into(policy: ForeignPolicy, trainer: Trainer) -> None:
    """Give a trainer that has not trained the policy's weights, filter, values and critics."""
    own = trainer.get_policy()
    network = own.network
    _set(network, _named(policy, network), trainer)
    if policy.scale is not None:
        count = max(policy.scale.count, 2.0)
        assert own.filter is not None
        if policy.scale.mean.shape != own.filter.mean.shape:
            raise _misfit(trainer, f"its observations have {own.encoder.size} numbers, and the statistics others")
        m2 = np.square(policy.scale.std) * (count - 1)
        own.filter.set_state(State.of(count=count, mean=policy.scale.mean, m2=m2, clip=policy.scale.limit))
    learner: Any = trainer.learner
    for networks, layers in (("critics", policy.critics), ("targets", policy.targets)):
        for critic, own_layers in zip(getattr(learner, networks, ()), layers, strict=False):
            _set(critic, _critic_named(own_layers), trainer)
    if policy.log_alpha is not None and hasattr(learner, "log_alphas"):
        learner.log_alphas[:] = policy.log_alpha
    state = learner.get_state()
    more: dict[str, Any] = {"target": network.params.copy()} if "target" in state.arrays else {}
    scale = state.values.get("rewards")
    if policy.reward_deviation is not None and scale:
        seen = {"count": 1.0, "mean": 0.0, "m2": policy.reward_deviation**2}
        state = State({**state.values, "rewards": {**scale, **seen}}, state.arrays)
    learner.set_state(State(state.values, {**state.arrays, **more}))


def _named(policy: ForeignPolicy, network: Network) -> dict[str, NDArray[Any]]:
    """The policy's numbers by the names that our network has for them."""
    names = network.named_params()
    is_torch = any(name.startswith("dense.") for name in names)
    before, flip = ("dense.", True) if is_torch else ("", False)
    head = ".head" if is_torch else ""
    found: dict[str, NDArray[Any]] = {}
    for index, layer in enumerate(policy.convolutions):
        found[f"image0.conv{index}.weight"], found[f"image0.conv{index}.bias"] = layer.weight, layer.bias
    shared = any(".hidden" in name and name.startswith(f"{before}shared") for name in names)
    for index, layer in enumerate(policy.hidden):
        _add(found, f"{before}{'shared' if shared else 'policy'}.hidden{index}", layer, flip)
    _add(found, f"{before}policy{head}", policy.output, flip)
    if policy.value_output is not None:
        for index, layer in enumerate(() if shared else policy.value_hidden):
            _add(found, f"{before}value.hidden{index}", layer, flip)
        _add(found, f"{before}value{head}", policy.value_output, flip)
    elif policy.run in ("DQN", "SAC"):
        for part in ("weight", "bias"):  # a value that nothing is learned of
            found[f"{before}value{head}.{part}"] = np.zeros(names[f"{before}value{head}.{part}"].shape, np.float32)
    if policy.log_std is not None:
        found["log_std"] = policy.log_std
    return found


def _critic_named(layers: Sequence[ForeignLayer]) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for index, layer in enumerate(layers[:-1]):
        _add(found, f"shared.hidden{index}", layer, False)
    _add(found, "policy", layers[-1], False)
    return found


def _add(found: dict[str, NDArray[Any]], name: str, layer: ForeignLayer, flip: bool) -> None:
    found[f"{name}.weight"] = layer.weight.T if flip else layer.weight
    found[f"{name}.bias"] = layer.bias


def _set(network: Network, named: Mapping[str, NDArray[Any]], trainer: Trainer) -> None:
    """Set parameters by name; what does not fit is refused."""
    views = network.named_params()
    for name, value in named.items():
        if name not in views or views[name].shape != value.shape:
            here = views[name].shape if name in views else "none"
            raise _misfit(trainer, f"the policy has {value.shape} numbers in {name} where it needs {here}")
        if not np.isfinite(value).all():
            raise ConfigError(f"the policy's {name} has numbers that are not finite")
    for name, value in named.items():
        views[name][...] = value
    network.sync()
