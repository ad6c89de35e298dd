"""What both libraries do in the benchmark of Atari frames: SB3's settings for Atari, in its own words."""

from __future__ import annotations

from typing import Any

NUM_ENVS = 8
PPO: dict[str, Any] = {
    "n_steps": 128,
    "batch_size": 256,
    "n_epochs": 4,
    "learning_rate": 2.5e-4,
    "clip_range": 0.1,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
DQN: dict[str, Any] = {
    "learning_rate": 1e-4,
    "buffer_size": 10_000,
    "learning_starts": 512,
    "batch_size": 32,
    "train_freq": 4,  # steps of each environment
    "gradient_steps": 8,  # one update for every four steps
    "target_update_interval": 1000,
}


def envpool_pool() -> Any:
    """EnvPool's eight Breakouts: 84 x 84, grey, four frames, its own preprocessing in one thread."""
    import envpool

    return envpool.make_gymnasium(
        "Breakout-v5", num_envs=NUM_ENVS, num_threads=1, seed=0, stack_num=4, frame_skip=4, reward_clip=False
    )
