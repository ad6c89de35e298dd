"""Reads checkpoints of RLlib's new API stack, without RLlib, without torch, and running none of their pickles."""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.bridges.foreign_policy import LARGEST_LIMIT, ForeignLayer, ForeignPolicy, ObsScale, SpaceFacts
from shoal.bridges.inert_pickle import MOST_BYTES, Inert, read_pickle
from shoal.bridges.sb3_models import space_facts
from shoal.config.fields import conv_layers
from shoal.errors import ConfigError
from shoal.models.convolutions import classic_convolutions

MODULES = "learner_group/learner/rl_module"
CONNECTORS = "env_runner/env_to_module_connector"
STATE = "module_state.pkl"
ACTIVATIONS = {"tanh": "tanh", "relu": "relu", "elu": "elu", "silu": "silu", "swish": "silu", "linear": "linear"}
MOST_TEXT = 1 << 20
Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ConvStack:
    """Convolutions over an image, and the map that they make of it, `[height, width, channels]`."""

    layers: Sequence[ForeignLayer] = ()
    filters: Sequence[Sequence[Any]] = ()
    made: tuple[int, ...] = ()

    def before(self, layers: Sequence[ForeignLayer]) -> list[ForeignLayer]:
        """The layers that follow it: RLlib lays the map out by rows, and shoal by channels."""
        if not self.layers or not layers:
            return list(layers)
        first, *others = layers
        if len(first.weight) != np.prod(self.made):
            raise ConfigError(f"a layer with {len(first.weight)} inputs cannot follow a map of {self.made}")
        weight = first.weight.reshape(*self.made, -1).transpose(2, 0, 1, 3).reshape(first.weight.shape)
        return [ForeignLayer(np.ascontiguousarray(weight), first.bias), *others]


class Module:
    """One module of a checkpoint: its tensors, and what it was made with."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self.library = folder, f"RLlib {version}"
        state = _pickle(folder / STATE)
        if not isinstance(state, Mapping):
            raise ConfigError(f"{folder / STATE}: holds no tensors by name")
        self.tensors = {str(name): value for name, value in state.items() if isinstance(value, np.ndarray)}
        made = _pickle(folder / "class_and_ctor_args.pkl") if (folder / "class_and_ctor_args.pkl").exists() else {}
        kind = made.get("class") if isinstance(made, Mapping) else None
        self.kind = str(getattr(kind, "name", ""))
        self.settings = _keywords(made)
        config = self.settings.get("model_config")
        self.model: Mapping[str, Any] = config if isinstance(config, Mapping) else {}

    def stack(self, place: str) -> list[ForeignLayer]:
        """The linear layers of a net of RLlib's, in their order."""
        numbers = sorted(
            int(found[1])
            for name in self.tensors
            if (found := re.fullmatch(rf"{re.escape(place)}\.net\.mlp\.(\d{{1,4}})\.weight", name))
        )
        return [self._layer(f"{place}.net.mlp.{number}") for number in numbers]

    def sight(self, place: str) -> ConvStack:
        """The convolutions of an encoder of RLlib's; none where it sees numbers."""
        found = {
            int(match[1]): name
            for name in self.tensors
            if (match := re.fullmatch(rf"{re.escape(place)}\.net\.0\.cnn\.(\d{{1,4}})\.weight", name))
        }
        names = [found[number] for number in sorted(found)]
        if not names:
            return ConvStack()
        try:
            told = conv_layers(self.model.get("conv_filters")) or ()
        except ValueError:
            told = ()
        facts = self.spaces()
        sides = facts[0].shape if facts is not None else None
        if len(told) != len(names) or sides is None or len(sides) != 3:
            raise ConfigError(
                f"{self.folder}: its convolutions are RLlib's own for that image, whose strides are not written down, "
                "or not square; train it with conv_filters"
            )
        layers = []
        for name in names:
            weight, bias = self.tensors[name], self.tensors.get(name.replace(".weight", ".bias"))
            if weight.ndim != 4 or bias is None or bias.shape != weight.shape[:1]:
                raise ConfigError(f"{self.folder}: {name} is no convolution with a bias")
            layers.append(ForeignLayer(weight, bias))
        filters = [layer if len(layer) == 4 else (*layer, "same") for layer in told]
        height, width = sides[:2]
        for layer in classic_convolutions(filters, height, width):
            height, width = layer.map_of(height, width)
        return ConvStack(layers, filters, (height, width, len(layers[-1].bias)))

    def _layer(self, place: str) -> ForeignLayer:
        weight, bias = self.tensors.get(f"{place}.weight"), self.tensors.get(f"{place}.bias")
        if weight is None or bias is None or weight.ndim != 2 or bias.shape != weight.shape[:1]:
            raise ConfigError(f"{self.folder}: {place} is no linear layer with a bias")
        return ForeignLayer(np.ascontiguousarray(weight.T, np.float32), np.asarray(bias, np.float32))

    def activation(self, has_head: bool, sees_image: bool = False) -> str:
        """The activation of all hidden layers, of which RLlib's heads may have one of their own."""
        key, default = ("conv_activation", "relu") if sees_image else ("fcnet_activation", "tanh")
        name = str(self.model.get(key, default)).lower()
        head = str(self.model.get("head_fcnet_activation", "relu")).lower()
        if has_head and head != name:
            raise ConfigError(
                f"{self.folder}: its encoder has the activation {name} and its heads {head}, and here all layers have "
                "one; train it with the same for both"
            )
        if name not in ACTIVATIONS:
            raise ConfigError(f"{self.folder}: its layers have the activation {name[:40]}, which is none of shoal's")
        return ACTIVATIONS[name]

    def spaces(self) -> tuple[SpaceFacts, SpaceFacts] | None:
        """The spaces that it was made for."""
        observations, actions = self.settings.get("observation_space"), self.settings.get("action_space")
        if not isinstance(observations, Inert) or not isinstance(actions, Inert):
            return None
        return space_facts(observations), space_facts(actions)


