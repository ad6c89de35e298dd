"""The networks that give the value of an action: they see the observation, and beside it the action's numbers."""

from __future__ import annotations

import numpy as np

from shoal.config.sac import SACConfig
from shoal.errors import ConfigError
from shoal.models.build import needs_torch
from shoal.models.compiled_mlp import mlp_for
from shoal.models.network import Array, Inputs, Network
from shoal.models.policy import Policy
from shoal.models.soft_actions import SoftActions


def build_critic(config: SACConfig, policy: Policy, actions: SoftActions, seed: int) -> Network:
    """A fresh critic: one output for each combination of choices; its features are those of the policy, and numbers."""
    model, encoder = config.critic_model, policy.encoder
    reason = needs_torch(policy.obs_spec.space, config)
    if reason is None:
        critic, _ = mlp_for(
            config.kernel,
            encoder.size + actions.num_numbers,
            actions.num_combinations,
            tuple(model.fcnet_hiddens),
            model.fcnet_activation,
            share_layers=True,
            seed=seed,
            layer_norm=config.high_update_ratio,
        )
        return critic
    if config.high_update_ratio:
        raise ConfigError(f"config.high_update_ratio: is for NumPy networks, and {reason} needs PyTorch; leave one out")
    from shoal.models.torch_build import build_torch_network

    network: Network = build_torch_network(
        encoder,
        actions.num_combinations,
        np.zeros(0, np.int64),
        model,
        policy.action_spec.space,
        seed,
        "cuda" if config.num_gpus else "cpu",
        num_numbers=actions.num_numbers,
    )
    return network


def critic_inputs(policy: Policy, inputs: Inputs, numbers: Array) -> Inputs:
    """What a critic takes: the encoded observations, whose feature vector ends with the action's numbers `[B, C]`."""
    if not numbers.shape[1]:
        return inputs
    if not policy.obs_spec.vector_size:
        return (numbers, *inputs)
    return (np.concatenate([inputs[0], numbers], axis=1), *inputs[1:])
