"""Which network a policy gets: NumPy where it can, PyTorch where it must."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

from shoal.config.dqn import DQNConfig
from shoal.config.settings import AlgorithmConfig, ModelConfig
from shoal.data.filters import MeanStdFilter
from shoal.envs.spaces import ActionSpec, ObsSpec, Space, is_image, leaves_of
from shoal.errors import ConfigError
from shoal.models.catalog import with_model_class
from shoal.models.distributions import Distribution, distribution_for, log_std_inputs
from shoal.models.encoder import Encoder
from shoal.models.exploration import epsilon_greedy_for
from shoal.models.mlp import MLP
from shoal.models.network import MemoryNetwork, Network
from shoal.models.policy import Policy
from shoal.models.recurrence import PreviousStep, Recurrence


def build_policy(
    obs_space: Space, action_space: Space, config: AlgorithmConfig, search_path: Sequence[str] = ()
) -> Policy:
    """A fresh policy for these spaces, initialised from the config's seed.

    A custom model that is named by a module or file is looked for in the folders of `search_path`.
    """
    config = with_model_class(config, search_path)
    reason = needs_torch(obs_space, config)
    if reason is not None and find_spec("torch") is None:
        raise ConfigError(f"{reason} needs PyTorch, which is not installed; type: pip install 'shoal[torch]'")
    obs_spec = ObsSpec(obs_space, images=config.framework != "numpy")
    if unread := unread_keys(config.model, bool(obs_spec.image_shapes)):
        raise ConfigError(unread)
    action_spec = ActionSpec(action_space, config.normalize_actions, config.clip_actions)
    distribution: Distribution
    if isinstance(config, DQNConfig):
        distribution = epsilon_greedy_for(action_spec, config.exploration_config, config.num_envs)
    else:
        distribution = distribution_for(action_spec)
    encoder = Encoder(obs_spec)
    if config.observation_filter == "MeanStdFilter":
        if not encoder.measured.any():
            raise ConfigError(
                "observation_filter: MeanStdFilter has nothing to filter, the observations hold no Box vector"
            )
        encoder.filter = MeanStdFilter(encoder.measured)
    seed = int(np.random.SeedSequence([config.seed, 0]).generate_state(1)[0])
    if reason is None:
        network = _numpy_network(encoder, distribution, config.model, seed)
        return Policy(obs_spec, action_spec, network, distribution, encoder, config.seed)
    previous = PreviousStep(action_spec, config.model.sees_prev_action, config.model.sees_prev_reward)
    with_memory = _torch_network(obs_spec, encoder, distribution, config, action_space, previous, seed)
    recurrence = _recurrence(with_memory, config, previous)
    return Policy(obs_spec, action_spec, with_memory, distribution, encoder, config.seed, recurrence)


def needs_torch(obs_space: Space, config: AlgorithmConfig) -> str | None:
    """Why this policy cannot run on NumPy alone; None if it can."""
    if config.framework == "numpy":  # said outright: then images are flattened into the vector
        return None
    if config.framework == "torch":
        return "framework: torch"
    if config.model.custom_model is not None:
        return "custom_model"
    if config.model.memory is not None:
        return config.model.memory
    if config.num_gpus:
        return "num_gpus"
    return "an image observation" if any(is_image(leaf) for _, leaf in leaves_of(obs_space)) else None


def unread_keys(model: ModelConfig, has_images: bool) -> list[str]:
    """A sentence for each model key that was set although nothing would read it."""
    if model.custom_model is not None:
        return []  # it gets the whole model config, and reads what it likes
    own, other, why = (
        (("fcnet_hiddens", "fcnet_activation"), "post_fcnet_hiddens and conv_activation", "with an image among them")
        if has_images
        else (("conv_filters", "conv_activation", "post_fcnet_hiddens"), "fcnet_hiddens", "without an image")
    )
    fields = ModelConfig.model_fields
    return [
        f"config.model.{key}: nothing reads it for observations {why}; leave it out, or use {other}"
        for key in own
        if getattr(model, key) != fields[key].default
    ]


def _numpy_network(encoder: Encoder, distribution: Distribution, model: ModelConfig, seed: int) -> Network:
    free = log_std_inputs(distribution) if model.free_log_std else None
    return MLP(
        encoder.size,
        distribution.num_inputs,
        tuple(model.fcnet_hiddens),
        model.fcnet_activation,
        model.vf_share_layers,
        free,
        seed,
    )


def _torch_network(
    obs_spec: ObsSpec,
    encoder: Encoder,
    distribution: Distribution,
    config: AlgorithmConfig,
    action_space: Space,
    previous: PreviousStep,
    seed: int,
) -> MemoryNetwork:
    from shoal.models.torch_models import build_torch_network
    from shoal.models.torch_network import set_threads

    if not obs_spec.image_shapes:
        set_threads(1)  # small networks lose by threads; convolutions gain
    model = config.model
    free = log_std_inputs(distribution) if model.free_log_std and model.custom_model is None else np.zeros(0, np.int64)
    image_dtypes = obs_spec.dtypes[1:] if obs_spec.vector_size else obs_spec.dtypes
    network: MemoryNetwork = build_torch_network(
        encoder.size,
        obs_spec.image_shapes,
        image_dtypes,
        distribution.num_inputs,
        free,
        model,
        obs_spec.space,
        action_space,
        seed,
        "cuda" if config.num_gpus else "cpu",
        (previous.action_size, int(previous.with_reward)),
    )
    return network


def _recurrence(network: MemoryNetwork, config: AlgorithmConfig, previous: PreviousStep) -> Recurrence | None:
    """How the policy remembers, if its network does."""
    if not network.initial_state:
        if previous.size:
            raise ConfigError(
                "config.model: lstm_use_prev_action and lstm_use_prev_reward are for models with memory, "
                "and your model has none (get_initial_state); leave them out"
            )
        return None
    if isinstance(config, DQNConfig):
        raise ConfigError(
            "config.model.custom_model: DQN learns from single transitions, and your model has memory "
            "(get_initial_state); say run: PPO, or return []"
        )
    return Recurrence(network.step, network.initial_state, previous, config.model.max_seq_len)
