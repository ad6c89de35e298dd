"""shoal's side of searches without gradients."""

from __future__ import annotations

from time import process_time

import task

import shoal


def learn(run: str, env: str, steps: int, seed: int, evaluated: int) -> task.Answer:
    """What the centre of the search returns after so many steps with defaults, and steps per CPU second on the way."""
    with getattr(shoal, run)(env=env, config={"seed": seed}) as trainer:
        begun = process_time()
        while trainer.timesteps_total < steps:
            trainer.train()
        cpu_s = process_time() - begun
        done = trainer.timesteps_total
        returned = trainer.evaluate(episodes=evaluated)["episode_reward_mean"]
    return {"return": returned, "steps": done, "per_cpu_s": done / cpu_s}


if __name__ == "__main__":
    task.main({"learn": learn})
