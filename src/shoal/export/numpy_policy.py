"""A trained policy that needs NumPy alone; `shoal export --format numpy` has written it.

    policy = NumpyPolicy()
    action = policy.act(obs)     # both as the environment has them
    policy.reset()               # where an episode begins, if the policy has memory

It takes the likeliest action. `policy.outputs` is what the network put out last: logits, values, or means.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np

PLAN = ""


class NumpyPolicy:
    """Observations in, actions out."""

    def __init__(self) -> None:
        self.plan: dict[str, Any] = _with_arrays(json.loads(PLAN))
        self.outputs: Any = None
        self.reset()

    def reset(self) -> None:
        """Forget the episode before."""
        cell = self.plan["cell"]
        size = cell["size"] if cell else 0
        self.hidden, self.memory = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self.before = np.zeros(self.plan["previous_size"], np.float32)
        self.is_begun = False

    def act(self, obs: Any, reward: float | None = None) -> Any:
        """The action for an observation; a ValueError refuses what is none, and the memory stays as it was.

        `reward` is what followed the last action. A policy that was trained to see it needs it, but for the first
        action of an episode.
        """
        plan, row = self.plan, self._row(obs)
        if plan["mask"]:
            self._check_mask(plan["mask"], row)
        if plan["sees_reward"]:
            self.before[-1] = self._reward(reward)
        features = []
        if plan["encoding"]:
            features.append(_encoded(plan["encoding"], row))
        for image in plan["images"]:
            features.append(_seen(image, row))
        x = np.concatenate([*features, self.before])
        for layer in plan["layers"]:
            x = _dense(layer, x)
        if plan["cell"]:
            x = self._remembered(plan["cell"], x)
        self.outputs = _dense(plan["head"], x)
        if plan["mask"]:
            self._rule_out(plan["mask"], row)
        self.is_begun = True
        return self._action()

    def _reward(self, reward: float | None) -> float:
        """The reward before this step, which is nothing where an episode begins."""
        if reward is None:
            if self.is_begun:
                raise ValueError("the policy sees the last reward: type act(obs, reward), or reset() for a new episode")
            return 0.0
        number = float(reward)
        if not abs(number) <= float(np.finfo(np.float32).max):
            raise ValueError(f"the reward is not finite (got {number})")
        return number

    def _row(self, obs: Any) -> Any:
        """All numbers of an observation, one leaf after another."""
        parts = []
        for field in self.plan["fields"]:
            value = obs
            for key in field["path"]:
                value = value[key]
            array = np.asarray(value, np.float64)
            if list(array.shape) != field["shape"]:
                raise ValueError(f"{field['name']} has shape {array.shape}, it must be {tuple(field['shape'])}")
            parts.append(array.reshape(-1))
        row = np.concatenate(parts)
        if not (np.abs(row) <= np.finfo(np.float32).max).all():
            raise ValueError("the observation is not finite")
        return row

    def _remembered(self, cell: dict[str, Any], x: Any) -> Any:
        """What an LSTM or a GRU makes of features, and of what it remembers."""
        by_x = x @ cell["weight_x"] + cell["bias_x"]
        by_h = self.hidden @ cell["weight_h"] + cell["bias_h"]
        if cell["kind"] == "lstm":
            i, f, g, o = np.split(by_x + by_h, 4)
            self.memory = _sigmoid(f) * self.memory + _sigmoid(i) * np.tanh(g)
            self.hidden = _sigmoid(o) * np.tanh(self.memory)
            return self.hidden
        (r_x, z_x, n_x), (r_h, z_h, n_h) = np.split(by_x, 3), np.split(by_h, 3)
        z = _sigmoid(z_x + z_h)
        self.hidden = (1 - z) * np.tanh(n_x + _sigmoid(r_x + r_h) * n_h) + z * self.hidden
        return self.hidden

    def _check_mask(self, mask: dict[str, Any], row: Any) -> None:
        """Refuse a mask that allows nothing."""
        allowed, begin = row[mask["source"]] != 0, 0
        for count in mask["counts"]:
            if not allowed[begin : begin + count].any():
                raise ValueError("action_mask allows no action")
            begin += count

    def _rule_out(self, mask: dict[str, Any], row: Any) -> None:
        """Give outputs that the mask rules out a value that is never the largest."""
        allowed, outputs = row[mask["source"]] != 0, mask["outputs"]
        self.outputs[outputs] = np.where(allowed, self.outputs[outputs], np.float32(-1e30))

    def _action(self) -> Any:
        """The likeliest action, in the environment's structure and units; it is noted for the next step."""
        values, noted = [], []
        for field in self.plan["actions"]:
            numbers, seen = _numbers(field, self.outputs[field["output"] :])
            noted.append(seen)
            shaped = numbers.astype(field["dtype"]).reshape(field["shape"])
            values.append(int(shaped) if field["is_int"] else shaped)
        if self.plan["sees_action"]:
            features = np.concatenate(noted)
            self.before[: len(features)] = features
        return _nested(self.plan["action_tree"], iter(values))


