"""RLlib's side of each benchmark."""

# mypy: allow-untyped-calls

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from time import perf_counter, process_time
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import task
from processes import kill_one_of
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.marwil import MARWILConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from simulators import OfOwnPace, Sleeping


def same_work(num_envs: int, batch: int, minibatch: int, epochs: int, num_env_runners: int) -> Any:
    """PPO on CartPole-v1: 64x64 tanh, separate value net; `num_envs` environments in all."""
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=num_envs // max(num_env_runners, 1))
        .training(train_batch_size_per_learner=batch, minibatch_size=minibatch, num_epochs=epochs, lr=3e-4)
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
        )
        .debugging(seed=0)
        .build_algo()
    )


def throughput(
    num_envs: int, batch: int, minibatch: int, epochs: int, warmup: int, iterations: int, num_env_runners: int = 0
) -> task.Answer:
    """The same work, timed from outside: RLlib's own timers average over the warm-up too."""
    algo = same_work(num_envs, batch, minibatch, epochs, num_env_runners)
    update = algo.learner_group.update
    learning: list[float] = []

    def timed_update(*args: Any, **kwargs: Any) -> Any:
        started = perf_counter()
        answer = update(*args, **kwargs)
        learning.append(perf_counter() - started)
        return answer

    algo.learner_group.update = timed_update
    for _ in range(warmup):
        algo.train()
    learning.clear()
    started, steps = perf_counter(), 0
    for _ in range(iterations):
        steps += algo.train()["env_runners"]["num_env_steps_sampled"]
    answer = task.rates(steps, perf_counter() - started, sum(learning))
    algo.stop()
    ray.shutdown()
    return answer


def startup(num_envs: int, batch: int, minibatch: int, epochs: int, num_env_runners: int) -> task.Answer:
    """One iteration, and the moment it was finished."""
    algo = same_work(num_envs, batch, minibatch, epochs, num_env_runners)
    algo.train()
    finished_at = time.monotonic()
    algo.stop()
    ray.shutdown()
    return {"finished_at": finished_at}


def killed(num_workers: int, steps: int, sleep_s: float, seconds: float, every_s: float) -> task.Answer:
    """Steps per second undisturbed, and with `kill -9` of one runner every so often."""
    ray.init(num_cpus=num_workers + 1)
    algo: Any = (
        PPOConfig()
        .environment(Sleeping, env_config={"sleep_s": sleep_s})
        .env_runners(num_env_runners=num_workers, num_envs_per_env_runner=1)
        .training(train_batch_size_per_learner=steps * num_workers, minibatch_size=256, num_epochs=10, lr=3e-4)
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
        )
        .fault_tolerance(restart_failed_env_runners=True, delay_between_env_runner_restarts_s=0)
        .build_algo()
    )
    algo.train()

    def rate() -> tuple[float, float]:
        started, taken, longest = perf_counter(), 0, 0.0
        while perf_counter() - started < seconds:
            before = perf_counter()
            taken += algo.train()["env_runners"].get("num_env_steps_sampled", 0)
            longest = max(longest, perf_counter() - before)
        return taken / (perf_counter() - started), longest

    calm, _ = rate()
    with kill_one_of(lambda _, command: command.startswith("ray::SingleAgentEnvRunner"), every_s) as kills:
        struck, longest = rate()
    algo.stop()
    ray.shutdown()
    return {"calm": calm, "struck": struck, "kills": len(kills), "longest_s": longest}


def pace(
    num_workers: int, sleep_s: float, turn_s: float, train_batch_size: int, sgd_minibatch_size: int, num_sgd_iter: int
) -> task.Answer:
    """Steps per second of APPO with workers of different pace, each with one simulator."""
    ray.init(num_cpus=num_workers + 2)
    algo: Any = (
        APPOConfig()
        .environment(OfOwnPace, env_config={"sleep_s": sleep_s})
        .env_runners(num_env_runners=num_workers, rollout_fragment_length=train_batch_size // num_workers)
        .training(
            train_batch_size_per_learner=train_batch_size,
            minibatch_size=sgd_minibatch_size,
            num_epochs=num_sgd_iter,
            lr=3e-4,
        )
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
        )
        .reporting(min_time_s_per_iteration=1)
        .build_algo()
    )

    def sampled() -> float:
        return float(algo.train()["env_runners"].get("num_env_steps_sampled_lifetime", 0))

    begun = sampled()
    while not begun:
        begun = sampled()
    started = perf_counter()
    taken = begun
    while perf_counter() - started < 5 * turn_s:
        taken = sampled()
    rate = (taken - begun) / (perf_counter() - started)
    algo.stop()
    ray.shutdown()
    return {"rate": rate}