def read_rllib(path: Path, policy_id: str | None = None) -> ForeignPolicy:
    """The policy of a checkpoint folder; `policy_id` is the name of its module where there are several."""
    root, version = _root(path)
    place = _module_folder(root / MODULES, policy_id)
    module = Module(place, version)
    scale = _filter_scale(root, place.name)
    names = module.tensors.keys()
    if any("lstm" in name or "gru" in name for name in names):
        raise ConfigError(f"{path}: the policy has memory, which cannot be imported; train it here with use_lstm")
    for has_it, policy_of in (
        (any(name.startswith("pi_encoder.") for name in names), _sac),
        (module.stack("af"), _dqn),
        (module.stack("pi"), _actor_critic),
    ):
        if has_it:
            policy = policy_of(module)
            if scale is not None and policy.convolutions:
                raise ConfigError(f"{path}: it filters images by MeanStdFilter, which no policy here does")
            return replace(policy, scale=scale)
    known = ", ".join(sorted(names)[:4])
    raise ConfigError(
        f"{path}: its module is none of RLlib's default networks of PPO, APPO, IMPALA, DQN and SAC (it has {known})"
    )


def _actor_critic(module: Module) -> ForeignPolicy:
    """PPO, APPO and IMPALA: policy and value, on encoders of their own or on one."""
    shared = module.stack("encoder.encoder")
    shared_sight = module.sight("encoder.encoder")
    sight = shared_sight if shared_sight.layers else module.sight("encoder.actor_encoder")
    encoder = shared or module.stack("encoder.actor_encoder")
    critic = shared or module.stack("encoder.critic_encoder")
    *policy_head, output = sight.before(module.stack("pi"))
    value_layers = sight.before(module.stack("vf"))
    if not encoder and not sight.layers:
        raise ConfigError(f"{module.folder}: has no encoder of RLlib's default networks")
    hidden = [*encoder, *policy_head]
    value_hidden = [*critic, *value_layers[:-1]]
    has_head = bool(policy_head or value_layers[1:])
    notes = []
    fits = bool(value_layers) and _widths(hidden) == _widths(value_hidden)
    if sight.layers and not shared_sight.layers:
        fits, value_layers = False, []
        notes.append("the value function begins anew: it has convolutions of its own, and here it has the policy's")
    if value_layers and not fits:
        notes.append("the value function begins anew: its layers are not as wide as the policy's")
    algorithm = "APPO" if "APPO" in module.kind else "IMPALA" if "IMPALA" in module.kind else "PPO"
    log_std = module.tensors.get("pi.log_std")
    return ForeignPolicy(
        library=module.library,
        algorithm=algorithm,
        run="PPO",
        config={
            "normalize_rewards": False,
            "model": {
                "vf_share_layers": bool(shared or shared_sight.layers) and not has_head,
                "free_log_std": log_std is not None,
            },
        },
        hidden=hidden,
        output=output,
        activation=module.activation(has_head, bool(sight.layers)),
        convolutions=sight.layers,
        conv_filters=sight.filters,
        image_type="float32",
        value_hidden=value_hidden if fits else (),
        value_output=value_layers[-1] if fits else None,
        log_std=log_std,
        spaces=module.spaces(),
        notes=notes,
    )


