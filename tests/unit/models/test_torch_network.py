"""The PyTorch backend keeps the network contract: derivatives, live parameters, free outputs, refusals."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from shoal.config.model import ModelConfig
from shoal.envs.observations import ObsSpec
from shoal.envs.repeated import Repeated
from shoal.envs.spaces import ActionSpec
from shoal.errors import ConfigError
from shoal.models import torch_network
from shoal.models.encoder import Encoder
from shoal.models.mlp import ACTIVATIONS, MLP
from shoal.models.torch_build import build_torch_network
from shoal.models.torch_models import FullyConnectedNetwork, TorchModelV2
from shoal.models.torch_network import TorchNetwork

NONE = np.zeros(0, np.int64)


class Delegating(TorchModelV2):
    def __init__(self, *args):
        super().__init__(*args)
        self.model = FullyConnectedNetwork(*args)

    def forward(self, input_dict, state, seq_lens):
        return self.model.forward(input_dict, state, seq_lens)

    def value_function(self):
        return self.model.value_function()


class Memory(nn.Module):
    """An LSTM over the features as a sequence: its fused kernel has no forward derivative."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 5, batch_first=True)
        self.policy, self.value = nn.Linear(5, 3), nn.Linear(5, 1)

    def forward(self, inputs):
        x = self.lstm(inputs[0].unsqueeze(2))[0][:, -1]
        return self.policy(x), self.value(x).squeeze(1)


def build(vector_size=4, images=(), num_outputs=3, free=NONE, seed=0, **model):
    obs_space = spaces.Tuple([spaces.Box(-1, 1, (vector_size,)), *(spaces.Box(0, 255, s, np.uint8) for s in images)])
    encoder = Encoder(ObsSpec(obs_space))
    config, action_space = ModelConfig(**model), spaces.Discrete(num_outputs)
    return build_torch_network(encoder, num_outputs, free, config, action_space, seed)


def inputs_for(vector_size=4, images=(), batch=7, seed=1):
    rng = np.random.default_rng(seed)
    vector = rng.standard_normal((batch, vector_size)).astype(np.float32)
    return (vector, *(rng.integers(0, 256, (batch, *shape), np.uint8) for shape in images))


UNITS = spaces.Dict(me=spaces.Box(-1, 1, (2,)), units=Repeated(spaces.Box(-1, 1, (3,)), 4))
OFFERS = spaces.Dict(me=spaces.Box(-1, 1, (2,)), avail_actions=spaces.Box(-1, 1, (3, 2)))


def varying(space, **model):
    """A network for observations of varying size, and some of them, the first without any item."""
    spec = ObsSpec(space, actions=ActionSpec(spaces.Discrete(3)))
    encoder, rows = Encoder(spec), spec.allocate(7)
    space.seed(4)
    for index in range(7):
        obs = space.sample()
        spec.put({**obs, "units": obs.get("units", ())[: index and None]}, rows, index)
    network = build_torch_network(encoder, 3, NONE, ModelConfig(**model), spaces.Discrete(3), 0)
    return network, encoder(rows)


NETWORKS = {
    "mlp": lambda: (build(), inputs_for()),
    "mlp shared": lambda: (build(vf_share_layers=True), inputs_for()),
    "linear": lambda: (build(fcnet_hiddens=[]), inputs_for()),
    "free": lambda: (build(num_outputs=4, free=np.array([1, 3])), inputs_for()),
    "vision": lambda: (build(2, ((20, 17, 3),)), inputs_for(2, ((20, 17, 3),))),
    "vision shared": lambda: (build(2, ((20, 17, 3),), vf_share_layers=True), inputs_for(2, ((20, 17, 3),))),
    "custom": lambda: (build(custom_model=Delegating), inputs_for()),
    "custom shared": lambda: (build(custom_model=Delegating, vf_share_layers=True), inputs_for()),
    "memory": lambda: (TorchNetwork(Memory(), 3, NONE, inputs_for()), inputs_for()),
    "mean of items": lambda: varying(UNITS, sequence_pooling="mean"),
    "maximum of items": lambda: varying(UNITS, sequence_pooling="max", vf_share_layers=True),
    "attention to items": lambda: varying(UNITS, sequence_pooling="attention"),
    "offers": lambda: varying(OFFERS),
}


@pytest.fixture(params=NETWORKS, name="case")
def _case(request):
    network, inputs = NETWORKS[request.param]()
    rng = np.random.default_rng(5)
    network.params += 0.1 * rng.standard_normal(len(network.params)).astype(np.float32)
    network.sync()
    return network, inputs, rng


