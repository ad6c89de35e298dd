"""Any PyTorch module behind the `Network` contract: `forward`, `vjp` and `jvp` on one flat parameter vector.

A module takes the tuple of encoded observation parts as tensors and gives outputs `[B, K']` and values `[B]`. It may
have `act(inputs)` and `values(inputs)`, which give one of the two without computing the other. A module with memory has
an `initial_state` and a `step` (see `Network`), and its inputs are those of sequences (see `Inputs`).

Every row must depend on its own observation alone (with memory: on its own sequence up to there), by its parameters
alone: dropout, noise, batch normalisation and buffers that change in `forward` are found and refused, because they
would make acting and learning disagree. Constant buffers are welcome; layer and group normalisation are too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from shoal.envs.env_errors import error_text
from shoal.errors import ConfigError, ShoalError
from shoal.models.network import Array, Inputs

# Observations that come through shared memory are read-only, and a network only reads them.
warnings.filterwarnings("ignore", message="The given NumPy array is not writ", category=UserWarning)
# That a GPU would copy an LSTM's weights to have them in one piece; they lie in our flat vector.
warnings.filterwarnings("ignore", message="RNN module weights are not part", category=UserWarning)
# What torch says about Intel's GPUs whenever oneDNN is switched off or on.
warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN", category=UserWarning)

Tensors = tuple[Tensor, ...]


def set_threads(count: int) -> None:
    """How many threads torch's operations in this process use; small networks are fastest with one."""
    torch.set_num_threads(count)


@dataclass
class TorchTape:
    """What one `forward` keeps: its inputs, and the graph behind its outputs until a last `vjp` has used it."""

    inputs: Tensors
    outputs: Tensor | None
    values: Tensor | None


@dataclass(frozen=True)
class SummaryRow:
    """One row of the summary."""

    name: str
    kind: str
    shape: str
    count: int


