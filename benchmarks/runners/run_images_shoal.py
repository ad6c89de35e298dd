"""shoal's side of the benchmark of Atari frames."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import images_work
import task
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import shoal

NETWORK = {"post_fcnet_hiddens": [512], "vf_share_layers": True}


def trainer_of(run: str, frames: str, config: dict[str, Any]) -> shoal.Trainer:
    """The algorithm on Breakout, whose frames the game gives to shoal's preprocessing, or EnvPool prepares itself."""
    config = {**config, "model": NETWORK, "num_envs_per_worker": images_work.NUM_ENVS, "seed": 0}
    env: Any = "BreakoutNoFrameskip-v4"
    if frames == "envpool":
        env = EnvPoolVector
    trainer: shoal.Trainer = getattr(shoal, run)(env=env, config=config)
    return trainer


def ppo(frames: str, warmup: int, steps: int) -> task.Answer:
    """Steps per CPU second of whole iterations of PPO."""
    work = images_work.PPO
    config = {
        "train_batch_size": work["n_steps"] * images_work.NUM_ENVS,
        "sgd_minibatch_size": work["batch_size"],
        "num_sgd_iter": work["n_epochs"],
        "lr": work["learning_rate"],
        "clip_param": work["clip_range"],
        "entropy_coeff": work["ent_coef"],
        "vf_loss_coeff": work["vf_coef"],
        "grad_clip": work["max_grad_norm"],
    }
    return measured(trainer_of("PPO", frames, config), warmup, steps)


def dqn(frames: str, warmup: int, steps: int) -> task.Answer:
    """Steps per CPU second of DQN once it learns."""
    work = images_work.DQN
    config = {
        "rollout_fragment_length": work["train_freq"],
        "train_batch_size": work["batch_size"],
        "training_intensity": work["gradient_steps"] * work["batch_size"] / (work["train_freq"] * images_work.NUM_ENVS),
        "timesteps_per_iteration": 256,
        "learning_starts": work["learning_starts"],
        "target_network_update_freq": work["target_update_interval"],
        "replay_buffer_config": {"capacity": work["buffer_size"]},
        "lr": work["learning_rate"],
        "n_step": 1,
        "double_q": False,
        "dueling": False,
    }
    return measured(trainer_of("DQN", frames, config), warmup, steps)


def measured(trainer: shoal.Trainer, warmup: int, steps: int) -> task.Answer:
    """Steps per CPU second of all threads, and per second, after a warm-up."""
    with trainer:
        while trainer.timesteps_total < warmup:
            trainer.train()
        begun, started, cpu = trainer.timesteps_total, perf_counter(), process_time()
        while trainer.timesteps_total < begun + steps:
            trainer.train()
        done = trainer.timesteps_total - begun
        return {"per_cpu_s": done / (process_time() - cpu), "per_s": done / (perf_counter() - started)}


def floor(rows: int) -> task.Answer:
    """CPU milliseconds of the network alone per row, acting and learning, with channels in front and behind."""
    import torch

    layers = torch.nn.Sequential(
        *(torch.nn.Conv2d(4, 32, 8, 4), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 4, 2), torch.nn.ReLU()),
        *(torch.nn.Conv2d(64, 64, 3, 1), torch.nn.ReLU(), torch.nn.Flatten()),
        *(torch.nn.Linear(3136, 512), torch.nn.ReLU(), torch.nn.Linear(512, 5)),
    )
    found = {}
    for name, layout in (("first", torch.contiguous_format), ("last", torch.channels_last)):
        for count in (images_work.NUM_ENVS, rows):
            images = torch.rand(count, 4, 84, 84).to(memory_format=layout)

            def acted(images: torch.Tensor = images) -> None:
                with torch.no_grad():
                    layers(images)

            found[f"channels {name}, acting on {count}"] = _cpu_ms(acted) / count

        def learned(images: torch.Tensor = images) -> None:
            layers(images).sum().backward()

        found[f"channels {name}, learning from {rows}"] = _cpu_ms(learned) / rows
    return found


def _cpu_ms(call: Callable[[], None], calls: int = 10) -> float:
    """The CPU time of one call."""
    call()
    started = process_time()
    for _ in range(calls):
        call()
    return (process_time() - started) / calls * 1e3


class EnvPoolVector(VectorEnv[Any, Any, Any]):
    """EnvPool's environments as a vector of Gymnasium's, which shoal takes as it is."""

    def __init__(self, _: Any) -> None:
        self.pool = images_work.envpool_pool()
        self.num_envs = images_work.NUM_ENVS
        self.single_observation_space, self.single_action_space = self.pool.observation_space, self.pool.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin everywhere; the pool got its seed when it was made."""
        del seed, options
        return self.pool.reset()[0], {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step everywhere."""
        obs, rewards, terminated, truncated, _ = self.pool.step(actions)
        return obs, rewards, terminated, truncated, {}


if __name__ == "__main__":
    task.main({f.__name__: f for f in (ppo, dqn, floor)})