def in_double(network, inputs):
    """The module's outputs with free columns and its values in double precision, as a function of the flat vector."""
    module = copy.deepcopy(network.module).double()
    names = [name for name, _ in module.named_parameters()]
    shapes = [p.shape for p in module.parameters()]
    sizes = [p.numel() for p in module.parameters()]
    size = sum(sizes)
    tensors = tuple(torch.from_numpy(x).double() if x.dtype == np.float32 else torch.from_numpy(x) for x in inputs)
    free = network._free

    def outputs_and_values(flat):
        pieces = [piece.view(shape) for piece, shape in zip(flat[:size].split(sizes), shapes, strict=True)]
        computed, values = torch.func.functional_call(module, dict(zip(names, pieces, strict=True)), (tensors,))
        columns, place = [], 0
        for column in range(network.num_outputs):
            if column in free:
                columns.append(flat[size + list(free).index(column)].expand(len(values)))
            else:
                columns.append(computed[:, place])
                place += 1
        return torch.stack(columns, 1), values

    return outputs_and_values


def assert_close(got, expected):
    expected = expected.detach().numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


def test_forward_vjp_and_jvp_agree_with_autograd(case, monkeypatch):
    network, inputs, rng = case
    # `.float()` and byte scaling inside the modules must not take the reference out of double precision.
    outputs, values, tape = network.forward(inputs)
    d_outputs = rng.standard_normal(outputs.shape).astype(np.float32)
    d_values = rng.standard_normal(values.shape).astype(np.float32)
    tangent = rng.standard_normal(len(network.params)).astype(np.float32)
    moved = [network.jvp(tape, tangent) for _ in range(2)][1]
    gradient = network.vjp(tape, d_outputs, d_values).copy()

    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    function = in_double(network, inputs)
    flat = torch.from_numpy(network.params).double().requires_grad_()
    expected = function(flat)
    assert_close(outputs, expected[0])
    assert_close(values, expected[1])
    slopes = (torch.from_numpy(d_outputs).double(), torch.from_numpy(d_values).double())
    assert_close(gradient, torch.autograd.grad(expected, flat, slopes)[0])
    with torch.backends.mkldnn.flags(enabled=False):
        exact = torch.autograd.functional.jvp(function, flat.detach(), torch.from_numpy(tangent).double())[1]
    assert_close(moved, exact[0])


def test_the_derivative_by_the_inputs_agrees_with_autograd(case, monkeypatch):
    network, inputs, rng = case
    if inputs[0].dtype != np.float32 or inputs[0].ndim != 2:
        pytest.skip("there is no feature vector")
    network.act(inputs)  # a classic model keeps what it last computed, which can be copied if no gradient is behind it
    module = copy.deepcopy(network.module).double()
    outputs, tape = network.forward_inputs(inputs)
    d_outputs = rng.standard_normal(outputs.shape).astype(np.float32)
    gradient = network.vjp_inputs(tape, d_outputs)
    assert all(p.requires_grad for p in network.module.parameters())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    features = torch.from_numpy(inputs[0]).double().requires_grad_()
    others = [torch.from_numpy(x).double() if x.dtype == np.float32 else torch.from_numpy(x) for x in inputs[1:]]
    expected, _ = module((features, *others))
    slopes = torch.from_numpy(np.delete(d_outputs, network._free, axis=1)).double()
    assert_close(gradient, torch.autograd.grad(expected, features, slopes)[0])


def test_act_and_values_are_those_of_forward(case):
    network, inputs, _ = case
    outputs, values, _ = network.forward(inputs)
    np.testing.assert_allclose(network.act(inputs), outputs, atol=1e-6)
    np.testing.assert_allclose(network.values(inputs), values, atol=1e-6)
    one = tuple(part[:1] for part in inputs)
    np.testing.assert_allclose(network.act(one), outputs[:1], atol=1e-5)


def test_params_are_live(case):
    network, inputs, _ = case
    network.params[:] = 0
    network.sync()
    outputs, values, _ = network.forward(inputs)
    assert not outputs.any()
    assert not values.any()
    named = network.named_params()
    assert sum(view.size for view in named.values()) == len(network.params)
    for view in named.values():
        view[:] = 1
    assert (network.params == 1).all()
    network.sync()
    assert network.values(inputs).any()


def test_gradients_do_not_add_up_over_calls():
    network, inputs = build(), inputs_for()
    first, second = (network.vjp(network.forward(inputs)[2], *slopes_of_ones()).copy() for _ in range(2))
    np.testing.assert_array_equal(first, second)


def slopes_of_ones(batch=7, width=3):
    return np.ones((batch, width), np.float32), np.ones(batch, np.float32)


def test_free_outputs_start_at_zero_and_lie_at_the_end():
    network, inputs = build(num_outputs=4, free=np.array([1, 3])), inputs_for()
    assert not network.act(inputs)[:, [1, 3]].any()
    network.params[-2:] = 0.5, -2
    np.testing.assert_array_equal(network.act(inputs)[:, [1, 3]], np.tile(np.float32([0.5, -2]), (7, 1)))
    np.testing.assert_array_equal(network.named_params()["log_std"], np.float32([0.5, -2]))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("share", [False, True])
