"""PyTorch modules with memory: LSTM, GRU, attention over the last steps, and custom models that have a state.

They take what `Inputs` says of networks with memory: rows that are sequences one after another, what was before each,
and the state and length of each sequence. `step` takes one row of each of several environments and hands the state on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from shoal.config.model import ModelConfig
from shoal.envs.env_errors import error_text
from shoal.envs.observations import Kind
from shoal.errors import ConfigError
from shoal.models.network import Inputs
from shoal.models.torch_inputs import ObsView
from shoal.models.torch_models import (
    JOINED_KINDS,
    ClassicNet,
    Dense,
    JoinedFeatures,
    TorchModelV2,
    dense_layers,
    orthogonal,
)
from shoal.models.torch_network import Tensors


class Padding:
    """Lays the rows of S sequences out side by side as `[S, L, ...]`, L the longest, and takes them back from there."""

    def __init__(self, lengths: Tensor, num_rows: int) -> None:
        longest = int(lengths.max()) if len(lengths) else 1
        self.shape = len(lengths), longest
        self._is_row: Tensor | None = None
        if num_rows < self.shape[0] * self.shape[1]:
            within = torch.arange(self.shape[1], device=lengths.device)
            begins = lengths.cumsum(0) - lengths
            self._is_row = within < lengths[:, None]
            self._places = torch.where(self._is_row, begins[:, None] + within, 0)

    def laid_out(self, rows: Tensor) -> Tensor:
        """`[S, L, ...]` of `[B, ...]`, with zeros where a sequence has ended."""
        if self._is_row is None:
            return rows.reshape(*self.shape, *rows.shape[1:])
        gone = ~self._is_row.reshape(*self.shape, *[1] * (rows.dim() - 1))
        return rows[self._places].masked_fill(gone, 0)

    def taken_back(self, laid_out: Tensor) -> Tensor:
        """`[B, ...]` of `[S, L, ...]`."""
        if self._is_row is None:
            return laid_out.flatten(0, 1)
        return laid_out[self._is_row]


class Recurrent(nn.Module):
    """Hidden layers and then an LSTM or a GRU."""

    def __init__(self, num_features: int, hiddens: Sequence[int], activation: str, model: ModelConfig) -> None:
        super().__init__()
        self.dense = Dense(num_features, hiddens, activation)
        kind, num_states = (nn.LSTM, 2) if model.use_lstm else (nn.GRU, 1)
        self.cell = kind(self.dense.num_features, model.lstm_cell_size, batch_first=True)
        for name, parameter in self.cell.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)
        self.num_features = model.lstm_cell_size
        self.initial_state: Inputs = (np.zeros(self.num_features, np.float32),) * num_states

    def forward(self, x: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Features `[S, L, H]` of `[S, L, D]`, and the state after them."""
        if forward_ad.unpack_dual(self.cell.weight_hh_l0).tangent is not None:  # type: ignore[no-untyped-call]
            # Where a tangent is none rather than zeros, torch imports its compiler, which takes seconds.
            state = tuple(forward_ad.make_dual(part, torch.zeros_like(part)) for part in state)  # type: ignore[no-untyped-call]
        x = self.dense.forward(x)
        if len(state) == 1:
            y, hidden = self.cell(x, state[0].unsqueeze(0))
            return y, (hidden.squeeze(0),)
        y, (hidden, memory) = self.cell(x, (state[0].unsqueeze(0), state[1].unsqueeze(0)))
        return y, (hidden.squeeze(0), memory.squeeze(0))


