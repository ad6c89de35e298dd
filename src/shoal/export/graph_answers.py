"""What a graph of tensors answers: an ONNX model or a TorchScript module, by the names of its inputs and outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.export.made import Request
from shoal.export.plan import action_fields, obs_fields
from shoal.export.proof import Answers
from shoal.export.tensor_names import action_names, obs_tensors

Run = Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]
"""Outputs by name, of inputs by name."""


def asked_by_name(request: Request, run: Run, state_shapes: Mapping[str, tuple[int, ...]]) -> Answers:
    """What a graph answers whose memory goes in by a name and comes out as `next_NAME`, one observation at a time."""
    asked, policy = request.asked, request.subject.policy
    fields, actions = obs_fields(policy.obs_spec), action_fields(policy.action_spec)
    tensors, names = obs_tensors(fields, asked), action_names(fields, actions)
    sees_reward = policy.recurrence is not None and policy.recurrence.previous.with_reward
    begun = {name: np.zeros((1, *shape), np.float32) for name, shape in state_shapes.items()}
    state, rows, outputs = begun, [], []
    begin = time.process_time()
    for row in range(len(asked)):
        if asked.begins[row]:
            state = begun
        inputs = {field.name: tensor[row : row + 1] for field, tensor in zip(fields, tensors, strict=True)}
        if sees_reward:
            inputs["reward"] = asked.rewards[row : row + 1]
        found = run({**inputs, **state})
        state = {name: found[f"next_{name}"] for name in begun}
        rows.append(np.concatenate([np.asarray(found[name], np.float64).reshape(-1) for name in names]))
        outputs.append(found["outputs"][0])
    seconds = time.process_time() - begin
    return Answers(np.stack(rows), np.stack(outputs), 1e6 * seconds / len(asked))
