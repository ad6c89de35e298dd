"""Actions that come and go: a courier takes one of the orders on a board, scored by the model or by one of your own."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch

import shoal
from shoal import FullyConnectedNetwork, TorchModelV2


class OrderBoard(gym.Env[dict[str, Any], int]):
    """At most `max_orders` orders, each with a distance and a price; how much fuel is left decides which is best."""

    def __init__(self, env_config: dict[str, Any] | None = None) -> None:
        self.max_orders = (env_config or {}).get("max_orders", 8)
        self.action_space = gym.spaces.Discrete(self.max_orders)
        self.observation_space = gym.spaces.Dict(
            observations=gym.spaces.Box(-1, 1, (1,), np.float32),  # fuel
            avail_actions=gym.spaces.Box(-1, 1, (self.max_orders, 2), np.float32),  # distance and price of each order
            action_mask=gym.spaces.Box(0, 1, (self.max_orders,), np.int8),  # 1 where there is one
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert self.mask[action], "no order hangs there"
        distance, price = self.orders[action]
        reward = float(price + self.fuel * distance)  # with a full tank, far is fine
        self.time += 1
        return self._seen(), reward, self.time == 20, False, {}

    def _seen(self) -> dict[str, Any]:
        self.fuel = float(self.np_random.uniform(-1, 1))
        self.mask = np.arange(self.max_orders) < self.np_random.integers(1, self.max_orders + 1)
        self.np_random.shuffle(self.mask)
        self.orders = np.where(self.mask[:, None], self.np_random.uniform(-1, 1, (self.max_orders, 2)), 0)
        return {
            "observations": np.array([self.fuel], np.float32),
            "avail_actions": self.orders.astype(np.float32),
            "action_mask": self.mask.astype(np.int8),
        }


class ParametricActionsModel(TorchModelV2):
    """Says what it wants of an action, and takes the dot product with each that is there."""

    def __init__(
        self,
        obs_space: Any,
        action_space: Any,
        num_outputs: int,
        model_config: Any,
        name: str,
        action_embed_size: int = 2,
    ) -> None:
        super().__init__(obs_space, action_space, num_outputs, model_config, name)
        self.action_embed_model = FullyConnectedNetwork(
            obs_space.original_space["observations"], action_space, action_embed_size, model_config, f"{name}_wanted"
        )

    def forward(self, input_dict: Any, state: Any, seq_lens: Any) -> Any:
        avail_actions = input_dict["obs"]["avail_actions"]
        action_mask = input_dict["obs"]["action_mask"]
        wanted, _ = self.action_embed_model({"obs": input_dict["obs"]["observations"]})
        action_logits = torch.sum(avail_actions * wanted.unsqueeze(1), dim=2)
        # Masks are applied to what a model puts out in any case; a model may also do so by itself.
        inf_mask = torch.clamp(torch.log(action_mask), min=torch.finfo(torch.float32).min)
        return action_logits + inf_mask, state

    def value_function(self) -> Any:
        return self.action_embed_model.value_function()


def main() -> None:
    own = {"custom_model": ParametricActionsModel, "custom_model_config": {"action_embed_size": 2}}
    for name, model in (("built-in", {}), ("custom", own)):
        with shoal.PPO(env=OrderBoard, config={"model": model, "train_batch_size": 1000, "seed": 1}) as trainer:
            first = trainer.train()["episode_reward_mean"]
            for _ in range(14):
                last = trainer.train()["episode_reward_mean"]
            print(f"{name} model: {first:.1f} -> {last:.1f} per day")


if __name__ == "__main__":
    main()
