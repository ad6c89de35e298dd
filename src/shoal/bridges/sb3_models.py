"""Reads models that Stable-Baselines3 has saved, without Stable-Baselines3, without torch, and running none of it."""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.bridges.foreign_policy import LARGEST_LIMIT, ForeignLayer, ForeignPolicy, ObsScale, SpaceFacts
from shoal.bridges.inert_pickle import MOST_BYTES, Inert, read_pickle
from shoal.bridges.torch_files import member, opened, read_tensors
from shoal.data.filters import CLIP
from shoal.errors import ConfigError

ACTIVATIONS = {
    "Tanh": "tanh",
    "ReLU": "relu",
    "ELU": "elu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
    "LeakyReLU": "leaky_relu",
    "Softplus": "softplus",
    "Identity": "linear",
}
NATURE = ((32, 8, 4, "valid"), (64, 4, 2, "valid"), (64, 3, 1, "valid"))
"""The convolutions of the Nature paper, as Stable-Baselines3 has them for images of any size."""
MOST_DATA = 1 << 26
PICKLE = b"\x80"
"""What the files of VecNormalize.save begin with, as all pickles of the last twenty years."""
Tensors = Mapping[str, NDArray[Any]]


class SavedModel:
    """What a saved model holds: its settings as JSON, with pickles that are looked at and not run, and its tensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file, opened(file, str(path)) as archive:
                names = archive.namelist()
                if "data" not in names or "policy.pth" not in names:
                    raise ConfigError(f"{path}: is no model of Stable-Baselines3: it has no data and policy.pth")
                text = member(archive, "data", str(path), MOST_DATA)
                tensors = io.BytesIO(member(archive, "policy.pth", str(path)))
                variables = io.BytesIO(b"")
                if "pytorch_variables.pth" in names:
                    variables = io.BytesIO(member(archive, "pytorch_variables.pth", str(path)))
                version = "_stable_baselines3_version"
                raw = member(archive, version, str(path), 1000) if version in names else b""
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
        self.version = raw.decode("ascii", "replace").strip()[:40]
        self.data = _mapping(text, path)
        self.tensors = read_tensors(tensors, f"policy.pth of {path}")
        self._variables = variables

    def variables(self) -> Tensors:
        """Tensors that are no part of the network, such as SAC's temperature."""
        if not self._variables.getvalue():
            return {}
        return read_tensors(self._variables, f"pytorch_variables.pth of {self.path}")

    def setting(self, name: str) -> Any:
        """A setting as plain values and `Inert`s."""
        value = self.data.get(name)
        if isinstance(value, dict) and ":serialized:" in value:
            try:
                raw = base64.b64decode(str(value[":serialized:"]), validate=True)
            except (binascii.Error, ValueError):
                raise ConfigError(f"{self.path}: its {name} is no base64") from None
            return read_pickle(raw, f"{name} of {self.path}")
        return value


def read_sb3(path: Path, statistics: Path | None = None) -> ForeignPolicy:
    """The policy of a saved model; `statistics` is a file of VecNormalize.save, if it was trained with one."""
    model = SavedModel(path)
    names = set(model.tensors)
    if any("lstm" in name for name in names):
        raise ConfigError(f"{path}: the policy has an LSTM, which cannot be imported; train it here with use_lstm")
    if any(name.startswith("quantile_net") or "quantile_critics" in name for name in names):
        raise ConfigError(f"{path}: it learns quantiles (QR-DQN, TQC), which no algorithm here has")
    if model.data.get("use_sde"):
        raise ConfigError(f"{path}: it explores with gSDE, which no policy here has; train it without use_sde")
    scale, deviation = (None, None) if statistics is None else read_vec_normalize(statistics)
    if "q_net.q_net.0.weight" in names:
        return _dqn(model, scale, deviation)
    if "actor.mu.weight" in names and "actor.log_std.weight" in names:
        return _sac(model, scale, deviation)
    if "action_net.weight" in names:
        return _actor_critic(model, scale, deviation)
    known = ", ".join(sorted(names)[:4])
    raise ConfigError(f"{path}: is of no algorithm that can be imported: PPO, A2C, TRPO, DQN or SAC (it has {known})")


