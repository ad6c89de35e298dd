"""Policies of every kind that an export may have to carry, with weights and filters as if they had been trained."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from shoal.config.experiment import experiment_from
from shoal.errors import ConfigError
from shoal.export.made import Subject
from shoal.models.build import build_policy


def box(*shape: int, low: float = -1, high: float = 1, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


def subject(obs: Any, actions: Any, run: str = "PPO", **config: Any) -> Subject:
    model = config.pop("model", {})
    if not {"conv_filters", "post_fcnet_hiddens"} & model.keys():
        model = {"fcnet_hiddens": [24, 16], **model}  # small: they are compiled many times
    experiment = experiment_from({"name": "x", "run": run, "config": {"env": "CartPole-v1", "model": model, **config}})
    try:
        policy = build_policy(obs, actions, experiment.config)
    except ConfigError as error:
        if find_spec("torch") is not None:
            raise
        pytest.skip(str(error))
    rng = np.random.default_rng(3)
    policy.network.params[:] += rng.normal(0, 0.2, policy.network.params.shape).astype(np.float32)
    policy.network.sync()
    if policy.filter is not None:
        seen = rng.normal(2, 5, (500, policy.obs_spec.vector_size)).astype(np.float32)
        policy.filter.update(policy.encoder.measurements(seen))
    checkpoint = Path("/nowhere/run/checkpoint_000001")
    summary = {"episode_reward_mean": 12.5, "training_iteration": 1}
    return Subject(
        policy, experiment.config.model, run, "CartPole-v1", (None, None), {"name": "x"}, summary, checkpoint
    )


FILTER = {"observation_filter": "MeanStdFilter"}
PREVIOUS = {"lstm_cell_size": 8, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
EVERYTHING = spaces.Dict(
    near=box(3),
    start=spaces.Discrete(5, start=2),
    several=spaces.MultiDiscrete([2, 3]),
    bits=spaces.MultiBinary(3),
    many=spaces.Discrete(2000),
    whole=box(2, low=0, high=255, dtype=np.int32),
)
ACTIONS = spaces.Dict(x=box(2, low=0, high=10), y=spaces.MultiDiscrete([2, 3, 3]), z=spaces.MultiBinary(2))
MASKED = spaces.Dict(action_mask=box(5, low=0, high=1), observations=box(3))
MASKED_CHOICE = spaces.Dict(action_mask=box(4, low=0, high=1), observations=box(3))
OFFERS = spaces.Dict(me=box(3), avail_actions=box(4, 2), action_mask=spaces.MultiBinary(4))
PICTURE = spaces.Dict(picture=spaces.Box(0, 255, (16, 12, 3), np.uint8), speed=box(2))
CONVOLUTIONS = {"conv_filters": [[4, 3, 2], [8, 3, 2]]}
SEQUENCE = spaces.Dict(seen=spaces.Sequence(spaces.Dict(place=box(2), kind=spaces.Discrete(3))))


def own_model(with_memory: bool = False) -> Any:
    """A custom model, as a user has one; PyTorch is imported only for it."""
    pytest.importorskip("torch")
    from memory_models import Averaging

    from shoal import FullyConnectedNetwork

    class Squaring(FullyConnectedNetwork):
        def forward(self, input_dict: Any, state: Any, seq_lens: Any) -> Any:
            seen = input_dict["obs_flat"]
            return super().forward({**input_dict, "obs_flat": seen * seen.abs()}, state, seq_lens)

    return Averaging if with_memory else Squaring


def own_distribution() -> Any:
    """A custom action distribution, as a user has one."""
    pytest.importorskip("torch")
    from torch.distributions import Categorical

    from shoal import TorchDistributionWrapper

    class Choice(TorchDistributionWrapper):
        def __init__(self, inputs: Any, model: Any) -> None:
            super().__init__(inputs, model)
            self.dist = Categorical(logits=inputs)

        @staticmethod
        def required_model_output_shape(action_space: Any, model_config: Any) -> int:
            return int(action_space.n)

        def deterministic_sample(self) -> Any:
            return self.dist.probs.argmax(dim=1)

    return Choice


Kinds = dict[str, Callable[[], Subject]]
VECTORS: Kinds = {
    "filtered": lambda: subject(box(4, low=-np.inf, high=np.inf), spaces.Discrete(3, start=-1), **FILTER),
    "everything": lambda: subject(EVERYTHING, ACTIONS, model={"fcnet_activation": "gelu"}, **FILTER),
    "sac": lambda: subject(box(3), box(2, low=-2, high=3, dtype=np.float64), run="SAC"),
    "dqn": lambda: subject(box(3), spaces.Discrete(4), run="DQN"),
    "masked_dqn": lambda: subject(MASKED_CHOICE, spaces.Discrete(4), run="DQN", model={"fcnet_hiddens": [32]}),
    "es": lambda: subject(box(3), box(2, low=-2, high=3), run="ES", **FILTER),
    "masked": lambda: subject(MASKED, spaces.MultiDiscrete([2, 3])),
    "whole": lambda: subject(box(3), box(2, low=-1000, high=100000, dtype=np.int64)),
    "unclipped": lambda: subject(box(3), box(2, low=-2, high=4), clip_actions=False, normalize_actions=False),
}
IMAGES: Kinds = {
    "picture": lambda: subject(PICTURE, spaces.Discrete(3), model=CONVOLUTIONS),
    "field": lambda: subject(spaces.Box(-1, 1, (16, 18), np.float32), box(1), model={"post_fcnet_hiddens": [16]}),
    "dqn_picture": lambda: subject(PICTURE, spaces.Discrete(3), run="DQN", model=CONVOLUTIONS),
    "sac_picture": lambda: subject(PICTURE, box(2, low=-2, high=3), run="SAC", model=CONVOLUTIONS),
}
MEMORY: Kinds = {
    "lstm": lambda: subject(box(3), ACTIONS, model={"use_lstm": True, **PREVIOUS}),
    "squashed_gru": lambda: subject(
        box(3), box(2, low=0, high=4), squash_actions=True, model={"use_gru": True, "vf_share_layers": True, **PREVIOUS}
    ),
    "masked_lstm": lambda: subject(MASKED, spaces.MultiDiscrete([2, 3]), model={"use_lstm": True, **PREVIOUS}),
    "picture_gru": lambda: subject(
        PICTURE, box(1), model={"conv_filters": [[4, 3, 2]], "use_gru": True, "lstm_cell_size": 8}
    ),
}
BY_TORCH: Kinds = {
    "attention": lambda: subject(
        box(3), spaces.Discrete(3), model={"use_attention": True, "attention_memory_inference": 5}
    ),
    "sequence": lambda: subject(SEQUENCE, spaces.Discrete(3), model={"sequence_max_len": 4}),
    "avail_actions": lambda: subject(OFFERS, spaces.Discrete(4)),
}
MODELS: Kinds = {
    "custom": lambda: subject(box(3), spaces.Discrete(3), model={"custom_model": own_model()}),
    "custom_memory": lambda: subject(box(3), box(2), model={"custom_model": own_model(with_memory=True)}),
}
DISTRIBUTIONS: Kinds = {
    "custom_distribution": lambda: subject(
        box(3), spaces.Discrete(3), model={"custom_action_dist": own_distribution()}
    ),
}
BY_ROW = {
    "vectors": VECTORS,
    "images": IMAGES,
    "LSTM": MEMORY,
    "attention": BY_TORCH,
    "a custom model": MODELS,
    "a custom action distribution": DISTRIBUTIONS,
}
"""By the row of the table in docs/export.md, as its first words are."""
POLICIES: Kinds = {name: make for kinds in BY_ROW.values() for name, make in kinds.items()}