class TorchNetwork:
    """Keeps the `Network` contract for a PyTorch module.

    On the CPU the module's parameters lie in `params` itself and their gradients in one flat buffer: nothing is copied.
    The columns of `free_outputs` are no outputs of the module but parameters of their own (a log_std that does not
    depend on the state), which start at 0 and lie at the end of `params`. `example` holds a few observations
    (`[B, ...]`, B > 1) on which the module is tried, so that a wrong shape is found before the first iteration.
    """

    def __init__(
        self,
        module: nn.Module,
        num_outputs: int,
        free_outputs: NDArray[np.int64],
        example: Inputs,
        device: str = "cpu",
        label: str | None = None,
    ) -> None:
        self.num_outputs = num_outputs
        self.label = label or type(module).__name__
        self._free = np.asarray(free_outputs, np.int64)
        self._computed = np.setdiff1d(np.arange(num_outputs), self._free)
        self._device = _usable(device)
        self._in_place = _shares_memory(self._device)
        self.module = module.to(self._device, torch.float32)
        self._layers = _tried(self.module, self._tensors(example), len(self._computed), self.label)
        self._act: Callable[[Tensors], Tensor] = getattr(module, "act", None) or (lambda x: module(x)[0])
        self._values: Callable[[Tensors], Tensor] = getattr(module, "values", None) or (lambda x: module(x)[1])
        self.initial_state: Inputs = getattr(module, "initial_state", ())
        self._step: Callable[[Tensors, Tensors], tuple[Tensor, Tensors]] | None = getattr(module, "step", None)
        self._jvp_context: Callable[[], AbstractContextManager[Any]] = nullcontext

        self._parameters = dict(module.named_parameters())
        self._size = sum(p.numel() for p in self._parameters.values())
        if not any(p.requires_grad for p in self._parameters.values()):
            raise ConfigError(f"{self.label} has no parameters to train; make its layers attributes of the model")
        self.params: Array = np.zeros(self._size + len(self._free), np.float32)
        self._gradient = np.zeros_like(self.params)
        self._flat = self._mirror(self.params)
        self._flat_gradient = self._mirror(self._gradient)
        values, slopes = self._views(self._flat), self._views(self._flat_gradient)
        for parameter, value, slope in zip(self._parameters.values(), values, slopes, strict=True):
            value.copy_(parameter.detach())
            parameter.data = value
            if parameter.requires_grad:
                parameter.grad = slope
        if not self._in_place:
            self.params[: self._size] = self._flat.cpu().numpy()
        self._acting = _Acting(module, self._act)
        tensors = self._tensors(example)
        self._behind_outputs = self._behind(self._act(tensors))
        alone = self._behind(self._values(tensors)) - self._behind_outputs
        flags = [np.full(p.numel(), p in alone) for p in self._parameters.values()]
        self.value_params = np.concatenate([*flags, np.zeros(len(self._free), bool)])

    def sync(self) -> None:
        """See `Network`."""
        if not self._in_place:
            self._flat.copy_(torch.from_numpy(self.params[: self._size]))

    def act(self, inputs: Inputs) -> Array:
        """See `Network`."""
        # No slower than inference_mode, whose tensors a model could not use again in training if it kept them.
        with torch.no_grad():
            return self._with_free(_array(self._act(self._tensors(inputs))), self._free_params)

    def act_with(self, inputs: Inputs, params: Array) -> Array:
        """See `Network`."""
        now = self.params.copy()
        outputs = np.empty((len(params), self.num_outputs), np.float32)
        try:
            for row, own in enumerate(params):
                self.params[:] = own
                self.sync()
                outputs[row] = self.act(tuple(part[row : row + 1] for part in inputs))[0]
        finally:
            self.params[:] = now
            self.sync()
        return outputs

    def act_and_value(self, inputs: Inputs) -> tuple[Array, Array]:
        """Outputs `[B, K]` and values `[B]` in one pass, nothing kept for derivatives."""
        with torch.no_grad():
            outputs, values = self.module(self._tensors(inputs))
            return self._with_free(_array(outputs), self._free_params), _array(values)

    def values(self, inputs: Inputs) -> Array:
        """See `Network`."""
        with torch.no_grad():
            return _array(self._values(self._tensors(inputs)))

    def step(self, inputs: Inputs, state: Inputs) -> tuple[Array, Inputs]:
        """See `Network`."""
        if self._step is None:
            return self.act(inputs), state
        with torch.no_grad():
            outputs, after = self._step(self._tensors(inputs), self._tensors(state))
            return self._with_free(_array(outputs), self._free_params), tuple(map(_array, after))

    def forward(self, inputs: Inputs) -> tuple[Array, Array, TorchTape]:
        """See `Network`."""
        tensors = self._tensors(inputs)
        outputs, values = self.module(tensors)
        return self._with_free(_array(outputs), self._free_params), _array(values), TorchTape(tensors, outputs, values)

    def forward_policy(self, inputs: Inputs) -> tuple[Array, TorchTape]:
        """See `Network`."""
        tensors = self._tensors(inputs)
        outputs = self._act(tensors)
        return self._with_free(_array(outputs), self._free_params), TorchTape(tensors, outputs, None)

    def forward_value(self, inputs: Inputs) -> tuple[Array, TorchTape]:
        """See `Network`."""
        tensors = self._tensors(inputs)
        # What is constant here needs no graph: the convolutions that both heads share are not gone back through.
        with self._constant(self._behind_outputs):
            values = self._values(tensors)
        return _array(values), TorchTape(tensors, None, values)

    def vjp(self, tape: TorchTape, d_outputs: Array | None, d_values: Array | None, again: bool = False) -> Array:
        """See `Network`."""
        self._flat_gradient.zero_()
        self._gradient[self._size :] = 0
        pairs: list[tuple[Tensor, Array]] = []
        if d_outputs is not None:
            assert tape.outputs is not None, "a tape serves one vjp, unless it is to serve again"
            if len(self._free):
                np.sum(d_outputs[:, self._free], axis=0, out=self._gradient[self._size :])
                d_outputs = d_outputs[:, self._computed]
            pairs.append((tape.outputs, d_outputs))
        if d_values is not None:
            assert tape.values is not None, "a tape serves one vjp, unless it is to serve again"
            pairs.append((tape.values, d_values))
        tops: list[Tensor] = []
        slopes: list[Array] = []
        for top, slope in pairs:
            # A model may be without a value function worth the name (zeros, say), and torch refuses what cannot move.
            if top.requires_grad:
                tops.append(top)
                slopes.append(slope)
        if tops:
            torch.autograd.backward(tops, self._tensors(tuple(slopes)), retain_graph=again)
        if not again:
            tape.outputs = tape.values = None
        if not self._in_place:
            self._gradient[: self._size] = self._flat_gradient.cpu().numpy()
        return self._gradient

    def forward_inputs(self, inputs: Inputs) -> tuple[Array, TorchTape]:
        """See `Network`."""
        features, *others = self._tensors(inputs)
        tensors = (features.detach().requires_grad_(), *others)
        with self._constant(self._behind_outputs):
            outputs = self._act(tensors)
        return self._with_free(_array(outputs), self._free_params), TorchTape(tensors, outputs, None)

    def vjp_inputs(self, tape: TorchTape, d_outputs: Array) -> Array:
        """See `Network`."""
        assert tape.outputs is not None, "a tape serves one call"
        if len(self._free):
            d_outputs = d_outputs[:, self._computed]
        (slope,) = self._tensors((d_outputs,))
        (gradient,) = torch.autograd.grad(tape.outputs, tape.inputs[0], slope, materialize_grads=True)
        tape.outputs = None
        return _array(gradient)

    def jvp(self, tape: TorchTape, tangent: Array) -> Array:
        """See `Network`."""
        tangent = np.ascontiguousarray(tangent, np.float32)
        try:
            with self._jvp_context():
                outputs = self._pushed(tape.inputs, tangent)
        except NotImplementedError as error:
            if self._jvp_context is _plain_kernels:
                raise ShoalError(
                    f"{self.label}: an operation has no forward derivative: {error_text(error)}"
                ) from error
            # The fused LSTMs of oneDNN and cuDNN have none, but the plain kernels do.
            self._jvp_context = _plain_kernels
            return self.jvp(tape, tangent)
        return self._with_free(outputs, tangent[self._size :])

    def named_params(self) -> dict[str, Array]:
        """See `Network`; free outputs are called `log_std`."""
        named, offset = {}, 0
        for name, parameter in self._parameters.items():
            named[name] = self.params[offset : offset + parameter.numel()].reshape(tuple(parameter.shape))
            offset += parameter.numel()
        if len(self._free):
            named["log_std"] = self.params[offset:]
        return named

    def summary(self) -> str:
        """See `Network`."""
        rows = [("layer", "kind", "output", "parameters")]
        for layer in self._layers:
            rows.append((layer.name, layer.kind, layer.shape, f"{layer.count:,}"))
        if len(self._free):
            rows.append(("log_std", "free outputs", f"[{len(self._free)}]", f"{len(self._free):,}"))
        rows.append(("total", "", "", f"{len(self.params):,}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"PyTorch {self.label} on {self._device}"]
        for name, kind, shape, count in rows:
            lines.append(f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {shape:<{widths[2]}}  {count:>{widths[3]}}")
        return "\n".join(lines)

    @staticmethod
    @contextmanager
    def _constant(parameters: set[nn.Parameter]) -> Iterator[None]:
        """No graph is kept for these parameters inside."""
        for parameter in parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)

    @property
    def _free_params(self) -> Array:
        return self.params[self._size :]

    def _behind(self, top: Tensor) -> set[nn.Parameter]:
        """The parameters that a tensor depends on, by the graph behind it."""
        if not top.requires_grad:
            return set()
        trained = [p for p in self._parameters.values() if p.requires_grad]
        slopes = torch.autograd.grad(top.sum(), trained, allow_unused=True)
        return {p for p, slope in zip(trained, slopes, strict=True) if slope is not None}

    def _tensors(self, arrays: Inputs) -> Tensors:
        if self._in_place:
            return tuple(map(torch.from_numpy, arrays))
        return tuple(torch.from_numpy(array).to(self._device) for array in arrays)

    def _mirror(self, vector: Array) -> Tensor:
        """Where the module's own part of a flat vector lives."""
        own = torch.from_numpy(vector[: self._size])
        if self._in_place:
            return own
        return own.to(self._device, copy=True)

    def _views(self, flat: Tensor) -> list[Tensor]:
        parameters = self._parameters.values()
        pieces = torch.split(flat, [p.numel() for p in parameters])
        return [piece.view(p.shape) for piece, p in zip(pieces, parameters, strict=True)]

    def _with_free(self, computed: Array, free: Array) -> Array:
        if not len(self._free):
            return computed
        out = np.empty((len(computed), self.num_outputs), np.float32)
        out[:, self._computed] = computed
        out[:, self._free] = free
        return out

    def _pushed(self, inputs: Tensors, tangent: Array) -> Array:
        directions = self._views(torch.from_numpy(tangent[: self._size]).to(self._device))
        with torch.no_grad(), forward_ad.dual_level():
            moving: dict[str, Tensor] = {}
            for (name, parameter), direction in zip(self._parameters.items(), directions, strict=True):
                moving[f"module.{name}"] = parameter
                if parameter.requires_grad:
                    moving[f"module.{name}"] = forward_ad.make_dual(parameter.detach(), direction)  # type: ignore[no-untyped-call]
            return _slope(functional_call(self._acting, moving, (inputs,)))


class _Acting(nn.Module):
    """A module's outputs alone, as a module whose parameters can be replaced by moving ones."""

    def __init__(self, module: nn.Module, act: Callable[[Tensors], Tensor]) -> None:
        super().__init__()
        self.module = module
        self._act = act

    def forward(self, inputs: Tensors) -> Tensor:
        return self._act(inputs)


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array


def _slope(top: Tensor) -> Array:
    """How a tensor moves along the direction; what depends on no parameter stands still."""
    slope: Tensor | None = forward_ad.unpack_dual(top).tangent  # type: ignore[no-untyped-call]
    if slope is None:
        slope = torch.zeros_like(top)
    return _array(slope)


@contextmanager
def _plain_kernels() -> Iterator[None]:
    with torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False):
        yield


def _shares_memory(device: torch.device) -> bool:
    return device.type == "cpu"


def _usable(device: str) -> torch.device:
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"num_gpus: PyTorch cannot use {device!r} here ({error}); set num_gpus: 0") from error
    return torch.device(device)


