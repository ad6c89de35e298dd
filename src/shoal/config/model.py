"""The keys of `model`: the network between observations and actions."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from shoal.config.fields import STRICT, ConvLayers, Flag, FreeMapping, ModelSource, NoneOrOne, Number, Size, Sizes

Activation = Literal["linear", "tanh", "relu", "elu", "silu", "sigmoid", "leaky_relu", "gelu", "softplus"]

MEMORIES = {
    "use_lstm": ("lstm_cell_size", "lstm_use_prev_action", "lstm_use_prev_reward"),
    "use_gru": ("lstm_cell_size", "lstm_use_prev_action", "lstm_use_prev_reward"),
    "use_attention": (
        "attention_memory_inference",
        "attention_num_transformer_units",
        "attention_dim",
        "attention_num_heads",
        "attention_head_dim",
        "attention_position_wise_mlp_dim",
        "attention_use_n_prev_actions",
        "attention_use_n_prev_rewards",
    ),
}
"""The kinds of memory, and the keys that each alone reads."""


class ModelConfig(BaseModel):
    """The network between observations and actions."""

    model_config = STRICT

    fcnet_hiddens: Sizes = (64, 64)
    """Widths of the hidden layers for vector observations; [] is a linear policy.

    Classic RLlib: [256, 256]; small networks act and learn faster."""
    fcnet_activation: Activation = "tanh"
    """Activation after each of those layers."""
    conv_filters: ConvLayers = None
    """Convolutions for images as [[filters, kernel, stride], ...]; null: layers that suit the image's size.

    A layer may end with its padding: same (only strides shrink the map) or valid (none); without, the last has none."""
    conv_activation: Activation = "relu"
    """Activation after each convolution."""
    post_fcnet_hiddens: Sizes | None = None
    """Widths of the layers after the convolutions, where images and numbers are joined; null: one layer of 256."""
    free_log_std: Flag = True
    """Whether the spread of continuous actions is a parameter of its own, not an output of the network.

    Classic RLlib: false; a free spread explores more steadily."""
    log_std_init: Number = 0.0
    """Natural logarithm of the spread of continuous actions at the start, where free_log_std is on; 0 is a spread of 1.

    With normalize_actions the bounds are -1 and 1, so -1 begins with small actions and 1 with mostly the bounds."""
    vf_share_layers: Flag = False
    """Whether the value function shares the policy's hidden layers, and its memory."""
    use_lstm: Flag = False
    """Whether the model has memory: an LSTM between the hidden layers and the outputs."""
    use_gru: Flag = False
    """Whether the model has a GRU there instead, with half the state."""
    lstm_cell_size: Size = 64
    """Width of the LSTM or GRU (classic RLlib: 256)."""
    lstm_use_prev_action: Flag = False
    """Whether the LSTM or GRU also sees the action before each step (your own model: as prev_actions)."""
    lstm_use_prev_reward: Flag = False
    """Whether the LSTM or GRU also sees the reward before each step (your own model: as prev_rewards)."""
    max_seq_len: Size = 20
    """Longest sequence that a model with memory learns from; no gradient reaches further back."""
    use_attention: Flag = False
    """Whether the model has memory by attention: a causal transformer over the last steps, after the hidden layers."""
    attention_memory_inference: Size = 50
    """Number of steps that each transformer unit looks back, in acting and in learning."""
    attention_num_transformer_units: Size = 1
    """Number of stacked transformer units; each one lets the model look back further."""
    attention_dim: Size = 64
    """Width of the transformer units."""
    attention_num_heads: Size = 1
    """Number of attention heads of each unit."""
    attention_head_dim: Size = 32
    """Width of each head."""
    attention_position_wise_mlp_dim: Size = 32
    """Width of the hidden layer in each unit's own network."""
    attention_use_n_prev_actions: NoneOrOne = 0
    """1: each remembered step includes the action before it (classic RLlib: any number; one per step is enough)."""
    attention_use_n_prev_rewards: NoneOrOne = 0
    """1: each remembered step includes the reward before it."""
    sequence_max_len: Size | None = None
    """Maximum number of items of a Sequence in the observations; null: not needed, as for a Repeated space."""
    sequence_hiddens: Sizes = (64,)
    """Widths of the layers that each item of a Sequence or Repeated passes before all of them are pooled."""
    sequence_pooling: Literal["mean", "max", "attention"] = "mean"
    """How the items become one row, whatever their number and order: their mean, their maximum or a learned mean."""
    custom_model: ModelSource = None
    """Your own model: a registered name, module:Class, or in Python the class itself; null: the built-in networks."""
    custom_model_config: FreeMapping = {}
    """Configuration that your own model gets."""
    custom_action_dist: ModelSource = None
    """Your own action distribution, named as a custom_model is; null: the one that suits the action space."""

    @property
    def memory(self) -> str | None:
        """The key that gives the built-in model its memory, if one does."""
        return next((key for key in MEMORIES if getattr(self, key)), None)

    @property
    def sees_prev_action(self) -> bool:
        """Whether a model with memory sees the action before each step."""
        return self._is_read("lstm_use_prev_action", "attention_use_n_prev_actions")

    @property
    def sees_prev_reward(self) -> bool:
        """Whether a model with memory sees the reward before each step."""
        return self._is_read("lstm_use_prev_reward", "attention_use_n_prev_rewards")

    def _is_read(self, *keys: str) -> bool:
        """Whether one of these keys is on that the kind of memory in use reads; a model of one's own may read all."""
        readers = MEMORIES if self.custom_model is not None else [self.memory] if self.memory is not None else []
        read = {key for reader in readers for key in MEMORIES[reader]}
        return any(bool(getattr(self, key)) for key in keys if key in read)

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        memories = [key for key in MEMORIES if getattr(self, key)]
        found: list[str] = []
        if len(memories) > 1:
            found.append(
                f"config.model.{memories[1]}: a model has one kind of memory; "
                f"use {memories[0]} or {memories[1]}, not both"
            )
        if self.custom_model is not None:  # it gets the whole model config, and reads what it likes
            return found + [
                f"config.model.{key}: gives the built-in model memory; leave it out, and give your own model a state "
                "with get_initial_state"
                for key in memories
            ]
        if self.custom_model_config and "custom_model" not in self.model_fields_set:
            found.append("config.model.custom_model_config: it has no effect; set custom_model, or leave it out")
        if not self.free_log_std and self.log_std_init != type(self).model_fields["log_std_init"].default:
            found.append("config.model.log_std_init: it has no effect; set free_log_std: true, or leave it out")
        said = [key for key in MEMORIES if key in self.model_fields_set]  # on, or off explicitly
        read = {key for memory in said for key in MEMORIES[memory]} | ({"max_seq_len"} if said else set())
        owners = {key: memory for memory, keys in reversed(MEMORIES.items()) for key in keys}
        owners["max_seq_len"] = "use_lstm"
        found += [
            f"config.model.{key}: it has no effect; set {owner}: true, or leave it out"
            for key, owner in owners.items()
            if key not in read and getattr(self, key) != type(self).model_fields[key].default
        ]
        return found
