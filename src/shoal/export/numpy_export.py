"""`--format numpy`: one Python file, asked as a program would use it."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np

from shoal.export.made import Made, Request
from shoal.export.numpy_file import numpy_source
from shoal.export.plan import Plan
from shoal.export.proof import Answers


def make_numpy(request: Request) -> Made:
    """A Python file."""
    plan = request.subject.plan("numpy")
    file = write_numpy(request, plan, f"{request.name}.py")
    return Made([file], asked_numpy(request, plan, file), f"NumPy {np.__version__}")


def write_numpy(request: Request, plan: Plan, name: str) -> Path:
    """Write the file."""
    file = request.folder / name
    file.write_text(numpy_source(plan, request.subject.policy, request.subject.title))
    return file


def asked_numpy(request: Request, plan: Plan, file: Path) -> Answers:
    """What the file's policy answers."""
    spec = importlib.util.spec_from_file_location("shoal_exported_policy", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    exported: Any = module.Policy()
    asked, obs_spec = request.asked, request.subject.policy.obs_spec
    observations = [obs_spec.get(asked.parts, row) for row in range(len(asked))]
    actions, outputs = np.zeros((len(asked), plan.num_action)), []
    begin = time.process_time()
    for row, obs in enumerate(observations):
        if asked.begins[row]:
            exported.reset()
        action = exported.act(obs, float(asked.rewards[row]))
        for field in plan.actions:
            value = action
            for key in field.path:
                value = value[key]
            actions[row, field.offset : field.offset + field.size] = np.asarray(value).reshape(-1)
        outputs.append(exported.outputs)
    seconds = time.process_time() - begin
    return Answers(actions, np.stack(outputs).astype(np.float32), 1e6 * seconds / len(asked))