def _tried(module: nn.Module, example: Tensors, width: int, label: str) -> list[SummaryRow]:
    """Run the module on a few observations, refuse what cannot be trained, and note what its layers put out."""
    seen: dict[str, str] = {}
    batch = len(example[0])

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def note(_module: nn.Module, _args: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, Tensor):
                seen.setdefault(name, _shape(first, batch))

        return note

    hooks = [child.register_forward_hook(hook(name)) for name, child in module.named_modules() if name]
    before = [part.clone() for part in example]
    try:
        with torch.no_grad():
            outputs, values = _called(module, example, label)
            _check_shapes(outputs, values, batch, width, label)
            outputs, values = outputs.clone(), values.clone()
            buffers = [buffer.clone() for buffer in module.buffers()]
            again = _called(module, example, label)
            alone = _called(module, tuple(part[:1] for part in example), label)
            whole: Tensors = ()
            cut: Tensors = ()
            if getattr(module, "initial_state", ()):
                whole, cut = _whole_and_cut(module, example, width, label)
    finally:
        for handle in hooks:
            handle.remove()
    if not all(map(torch.equal, example, before)):
        raise ConfigError(f"{label} changes its observations in place; write x = x * 2, not x *= 2")
    what = ""
    if not all(map(torch.equal, buffers, module.buffers())):
        what = "keeps statistics in buffers"
    elif not all(map(_close, (outputs, values), again)):
        what = "is random"
    elif not all(map(_close, (outputs[:1], values[:1]), alone)):
        what = "mixes observations of a batch"
    if what:
        raise ConfigError(
            f"{label} {what}{_suspects(module)}; acting and learning would disagree: "
            "leave out dropout, noise and batch normalisation (LayerNorm and GroupNorm are fine)"
        )
    if not all(map(_close, whole, cut)):
        raise ConfigError(
            f"{label} gives other outputs or values for a sequence in one call than for its steps one by one; "
            "lay the rows out as [len(seq_lens), -1, ...], begin with the given state, and return the state at the end"
        )
    return _layers(module, seen)


