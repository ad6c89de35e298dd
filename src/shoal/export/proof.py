"""The proof of an export: the same observations to it and to the policy, and how far apart their answers are."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.data.batch import Parts
from shoal.envs.observations import ObsLeaf, ObsSpec
from shoal.envs.spaces import nest
from shoal.export.plan import ActionField, ObsField, action_fields
from shoal.models.masked import allowed_of
from shoal.models.policy import Policy

BOUND = 1e-4  # the largest difference that rounding explains
NUM_OBSERVATIONS = 1000
EPISODE = 50  # steps after which the memory is reset
WIDEST = 1e4  # bounds further out than this are no place to draw observations from


@dataclass(frozen=True)
class Questions:
    """Observations that an export is asked about, one after another."""

    parts: Parts  # as the policy stores them
    rows: NDArray[np.float64]  # [N, num_obs], as the environment gives them, flat
    rewards: NDArray[np.float32]  # [N], of the step before
    begins: NDArray[np.bool_]  # [N], where an episode begins

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Answers:
    """What an export said, and how long it took for one observation."""

    actions: NDArray[np.float64]  # [N, num_action], as the environment takes them, flat
    outputs: NDArray[np.float32] | None  # [N, K], of the network; None where the format does not tell
    microseconds: float


def questions(policy: Policy, fields: tuple[ObsField, ...], count: int = NUM_OBSERVATIONS) -> Questions:
    """Observations from all over the space; where there is a filter, from around what was seen in training."""
    rng = np.random.default_rng(19)
    spec = policy.obs_spec
    parts = _drawn(spec, count, rng)
    if policy.filter is not None and spec.vector_size:
        _draw_as_seen(policy, parts[0], rng)
    rows = np.zeros((count, sum(field.size for field in fields)))
    for leaf, field in zip(spec.leaves, fields, strict=True):
        numbers = parts[leaf.part] if leaf.columns is None else parts[leaf.part][:, leaf.columns]
        numbers = numbers.reshape(count, -1).astype(np.float64)
        if leaf.first is not None:
            numbers = numbers + leaf.first
        rows[:, field.offset : field.offset + field.size] = numbers
    begins = np.arange(count) % EPISODE == 0
    rewards = np.where(begins, 0, rng.normal(size=count)).astype(np.float32)
    return Questions(parts, rows, rewards, begins)


def largest_difference(policy: Policy, asked: Questions, answers: Answers) -> float:
    """How far answers are from the policy's own, as a share of each number's range; infinite where they are none.

    A choice that is not the policy's counts by how much worse the policy finds it: where two are equally good, rounding
    decides. A policy with memory is told what the export did before.
    """
    fields = action_fields(policy.action_spec)
    outputs = _own_outputs(policy, asked, answers, fields)
    worst = 0.0
    if answers.outputs is not None:
        worst = _most(np.abs(answers.outputs - outputs) / _size(outputs))
    own = policy.action_spec.decoded(policy.distribution.mode(outputs))
    for field, expected in zip(fields, own, strict=True):
        given = answers.actions[:, field.offset : field.offset + field.size]
        worst = max(worst, _most(_apart(field, given, expected.astype(np.float64), outputs)))
    return worst


def _own_outputs(
    policy: Policy, asked: Questions, answers: Answers, fields: tuple[ActionField, ...]
) -> NDArray[np.float32]:
    """What the policy's network puts out for each observation."""
    inputs = policy.encoder(asked.parts)
    recurrence = policy.recurrence
    if recurrence is None:
        return policy.network.act(inputs).copy()
    previous, found = recurrence.previous, []
    state = recurrence.stacked([policy.get_initial_state()])
    for row in range(len(asked)):
        action: Any = None
        reward: Any = None
        if asked.begins[row]:
            state = recurrence.stacked([policy.get_initial_state()])
        elif previous.with_action:
            action = structured(policy, fields, answers.actions[row - 1])
        if previous.with_reward:
            reward = float(asked.rewards[row])
        before = previous.from_env([action], [reward])
        outputs, state = recurrence.step((*(part[row : row + 1] for part in inputs), before), state)
        found.append(outputs[0].copy())
    return np.stack(found)


def structured(policy: Policy, fields: tuple[ActionField, ...], row: NDArray[np.float64]) -> Any:
    """An action in the environment's structure, of its flat row."""
    values = {}
    for field in fields:
        numbers = row[field.offset : field.offset + field.size].astype(field.dtype).reshape(field.shape)
        values[field.path] = int(numbers) if field.is_int else numbers
    return nest(policy.action_spec.space, values)


