"""Networks with memory keep the network contract over sequences, and a state carries all that a cut would lose."""

from __future__ import annotations

import copy

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
from shoal.models.encoder import Encoder
from shoal.models.torch_build import build_torch_network
from shoal.models.torch_memory import RecurrentNetwork
from shoal.models.torch_models import FullyConnectedNetwork, TorchModelV2

torch.set_num_threads(1)
VECTOR = spaces.Box(-1, 1, (4,))
IMAGE = spaces.Dict(me=VECTOR, seen=spaces.Box(0, 255, (20, 17, 3), np.uint8))
UNITS = spaces.Dict(me=VECTOR, units=Repeated(spaces.Box(-1, 1, (3,)), 4))
MASK = spaces.Box(0, 1, (3,), np.int8)
OFFERS = spaces.Dict(me=VECTOR, avail_actions=spaces.Box(-1, 1, (3, 2)), action_mask=MASK)
LENGTHS = [5, 1, 3]
ATTENTION = {"use_attention": True, "attention_memory_inference": 4, "attention_dim": 8, "attention_head_dim": 4}
DEEP = {**ATTENTION, "attention_memory_inference": 2, "attention_num_transformer_units": 2, "attention_num_heads": 2}


class Counting(TorchModelV2):
    """A custom model that adds up what it sees: its memory is written by hand, step by step."""

    def __init__(self, *args):
        super().__init__(*args)
        self.inner = FullyConnectedNetwork(*args)
        self.mix = nn.Linear(4, 4)

    def get_initial_state(self):
        return [torch.zeros(4), np.zeros((1,), np.float32)]

    def forward(self, input_dict, state, seq_lens):
        x = input_dict["obs_flat"]
        x = x.reshape(len(seq_lens), -1, x.shape[1])
        total, count = state
        rows = []
        for t in range(x.shape[1]):
            total, count = torch.tanh(self.mix(total) + x[:, t]), count + 1
            rows.append(total / count)
        seen = torch.stack(rows, dim=1).flatten(0, 1)
        return self.inner({"obs": seen}, [], None)[0], [total, count]

    def value_function(self):
        return self.inner.value_function()