def _whole_and_cut(module: Any, example: Tensors, width: int, label: str) -> tuple[Tensors, Tensors]:
    """Outputs and values of two unequal sequences in one piece, and those of their steps one by one."""
    count = len(module.initial_state)
    parts = example[: -count - 1]
    state = tuple(part[:2] for part in example[-count - 1 : -1])
    steps = len(example[0])
    lengths = torch.tensor([steps, steps - 1], device=example[0].device)
    rows = [torch.cat([part, part[:-1]]) for part in parts]
    whole = _called(module, (*rows, *state, lengths), label)
    _check_shapes(*whole, 2 * steps - 1, width, label)
    outputs, values = [], []
    for step in range(steps):
        both = tuple(part[[step, step]] for part in parts)
        found = _called(module, (*both, *state, torch.ones_like(lengths)), label)
        outputs.append(found[0])
        values.append(found[1])
        _, state = module.step(both, state)
    return whole, (_one_after_another(outputs), _one_after_another(values))


def _one_after_another(steps: list[Tensor]) -> Tensor:
    """The rows of two sequences, of which the second is one step shorter, from those of their steps."""
    return torch.stack(steps, dim=1).flatten(0, 1)[:-1]


def _called(module: nn.Module, inputs: Tensors, label: str) -> tuple[Any, Any]:
    try:
        outputs, values = module(inputs)
    except ShoalError:
        raise
    except Exception as error:
        raise ConfigError(f"{label} fails on {len(inputs[0])} observations: {error_text(error)}") from error
    return outputs, values