def read_vec_normalize(path: Path) -> tuple[ObsScale | None, float | None]:
    """Shift and scale of observations, and what rewards were divided by, of a file of VecNormalize.save."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    found = read_pickle(data, str(path)) if data.startswith(PICKLE) else None
    if not isinstance(found, Inert) or found.name != "VecNormalize":
        raise ConfigError(f"{path}: is no file of VecNormalize.save")
    deviation = None
    epsilon = _number(found.attribute("epsilon"), 1e-8)
    returns = found.attribute("ret_rms")
    if found.attribute("norm_reward") and isinstance(returns, Inert):
        deviation = float(np.sqrt(_number(returns.attribute("var"), 1.0) + epsilon))
    if not found.attribute("norm_obs"):
        return None, deviation
    statistics = found.attribute("obs_rms")
    if not isinstance(statistics, Inert):
        raise ConfigError(f"{path}: normalises a dict of observations, whose parts each library orders its way")
    mean, variance = statistics.attribute("mean"), statistics.attribute("var")
    if not isinstance(mean, np.ndarray) or not isinstance(variance, np.ndarray) or mean.shape != variance.shape:
        raise ConfigError(f"{path}: has no mean and variance of observations")
    limit = _number(found.attribute("clip_obs"), CLIP)
    if not 0 < limit <= LARGEST_LIMIT:
        raise ConfigError(f"{path}: clips observations at {limit:g} deviations; that is no limit above 0")
    std = np.sqrt(variance.astype(np.float64).ravel() + epsilon)
    count = _number(statistics.attribute("count"), 2.0)
    return ObsScale(count, mean.astype(np.float64).ravel(), std, limit), deviation


def _actor_critic(model: SavedModel, scale: ObsScale | None, deviation: float | None) -> ForeignPolicy:
    """PPO, A2C and TRPO: actor and critic beside each other, over one vector or the features of an image."""
    tensors = model.tensors
    algorithm = "PPO" if "n_epochs" in model.data else "TRPO" if "cg_max_steps" in model.data else "A2C"
    activation = _activation(model, "Tanh")
    convolutions, first = _image(model, "features_extractor")
    if convolutions:
        _check_shared(model, ("pi_features_extractor", "vf_features_extractor"))
    policy_net = _stack(tensors, "mlp_extractor.policy_net")
    value_net = _stack(tensors, "mlp_extractor.value_net")
    if convolutions and policy_net and activation != "relu":
        raise _activations(model)
    log_std = tensors.get("log_std")
    if log_std is not None and log_std.ndim != 1:
        raise ConfigError(f"{model.path}: it explores with gSDE, which no policy here has")
    notes = []
    hidden, value_hidden = [*first, *policy_net], [*first, *value_net]
    value = _layer(tensors, "value_net")
    shares = bool(convolutions) and not policy_net and not value_net
    if [len(layer.bias) for layer in hidden] != [len(layer.bias) for layer in value_hidden]:
        value_hidden = []
        notes.append("the value function begins anew: its layers are not as wide as the policy's")
    has_value = bool(value_hidden) or shares or not hidden
    return ForeignPolicy(
        library=f"Stable-Baselines3 {model.version}",
        algorithm=algorithm,
        run="TRPO" if algorithm == "TRPO" else "PPO",
        config={
            "normalize_actions": False,
            "clip_actions": True,
            "normalize_rewards": deviation is not None,
            "gamma": _number(model.data.get("gamma"), 0.99),
            "model": {"vf_share_layers": shares},
        },
        hidden=hidden,
        output=_layer(tensors, "action_net"),
        activation="relu" if convolutions else activation,
        value_hidden=value_hidden,
        value_output=value if has_value else None,
        log_std=log_std,
        convolutions=convolutions,
        conv_filters=NATURE,
        scale=scale,
        reward_deviation=deviation,
        spaces=_spaces(model),
        notes=notes,
    )


def _dqn(model: SavedModel, scale: ObsScale | None, deviation: float | None) -> ForeignPolicy:
    """DQN: one value per action, without a value of the state."""
    convolutions, first = _image(model, "q_net.features_extractor")
    activation = _activation(model, "ReLU")
    *layers, output = _stack(model.tensors, "q_net.q_net")
    if convolutions and layers and activation != "relu":
        raise _activations(model)
    return ForeignPolicy(
        library=f"Stable-Baselines3 {model.version}",
        algorithm="DQN",
        run="DQN",
        config={
            "dueling": False,
            "n_step": 1,
            "normalize_rewards": deviation is not None,
            "gamma": _number(model.data.get("gamma"), 0.99),
        },
        hidden=[*first, *layers],
        output=output,
        activation="relu" if convolutions else activation,
        convolutions=convolutions,
        conv_filters=NATURE,
        scale=scale,
        reward_deviation=deviation,
        spaces=_spaces(model),
    )


def _sac(model: SavedModel, scale: ObsScale | None, deviation: float | None) -> ForeignPolicy:
    """SAC: a policy whose spread is an output, and its critics."""
    tensors = model.tensors
    convolutions, first = _image(model, "actor.features_extractor")
    activation = _activation(model, "ReLU")
    layers = _stack(tensors, "actor.latent_pi")
    if convolutions and layers and activation != "relu":
        raise _activations(model)
    mean, log_std = _layer(tensors, "actor.mu"), _layer(tensors, "actor.log_std")
    output = ForeignLayer(
        np.concatenate([mean.weight, log_std.weight], axis=1), np.concatenate([mean.bias, log_std.bias])
    )
    notes: list[str] = []
    critics: list[list[ForeignLayer]] = []
    targets: list[list[ForeignLayer]] = []
    config: dict[str, Any] = {
        "normalize_rewards": deviation is not None,
        "gamma": _number(model.data.get("gamma"), 0.99),
    }
    if convolutions:
        notes.append("the critics begin anew: they see an action beside an image in another way")
    else:
        critics = [_stack(tensors, f"critic.qf{number}") for number in range(2)]
        targets = [_stack(tensors, f"critic_target.qf{number}") for number in range(2)]
        if not all((*critics, *targets)):
            critics, targets = [], []
            notes.append("the critics begin anew: there are not two of them")
        else:
            config["q_model_config"] = {"fcnet_hiddens": [len(layer.bias) for layer in critics[0][:-1]]}
    alpha = model.variables().get("log_ent_coef")
    return ForeignPolicy(
        library=f"Stable-Baselines3 {model.version}",
        algorithm="SAC",
        run="SAC",
        config=config,
        hidden=[*first, *layers],
        output=output,
        activation="relu" if convolutions else activation,
        convolutions=convolutions,
        conv_filters=NATURE,
        critics=critics,
        targets=targets,
        log_alpha=float(alpha.ravel()[0]) if alpha is not None and alpha.size == 1 else None,
        scale=scale,
        reward_deviation=deviation,
        spaces=_spaces(model),
        notes=notes,
    )


def _image(model: SavedModel, place: str) -> tuple[list[ForeignLayer], list[ForeignLayer]]:
    """The convolutions over an image and the layer after them; none where the policy sees numbers."""
    tensors = model.tensors
    inside = [name for name in tensors if name.startswith(f"{place}.")]
    if not inside:
        return [], []
    nature = {
        f"{place}.{name}.{kind}" for name in ("cnn.0", "cnn.2", "cnn.4", "linear.0") for kind in ("weight", "bias")
    }
    if set(inside) != nature:
        raise ConfigError(
            f"{model.path}: its features are made by {inside[0].removeprefix(place + '.')}, and only the Nature "
            "network of CnnPolicy can be imported"
        )
    found = []
    for name, (channels, kernel, *_) in zip(("cnn.0", "cnn.2", "cnn.4"), NATURE, strict=True):
        weight, bias = tensors[f"{place}.{name}.weight"], tensors[f"{place}.{name}.bias"]
        if weight.ndim != 4 or weight.shape[0] != channels or weight.shape[2:] != (kernel, kernel):
            raise ConfigError(f"{model.path}: its convolutions are not those of the Nature network")
        found.append(ForeignLayer(weight, bias))
    return found, [_layer(tensors, f"{place}.linear.0")]


def _check_shared(model: SavedModel, places: Sequence[str]) -> None:
    """Refuse convolutions that policy and values do not share."""
    for place in places:
        for name, tensor in model.tensors.items():
            if name.startswith(f"{place}."):
                shared = model.tensors.get("features_extractor." + name.removeprefix(f"{place}."))
                if shared is None or not np.array_equal(shared, tensor):
                    raise ConfigError(
                        f"{model.path}: policy and values have convolutions of their own (share_features_extractor="
                        "False), and here they always share them"
                    )


def _stack(tensors: Tensors, place: str) -> list[ForeignLayer]:
    """The linear layers of a Sequential, in their order; the activations between them have no tensors."""
    numbers = sorted(
        int(found[1]) for name in tensors if (found := re.fullmatch(rf"{re.escape(place)}\.(\d{{1,4}})\.weight", name))
    )
    return [_layer(tensors, f"{place}.{number}") for number in numbers]


def _layer(tensors: Tensors, place: str) -> ForeignLayer:
    weight, bias = tensors.get(f"{place}.weight"), tensors.get(f"{place}.bias")
    if weight is None or bias is None or weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise ConfigError(f"policy.pth: {place} is no linear layer with a bias")
    return ForeignLayer(np.ascontiguousarray(weight.T, np.float32), np.asarray(bias, np.float32))


def _activation(model: SavedModel, default: str) -> str:
    """The activation between hidden layers, in our words."""
    settings = model.setting("policy_kwargs")
    given = settings.get("activation_fn") if isinstance(settings, Mapping) else None
    name = default
    if given is not None:
        name = given.name if isinstance(given, type) and issubclass(given, Inert) else str(given)
    if isinstance(settings, Mapping) and settings.get("features_extractor_class") is not None:
        extractor = settings["features_extractor_class"]
        label = getattr(extractor, "name", "")
        if label not in ("NatureCNN", "FlattenExtractor"):
            raise ConfigError(
                f"{model.path}: its features are made by {label or 'a class of its own'}, which is not run"
            )
    if name not in ACTIVATIONS:
        raise ConfigError(f"{model.path}: its layers have the activation {name[:60]}, which is none of shoal's")
    return ACTIVATIONS[name]


def _activations(model: SavedModel) -> ConfigError:
    return ConfigError(
        f"{model.path}: its layers after the convolutions have another activation than ReLU, and here all have one"
    )


def _spaces(model: SavedModel) -> tuple[SpaceFacts, SpaceFacts] | None:
    observations, actions = model.setting("observation_space"), model.setting("action_space")
    if not isinstance(observations, Inert) or not isinstance(actions, Inert):
        return None
    return space_facts(observations), space_facts(actions)


def space_facts(space: Inert) -> SpaceFacts:
    """What a pickled space of Gymnasium says of itself."""
    count, table = space.attribute("n"), space.attribute("nvec")
    choices: tuple[int, ...] | None = None
    if isinstance(count, int | np.integer):
        choices = (int(count),)
    elif isinstance(table, np.ndarray):
        choices = tuple(int(number) for number in table.ravel())
    shape = space.attribute("_shape")
    low, high = space.attribute("low"), space.attribute("high")
    return SpaceFacts(
        space.name,
        tuple(int(side) for side in shape) if isinstance(shape, tuple | list) else None,
        choices,
        low if isinstance(low, np.ndarray) else None,
        high if isinstance(high, np.ndarray) else None,
    )


def _mapping(text: bytes, path: Path) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: its data is no JSON") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: its data is no mapping")
    return data


def _number(value: Any, default: float) -> float:
    """A number, wherever it comes from; the default where it is none."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.ravel()[0]
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not np.isfinite(value):
        return default
    return float(value)
