"""shoal's side of the benchmarks of learning beside sampling: APPO beside PPO, and learners that fill the wait."""

from __future__ import annotations

import contextlib
from pathlib import Path
from time import perf_counter
from typing import Any

import task

import shoal
from shoal.algorithms.held_out import HeldOut
from shoal.algorithms.off_policy import UpdateStatistics
from shoal.config.changing import unchecked

SIMULATORS = Path(__file__).with_name("simulators.py")


def pace(
    cases: dict[str, Any], num_workers: int, sleep_s: float, rounds: int, turn_s: float, **config: Any
) -> task.Answer:
    """Steps per second of each case with workers of different pace, in turns, since a shared machine's speed drifts.

    What workers have sampled while others had their turn is learned from before the clock starts.
    """
    layout = {"num_workers": num_workers, "num_envs_per_worker": 1, "num_cpus_per_worker": 0.1}
    common = {**config, **layout, "env_config": {"sleep_s": sleep_s}}
    rates: dict[str, list[float]] = {name: [] for name in cases}
    staleness: dict[str, list[int]] = {name: [] for name in cases}
    with contextlib.ExitStack() as stack:
        trainers = {}
        for name, (run, own) in cases.items():
            trainer = getattr(shoal, run)(env=f"{SIMULATORS}:OfOwnPace", config={**common, **own})
            trainers[name] = stack.enter_context(trainer)
        for _ in range(rounds):
            for name, trainer in trainers.items():
                for _ in range(3):
                    trainer.train()
                started, before = perf_counter(), trainer.timesteps_total
                while perf_counter() - started < turn_s:
                    staleness[name].append(trainer.train()["staleness"])
                rates[name].append((trainer.timesteps_total - before) / (perf_counter() - started))
    return {"rates": rates, "staleness": {name: max(seen) for name, seen in staleness.items()}}


def steps_to(env: str, run: str, goal: float, most: int, seed: int, num_workers: int, **config: Any) -> task.Answer:
    """Environment steps until the mean return of 100 episodes reaches the goal; None where `most` are not enough."""
    layout = {"num_workers": num_workers, "num_envs_per_worker": 8 // num_workers, "num_cpus_per_worker": 0.25}
    staleness = []
    with getattr(shoal, run)(env=env, config={**config, **layout, "seed": seed}) as trainer:
        while trainer.timesteps_total < most:
            result = trainer.train()
            staleness.append(result["learner"].get("staleness_mean", 0.0))
            mean = result["episode_reward_mean"]
            if mean is not None and mean >= goal and result["episodes_total"] >= 20:
                return {"steps": trainer.timesteps_total, "staleness": sum(staleness) / len(staleness)}
    return {"steps": None, "staleness": sum(staleness) / len(staleness)}


def fill(
    run: str, env: str, sleep_s: float, num_workers: int, steps: int, seed: int, quick_steps: int = 0, **config: Any
) -> task.Answer:
    """How long the learner waited after learning began, how often it learned, and what return that gave.

    The first `quick_steps` of each worker take no time.
    """
    layout = {"num_workers": num_workers, "num_envs_per_worker": 1, "num_cpus_per_worker": 0.1}
    slow = {"sleep_s": sleep_s, "quick_steps": quick_steps}
    common = {**config, **layout, "seed": seed, "env_config": slow}
    common["evaluation_config"] = {"env_config": {"sleep_s": 0.0}}
    waited = spent = updates = 0.0
    with getattr(shoal, run)(env=f"{SIMULATORS}:{env}", config=common) as trainer:
        result: dict[str, Any] = {}
        while trainer.timesteps_total < steps:
            result = trainer.train()
            if result["learner"]["num_updates"]:
                waited += result["timers"]["wait_s"]
                spent += result["time_this_iter_s"]
                updates += result["learner"]["num_updates"]
        evaluation = trainer.evaluate(episodes=10)
    return {
        "wait_share": waited / spent,
        "updates_per_step": updates / (result["timesteps_total"] - config["learning_starts"]),
        "simulator_calls": result["simulator_calls_total"],
        "overfit_ratio": result["learner"].get("overfit_ratio"),
        "return": evaluation["episode_reward_mean"],
        "seconds": spent,
    }


def limited(
    updates: int, limit: float | None, begin: int, steps: int, seed: int, num_envs: int, hiddens: list[int]
) -> task.Answer:
    """SAC on a pendulum whose every step takes the time of so many updates, of which `limit` may leave some out.

    Nothing depends on the clock: the share of the updates that were left out is the share of the time that the learner
    of a machine of that speed waits for.
    """
    config = {
        "num_envs_per_worker": num_envs,
        "timesteps_per_iteration": num_envs,
        "learning_starts": 10 * steps,  # the trainer itself only samples
        "model": {"fcnet_hiddens": hiddens},
        "seed": seed,
    }
    left_out = made = 0
    with shoal.SAC(env="Pendulum-v1", config=config) as trainer:
        learner: Any = trainer.learner
        learner.held_out = HeldOut()
        learner.config = unchecked(learner.config, max_overfit_ratio=limit)
        while trainer.timesteps_total < steps:
            trainer.train()
            if trainer.timesteps_total <= begin:
                continue
            room = updates * num_envs
            learner._next_look = learner.updates  # what is new may be learned from
            due = num_envs  # at least as many as by default
            while room and due:
                due = min(due, room)
                learner.learn(due, trainer.timesteps_total, UpdateStatistics())
                room, made = room - due, made + due
                due = learner._updates_due()
            left_out += room
        evaluation = trainer.evaluate(episodes=20)
    return {
        "wait_share": left_out / (left_out + made),
        "updates_per_step": made / (steps - begin),
        "overfit_ratio": learner.held_out.ratio,
        "return": evaluation["episode_reward_mean"],
    }


if __name__ == "__main__":
    task.main({"pace": pace, "steps_to": steps_to, "fill": fill, "limited": limited})