def _check_shapes(outputs: Any, values: Any, batch: int, width: int, label: str) -> None:
    problems = []
    for what, got, expected in (("outputs", outputs, (batch, width)), ("values", values, (batch,))):
        if not isinstance(got, Tensor):
            problems.append(f"{label}: expected {what} as a tensor, got {type(got).__name__}")
        elif tuple(got.shape) != expected:
            wanted = "[B]" if what == "values" else f"[B, {width}]"
            problems.append(f"{label}: expected {what} {wanted}, got {_shape(got, batch)}")
        elif got.dtype != torch.float32:
            problems.append(f"{label}: expected {what} in float32, got {str(got.dtype).removeprefix('torch.')}")
        elif not got.isfinite().all():
            problems.append(f"{label}: {what} of plain observations are not finite (NaN or infinity)")
    if problems:
        raise ConfigError(problems)


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def _shape(tensor: Tensor, batch: int) -> str:
    sizes = list(map(str, tensor.shape))
    if sizes and tensor.shape[0] == batch:
        sizes[0] = "B"
    return f"[{', '.join(sizes)}]"


def _suspects(module: nn.Module) -> str:
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
    names = [f"{name} ({type(child).__name__})" for name, child in module.named_modules() if isinstance(child, kinds)]
    if not names:
        return ""
    return f" in {', '.join(names)}"


def _layers(module: nn.Module, shapes: dict[str, str]) -> list[SummaryRow]:
    """Every part of the module that computes by itself or owns parameters; shared parameters count once."""
    layers: list[SummaryRow] = []
    counted: set[int] = set()
    for name, child in module.named_modules():
        own = [p for p in child.parameters(recurse=False) if id(p) not in counted]
        counted.update(id(p) for p in own)
        is_leaf = name in shapes and next(child.children(), None) is None
        if own or is_leaf:
            kind = type(child).__name__
            shape = shapes.get(name, "-")
            if name not in shapes and isinstance(child, nn.Linear):
                # A layer whose weights are used without calling it leaves no shape.
                shape = f"[B, {child.out_features}]"
            layers.append(SummaryRow(name or kind, kind, shape, sum(p.numel() for p in own)))
    return layers