def _dqn(module: Module) -> ForeignPolicy:
    """DQN: advantages, and with dueling the value of the state."""
    encoder, sight = module.stack("encoder"), module.sight("encoder")
    *head, output = sight.before(module.stack("af"))
    value_layers = sight.before(module.stack("vf"))
    actions = module.spaces()
    if actions is not None and actions[1].choices is not None and len(output.bias) != actions[1].choices[0]:
        raise ConfigError(f"{module.folder}: it learns distributions of values (num_atoms), which DQN here does not")
    value_hidden = [*encoder, *value_layers[:-1]]
    hidden = [*encoder, *head]
    if value_layers and _widths(hidden) != _widths(value_hidden):
        raise ConfigError(f"{module.folder}: its heads of advantages and values are not alike, and here they are")
    return ForeignPolicy(
        library=module.library,
        algorithm="DQN",
        run="DQN",
        config={
            "dueling": bool(value_layers),
            "normalize_rewards": False,
            "model": {"vf_share_layers": not (value_layers and head)},
        },
        hidden=hidden,
        output=output,
        activation=module.activation(bool(head), bool(sight.layers)),
        convolutions=sight.layers,
        conv_filters=sight.filters,
        image_type="float32",
        value_hidden=value_hidden if value_layers else (),
        value_output=value_layers[-1] if value_layers else None,
        spaces=module.spaces(),
    )


def _sac(module: Module) -> ForeignPolicy:
    """SAC: a policy whose spread is an output."""
    encoder, sight = module.stack("pi_encoder"), module.sight("pi_encoder")
    *head, output = sight.before(module.stack("pi"))
    facts = module.spaces()
    if facts is not None and facts[1].kind != "Box":
        raise ConfigError(f"{module.folder}: its actions are a {facts[1].kind}, and only SAC with a Box is imported")
    return ForeignPolicy(
        library=module.library,
        algorithm="SAC",
        run="SAC",
        config={"normalize_rewards": False},
        hidden=[*encoder, *head],
        output=output,
        activation=module.activation(bool(head), bool(sight.layers)),
        convolutions=sight.layers,
        conv_filters=sight.filters,
        image_type="float32",
        spaces=facts,
        notes=[
            "the critics begin anew: RLlib's see observation and action through encoders of their own",
            "without exploring it takes the middle of what it samples, tanh(mean); there RLlib leaves the tanh out",
        ],
    )


def _widths(layers: Sequence[ForeignLayer]) -> list[int]:
    return [len(layer.bias) for layer in layers]


def _root(path: Path) -> tuple[Path, str]:
    """The checkpoint's own folder, and the version of Ray that wrote it."""
    for root in (path, path / "rllib"):  # a checkpoint of `run: rllib:PPO` has RLlib's in it
        if (root / MODULES).is_dir():
            return root, _version(root)
    if (path / "policies").is_dir() or (path / "algorithm_state.pkl").exists():
        raise ConfigError(
            f"{path}: is of RLlib's old API stack, which cannot be imported; only the new one's modules can"
        )
    if any((folder / "experiment.json").exists() for folder in (path, path.parent)):
        raise ConfigError(f"{path}: is a run of shoal's already; type: shoal evaluate {path}")
    raise ConfigError(f"{path}: is no checkpoint of RLlib: it has no {MODULES}")


