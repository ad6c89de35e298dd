"""Makes the checkpoints of this folder that RLlib has written, each with what its policy does.

    python -m venv /tmp/rllib && /tmp/rllib/bin/pip install -r tests/rllib/requirements.txt
    /tmp/rllib/bin/python tests/foreign_models/make_rllib.py [NAME ...]

Each algorithm of the new API stack is trained for an iteration. Of its checkpoint the module, a filter and the
metadata are kept: `shoal import` reads no other file. `NAME.npz` has 1000 observations and the actions of the module's
own `forward_inference`, after RLlib's own `unsquash_action` for continuous ones. For SAC they are the middle of what it
samples: without exploring, RLlib 2.60 leaves the tanh out, which no action that it has learned from was without.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.utils.spaces.space_utils import unsquash_action

HERE = Path(__file__).parent
COUNT = 1000
KEPT = ("rllib_checkpoint.json", "metadata.json", "module_state.pkl", "class_and_ctor_args.pkl")
WHERE = ("", "learner_group/learner/rl_module", "learner_group/learner/rl_module/default_policy")
FILTER = "env_runner/env_to_module_connector/*MeanStdFilter/state.pkl"


class Picture(gym.Env[Any, Any]):
    """Blocks of 256 shades between -1 and 1, in two channels: RLlib's convolutions take no bytes."""

    observation_space = gym.spaces.Box(-1, 1, (20, 24, 2), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, config: Any = None) -> None:
        self.taken = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return self._seen(), {}

    def step(self, action: int) -> Any:
        self.taken += 1
        return self._seen(), float(action == self.taken % 4), self.taken == 20, False, {}

    def _seen(self) -> Any:
        shades = self.np_random.integers(0, 256, (5, 6, 2)).repeat(4, 0).repeat(4, 1)
        return (shades / 127.5 - 1).astype(np.float32)


class Painted(Picture):
    """The same, where an action is two numbers."""

    action_space = gym.spaces.Box(-1, 3, (2,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(int(action[0] > 0))


def made(env: Any) -> Any:
    return gym.make(env) if isinstance(env, str) else env()


def observations(env_id: Any) -> np.ndarray[Any, Any]:
    """Observations of random episodes, and some from outside of them."""
    env, rng = made(env_id), np.random.default_rng(1)
    env.action_space.seed(1)
    obs, _ = env.reset(seed=1)
    seen = []
    for step in range(COUNT):
        odd = obs.ndim == 1 and step % 10 == 9
        seen.append(obs + (rng.normal(size=obs.shape) * 2 if odd else 0))
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            obs, _ = env.reset()
    return np.stack(seen).astype(np.float32)


def actions(module: Any, seen: np.ndarray[Any, Any], env_id: Any) -> np.ndarray[Any, Any]:
    """What the module does without exploring, as the environment gets it."""
    with torch.no_grad():
        outputs = module.forward_inference({"obs": torch.from_numpy(seen)})
    if "actions" in outputs:
        chosen = outputs["actions"]
    else:
        distribution = module.get_inference_action_dist_cls().from_logits(outputs["action_dist_inputs"])
        chosen = distribution.to_deterministic().sample()
        if hasattr(distribution, "_squash"):  # which RLlib forgets in `to_deterministic`, and not where it samples
            chosen = distribution._squash(distribution.loc)
    space = made(env_id).action_space
    return np.asarray(unsquash_action(chosen.numpy(), space) if isinstance(space, gym.spaces.Box) else chosen.numpy())


def make(
    name: str, config: Any, env_id: Any, weights: float = 1.0, noise: float = 0.0, clip: float | None = None
) -> None:
    if sys.argv[1:] and name not in sys.argv[1:]:
        return
    filtering = MeanStdFilter(clip_by_value=clip)
    filtered = {"env_to_module_connector": lambda env, spaces=None, device=None: filtering} if clip else {}
    config = config.environment(env_id).env_runners(num_env_runners=0, **filtered).debugging(seed=1)
    config = config.reporting(min_sample_timesteps_per_iteration=100, min_time_s_per_iteration=0)
    algorithm = config.build_algo()
    algorithm.train()
    module = algorithm.learner_group._learner.module["default_policy"]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(weights)  # heads begin next to nothing
            parameter.add_(noise * torch.randn_like(parameter))  # and a moment's training changes little
    seen = observations(env_id)
    shown = seen
    if clip:
        shown = np.stack([filtering._filters[None](obs, update=False) for obs in seen]).astype(np.float32)
        assert (np.abs(shown) == clip).mean() > 0.1
    chosen = actions(module, shown, env_id)
    assert len(np.unique(chosen)) > 1, "a policy that always does the same tells nothing"
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        algorithm.save_to_path(folder)
        for place in WHERE:
            for file in KEPT:
                if (Path(folder) / place / file).exists():
                    (target / place).mkdir(parents=True, exist_ok=True)
                    shutil.copy(Path(folder) / place / file, target / place / file)
        for path in Path(folder).glob(FILTER):
            place = target / path.parent.relative_to(folder)
            place.mkdir(parents=True)
            shutil.copy(path, place)
    kept = seen if seen.ndim == 2 else np.rint((seen[:, ::4, ::4] + 1) * 127.5).astype(np.uint8)  # the shades of blocks
    np.savez_compressed(HERE / f"{name}.npz", obs=kept, actions=chosen)
    algorithm.stop()


if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False)
    model = {"fcnet_hiddens": [16, 16], "fcnet_activation": "relu"}
    ppo = {"train_batch_size": 200, "minibatch_size": 50, "num_epochs": 4}
    make("rllib_ppo_cartpole", PPOConfig().training(**ppo).rl_module(model_config=model), "CartPole-v1", 2.0)
    make(
        "rllib_ppo_pendulum",
        PPOConfig().training(**ppo).rl_module(model_config={"fcnet_hiddens": [16, 16], "vf_share_layers": True}),
        "Pendulum-v1",
        2.0,
    )
    make("rllib_ppo_filtered", PPOConfig().training(**ppo).rl_module(model_config=model), "Pendulum-v1", 2.0, clip=1.0)
    convolutions = {"conv_filters": [[4, 5, 2], [8, 3, 2, "valid"], [6, 3, 1]], "head_fcnet_hiddens": [8]}
    make(
        "rllib_ppo_picture",
        PPOConfig().training(**ppo).rl_module(model_config={**convolutions, "vf_share_layers": True}),
        Picture,
        2.0,
    )
    dqn = {"num_steps_sampled_before_learning_starts": 50, "train_batch_size": 32}
    make("rllib_dqn_cartpole", DQNConfig().training(**dqn).rl_module(model_config=model), "CartPole-v1", noise=1.0)
    make(
        "rllib_dqn_picture",
        DQNConfig().training(**dqn).rl_module(model_config=convolutions),
        Picture,
        noise=0.3,
    )
    sac = {**model, "fusionnet_hiddens": [8]}
    make("rllib_sac_pendulum", SACConfig().training(**dqn).rl_module(model_config=sac), "Pendulum-v1", noise=0.1)
    make(
        "rllib_sac_picture",
        SACConfig().training(**dqn).rl_module(model_config={**sac, **convolutions}),
        Painted,
        noise=0.15,
    )
