"""An RLlib policy behind Ray Serve, as its documentation deploys one: 64x64 units, one action a request."""

# mypy: allow-untyped-calls

from __future__ import annotations

import sys
import threading
from typing import Any

import gymnasium
import ray
import torch
from ray import serve
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from starlette.requests import Request


@serve.deployment(max_ongoing_requests=256)
class Served:
    """One replica."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        env = gymnasium.make("CartPole-v1")
        spec = RLModuleSpec(
            module_class=DefaultPPOTorchRLModule,
            observation_space=env.observation_space,
            action_space=env.action_space,
            model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False),
        )
        self.module = spec.build()

    async def __call__(self, request: Request) -> Any:
        """The most likely action."""
        body = await request.json()
        batch = {"obs": torch.tensor([body["observation"]], dtype=torch.float32)}
        with torch.no_grad():
            logits = self.module.forward_inference(batch)["action_dist_inputs"]
        return {"action": int(logits.argmax(dim=1)[0])}


if __name__ == "__main__":
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Served.bind(), name="rllib", route_prefix="/act")
    sys.stdout.write("up\n")
    sys.stdout.flush()
    threading.Event().wait()