def dqn(num_envs: int, warmup: int, steps: int, **work: Any) -> task.Answer:
    """Q-learning on CartPole-v1 in one process."""
    algo: Any = (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs, rollout_fragment_length=work["fragment"])
        .training(
            lr=work["lr"],
            train_batch_size_per_learner=work["batch"],
            training_intensity=work["intensity"],
            num_steps_sampled_before_learning_starts=work["learning_starts"],
            target_network_update_freq=work["target_every"],
            double_q=False,
            dueling=False,
            n_step=1,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": work["capacity"]},
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=list(work["hiddens"]), fcnet_activation="relu"))
        .debugging(seed=0)
        .build_algo()
    )
    update = algo.learner_group.update
    learning: list[float] = []

    def timed_update(*args: Any, **kwargs: Any) -> Any:
        started = perf_counter()
        answer = update(*args, **kwargs)
        learning.append(perf_counter() - started)
        return answer

    algo.learner_group.update = timed_update
    taken = 0
    while taken < warmup:
        taken = algo.train()["env_runners"]["num_env_steps_sampled_lifetime"]
    learning.clear()
    started, begun = perf_counter(), taken
    while taken < begun + steps:
        taken = algo.train()["env_runners"]["num_env_steps_sampled_lifetime"]
    answer = task.rates(int(taken - begun), perf_counter() - started, sum(learning))
    answer["updates"] = len(learning)
    algo.stop()
    ray.shutdown()
    return answer


def solve(seed: int, goal: float) -> task.Answer:
    """RLlib's tuned CartPole example, with as many sampling processes as the reference machine has cores."""
    algo: Any = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=2, num_envs_per_env_runner=16)
        .training(lr=3e-4, num_epochs=6, vf_loss_coeff=0.01)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True))
        .debugging(seed=seed)
        .build_algo()
    )
    solved: dict[str, Any] = {"solved_at": None, "timesteps": None}
    for _ in range(100):
        seen = algo.train()["env_runners"]
        if seen["num_episodes_lifetime"] >= 100 and seen["episode_return_mean"] >= goal:
            solved = {"solved_at": time.monotonic(), "timesteps": int(seen["num_env_steps_sampled_lifetime"])}
            break
    algo.stop()
    ray.shutdown()
    return solved


def episodes_of(folder: str) -> Iterator[SingleAgentEpisode]:
    """The episodes that shoal has recorded, as RLlib's; one that was not finished is cut short there."""
    import pandas

    for file in sorted(Path(folder).glob("*.parquet")):
        for number, steps in pandas.read_parquet(file).groupby("episode_id", sort=False):
            observations = list(steps.obs)
            last = steps.iloc[-1]
            end = observations[-1] if last.final_obs is None else last.final_obs
            seen = np.array([*map(np.asarray, observations), np.asarray(end)], np.float32)
            yield SingleAgentEpisode(
                id_=f"{file.stem}-{number}",
                observations=list(seen),
                actions=[np.asarray(each, np.float32) if np.ndim(each) else int(each) for each in steps.action],
                rewards=steps.reward.astype(float).tolist(),
                terminated=bool(last.terminated),
                truncated=not last.terminated,
                len_lookback_buffer=0,
            )


def imitate(run: str, env: str, seed: int, steps: int, recorded: str, folder: str) -> task.Answer:
    """The curve of returns of the most likely actions, over the recorded steps that were learned from."""
    del recorded  # it is in the folder
    import msgpack
    import msgpack_numpy
    import pandas

    curve: list[tuple[int, float]] = []
    cpu_s, learned = 0.0, 0
    with tempfile.TemporaryDirectory() as data:
        packed = [msgpack.packb(each.get_state(), default=msgpack_numpy.encode) for each in episodes_of(folder)]
        pandas.DataFrame({"item": packed}).to_parquet(Path(data, "episodes.parquet"))
        kind = {"BC": BCConfig, "MARWIL": MARWILConfig}[run]
        algo: Any = (
            kind()
            .environment(env)
            .offline_data(input_=[data], input_read_episodes=True, dataset_num_iters_per_learner=1)
            .debugging(seed=seed)
            .build_algo()
        )
        due = steps // 4
        while learned < steps:
            started = process_time()
            found = algo.train()["learners"]["default_policy"]
            cpu_s += process_time() - started
            learned = int(found["num_module_steps_trained_lifetime"])
            if learned >= due:
                due = min(due + steps // 4, steps)
                curve.append((learned, played(algo.get_module(), env, 20)))
        algo.stop()
    ray.shutdown()
    return {"curve": curve, "final": curve[-1][1], "cpu_s": cpu_s}


def played(module: Any, env: str, episodes: int) -> float:
    """The mean return of the most likely actions."""
    import torch

    game = gym.make(env)
    returns = []
    for number in range(episodes):
        obs, _ = game.reset(seed=number)
        total, over = 0.0, False
        while not over:
            outputs = module.forward_inference({"obs": torch.from_numpy(np.asarray(obs, np.float32)[None])})
            likeliest = module.get_inference_action_dist_cls().from_logits(outputs["action_dist_inputs"])
            action = likeliest.to_deterministic().sample()[0].detach().numpy()
            if isinstance(game.action_space, gym.spaces.Box):  # RLlib's own environments see actions from -1 to 1
                low, high = game.action_space.low, game.action_space.high
                action = np.clip(low + (action + 1) / 2 * (high - low), low, high)
            obs, reward, terminated, truncated, _ = game.step(action)
            total += float(reward)
            over = terminated or truncated
        returns.append(total)
    return fmean(returns)


if __name__ == "__main__":
    task.main({f.__name__: f for f in (throughput, startup, killed, pace, dqn, solve, imitate)})
