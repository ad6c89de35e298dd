"""The classic script: an environment, a custom model, ten iterations of PPO on three workers, one checkpoint."""
# ruff: noqa: B007, SIM115

import argparse

import gymnasium as gym
import numpy as np
import torch.nn as nn
from gymnasium import spaces

import shoal.ppo as ppo
from shoal import FullyConnectedNetwork, ModelCatalog, TorchModelV2, pretty_print
from shoal.tune import register_env


class my_environment(gym.Env):
    def __init__(self, config):
        self.Scalar = config["Scalar"]
        print("Scalar value : ", self.Scalar)
        self.observation_space = spaces.MultiDiscrete([4, 49, 49, 49, 49])
        self.action_space = spaces.Discrete(49)
        self.current_step = 0
        self.intvector = np.asarray([0, 0, 0, 0, 0], dtype=np.int64)

    def reset(self, *, seed=None, options=None):
        self.current_step = 0
        self.intvector = np.asarray([0, 0, 0, 0, 0], dtype=np.int64)

        return self.intvector, {}

    def _take_action(self, action):
        self.intvector[self.current_step + 1] = action
        self.intvector[0] += 1

    def step(self, action):
        self._take_action(action)

        self.current_step += 1

        obs = self.intvector
        if self.current_step < 4:
            reward = 0
            done = False
        else:
            self.intvector[1:] += 12
            reward = -(
                (self.Scalar - (self.intvector[3] * self.intvector[2]) / (self.intvector[1] * self.intvector[4])) ** 2
            )
            self.intvector[1:] -= 12
            done = True

        return obs, reward, done, False, {}

    def render(self, mode="human", close=False):
        pass


register_env("myenv", lambda config: my_environment(config))


class CustomModel(TorchModelV2, nn.Module):
    """Example of a custom model that just delegates to a fc-net."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name):
        super().__init__(obs_space, action_space, num_outputs, model_config, name)
        self.model = FullyConnectedNetwork(obs_space, action_space, num_outputs, model_config, name)
        self.register_variables(self.model.variables())

    def forward(self, input_dict, state, seq_lens):
        return self.model.forward(input_dict, state, seq_lens)

    def value_function(self):
        return self.model.value_function()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ray-address")
    args = parser.parse_args()

    # Without an address, shoal starts a private Ray of the size that the workers need.
    if args.ray_address:
        import ray

        ray.init(address=args.ray_address)
    ModelCatalog.register_custom_model("my_model", CustomModel)

    config = ppo.DEFAULT_CONFIG.copy()
    config["log_level"] = "WARN"
    config["num_gpus"] = 0
    config["num_workers"] = 3
    config["lr"] = 1e-4

    # Add custom model for policy
    model = {}
    model["custom_model"] = "my_model"
    config["model"] = model

    # Environmental parameters
    env_params = {}
    env_params["Scalar"] = 1.0 / 6.931
    config["env_config"] = env_params

    # Trainer
    trainer = ppo.PPOTrainer(config=config, env="myenv")

    # Can optionally call trainer.restore(path) to load a checkpoint.
    for i in range(10):
        # Perform one iteration of training the policy with PPO
        result = trainer.train()
        print(pretty_print(result))

    # Final save
    checkpoint = trainer.save()
    print("Final checkpoint saved at", checkpoint)

    f = open("rl_checkpoint", "w")
    f.write(checkpoint)
    f.close()