def _apart(
    field: ActionField, given: NDArray[np.float64], expected: NDArray[np.float64], outputs: NDArray[np.float32]
) -> NDArray[np.float64]:
    """How far each number `[N, size]` of an action is from the policy's own."""
    if field.kind == "gaussian":
        reach = np.abs(given - expected)
        if field.is_integer:  # half a step either way is rounding's own
            numbers = outputs[:, field.output : field.output + field.size]
            numbers = np.where(field.squashed, np.tanh(numbers), numbers) * field.scale + field.middle
            unrounded = np.clip(numbers.astype(np.float64), field.low, field.high)
            reach = np.where(given == expected, 0, np.maximum(np.abs(given - unrounded) - 0.5, 0))
            reach = np.where(given == np.rint(given), reach, np.inf)
        return reach / np.maximum(np.abs(expected), np.maximum(np.abs(field.scale), 1e-30))
    apart = np.where(given == expected, 0.0, np.inf)
    output, sizes = field.output, _size(outputs)
    for number in range(field.size):
        wrong = given[:, number] != expected[:, number]
        if field.kind == "bernoulli":
            is_bit = np.isin(given[:, number], (0, 1))
            apart[wrong & is_bit, number] = np.abs(outputs / sizes)[wrong & is_bit, output + number]
            continue
        count, first = field.choices[number], int(field.first[number])
        for row in np.flatnonzero(wrong):
            values = outputs[row, output : output + count].astype(np.float64)
            picked = given[row, number] - first
            if picked in range(count):
                apart[row, number] = (values.max() - values[int(picked)]) / sizes[row, 0]
        output += count
    return apart


def _size(outputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """How large the outputs `[N, K]` of each observation are, `[N, 1]`, without those that a mask rules out."""
    sizes = np.where(allowed_of(outputs), np.abs(outputs), 0).max(axis=1, keepdims=True)
    return np.asarray(np.maximum(sizes, np.float32(1)))


def _most(numbers: NDArray[Any]) -> float:
    """The largest, and infinity where one is no number."""
    return float(np.max(np.nan_to_num(numbers, nan=np.inf, posinf=np.inf), initial=0.0))


def _drawn(spec: ObsSpec, count: int, rng: np.random.Generator) -> Parts:
    """`count` observations of a space, as they are stored."""
    parts = spec.allocate(count)
    for leaf in spec.leaves:
        if leaf.kind == "mask":
            continue
        if leaf.items is not None:
            parts[leaf.part][:] = _drawn_items(leaf, count, rng)
            continue
        numbers = _numbers(leaf, count, rng)
        if leaf.columns is None:
            parts[leaf.part][:] = numbers.reshape(parts[leaf.part].shape)
        else:
            parts[leaf.part][:, leaf.columns] = numbers
    if spec.mask is not None:
        parts[-1][:] = rng.random(parts[-1].shape) < 0.6
        for start, (_, values) in zip(spec.mask.starts.tolist(), spec.mask.choices, strict=True):
            parts[-1][np.arange(count), start + rng.integers(values, size=count)] = True
    return parts


def _numbers(leaf: ObsLeaf, count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Numbers `[count, size]` of a leaf."""
    size = prod(leaf.shape)
    if leaf.choices is not None:
        return rng.integers(0, np.broadcast_to(leaf.choices, (count, size)))
    assert isinstance(leaf.space, spaces.Box)
    low, high = leaf.space.low.reshape(-1).astype(np.float64), leaf.space.high.reshape(-1).astype(np.float64)
    near = (low >= -WIDEST) & (high <= WIDEST)
    anywhere = rng.uniform(np.where(near, low, 0), np.where(near, high, 1), (count, size))
    numbers = np.where(near, anywhere, np.clip(3 * rng.normal(size=(count, size)), low, high))
    if np.issubdtype(leaf.space.dtype or np.float32, np.integer):
        numbers = np.rint(numbers)
    return numbers


def _drawn_items(leaf: ObsLeaf, count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Packed sequences `[count, max_len, 1 + R]`, from empty to full ones."""
    assert leaf.items is not None
    longest = leaf.items.max_len
    numbers = _drawn(leaf.items.spec, count * longest, rng)[0].reshape(count, longest, -1)
    present = np.arange(longest) < rng.integers(0, longest + 1, (count, 1))
    return np.concatenate([present[:, :, None], numbers * present[:, :, None]], axis=2, dtype=np.float32)


def _draw_as_seen(policy: Policy, vector: NDArray[np.float32], rng: np.random.Generator) -> None:
    """Draw what the filter measures from around its mean, three deviations wide; integers stay as they are."""
    seen = policy.filter
    assert seen is not None
    free = seen.measured.copy()
    if policy.encoder.scale is not None:
        free &= policy.encoder.scale == 1
    around = seen.mean + 3 * rng.normal(size=vector.shape) / seen.scale
    vector[:, free] = around[:, free]