class Classic(RecurrentNetwork):
    """The classic example of a custom recurrent network."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name):
        super().__init__(obs_space, action_space, num_outputs, model_config, name)
        self.lstm = nn.LSTM(obs_space.shape[0], 6, batch_first=True)
        self.policy, self.value = nn.Linear(6, num_outputs), nn.Linear(6, 1)

    def get_initial_state(self):
        return [self.policy.weight.new_zeros(6), self.policy.weight.new_zeros(6)]

    def forward_rnn(self, inputs, state, seq_lens):
        self.seen, (h, c) = self.lstm(inputs, (state[0].unsqueeze(0), state[1].unsqueeze(0)))
        return self.policy(self.seen), [h.squeeze(0), c.squeeze(0)]

    def value_function(self):
        return self.value(self.seen).reshape(-1)


def build(obs_space=VECTOR, previous=(0, 0), num_outputs=3, free=(), **model):
    encoder = Encoder(ObsSpec(obs_space, True, ActionSpec(spaces.Discrete(num_outputs))))
    sizes = {} if "image" in encoder.spec.kinds else {"fcnet_hiddens": [8]}
    memory = {"lstm_cell_size": 5} if "use_lstm" in model or "use_gru" in model else {}
    config = ModelConfig(**{**sizes, **memory, **model})
    unset = np.array(free, np.int64)
    network = build_torch_network(
        encoder, num_outputs, unset, config, spaces.Discrete(num_outputs), 0, previous=previous
    )
    network.params += 0.3 * np.random.default_rng(5).standard_normal(len(network.params)).astype(np.float32)
    network.asked = encoder, sum(previous)  # for `rows_for`
    return network


NETWORKS = {
    "lstm": lambda: build(use_lstm=True),
    "lstm shared": lambda: build(use_lstm=True, vf_share_layers=True),
    "lstm with what was before": lambda: build(use_lstm=True, previous=(3, 1)),
    "lstm free": lambda: build(use_lstm=True, num_outputs=4, free=(1, 3)),
    "gru": lambda: build(use_gru=True),
    "gru shared": lambda: build(use_gru=True, vf_share_layers=True),
    "attention": lambda: build(**ATTENTION),
    "attention shared": lambda: build(**ATTENTION, vf_share_layers=True, previous=(0, 1)),
    "attention deep": lambda: build(**DEEP),
    "lstm sees": lambda: build(IMAGE, use_lstm=True, post_fcnet_hiddens=[8]),
    "attention sees": lambda: build(IMAGE, **ATTENTION, post_fcnet_hiddens=[8]),
    "lstm counts": lambda: build(UNITS, use_lstm=True, sequence_hiddens=[4]),
    "gru is offered": lambda: build(OFFERS, use_gru=True),
    "attention is offered": lambda: build(OFFERS, **ATTENTION),
    "custom": lambda: build(custom_model=Counting),
    "custom classic": lambda: build(custom_model=Classic),
}


def rows_for(network, count, seed=1):
    """What `count` steps see, without states and lengths."""
    rng = np.random.default_rng(seed)
    encoder, width = network.asked
    parts = []
    for kind, shape, dtype in zip(encoder.spec.kinds, encoder.shapes, encoder.spec.dtypes, strict=True):
        numbers = rng.standard_normal((count, *shape))
        if kind == "items":
            numbers[:, :, 0] = np.arange(shape[0]) < rng.integers(0, shape[0] + 1, (count, 1))
        elif kind == "mask":
            numbers = (numbers > 0) | (np.arange(shape[0]) == 0)
        parts.append(rng.integers(0, 256, numbers.shape, np.uint8) if dtype == np.uint8 else numbers.astype(dtype))
    return (*parts, rng.standard_normal((count, width)).astype(np.float32))


def states_for(network, count, steps=0, seed=2):
    """States as they are after some steps."""
    state = tuple(np.repeat(part[None], count, axis=0) for part in network.initial_state)
    for k in range(steps):
        _, state = network.step(rows_for(network, count, seed + k), state)
    return state


def sequences(network, lengths=LENGTHS, steps=3):
    rows = rows_for(network, sum(lengths))
    return (*rows, *states_for(network, len(lengths), steps), np.array(lengths))


@pytest.fixture(params=NETWORKS)
def network(request):
    return NETWORKS[request.param]()


def in_double(network, inputs):
    """The module in double precision, as a function of the flat vector."""
    module = copy.deepcopy(network.module).double()
    named = list(module.named_parameters())
    sizes = [p.numel() for _, p in named]
    tensors = tuple(torch.from_numpy(x).double() if x.dtype == np.float32 else torch.from_numpy(x) for x in inputs)
    free = network._free.tolist()

    def outputs_and_values(flat):
        *pieces, spread = flat.split([*sizes, len(flat) - sum(sizes)])
        moved = {name: piece.view(p.shape) for (name, p), piece in zip(named, pieces, strict=True)}
        computed, values = torch.func.functional_call(module, moved, (tensors,))
        columns = list(computed.unbind(1))
        for place, column in enumerate(free):
            columns.insert(column, spread[place].expand(len(values)))
        return torch.stack(columns, 1), values

    return outputs_and_values


def assert_close(got, expected):
    expected = expected.detach().numpy()
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(expected).max())))


def test_forward_vjp_and_jvp_agree_with_autograd_over_sequences(network, monkeypatch):
    inputs, rng = sequences(network), np.random.default_rng(3)
    outputs, values, tape = network.forward(inputs)
    d_outputs = rng.standard_normal(outputs.shape).astype(np.float32)
    d_values = rng.standard_normal(values.shape).astype(np.float32)
    tangent = rng.standard_normal(len(network.params)).astype(np.float32)
    moved = [network.jvp(tape, tangent) for _ in range(2)][1]
    gradient = network.vjp(tape, d_outputs, d_values).copy()

    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    function = in_double(network, inputs)
    flat = torch.from_numpy(network.params).double().requires_grad_()
    with torch.backends.mkldnn.flags(enabled=False):
        expected = function(flat)
        assert_close(outputs, expected[0])
        assert_close(values, expected[1])
        slopes = (torch.from_numpy(d_outputs).double(), torch.from_numpy(d_values).double())
        assert_close(gradient, torch.autograd.grad(expected, flat, slopes)[0])
        step = torch.from_numpy(tangent).double() * 1e-6
        with torch.no_grad():
            exact = (function(flat + step)[0] - function(flat - step)[0]) / 2e-6
    assert_close(moved, exact)


def test_act_and_values_are_those_of_forward(network):
    inputs = sequences(network)
    outputs, values, _ = network.forward(inputs)
    np.testing.assert_allclose(network.act(inputs), outputs, atol=1e-5)
    np.testing.assert_allclose(network.values(inputs), values, atol=1e-5)
    np.testing.assert_allclose(network.forward_policy(inputs)[0], outputs, atol=1e-5)
    np.testing.assert_allclose(network.forward_value(inputs)[0], values, atol=1e-5)


def test_a_sequence_cut_in_two_gives_the_same_with_the_state_that_is_carried(network):
    steps, count = 9, 2
    rows = [rows_for(network, count, seed=20 + t) for t in range(steps)]  # time first
    by_sequence = tuple(
        np.stack(part, axis=1).reshape(count * steps, *part[0].shape[1:]) for part in zip(*rows, strict=True)
    )
    begin = states_for(network, count, steps=2)
    whole, values, _ = network.forward((*by_sequence, *begin, np.full(count, steps)))
    whole, values = whole.reshape(count, steps, -1).copy(), values.reshape(count, steps).copy()
    state = begin
    for t in range(steps):
        one = (*rows[t], *state, np.ones(count, np.int64))
        np.testing.assert_allclose(network.values(one), values[:, t], atol=1e-5)
        outputs, state = network.step(rows[t], state)
        np.testing.assert_allclose(outputs, whole[:, t], atol=1e-5)
        if t == 3:
            rest = tuple(
                part.reshape(count, steps, *part.shape[1:])[:, 4:].reshape(count * (steps - 4), *part.shape[1:])
                for part in by_sequence
            )
            outputs, later, _ = network.forward((*rest, *state, np.full(count, steps - 4)))
            np.testing.assert_allclose(outputs.reshape(count, steps - 4, -1), whole[:, 4:], atol=1e-5)
            np.testing.assert_allclose(later.reshape(count, steps - 4), values[:, 4:], atol=1e-5)


def test_outputs_depend_on_what_was_seen_before(network):
    *rows, previous = rows_for(network, 4)
    state, lengths = states_for(network, 1), np.array([4])
    before = network.act((*rows, previous, *state, lengths)).copy()
    changed = rows[0].copy()
    changed[1] += 1
    after = network.act((changed, *rows[1:], previous, *state, lengths))
    assert np.array_equal(before[0], after[0])
    assert (before[2:] != after[2:]).any(axis=1).all()


def test_attention_looks_back_no_further_than_it_says():
    network = build(**ATTENTION)
    rows, previous = rows_for(network, 8)
    state, lengths = states_for(network, 1), np.array([8])
    before = network.act((rows, previous, *state, lengths)).copy()
    rows[1] += 1
    moved = (network.act((rows, previous, *state, lengths)) != before).any(axis=1)
    assert moved.tolist() == [False, True, True, True, True, True, False, False]


def test_nobody_is_asked_about_nothing(network):
    rows = tuple(part[:0] for part in rows_for(network, 1))
    inputs = (*rows, *(part[:0] for part in states_for(network, 1)), np.zeros(0, np.int64))
    outputs, values, tape = network.forward(inputs)
    assert outputs.shape == (0, network.num_outputs)
    assert values.shape == (0,)
    assert not network.vjp(tape, outputs, values).any()


def test_values_alone_depend_on_what_the_network_says_they_do():
    shared, apart = build(use_lstm=True, vf_share_layers=True), build(use_lstm=True)
    assert shared.value_params.sum() == 6
    named = {name: view.size for name, view in apart.named_params().items() if name.startswith("value")}
    assert apart.value_params.sum() == sum(named.values())


class LastOnly(Classic):
    def forward_rnn(self, inputs, state, seq_lens):
        outputs, state = super().forward_rnn(inputs, state, seq_lens)
        return outputs[:, -1], state


class Forgetful(Classic):
    """Begins anew with every call."""

    def forward_rnn(self, inputs, state, seq_lens):
        return super().forward_rnn(inputs, [torch.zeros_like(part) for part in state], seq_lens)


class TimeFirst(Classic):
    """Takes the rows for those of another layout."""

    def forward(self, input_dict, state, seq_lens):
        flat = input_dict["obs_flat"]
        inputs = flat.reshape(-1, len(seq_lens), flat.shape[1]).transpose(0, 1)
        outputs, state = self.forward_rnn(inputs, state, seq_lens)
        return outputs.transpose(0, 1).reshape(-1, self.num_outputs), state

    def value_function(self):
        return self.value(self.seen).transpose(0, 1).reshape(-1)


class NoState(Classic):
    def forward_rnn(self, inputs, state, seq_lens):
        return super().forward_rnn(inputs, state, seq_lens)[0], []


class WideState(Classic):
    def forward_rnn(self, inputs, state, seq_lens):
        outputs, state = super().forward_rnn(inputs, state, seq_lens)
        return outputs, [torch.cat([part, part], 1) for part in state]


class NoValue(Classic):
    value_function = TorchModelV2.value_function


class TooWide(Classic):
    def forward(self, input_dict, state, seq_lens):
        outputs, state = super().forward(input_dict, state, seq_lens)
        return torch.cat([outputs, outputs], 1), state


class OddStart(Classic):
    def get_initial_state(self):
        return [None]


class Unwritten(Classic):
    forward_rnn = RecurrentNetwork.forward_rnn


@pytest.mark.parametrize(
    ("model_class", "message"),
    [
        (LastOnly, r"LastOnly: expected outputs of 2 sequences of 3 steps in 6 rows, got \[2, 3\]"),
        (Forgetful, "Forgetful gives other outputs or values for a sequence in one call than for its steps"),
        (TimeFirst, "TimeFirst gives other outputs or values for a sequence in one call than for its steps"),
        (NoState, r"NoState.forward must return its state in the shapes of get_initial_state.*got \[\]"),
        (WideState, r"WideState.forward must return its state.*expected \[\(2, 6\), \(2, 6\)\], got \[\(2, 12\)"),
        (NoValue, r"NoValue: write value_function\(self\), which returns the values"),
        (TooWide, r"TooWide: expected outputs \[B, 3\], got \[B, 6\]"),
        (OddStart, "OddStart: get_initial_state must return a list of arrays"),
        (Unwritten, r"Unwritten: write forward_rnn\(self, inputs, state, seq_lens\), which returns"),
    ],
)
def test_wrong_models_with_memory_are_named(model_class, message):
    with pytest.raises(ConfigError, match=message):
        build(custom_model=model_class)


class Looking(Classic):
    def forward(self, input_dict, state, seq_lens):
        Looking.told = {name: tuple(value.shape) for name, value in input_dict.items()}, seq_lens.tolist()
        return super().forward(input_dict, state, seq_lens)


def test_custom_models_see_what_was_before():
    network = build(custom_model=Looking, previous=(3, 1))
    network.act((*rows_for(network, 6), *states_for(network, 2), np.array([4, 2])))
    shapes, lengths = Looking.told
    assert shapes == {"obs": (8, 4), "obs_flat": (8, 4), "prev_actions": (8, 3), "prev_rewards": (8,)}
    assert lengths == [4, 2]
    assert "LSTM" in network.summary()