def _numbers(field: dict[str, Any], outputs: Any) -> tuple[Any, Any]:
    """The numbers of one leaf of an action, and the features that a later step sees of them."""
    if field["kind"] == "categorical":
        picked, seen, begin = [], [], 0
        for count in field["choices"]:
            picked.append(int(outputs[begin : begin + count].argmax()))
            seen.append(np.arange(count) == picked[-1])
            begin += count
        return np.array(picked, np.int64) + field["first"], np.concatenate(seen)
    size = len(field["scale"])
    if field["kind"] == "bernoulli":
        bits = outputs[:size] > 0
        return bits, bits
    row = np.where(field["squashed"], np.tanh(outputs[:size]), outputs[:size])
    numbers = row * field["scale"] + field["middle"]
    if np.issubdtype(np.dtype(field["dtype"]), np.integer):
        numbers = np.rint(numbers)
    else:
        numbers = numbers.astype(field["dtype"])
    numbers = np.clip(numbers.astype(np.float64), field["low"], field["high"])
    scale = np.where(field["scale"], field["scale"], 1)
    return numbers, (numbers - field["middle"]) / scale


def _encoded(encoding: dict[str, Any], row: Any) -> Any:
    """Features of the numbers: scaled, filtered, and choices as indicators or binary digits."""
    raw = (row[encoding["source"]] - encoding["first"]).astype(np.float32)
    x = raw
    if encoding["scale"] is not None:
        x = x * encoding["scale"] + encoding["shift"]
    if encoding["filter_shift"] is not None:
        x = (x - encoding["filter_shift"]) * encoding["filter_scale"]
        x = np.clip(x, -encoding["filter_limit"], encoding["filter_limit"])
    features = [x[encoding["plain"]]]
    for column, count, width, is_indicator in encoding["choices"]:
        value = min(max(int(raw[column]), 0), count - 1)
        bits = np.arange(width) == value if is_indicator else (value >> np.arange(width)) & 1
        features.append(bits.astype(np.float32))
    return np.concatenate(features)


def _seen(image: dict[str, Any], row: Any) -> Any:
    """Features of an image."""
    (channels, height, width), (c, y, x) = image["sides"], image["axes"]
    offset = image["field"]["offset"]
    places = np.arange(channels)[:, None, None] * c + np.arange(height)[:, None] * y + np.arange(width) * x
    pixels = (row[offset + places].astype(np.float32) - np.float32(image["least"])) * np.float32(image["factor"])
    for layer in image["layers"]:
        left, right, top, bottom = layer["padding"]
        padded = np.pad(pixels, ((0, 0), (top, bottom), (left, right)))
        kernel = layer["weight"].shape[2:]
        windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(1, 2))
        windows = windows[:, :: layer["stride"][0], :: layer["stride"][1]]
        pixels = np.tensordot(layer["weight"], windows, ([1, 2, 3], [0, 3, 4])) + layer["bias"][:, None, None]
        pixels = ACTIVATIONS[layer["activation"]](pixels)
    return pixels.reshape(-1)


def _dense(layer: dict[str, Any], x: Any) -> Any:
    x = x @ layer["weight"] + layer["bias"]
    if layer["layer_norm"]:
        x = x - x.mean()
        x = x / np.sqrt(np.mean(x * x) + np.float32(1e-5))
    return ACTIVATIONS[layer["activation"]](x)


def _sigmoid(x: Any) -> Any:
    return np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x))


def _gelu(x: Any) -> Any:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "leaky_relu": lambda x: np.maximum(x, np.float32(0.01) * x),
    "gelu": _gelu,
    "softplus": lambda x: np.logaddexp(x, np.float32(0)),
}


def _with_arrays(tree: Any) -> Any:
    """A tree in which arrays are arrays again."""
    if isinstance(tree, list):
        return [_with_arrays(child) for child in tree]
    if not isinstance(tree, dict):
        return tree
    if "base64" in tree:
        numbers = np.frombuffer(base64.b64decode(tree["base64"]), tree["dtype"])
        return numbers.reshape(tree["shape"])
    return {key: _with_arrays(child) for key, child in tree.items()}


def _nested(tree: Any, values: Any) -> Any:
    """The leaves of an action in its own structure: `None` in the tree stands for the next of them."""
    if isinstance(tree, dict):
        return {key: _nested(child, values) for key, child in tree.items()}
    if isinstance(tree, list):
        return tuple(_nested(child, values) for child in tree)
    return next(values)
