"""Which network a policy gets: NumPy where it can, PyTorch where it must."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec

import numpy as np
from gymnasium import spaces

from shoal.config.algorithms import algorithms_that, name_of
from shoal.config.dqn import EpsilonGreedyConfig
from shoal.config.model import ModelConfig
from shoal.config.sections import NoiseConfig
from shoal.config.settings import AlgorithmConfig
from shoal.data.filters import MeanStdFilter
from shoal.data.returns import scheduled
from shoal.data.streams import Stream, number
from shoal.envs.importing import INSTALLED, UserCode
from shoal.envs.masks import MASK
from shoal.envs.observations import AVAIL, ObsSpec
from shoal.envs.repeated import Repeated
from shoal.envs.spaces import ActionSpec, Space, image_sides, is_image, leaves_of
from shoal.errors import ConfigError
from shoal.machine.cores import cores
from shoal.machine.memory import keep_freed_memory
from shoal.machine.threads import are_limited
from shoal.models.catalog import with_model_class
from shoal.models.compiled_mlp import mlp_for
from shoal.models.distributions import Distribution, distribution_for, gaussian_noise, log_std_inputs
from shoal.models.encoder import Encoder
from shoal.models.exploration import OrnsteinUhlenbeck, acting_by_value
from shoal.models.kernel import KernelUse
from shoal.models.masked import MaskedNetwork, masked_outputs
from shoal.models.network import Network
from shoal.models.policy import Policy
from shoal.models.recurrence import PreviousStep, Recurrence

LARGE_IMAGE = 48 * 48  # pixels from which on threads bring more than they cost


PolicySpaces = Mapping[str, tuple[Space, Space]]
"""Observation and action space of policies, by their names."""


def build_policy(
    obs_space: Space,
    action_space: Space,
    config: AlgorithmConfig,
    user_code: UserCode = INSTALLED,
    kind: type[Policy] = Policy,
    others: PolicySpaces | None = None,
) -> Policy:
    """A fresh policy for these spaces, initialised from the config's seed.

    A custom model that is named by a module or file is looked for in the user's code. Where agents have several
    policies it is the first of them, with the `others`.
    """
    policy = _single_policy(obs_space, action_space, config.for_policy(config.multiagent.names[0]), user_code, kind)
    for name, spaces_there in (others or {}).items():
        policy.others[name] = _single_policy(*spaces_there, config.for_policy(name), user_code, kind)
    return policy


def _single_policy(
    obs_space: Space, action_space: Space, config: AlgorithmConfig, user_code: UserCode, kind: type[Policy]
) -> Policy:
    config = with_model_class(config, user_code)
    reason = needs_torch(obs_space, config)
    if reason is not None and find_spec("torch") is None:
        raise ConfigError(f"{reason} needs PyTorch, which is not installed; type: pip install 'shoal-rl[torch]'")
    action_spec = ActionSpec(action_space, config.normalize_actions, config.clip_actions, config.squash_actions)
    obs_spec = ObsSpec(obs_space, config.framework != "numpy", action_spec, config.model.sequence_max_len)
    problems = unread_keys(config.model, bool(obs_spec.image_shapes)) + unfit_keys(config, obs_spec, action_spec)
    if problems:
        raise ConfigError(problems)
    distribution: Distribution
    exploration = config.exploration_config
    if config.acts_by_value:
        if not isinstance(exploration, EpsilonGreedyConfig):
            raise ConfigError(
                f"run: {name_of(type(config))} acts by value, but its exploration_config is a "
                f"{type(exploration).__name__}; make it a shoal.config.dqn.EpsilonGreedyConfig"
            )
        distribution = acting_by_value(
            action_spec, exploration, config.num_rows, obs_spec.mask is not None, name_of(type(config))
        )
    elif config.model.custom_action_dist is not None:
        distribution = _custom_distribution(action_spec, config.model, obs_spec)
    else:
        distribution = distribution_for(action_spec, learned_spread=exploration.type != "GaussianNoise")
    encoder = Encoder(obs_spec)
    if config.observation_filter == "MeanStdFilter":
        if not encoder.measured.any():
            raise ConfigError(
                "observation_filter: MeanStdFilter has nothing to filter, the observations hold no Box vector"
            )
        encoder.filter = MeanStdFilter(encoder.measured)
    seed = number(config.seed, Stream.WEIGHTS, np.uint32)
    previous = PreviousStep(action_spec, config.model.sees_prev_action, config.model.sees_prev_reward)
    if reason is None:
        network, kernel_use = _numpy_network(encoder, distribution, config, seed)
    else:
        kernel_use = _no_kernel(config, reason)
        network = _torch_network(encoder, distribution, config, action_space, previous, seed)
    if obs_spec.mask is not None:
        place = len(obs_spec.kinds) - 1
        network = MaskedNetwork(network, masked_outputs(obs_spec.mask, action_spec), place)
    recurrence = _recurrence(network, config, previous)
    policy = kind(obs_spec, action_spec, network, distribution, encoder, config.seed, recurrence)
    if obs_spec.image_shapes and policy.is_stochastic and recurrence is None:
        # Policy and value share the convolutions, which are nearly all of the work.
        policy.act_and_value = getattr(network, "act_and_value", None)
    policy.kernel_use = kernel_use
    policy.learns_by_probability = not config.learns_from_replay
    _set_log_std(policy, config.model)
    if isinstance(exploration, NoiseConfig):
        _set_noise(policy, exploration)
    return policy


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
    for path, leaf in leaves_of(obs_space):
        if isinstance(leaf, spaces.Sequence):
            return "an observation of varying length"
        if path[:1] == (AVAIL,):
            return AVAIL
        if is_image(leaf) and path[:1] != (MASK,):
            return "an image observation"
    return None


def unread_keys(model: ModelConfig, has_images: bool) -> list[str]:
    """A sentence for each model key that was set although nothing would read it."""
    if model.custom_model is not None:
        return []  # it gets the whole model config, and reads what it likes
    own: tuple[str, ...] = ("conv_filters", "conv_activation", "post_fcnet_hiddens")
    other, why = "fcnet_hiddens", "without an image"
    if has_images:
        own = ("fcnet_hiddens", "fcnet_activation")
        other, why = "post_fcnet_hiddens and conv_activation", "with an image among them"
    return [
        f"config.model.{key}: it has no effect for observations {why}; leave it out, or use {other}"
        for key in own
        if _is_set(model, key)
    ]


def unfit_keys(config: AlgorithmConfig, obs_spec: ObsSpec, action_spec: ActionSpec) -> list[str]:
    """A sentence for each key that these spaces leave without a reader, or that cannot do what they ask for."""
    found = _unread_sequence_keys(config.model, obs_spec)
    asked = config.squash_actions and not type(config).model_fields["squash_actions"].default
    if asked and not any(leaf.squashed.any() for leaf in action_spec.leaves):
        found.append("config.squash_actions: it has no effect, because no action is a bounded Box; leave it out")
    if config.framework == "numpy":
        for kind, what in (("items", "pool a Sequence"), ("avail", f"score {AVAIL}")):
            if kind in obs_spec.kinds:
                found.append(f"config.framework: numpy cannot {what}; use torch, or leave framework out")
    return found


def _unread_sequence_keys(model: ModelConfig, obs_spec: ObsSpec) -> list[str]:
    sequences = [leaf.space for leaf in obs_spec.leaves if leaf.kind == "items"]
    unread = []
    if all(isinstance(space, Repeated) for space in sequences):
        unread.append("sequence_max_len")
    if not sequences and model.custom_model is None:
        unread += ["sequence_hiddens", "sequence_pooling"]
    open_length = " that leaves its length open" if sequences else ""
    return [
        f"config.model.{key}: it has no effect, because no observation is a Sequence{open_length}; leave it out"
        for key in unread
        if _is_set(model, key)
    ]


def _is_set(model: ModelConfig, key: str) -> bool:
    """Whether a key of the model differs from its default."""
    return bool(getattr(model, key) != type(model).model_fields[key].default)


def _custom_distribution(action_spec: ActionSpec, model: ModelConfig, obs_spec: ObsSpec) -> Distribution:
    if find_spec("torch") is None:
        raise ConfigError(
            "custom_action_dist needs PyTorch, which is not installed; type: pip install 'shoal-rl[torch]'"
        )
    from shoal.models.torch_distributions import CustomDistribution

    _prepare_torch(obs_spec)
    assert isinstance(model.custom_action_dist, type)
    distribution: Distribution = CustomDistribution(model.custom_action_dist, action_spec, dict(vars(model)))
    if obs_spec.mask is not None and distribution.num_inputs != obs_spec.mask.size:
        raise ConfigError(
            f"config.model.custom_action_dist: its {distribution.num_inputs} inputs do not fit the "
            f"{obs_spec.mask.size} values of {MASK}; leave one of them out"
        )
    return distribution


def _set_log_std(policy: Policy, model: ModelConfig) -> None:
    """Begin with the spread of continuous actions that was asked for; a custom model reads the key itself."""
    if model.log_std_init == type(model).model_fields["log_std_init"].default or model.custom_model is not None:
        return
    if "log_std" not in policy.network.named_params():
        raise ConfigError(
            f"config.model.log_std_init: is the spread of continuous actions, and this action_space has none: "
            f"{policy.action_spec.space}; leave it out"
        )
    policy.set_stddev(float(np.exp(model.log_std_init)))


def _set_noise(policy: Policy, noise: NoiseConfig) -> None:
    """What is different from plain sampling in how continuous actions are tried out."""
    if noise.type == "StochasticSampling":
        return
    columns = gaussian_noise(policy.distribution)
    if not len(columns):
        raise ConfigError(
            f"config.exploration_config.type: {noise.type} is noise on continuous numbers, and this action_space has "
            f"none: {policy.action_spec.space}; leave it out"
        )
    if noise.type == "GaussianNoise":
        policy.set_stddev(scheduled(noise.stddev, noise.stddev_schedule, 0))
    else:
        policy.ou = OrnsteinUhlenbeck(noise.ou_theta, columns)


def _numpy_network(
    encoder: Encoder, distribution: Distribution, config: AlgorithmConfig, seed: int
) -> tuple[Network, KernelUse | None]:
    model, free = config.model, None
    if model.free_log_std:
        free = log_std_inputs(distribution)
    return mlp_for(
        config.kernel,
        encoder.size,
        distribution.num_inputs,
        tuple(model.fcnet_hiddens),
        model.fcnet_activation,
        model.vf_share_layers,
        free,
        seed,
    )


def _no_kernel(config: AlgorithmConfig, reason: str) -> KernelUse | None:
    """What becomes of `kernel` where the network is one of PyTorch, which has kernels of its own."""
    if config.kernel == "compiled":
        raise ConfigError(f"config.kernel: compiled is for NumPy networks, and {reason} needs PyTorch; leave it out")
    if config.kernel == "numpy":
        return None
    return KernelUse(None, f"{reason} needs PyTorch")


def _prepare_torch(obs_spec: ObsSpec) -> None:
    """Give torch the threads and the memory that suit the network: small ones lose by threads, convolutions gain."""
    from shoal.models.torch_network import set_threads

    pixels = [height * width for _, height, width in map(image_sides, obs_spec.image_shapes)]
    if max(pixels, default=0) < LARGE_IMAGE:
        set_threads(1)
        return
    if not are_limited(os.environ):
        set_threads(cores())
    keep_freed_memory()


def _torch_network(
    encoder: Encoder,
    distribution: Distribution,
    config: AlgorithmConfig,
    action_space: Space,
    previous: PreviousStep,
    seed: int,
) -> Network:
    from shoal.models.torch_build import build_torch_network

    _prepare_torch(encoder.spec)
    model = config.model
    free = np.zeros(0, np.int64)
    if model.free_log_std and model.custom_model is None:
        free = log_std_inputs(distribution)
    network: Network = build_torch_network(
        encoder,
        distribution.num_inputs,
        free,
        model,
        action_space,
        seed,
        "cuda" if config.num_gpus else "cpu",
        (previous.action_size, int(previous.with_reward)),
    )
    return network


def _recurrence(network: Network, config: AlgorithmConfig, previous: PreviousStep) -> Recurrence | None:
    """How the policy remembers, if its network does."""
    if not network.initial_state:
        if previous.size:
            raise ConfigError(
                "config.model: lstm_use_prev_action and lstm_use_prev_reward are for models with memory, "
                "and your model has none (get_initial_state); leave them out"
            )
        return None
    if not config.takes_memory:
        raise ConfigError(
            f"config.model.custom_model: {name_of(type(config))} learns policies without memory, and your model has "
            f"memory (get_initial_state); set run: {algorithms_that('takes_memory')}, or return []"
        )
    return Recurrence(network.step, network.initial_state, previous, config.model.max_seq_len)
