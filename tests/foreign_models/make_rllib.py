"""Makes the checkpoints of this folder that RLlib has written, each with what its policy does.

    python -m venv /tmp/rllib && /tmp/rllib/bin/pip install -r tests/rllib/requirements.txt
    /tmp/rllib/bin/python tests/foreign_models/make_rllib.py [NAME ...]

Each algorithm of the new API stack is trained for an iteration. Of its checkpoint the module and the metadata are kept:
`shoal import` reads no other file. `NAME.npz` has 1000 observations and the actions of the module's own
`forward_inference`, after RLlib's own `unsquash_action` for continuous ones. For SAC they are the middle of what it
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
from ray.rllib.utils.spaces.space_utils import unsquash_action

HERE = Path(__file__).parent
COUNT = 1000
KEPT = ("rllib_checkpoint.json", "metadata.json", "module_state.pkl", "class_and_ctor_args.pkl")
WHERE = ("", "learner_group/learner/rl_module", "learner_group/learner/rl_module/default_policy")


def observations(env_id: str) -> np.ndarray[Any, Any]:
    """Observations of random episodes, and some from outside of them."""
    env, rng = gym.make(env_id), np.random.default_rng(1)
    env.action_space.seed(1)
    obs, _ = env.reset(seed=1)
    seen = []
    for step in range(COUNT):
        seen.append(obs + (rng.normal(size=obs.shape) * 2 if step % 10 == 9 else 0))
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            obs, _ = env.reset()
    return np.stack(seen).astype(np.float32)


def actions(module: Any, seen: np.ndarray[Any, Any], env_id: str) -> np.ndarray[Any, Any]:
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
    space = gym.make(env_id).action_space
    return np.asarray(unsquash_action(chosen.numpy(), space) if isinstance(space, gym.spaces.Box) else chosen.numpy())


def make(name: str, config: Any, env_id: str, weights: float = 1.0, noise: float = 0.0) -> None:
    if sys.argv[1:] and name not in sys.argv[1:]:
        return
    config = config.environment(env_id).env_runners(num_env_runners=0).debugging(seed=1)
    config = config.reporting(min_sample_timesteps_per_iteration=100, min_time_s_per_iteration=0)
    algorithm = config.build_algo()
    algorithm.train()
    module = algorithm.learner_group._learner.module["default_policy"]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(weights)  # heads begin next to nothing
            parameter.add_(noise * torch.randn_like(parameter))  # and a moment's training changes little
    seen = observations(env_id)
    chosen = actions(module, seen, env_id)
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
    np.savez_compressed(HERE / f"{name}.npz", obs=seen, actions=chosen)
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
    dqn = {"num_steps_sampled_before_learning_starts": 50, "train_batch_size": 32}
    make("rllib_dqn_cartpole", DQNConfig().training(**dqn).rl_module(model_config=model), "CartPole-v1", noise=1.0)
    sac = {**model, "fusionnet_hiddens": [8]}
    make("rllib_sac_pendulum", SACConfig().training(**dqn).rl_module(model_config=sac), "Pendulum-v1", noise=0.1)