def _version(root: Path) -> str:
    for name in ("rllib_checkpoint.json", "metadata.json"):
        try:
            with (root / name).open("rb") as file:
                found = json.loads(file.read(MOST_TEXT))
            return str(found["ray_version"])[:40]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return ""


def _module_folder(folder: Path, policy_id: str | None) -> Path:
    """The folder of the module that is meant."""
    found = sorted(place.name for place in folder.iterdir() if place.is_dir())
    if policy_id is None and len(found) > 1:
        raise ConfigError(f"{folder}: has several modules; add --policy-id {' or --policy-id '.join(found)}")
    if policy_id is not None and policy_id not in found:
        raise ConfigError(f"--policy-id: there is no module {policy_id!r}; use {' or '.join(found)}")
    if not found:
        raise ConfigError(f"{folder}: has no module")
    place = folder / (policy_id or found[0])
    if not (place / STATE).is_file():
        if list(place.glob("module_state.*")):
            raise ConfigError(f"{place}: is not written as pickle; save the checkpoint without use_msgpack")
        raise ConfigError(f"{place}: has no {STATE}")
    return place


def _filter_scale(root: Path, module: str) -> ObsScale | None:
    """Shift and scale of a MeanStdFilter among the connectors; None without one, and other filters are refused."""
    places = [each for each in sorted((root / CONNECTORS).glob("*")) if "filter" in each.name.lower() and each.is_dir()]
    if not places:
        return None
    if len(places) > 1 or not places[0].name.endswith("MeanStdFilter"):
        names = " and ".join(place.name for place in places)
        raise ConfigError(f"{root}: its observations pass {names}, and only one MeanStdFilter is imported")
    return _scale_of(places[0] / "state.pkl", module)


def _scale_of(path: Path, module: str) -> ObsScale:
    """What the state of a MeanStdFilter does to the observations of a module."""
    states = _pickle(path)
    if not isinstance(states, Mapping) or not ({None, module} & states.keys()):
        raise ConfigError(f"{path}: has no statistics of {module}'s observations")
    state = states[module if module in states else None]
    running = state.get("running_stats") if isinstance(state, Mapping) else None
    if not isinstance(running, list) or len(running) != 1 or not isinstance(running[0], Mapping):
        raise ConfigError(f"{path}: filters observations of several parts, and only one array can be imported")
    mean, squares = (_array(running[0].get(name), path) for name in ("mean_array", "sum_sq_diff_array"))
    count = running[0].get("num_pushes")
    if mean.shape != squares.shape or not isinstance(count, int) or count < 2:
        raise ConfigError(f"{path}: its statistics do not belong together, or are of fewer than two observations")
    std = np.sqrt(np.maximum(squares, 0) / (count - 1))
    # What it does not do is as a mean of 0 or a deviation of 1; RLlib adds 1e-8 to the deviation.
    mean = mean if state.get("de_mean_to_zero") else np.zeros_like(mean)
    std = std + 1e-8 if state.get("de_std_to_one") else np.ones_like(mean)
    limit = state.get("clip_by_value")
    known = isinstance(limit, int | float) and 0 < limit < LARGEST_LIMIT
    return ObsScale(float(count), mean, std, float(limit) if known else LARGEST_LIMIT)


def _array(text: Any, path: Path) -> NDArray[np.float64]:
    """The numbers of an array that is written as base64 of a compressed npy file."""
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(str(text), validate=True), MOST_TEXT)
        numbers = np.load(io.BytesIO(data), allow_pickle=False)
    except (binascii.Error, zlib.error, ValueError, OSError, EOFError, MemoryError, OverflowError):
        raise ConfigError(f"{path}: holds no statistics that can be read") from None
    if not isinstance(numbers, np.ndarray) or numbers.dtype.kind != "f":
        raise ConfigError(f"{path}: holds no statistics that can be read")
    return np.asarray(numbers, np.float64).ravel()


def _keywords(made: Any) -> Mapping[str, Any]:
    arguments = made.get("ctor_args_and_kwargs") if isinstance(made, Mapping) else None
    if isinstance(arguments, tuple) and len(arguments) == 2 and isinstance(arguments[1], Mapping):
        return arguments[1]
    return {}


def _pickle(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    return read_pickle(data, str(path))