class Attention(nn.Module):
    """Hidden layers and then transformer units, each of which looks back over the last steps.

    The state is what went in during the steps before: as many as the units together can look back, and their number.
    So it depends on no parameters (but those of convolutions and pooling), and old states are as good as new ones.
    """

    def __init__(self, num_features: int, hiddens: Sequence[int], activation: str, model: ModelConfig) -> None:
        super().__init__()
        self.dense = Dense(num_features, hiddens, activation)
        self.num_features = model.attention_dim
        self.embedding = orthogonal(nn.Linear(self.dense.num_features, self.num_features), 1)
        self.units = nn.ModuleList(TransformerUnit(model) for _ in range(model.attention_num_transformer_units))
        self.norm = nn.LayerNorm(self.num_features)
        self.reach = model.attention_memory_inference * len(self.units)
        self.initial_state: Inputs = (np.zeros((self.reach, num_features), np.float32), np.zeros(1, np.float32))

    def forward(self, x: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Features `[S, L, H]` of `[S, L, D]`, and the state after them."""
        memory, count = state
        length = x.shape[1]
        x = torch.cat([memory, x], dim=1)
        after = x[:, length:], (count + length).clamp(max=self.reach)
        known = torch.arange(-self.reach, length, device=x.device) >= -count
        y = self.embedding(self.dense.forward(x))
        for unit in self.units:
            y = unit(y, known)
            known = known[:, -y.shape[1] :]
        return self.norm(y), after


class TransformerUnit(nn.Module):
    """Attention over this and the `reach` steps before it, and a small network, each beside a way around it.

    How far back a step lies is all that is known of its place, so that it does not matter where a sequence is cut.
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        width, self.heads, inner = model.attention_dim, model.attention_num_heads, model.attention_head_dim
        self.reach = model.attention_memory_inference
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query = orthogonal(nn.Linear(width, self.heads * inner), 1 / sqrt(inner))  # the usual scale of scores
        self.key_value = orthogonal(nn.Linear(width, 2 * self.heads * inner), 1)
        self.distance_bias = nn.Parameter(torch.zeros(self.heads, self.reach + 1))
        self.out = orthogonal(nn.Linear(self.heads * inner, width), 1)
        self.mlp = Dense(width, [model.attention_position_wise_mlp_dim], "relu", width)

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        """`[S, P - reach, H]` of `[S, P, H]`: the first steps are only looked back to. `known` `[S, P]`: they exist."""
        y = self.norm(x)
        queries = self._split(self.query(y[:, self.reach :]))
        keys, values = self._split(self.key_value(y)).chunk(2, dim=-1)
        places = torch.arange(x.shape[1], device=x.device)
        distance = places[self.reach :, None] - places
        in_reach = (distance >= 0) & (distance <= self.reach)
        scores = queries @ keys.transpose(-1, -2) + self.distance_bias[:, distance.clamp(0, self.reach)]
        # Finite, for a step before the episode sees nothing at all; nobody looks back to what it makes of that.
        scores = scores.masked_fill(~(in_reach & known[:, None, None, :]), -1e9)
        attended = scores.softmax(dim=-1) @ values
        x = x[:, self.reach :] + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp.forward(self.norm_mlp(x))

    def _split(self, x: Tensor) -> Tensor:
        """`[S, heads, P, D]` of `[S, P, heads * D]`."""
        return x.reshape(*x.shape[:2], self.heads, x.shape[2] // self.heads).transpose(1, 2)


class MemoryNet(nn.Module):
    """What is seen and what was before, then layers with memory, then a policy head and a value head.

    With `vf_share_layers` the value head stands on the policy's layers and memory, otherwise on its own. Convolutions
    and pooled sequences are always shared, and so is the state of attention, which holds nothing but what was seen.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Kind, tuple[int, ...]]],
        previous_size: int,
        num_outputs: int,
        model: ModelConfig,
    ) -> None:
        super().__init__()
        kinds = [kind for kind, _ in parts]
        hiddens, activation = dense_layers(kinds, model)
        num_features = parts[0][1][0]
        self.sight: JoinedFeatures | None = None
        if JOINED_KINDS & set(kinds):
            self.sight = JoinedFeatures(parts, num_outputs, activation, model)
            num_features, num_outputs = self.sight.num_features, self.sight.num_wanted
        num_features += previous_size
        kind = Attention if model.use_attention else Recurrent
        self.memory = kind(num_features, hiddens, activation, model)
        self.value_memory: Attention | Recurrent | None = None
        if not model.vf_share_layers:
            self.value_memory = kind(num_features, hiddens, activation, model)
        self.policy = orthogonal(nn.Linear(self.memory.num_features, num_outputs), 0.01)
        self.value = orthogonal(nn.Linear(self.memory.num_features, 1), 1)
        self.initial_state: Inputs = self.memory.initial_state
        self._num_parts = len(self.initial_state)
        self._two_states = not (model.vf_share_layers or model.use_attention)
        if self._two_states:
            self.initial_state *= 2

    def forward(self, inputs: Tensors) -> tuple[Tensor, Tensor]:
        """Outputs `[B, K]` and values `[B]`."""
        x, state, padding = self._read(inputs)
        seen = valued = self.memory.forward(x, self._of_policy(state))[0]
        if self.value_memory is not None:
            valued = self.value_memory.forward(x, self._of_value(state))[0]
        outputs = self._scored(inputs, padding.taken_back(self.policy(seen)))
        return outputs, padding.taken_back(self.value(valued).squeeze(2))

    def act(self, inputs: Tensors) -> Tensor:
        """Outputs alone."""
        x, state, padding = self._read(inputs)
        seen = self.memory.forward(x, self._of_policy(state))[0]
        return self._scored(inputs, padding.taken_back(self.policy(seen)))

    def values(self, inputs: Tensors) -> Tensor:
        """Values alone."""
        x, state, padding = self._read(inputs)
        memory = self.memory if self.value_memory is None else self.value_memory
        return padding.taken_back(self.value(memory.forward(x, self._of_value(state))[0]).squeeze(2))

    def step(self, inputs: Tensors, state: Tensors) -> tuple[Tensor, Tensors]:
        """Outputs `[B, K]` for one step of each environment, and the states after it."""
        x = self._features(inputs).unsqueeze(1)
        seen, after = self.memory.forward(x, self._of_policy(state))
        if self._two_states:
            assert self.value_memory is not None
            after = after + self.value_memory.forward(x, self._of_value(state))[1]
        return self._scored(inputs, self.policy(seen).squeeze(1)), after

    def _read(self, inputs: Tensors) -> tuple[Tensor, Tensors, Padding]:
        count = len(self.initial_state)
        *parts, lengths = inputs
        x = self._features(tuple(parts[:-count]))
        padding = Padding(lengths, len(x))
        return padding.laid_out(x), tuple(parts[-count:]), padding

    def _features(self, inputs: Tensors) -> Tensor:
        *parts, previous = inputs
        if self.sight is None:
            return torch.cat([parts[0], previous], dim=1)
        return torch.cat([*self.sight.features(tuple(parts)), previous], dim=1)

    def _scored(self, inputs: Tensors, outputs: Tensor) -> Tensor:
        if self.sight is None:
            return outputs
        return self.sight.scored(inputs, outputs)

    def _of_policy(self, state: Tensors) -> Tensors:
        return state[: self._num_parts]

    def _of_value(self, state: Tensors) -> Tensors:
        return state[-self._num_parts :]


class RecurrentNetwork(TorchModelV2):
    """The parent of custom models with memory that rather write `forward_rnn`, where time has an axis of its own."""

    def forward(self, input_dict: Mapping[str, Any], state: list[Tensor], seq_lens: Any) -> tuple[Tensor, list[Tensor]]:
        """Outputs `[B * T, num_outputs]` and the state after."""
        flat = input_dict["obs_flat"]
        outputs, state = self.forward_rnn(flat.reshape(len(seq_lens), -1, flat.shape[1]), state, seq_lens)
        return outputs.reshape(-1, self.num_outputs), state

    def forward_rnn(self, inputs: Tensor, state: list[Tensor], seq_lens: Any) -> tuple[Tensor, list[Tensor]]:
        """Outputs `[B, T, num_outputs]` of observations `[B, T, D]`, and the state after."""
        del inputs, state, seq_lens
        raise self._unwritten("forward_rnn(self, inputs, state, seq_lens)", "outputs [B, T, num_outputs] and the state")


class ClassicMemoryNet(ClassicNet):
    """A classic custom model with a state; `previous` are the widths of the action and the reward before each row."""

    def __init__(self, model: TorchModelV2, view: ObsView, previous: tuple[int, int]) -> None:
        super().__init__(model, view)
        self._previous = previous
        name = type(model).__name__
        try:
            given = [torch.as_tensor(part).detach().cpu() for part in model.get_initial_state()]
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"custom model {name}: get_initial_state must return a list of arrays, "
                f"e.g. [np.zeros(64, np.float32)] ({error_text(error)})"
            ) from error
        self.initial_state: Inputs = tuple(part.numpy().astype(np.float32) for part in given)

    def forward(self, inputs: Tensors) -> tuple[Tensor, Tensor]:
        """Outputs `[B, K]` and values `[B]`."""
        if not len(inputs[0]):  # a learner that has no share of a minibatch; few models can take that
            return torch.zeros((0, self.model.num_outputs)), torch.zeros(0)
        outputs, padding = self._outputs(inputs)
        return outputs, self._rows(padding, "values", self.model.value_function())

    def act(self, inputs: Tensors) -> Tensor:
        """Outputs alone."""
        return self._outputs(inputs)[0]

    def values(self, inputs: Tensors) -> Tensor:
        """Values alone."""
        return self.forward(inputs)[1]

    def step(self, inputs: Tensors, state: Tensors) -> tuple[Tensor, Tensors]:
        """Outputs `[B, K]` for one step of each environment, and the states after it."""
        ones = torch.ones(len(inputs[0]), dtype=torch.int64, device=inputs[0].device)
        outputs, after = self._with_previous(inputs, state, ones)
        wanted = [(len(ones), *part.shape) for part in self.initial_state]
        parts = after if isinstance(after, list | tuple) else [after]
        found = [_shape_or_type(part) for part in parts]
        if found != wanted:
            raise ConfigError(
                f"{type(self.model).__name__}.forward must return its state in the shapes of get_initial_state with "
                f"the batch before them: expected {wanted}, got {found}"
            )
        return outputs, tuple(after)

    def _outputs(self, inputs: Tensors) -> tuple[Tensor, Padding]:
        count = len(self.initial_state)
        *parts, lengths = inputs
        padding = Padding(lengths, len(parts[0]))
        laid_out = tuple(padding.laid_out(part).flatten(0, 1) for part in parts[:-count])
        outputs, _ = self._with_previous(laid_out, tuple(parts[-count:]), lengths)
        return self._rows(padding, "outputs", outputs), padding

    def _with_previous(self, inputs: Tensors, state: Tensors, lengths: Tensor) -> tuple[Any, Any]:
        *parts, previous = inputs
        actions, rewards = self._previous
        more = {}
        if actions:
            more["prev_actions"] = previous[:, :actions]
        if rewards:
            more["prev_rewards"] = previous[:, -1]
        return self.asked(tuple(parts), state, lengths, **more)

    def _rows(self, padding: Padding, what: str, found: Any) -> Tensor:
        """The rows that are none of the padding."""
        sequences, steps = padding.shape
        if not isinstance(found, Tensor) or not found.dim() or len(found) != sequences * steps:
            got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(
                f"custom model {type(self.model).__name__}: expected {what} of {sequences} sequences of {steps} steps "
                f"in {sequences * steps} rows, got {got}"
            )
        return padding.taken_back(found.reshape(*padding.shape, *found.shape[1:]))


def _shape_or_type(found: Any) -> tuple[int, ...] | str:
    """How a message calls what a model returned."""
    if isinstance(found, Tensor):
        return tuple(found.shape)
    return type(found).__name__
