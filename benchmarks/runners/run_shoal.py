"""shoal's side of each benchmark."""

from __future__ import annotations

import functools
import random
import statistics
import time
from time import perf_counter, process_time
from typing import Any

import gymnasium as gym
import task
from reward_unit import made

import shoal

MODEL = {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False}


def same_work(num_envs: int, batch: int, minibatch: int, epochs: int, **config: Any) -> shoal.PPO:
    """PPO on CartPole-v1, in one process unless `config` says otherwise: 64x64 tanh, separate value net."""
    return shoal.PPO(
        env="CartPole-v1",
        config={
            "num_workers": 0,
            "num_envs_per_worker": num_envs,
            "train_batch_size": batch,
            "sgd_minibatch_size": minibatch,
            "num_sgd_iter": epochs,
            "lr": 3e-4,
            "model": MODEL,
            "seed": 0,
            **config,
        },
    )


def throughput(
    num_envs: int,
    batch: int,
    minibatch: int,
    epochs: int,
    warmup: int,
    iterations: int,
    custom_model: bool = False,
    num_workers: int = 0,
    sample_async: bool = False,
    kernel: str = "numpy",
) -> task.Answer:
    """Iterations of the whole algorithm, with the NumPy network or a torch model that the user wrote.

    `num_envs` are the environments in all. Learning that hides behind sampling counts as learning.
    """
    model: dict[str, Any] = MODEL
    if custom_model:
        from two_nets import TwoNets

        model = {"custom_model": TwoNets}
    layout = {"num_workers": num_workers, "sample_async": sample_async, "kernel": kernel}
    with same_work(num_envs // max(num_workers, 1), batch, minibatch, epochs, model=model, **layout) as trainer:
        for _ in range(warmup):
            trainer.train()
        steps, overall, learning = 0, 0.0, 0.0
        for _ in range(iterations):
            started = perf_counter()
            result = trainer.train()
            overall += perf_counter() - started
            learning += result["timers"]["learn_s"]
            steps += result["timesteps_this_iter"]
    return task.rates(steps, overall, learning)


def dqn(num_envs: int, warmup: int, steps: int, extra: dict[str, Any] | None = None, **work: Any) -> task.Answer:
    """Q-learning on CartPole-v1 in one process; `extra` are keys beyond the work that all share."""
    config = {
        "num_envs_per_worker": num_envs,
        "rollout_fragment_length": work["fragment"],
        "train_batch_size": work["batch"],
        "training_intensity": work["intensity"],
        "learning_starts": work["learning_starts"],
        "target_network_update_freq": work["target_every"],
        "replay_buffer_config": {"capacity": work["capacity"]},
        "lr": work["lr"],
        "n_step": 1,
        "double_q": False,
        "dueling": False,
        "model": {"fcnet_hiddens": work["hiddens"], "fcnet_activation": "relu"},
        "seed": 0,
    }
    with shoal.DQN(env="CartPole-v1", config={**config, **(extra or {})}) as trainer:
        while trainer.timesteps_total < warmup:
            trainer.train()
        begun, started, learning = trainer.timesteps_total, perf_counter(), 0.0
        while trainer.timesteps_total < begun + steps:
            learning += trainer.train()["timers"]["learn_s"]
        return task.rates(trainer.timesteps_total - begun, perf_counter() - started, learning)


def sac(
    num_envs: int, warmup: int, steps: int, hiddens: list[int], batch: int, learning_starts: int, kernel: str
) -> task.Answer:
    """Soft actor-critic on Pendulum-v1: one update for each step."""
    config = {
        "num_envs_per_worker": num_envs,
        "train_batch_size": batch,
        "training_intensity": batch,
        "learning_starts": learning_starts,
        "timesteps_per_iteration": 200,
        "model": {"fcnet_hiddens": hiddens},
        "kernel": kernel,
        "seed": 0,
    }
    with shoal.SAC(env="Pendulum-v1", config=config) as trainer:
        while trainer.timesteps_total < warmup:
            trainer.train()
        begun, started, cpu = trainer.timesteps_total, perf_counter(), process_time()
        while trainer.timesteps_total < begun + steps:
            trainer.train()
        done = trainer.timesteps_total - begun
        return {"per_cpu_s": done / (process_time() - cpu), "per_s": done / (perf_counter() - started)}


def learn_sac(env: str, steps: int, seed: int, evaluated: int) -> task.Answer:
    """Defaults: the mean return of evaluation episodes after so many steps, and the time in CPU seconds."""
    with shoal.SAC(env=env, config={"seed": seed}) as trainer:
        trainer.stop_at({"timesteps_total": steps})
        begun = process_time()
        while trainer.timesteps_total < steps:
            trainer.train()
        cpu_s = process_time() - begun
        return {"return": trainer.evaluate(episodes=evaluated)["episode_reward_mean"], "cpu_s": cpu_s}


def sampling(num_envs: int, batch: int, iterations: int) -> task.Answer:
    """Sampling, and the bare environment's own rate, in turns.

    The learning rate is next to nothing, so that the policy stays at random and both sides reset equally often.
    """
    ours, bare = [], []
    with same_work(num_envs, batch, minibatch=batch, epochs=1, lr=1e-12) as trainer:
        trainer.train()
        for _ in range(iterations):
            bare.append(bare_steps_per_s(batch))
            started = perf_counter()
            result = trainer.train()
            overall = perf_counter() - started
            ours.append(result["timesteps_this_iter"] / (overall - result["timers"]["learn_s"]))
    shares = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
    return {
        "sampling": statistics.median(ours),
        "bare": statistics.median(bare),
        "share": statistics.median(shares),
    }


def guard(num_envs: int, steps: int, rounds: int) -> task.Answer:
    """What checking every observation and reward adds to sampling, with and without it in turns."""
    with same_work(num_envs, num_envs * steps, minibatch=num_envs * steps, epochs=1) as trainer:
        worker = trainer.workers.foreach_worker(lambda worker: worker)[0]
        vector: Any = worker.vector
        guarded = vector.written

        def unguarded(columns: Any, rows: Any) -> bool:
            observations, rewards, terminated, truncated, _ = columns
            vector._obs_spec.put_all(observations, rows.obs)
            rows.rewards[:], rows.terminated[:], rows.truncated[:] = rewards, terminated, truncated
            return True

        def seconds(written: Any) -> float:
            vector.written = written
            started = perf_counter()
            worker.sample(steps)
            return perf_counter() - started

        seconds(guarded)
        extra = [seconds(guarded) / seconds(unguarded) - 1 for _ in range(rounds)]
    return {"extra": statistics.median(extra)}


def bare_steps_per_s(steps: int) -> float:
    """Steps per second of CartPole-v1 without wrappers, under random actions, resets included."""
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    chance = random.Random(0)
    actions = [chance.randrange(2) for _ in range(steps)]
    step, reset = env.step, env.reset
    started = perf_counter()
    for chosen in actions:
        _, _, terminated, _, _ = step(chosen)
        if terminated:
            reset()
    return steps / (perf_counter() - started)


def trpo(
    num_envs: int, num_workers: int, batch: int, iterations: int, sample_async: bool = False, **work: Any
) -> task.Answer:
    """The first iterations of TRPO on Pong's memory; the clock starts when environments and workers are up."""
    config = {
        "env_config": {"obs_type": "ram"},
        "num_workers": num_workers,
        "num_envs_per_worker": num_envs // max(num_workers, 1),
        "sample_async": sample_async,
        "train_batch_size": batch,
        "sgd_minibatch_size": work["minibatch"],
        "num_sgd_iter": work["epochs"],
        "cg_iters": work["cg_iters"],
        "model": MODEL,
        "seed": 0,
    }
    with shoal.TRPO(env="ALE/Pong-v5", config=config) as trainer:
        started = perf_counter()
        learning = sum(trainer.train()["timers"]["learn_s"] for _ in range(iterations))
        overall = perf_counter() - started
        assert trainer.timesteps_total == batch * iterations
    return {"overall_s": overall, "sampling_s": overall - learning, "learning_s": learning}


def startup(num_envs: int, batch: int, minibatch: int, epochs: int) -> task.Answer:
    """One iteration, and the moment it was finished."""
    with same_work(num_envs, batch, minibatch, epochs) as trainer:
        trainer.train()
        return {"finished_at": time.monotonic()}


def action(calls: int) -> task.Answer:
    """One action for one observation."""
    obs, _ = gym.make("CartPole-v1").reset(seed=0)
    with shoal.PPO(env="CartPole-v1", config={"model": MODEL}) as trainer:
        return {"us": task.median_us(lambda: trainer.compute_single_action(obs, explore=False), calls)}


def learn(
    run: str,
    env: str,
    seed: int,
    steps: int,
    kind: str,
    config: dict[str, Any],
    env_config: dict[str, Any],
    reward_unit: float,
    normalize: bool,
) -> task.Answer:
    """The curve of mean returns over the last 100 episodes, and the last of them, in the environment's own unit."""
    del kind, normalize  # all that they stand for is in the config already, or the default
    curve: list[tuple[int, float]] = []
    started = process_time()
    make = functools.partial(made, env, reward_unit, env_config)
    with getattr(shoal, run)(env=lambda _: make(), config={"num_workers": 0, **config, "seed": seed}) as trainer:
        while trainer.timesteps_total < steps:
            result = trainer.train()
            if result["episodes_total"]:
                curve.append((result["timesteps_total"], result["episode_reward_mean"] / reward_unit))
    return {"curve": curve, "final": curve[-1][1], "cpu_s": process_time() - started}


EXPERT_STEPS, EXPERTS_RECORDED = {"CartPole-v1": 60_000, "Pendulum-v1": 150_000}, 20_480


def record(env: str, recorded: str, seed: int, folder: str) -> task.Answer:
    """Write down all steps of a PPO run, or, as an expert, those that it makes after it."""
    config: dict[str, Any] = {"seed": seed}
    if env == "Pendulum-v1":
        config["gamma"] = 0.9
    if recorded == "learning":
        config["output"] = folder
    with shoal.PPO(env=env, config=config) as trainer:
        while trainer.timesteps_total < EXPERT_STEPS[env]:
            trainer.train()
        weights = trainer.get_policy().get_weights()
    if recorded == "learning":
        return {}
    with shoal.PPO(env=env, config={**config, "lr": 1e-12, "output": folder}) as trainer:
        trainer.get_policy().set_weights(weights)
        while trainer.timesteps_total < EXPERTS_RECORDED:
            trainer.train()
    return {}


def imitate(run: str, env: str, seed: int, steps: int, recorded: str, folder: str) -> task.Answer:
    """The curve of returns of the most likely actions, over the recorded steps that were learned from."""
    del recorded  # it is in the folder
    curve: list[tuple[int, float]] = []
    cpu_s = 0.0
    with getattr(shoal, run)(env=env, config={"input": folder, "seed": seed}) as trainer:
        while trainer.timesteps_total < steps:
            started = process_time()
            trainer.train()
            cpu_s += process_time() - started
            if trainer.timesteps_total >= steps or trainer.iteration % 5 == 0:
                played = trainer.evaluate(episodes=20)["episode_reward_mean"]
                curve.append((trainer.timesteps_total, played))
    return {"curve": curve, "final": curve[-1][1], "cpu_s": cpu_s}


def evaluated(run: str, env: str, seed: int, steps: int, config: dict[str, Any], episodes: int) -> task.Answer:
    """The mean return of the most likely actions after so many steps, as `shoal evaluate` measures it."""
    started = process_time()
    with getattr(shoal, run)(env=env, config={**config, "seed": seed, "num_workers": 0}) as trainer:
        while trainer.timesteps_total < steps:
            trainer.train()
        result = trainer.evaluate(episodes=episodes)
    return {"final": result["episode_reward_mean"], "cpu_s": process_time() - started}


def images(batch: int, minibatch: int, num_envs: int) -> task.Answer:
    """Peak memory of a few iterations on an environment with 1 MiB observations."""
    from mebibyte import MebibyteEnv

    config = {
        "num_envs_per_worker": num_envs,
        "train_batch_size": batch,
        "sgd_minibatch_size": minibatch,
        "num_sgd_iter": 1,
    }
    with shoal.PPO(env=MebibyteEnv, config=config) as trainer:
        peaks = []
        for _ in range(3):
            trainer.train()
            peaks.append(task.peak_rss_mb())
    return {"peaks_mb": peaks}


def long_run(steps: int, every: int) -> task.Answer:
    """Memory held after each `every` steps of CartPole-v1."""
    held, due = [], every
    with same_work(num_envs=64, batch=4096, minibatch=256, epochs=2) as trainer:
        while due <= steps:
            if trainer.train()["timesteps_total"] >= due:
                held.append((due, task.rss_mb()))
                due += every
    return {"held_mb": held}


if __name__ == "__main__":
    tasks = (
        throughput,
        dqn,
        sac,
        learn_sac,
        sampling,
        guard,
        trpo,
        startup,
        action,
        learn,
        record,
        imitate,
        evaluated,
        images,
        long_run,
    )
    task.main({f.__name__: f for f in tasks})
