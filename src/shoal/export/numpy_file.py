"""A plan as one Python file that needs NumPy alone: `numpy_policy.py` with the arrays in it."""

from __future__ import annotations

import base64
import dataclasses
import inspect
import json
from typing import Any

import numpy as np

from shoal.envs.spaces import nest
from shoal.export import numpy_policy
from shoal.export.plan import Plan
from shoal.models.policy import Policy

WIDTH = 110  # of a line of numbers


def numpy_source(plan: Plan, policy: Policy, title: str) -> str:
    """The text of the file."""
    tree = _tree(plan)
    tree["previous_size"] = plan.previous_size
    tree["action_tree"] = nest(policy.action_spec.space, {leaf.path: None for leaf in policy.action_spec.leaves})
    text = json.dumps(tree)
    lines = [f"    {text[begin : begin + WIDTH]!r}\n" for begin in range(0, len(text), WIDTH)]
    source = inspect.getsource(numpy_policy).replace("NumpyPolicy", "Policy")
    source = source.replace('PLAN = ""\n', f"PLAN = (\n{''.join(lines)})\n", 1)
    return source.replace('"""A trained policy', f'"""{title}: a trained policy', 1)


def _tree(value: Any) -> Any:
    """A plan as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.name != "space"]
        return {name: _tree(getattr(value, name)) for name in names}
    if isinstance(value, tuple | list):
        return [_tree(child) for child in value]
    if isinstance(value, np.ndarray):
        little = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"))
        coded = base64.b64encode(little.tobytes()).decode()
        return {"base64": coded, "dtype": little.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.dtype):
        return value.str
    return value
