"""`--format onnx`: a graph by hand where the policy has a plan, by PyTorch's exporter where it has none."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError
from shoal.export.graph_answers import Run, asked_by_name
from shoal.export.made import Made, Request
from shoal.export.plan import not_in_a_plan, refusal


def make_onnx(request: Request) -> Made:
    """An ONNX model."""
    if find_spec("onnx") is None:
        raise ConfigError("--format onnx needs onnx, which is not installed; type: pip install 'shoal-rl[onnx]'")
    policy, model = request.subject.policy, request.subject.model
    file = request.folder / f"{request.name}.onnx"
    notes: dict[str, Any] = {}
    if not_in_a_plan(policy, model) is None:
        import onnx

        from shoal.export.onnx_graph import onnx_model, state_shapes

        plan = request.subject.plan("onnx")
        onnx.save(onnx_model(plan, request.subject.title), file)
        shapes = state_shapes(plan)
    elif model.custom_action_dist is not None:
        raise refusal("onnx", "a custom action distribution", "hub")
    else:
        from shoal.export.torch_module import write_onnx

        shapes, notes = write_onnx(request, file)
    run, runtime = _runtime(file)
    return Made([file], asked_by_name(request, run, shapes), runtime, notes=notes)


def _runtime(file: Path) -> tuple[Run, str]:
    """What runs the model here: onnxruntime, or else the slow evaluator that comes with onnx."""
    if find_spec("onnxruntime") is not None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return lambda given: dict(zip(names, session.run(names, dict(given)), strict=True)), (
            f"onnxruntime {onnxruntime.__version__}"
        )
    import onnx
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(file))
    return lambda given: dict(zip(evaluator.output_names, evaluator.run(None, dict(given)), strict=True)), (
        f"onnx {onnx.__version__}"
    )