def test_both_backends_agree_weight_by_weight(activation, share):
    numpy_net = MLP(4, 4, (8, 6), activation, share, np.array([2, 3]), seed=3)
    network = build(
        num_outputs=4, free=np.array([2, 3]), fcnet_hiddens=[8, 6], fcnet_activation=activation, vf_share_layers=share
    )
    rng = np.random.default_rng(0)
    numpy_net.params += 0.3 * rng.standard_normal(len(numpy_net.params)).astype(np.float32)
    theirs = numpy_net.named_params()
    for name, view in network.named_params().items():
        view[:] = theirs[name.replace("head.", "")].T
    inputs = inputs_for()
    d_outputs, d_values = rng.standard_normal((7, 4)).astype(np.float32), rng.standard_normal(7).astype(np.float32)
    results = []
    for net in (numpy_net, network):
        outputs, values, tape = net.forward(inputs)
        outputs, values = outputs.copy(), values.copy()
        # Named views of the gradient, by way of the parameters.
        net.params[:] = net.vjp(tape, d_outputs, d_values)
        results.append((outputs, values, {k.replace("head.", ""): v for k, v in net.named_params().items()}))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-5, atol=1e-5)
    for name, gradient in results[1][2].items():
        np.testing.assert_allclose(gradient, results[0][2][name].T, rtol=1e-5, atol=1e-5)


def test_the_same_seed_gives_the_same_weights_and_leaves_torch_alone():
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    for kind in ({}, {"custom_model": Delegating}):
        first, again, other = build(seed=1, **kind), build(seed=1, **kind), build(seed=2, **kind)
        np.testing.assert_array_equal(first.params, again.params)
        assert (first.params != other.params).any()
    assert torch.equal(torch.rand(3), expected)


def test_a_device_that_shares_no_memory_is_synced(monkeypatch):
    # Simulated: tensors of their own on the CPU stand for those of a GPU.
    monkeypatch.setattr(torch_network, "_shares_memory", lambda device: False)
    far, inputs = build(num_outputs=4, free=np.array([3])), inputs_for()
    monkeypatch.undo()
    near = build(num_outputs=4, free=np.array([3]))
    np.testing.assert_array_equal(far.params, near.params)
    tangent = np.ones_like(near.params)
    for network in (far, near):
        network.params *= 3
        network.sync()
    np.testing.assert_array_equal(far.act(inputs), near.act(inputs))
    gradients = [net.vjp(net.forward(inputs)[2], *slopes_of_ones(7, 4)) for net in (far, near)]
    np.testing.assert_array_equal(*gradients)
    pushed = [net.jvp(net.forward(inputs)[2], tangent) for net in (far, near)]
    np.testing.assert_array_equal(*pushed)


def test_frozen_parameters_stay():
    module = Memory()
    for parameter in module.lstm.parameters():
        parameter.requires_grad_(False)
    network = TorchNetwork(module, 3, NONE, inputs_for())
    tape = network.forward(inputs_for())[2]
    pushed = network.jvp(tape, np.ones_like(network.params))
    gradient = network.vjp(tape, *slopes_of_ones())
    named = dict(
        zip(
            network.named_params(),
            np.split(gradient, np.cumsum([v.size for v in network.named_params().values()])[:-1]),
        )
    )
    assert not any(slope.any() for name, slope in named.items() if name.startswith("lstm"))
    assert named["policy.weight"].any()
    assert pushed.any()


def test_read_only_observations_are_read_in_silence():
    code = (
        "import numpy as np, torch; from shoal.models.torch_network import TorchNetwork;"
        "x = np.ones((2, 4), np.float32); x.flags.writeable = False;"
        "module = torch.nn.Linear(4, 3); module.act = lambda x: torch.nn.Linear.forward(module, x[0]);"
        "module.forward = lambda x: (module.act(x), x[0].sum(1));"
        "TorchNetwork(module, 3, np.zeros(0, np.int64), (x,)).act((x,))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_unknown_device_is_explained():
    with pytest.raises(ConfigError, match="num_gpus: PyTorch cannot use 'cuda' here"):
        TorchNetwork(Memory(), 3, NONE, inputs_for(), "cuda")


def test_summary_counts_every_parameter():
    network = build(2, ((20, 17, 3),), num_outputs=4, free=np.array([3]))
    lines = network.summary().splitlines()
    assert lines[1].split() == ["layer", "kind", "output", "parameters"]
    counts = [int(line.split()[-1].replace(",", "")) for line in lines[2:]]
    assert counts[-1] == sum(counts[:-1]) == len(network.params)
    assert any("Conv2d" in line and "[B, 32, 9, 7]" in line for line in lines)
    assert any("dense.policy.hidden0" in line and "[B, 256]" in line for line in lines)
    assert len({len(line) for line in lines[1:]}) == 1


@pytest.mark.parametrize("kind", ["free", "vision"])
def test_rows_with_parameters_of_their_own(kind: str) -> None:
    network, inputs = NETWORKS[kind]()
    before = network.params.copy()
    rng = np.random.default_rng(5)
    params = before + 0.1 * rng.standard_normal((7, len(before))).astype(np.float32)
    outputs = network.act_with(inputs, params)
    np.testing.assert_array_equal(network.params, before)
    for row in range(7):
        network.params[:] = params[row]
        network.sync()
        np.testing.assert_allclose(outputs[row], network.act(tuple(part[row : row + 1] for part in inputs))[0])
