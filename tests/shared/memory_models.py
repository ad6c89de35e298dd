"""Environments and models with memory for the contract tests; other processes find them by this file."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from shoal import FullyConnectedNetwork, TorchModelV2


class Recall(gym.Env):
    """Wants the action that fits what was seen a step ago; its episodes end in their own time."""

    observation_space = spaces.Box(-10, 10, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.past, self.obs = 0, None, self._seen()
        return self.obs, {}

    def step(self, action):
        self.steps += 1
        reward = 0.0 if self.past is None else float(self._numbers(self.past)[action])
        self.past, self.obs = self.obs, self._seen()
        return self.obs, reward, bool(self._numbers(self.obs)[0] > 2), self.steps >= 13, {}

    def _numbers(self, obs):
        return obs["observations"] if isinstance(obs, dict) else obs

    def _seen(self):
        return self.np_random.standard_normal(3).astype(np.float32)


class MaskedRecall(Recall):
    """One of the three actions is ruled out at every step; taking it is an error."""

    observation_space = spaces.Dict(observations=Recall.observation_space, action_mask=spaces.MultiBinary(3))

    def step(self, action):
        assert action != self.ruled_out
        return super().step(action)

    def _seen(self):
        self.ruled_out = int(self.np_random.integers(3))
        mask = (np.arange(3) != self.ruled_out).astype(np.int8)
        return {"observations": super()._seen(), "action_mask": mask}


class Averaging(TorchModelV2):
    """A custom model with a state that stands on the built-in network: it sees a running mean of what was seen."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name):
        super().__init__(obs_space, action_space, num_outputs, model_config, name)
        self.model = FullyConnectedNetwork(obs_space, action_space, num_outputs, model_config, name)
        self.gate = nn.Parameter(torch.zeros(obs_space.shape[0]))
        self.register_variables(self.model.variables())

    def get_initial_state(self):
        return [np.zeros(self.obs_space.shape[0], np.float32)]

    def forward(self, input_dict, state, seq_lens):
        seen = input_dict["obs"].reshape(len(seq_lens), -1, self.obs_space.shape[0])
        mean, rows = state[0], []
        for t in range(seen.shape[1]):
            mean = mean + torch.sigmoid(self.gate) * (seen[:, t] - mean)
            rows.append(mean)
        outputs, _ = self.model({"obs": torch.stack(rows, 1).flatten(0, 1)}, [], None)
        return outputs, [mean]

    def value_function(self):
        return self.model.value_function()


class Valueless(Averaging):
    value_function = TorchModelV2.value_function
