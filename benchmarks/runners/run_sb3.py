"""Stable-Baselines3's side of each benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean
from time import perf_counter, process_time
from typing import Any

import gymnasium as gym
import task
from reward_unit import made
from sb3_contrib import ARS, TRPO
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

Schedule = Callable[[float], float]


def linear(start: float) -> Schedule:
    """A value that falls to zero with the remaining share of the steps."""
    return lambda remaining: start * remaining


class EachRollout(BaseCallback):  # type: ignore[misc]
    """Calls `see(steps, mean return of the last 100 episodes or None)` after each rollout; ends when it gives False."""

    def __init__(self, see: Callable[[int, float | None], bool]) -> None:
        super().__init__()
        self.see = see
        self.going_on = True

    def _on_step(self) -> bool:
        return self.going_on

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        self.going_on = self.see(self.num_timesteps, fmean(returns) if len(returns) == 100 else None)


def same_work(num_envs: int, batch: int, minibatch: int, epochs: int) -> PPO:
    """PPO on CartPole-v1 with SB3's own defaults beyond the work that all share: 64x64 tanh, separate value net."""
    envs = make_vec_env("CartPole-v1", n_envs=num_envs, seed=0)
    return PPO(
        "MlpPolicy", envs, n_steps=batch // num_envs, batch_size=minibatch, n_epochs=epochs, device="cpu", seed=0
    )


def throughput(num_envs: int, batch: int, minibatch: int, epochs: int, warmup: int, iterations: int) -> task.Answer:
    """Time `train()` apart from the rest, in one call of `learn`."""
    model = same_work(num_envs, batch, minibatch, epochs)
    train = model.train
    marks: list[tuple[float, float]] = []

    def timed_train() -> None:
        started = perf_counter()
        train()
        marks.append((started, perf_counter()))

    model.train = timed_train
    model.learn((warmup + iterations) * batch)
    overall = marks[-1][1] - marks[warmup - 1][1]
    return task.rates(iterations * batch, overall, sum(end - start for start, end in marks[warmup:]))


def dqn(num_envs: int, warmup: int, steps: int, **work: Any) -> task.Answer:
    """Q-learning on CartPole-v1 with SB3's own defaults beyond the work that all share: 64x64 relu."""
    fragment, size = work["fragment"], work["batch"]
    model = DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=num_envs, seed=0),
        learning_starts=work["learning_starts"],
        buffer_size=work["capacity"],
        batch_size=size,
        train_freq=fragment,  # steps of each environment
        gradient_steps=fragment * num_envs * work["intensity"] // size,
        target_update_interval=work["target_every"],
        learning_rate=work["lr"],
        policy_kwargs={"net_arch": list(work["hiddens"])},
        device="cpu",
        seed=0,
    )
    train = model.train
    learning: list[float] = []
    marks: list[tuple[int, float]] = []

    def timed_train(*args: Any, **kwargs: Any) -> None:
        if model.num_timesteps >= warmup and not marks:
            marks.append((model.num_timesteps, perf_counter()))
        started = perf_counter()
        train(*args, **kwargs)
        if marks:
            learning.append(perf_counter() - started)

    model.train = timed_train
    model.learn(warmup + steps)
    (begun, start), done = marks[0], perf_counter()
    return task.rates(model.num_timesteps - begun, done - start, sum(learning))


def sac(num_envs: int, warmup: int, steps: int, hiddens: list[int], batch: int, learning_starts: int) -> task.Answer:
    """Soft actor-critic on Pendulum-v1: one update for each step."""
    envs = make_vec_env("Pendulum-v1", n_envs=num_envs, seed=0)
    model = SAC(
        "MlpPolicy",
        envs,
        batch_size=batch,
        learning_starts=learning_starts,
        train_freq=1,
        gradient_steps=num_envs,
        policy_kwargs={"net_arch": hiddens},
        device="cpu",
        seed=0,
    )
    model.learn(warmup)
    started, begun = perf_counter(), process_time()
    model.learn(steps, reset_num_timesteps=False)
    return {"per_cpu_s": steps / (process_time() - begun), "per_s": steps / (perf_counter() - started)}


def learn_sac(env: str, steps: int, seed: int, evaluated: int) -> task.Answer:
    """SB3's defaults: the mean return of evaluation episodes after so many steps, and the time in CPU seconds."""
    model = SAC("MlpPolicy", env, device="cpu", seed=seed)
    begun = process_time()
    model.learn(steps)
    cpu_s = process_time() - begun
    returns, _ = evaluate_policy(model, model.get_env(), evaluated, return_episode_rewards=True)
    return {"return": fmean(returns), "cpu_s": cpu_s}


def startup(num_envs: int, batch: int, minibatch: int, epochs: int) -> task.Answer:
    """One iteration, and the moment it was finished."""
    same_work(num_envs, batch, minibatch, epochs).learn(batch)
    return {"finished_at": time.monotonic()}


def action(calls: int) -> task.Answer:
    """One action for one observation."""
    model = PPO("MlpPolicy", "CartPole-v1", device="cpu")
    obs, _ = gym.make("CartPole-v1").reset(seed=0)
    return {"us": task.median_us(lambda: model.predict(obs, deterministic=True), calls)}


def solve(seed: int, goal: float) -> task.Answer:
    """The zoo's settings for CartPole-v1, until the goal or the zoo's number of steps."""
    solved: dict[str, Any] = {"solved_at": None, "timesteps": None}

    def see(steps: int, mean: float | None) -> bool:
        if mean is None or mean < goal:
            return True
        solved.update(solved_at=time.monotonic(), timesteps=steps)
        return False

    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=linear(1e-3),
        clip_range=linear(0.2),
        device="cpu",
        seed=seed,
    )
    model.learn(100_000, callback=EachRollout(see))
    return solved


def pong() -> gym.Env[Any, Any]:
    """Pong by its memory, in whichever process asks for it."""
    import ale_py

    gym.register_envs(ale_py)
    return gym.make("ALE/Pong-v5", obs_type="ram")


def trpo(num_envs: int, subprocesses: bool, batch: int, iterations: int, **work: Any) -> task.Answer:
    """The first iterations of TRPO on Pong's memory; work that is not given is sb3-contrib's own."""
    kind = SubprocVecEnv if subprocesses else DummyVecEnv
    envs = make_vec_env(pong, n_envs=num_envs, seed=0, vec_env_cls=kind)
    words = {"minibatch": "batch_size", "epochs": "n_critic_updates", "cg_iters": "cg_max_steps"}
    own = {words[key]: value for key, value in work.items()}
    model = TRPO("MlpPolicy", envs, n_steps=batch // num_envs, device="cpu", seed=0, **own)
    train, learning = model.train, []

    def timed_train() -> None:
        started = perf_counter()
        train()
        learning.append(perf_counter() - started)

    model.train = timed_train
    started = perf_counter()
    model.learn(iterations * batch)
    overall = perf_counter() - started
    assert len(learning) == iterations
    envs.close()
    return {"overall_s": overall, "sampling_s": overall - sum(learning), "learning_s": sum(learning)}


def solve_trpo(seed: int, goal: float, most_steps: int) -> task.Answer:
    """The zoo's settings of TRPO for CartPole-v1, until the goal."""
    solved: dict[str, Any] = {"solved_at": None, "timesteps": None}

    def see(steps: int, mean: float | None) -> bool:
        if mean is None or mean < goal:
            return True
        solved.update(solved_at=time.monotonic(), timesteps=steps)
        return False

    model = TRPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=2, seed=seed),
        n_steps=512,
        batch_size=512,
        cg_damping=1e-3,
        gae_lambda=0.98,
        gamma=0.99,
        learning_rate=1e-3,
        n_critic_updates=20,
        device="cpu",
        seed=seed,
    )
    model.learn(most_steps, callback=EachRollout(see))
    return solved


WORDS = {
    "PPO": {
        "sgd_minibatch_size": "batch_size",
        "num_sgd_iter": "n_epochs",
        "lr": "learning_rate",
        "gamma": "gamma",
        "lambda_": "gae_lambda",
        "clip_param": "clip_range",
        "entropy_coeff": "ent_coef",
        "vf_loss_coeff": "vf_coef",
        "grad_clip": "max_grad_norm",
    },
    "TRPO": {
        "sgd_minibatch_size": "batch_size",
        "num_sgd_iter": "n_critic_updates",
        "lr": "learning_rate",
        "gamma": "gamma",
        "lambda_": "gae_lambda",
        "cg_iters": "cg_max_steps",
    },
    "DQN": {
        "train_batch_size": "batch_size",
        "lr": "learning_rate",
        "gamma": "gamma",
        "learning_starts": "learning_starts",
        "target_network_update_freq": "target_update_interval",
        "grad_clip": "max_grad_norm",
    },
    "ARS": {"lr": "learning_rate", "noise_stdev": "delta_std"},
}
"""SB3's word for each of shoal's."""


def in_words_of_sb3(run: str, config: dict[str, Any], steps: int) -> dict[str, Any]:
    """shoal's settings as SB3's; its TRPO keeps its own `target_kl` and `cg_damping`, which shoal's were made from."""
    own = {word: config[key] for key, word in WORDS[run].items()}
    if "lr_schedule" in config:
        own["learning_rate"] = linear(config["lr"])
    if run == "ARS":
        return {**own, "n_delta": config["num_rollouts"] // 2, "n_top": config["num_rollouts"] // 2}
    if run != "DQN":
        return {**own, "n_steps": config["train_batch_size"] // config["num_envs_per_worker"]}
    fragment, exploration = config["rollout_fragment_length"], config["exploration_config"]
    new = fragment * config["num_envs_per_worker"]
    return {
        **own,
        "train_freq": fragment,
        "gradient_steps": int(new * config["training_intensity"] / config["train_batch_size"]),
        "buffer_size": config["replay_buffer_config"]["capacity"],
        "exploration_fraction": exploration["epsilon_timesteps"] / steps,
        "exploration_final_eps": exploration["final_epsilon"],
    }


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
    curve: list[tuple[int, float]] = []
    started = process_time()
    num_envs = config["num_envs_per_worker"] if kind == "same" else 1
    envs = make_vec_env(lambda: made(env, reward_unit, env_config), n_envs=num_envs, seed=seed)
    if normalize:  # ARS divides by the spread of returns itself
        envs = VecNormalize(envs, norm_reward=run != "ARS")
    own = in_words_of_sb3(run, config, steps) if kind == "same" else {}
    kind_of_policy = "LinearPolicy" if run == "ARS" else "MlpPolicy"
    kinds = {"PPO": PPO, "TRPO": TRPO, "DQN": DQN, "SAC": SAC, "ARS": ARS}
    model = kinds[run](kind_of_policy, envs, device="cpu", seed=seed, **own)

    def see(at: int) -> None:
        returns = [episode["r"] / reward_unit for episode in model.ep_info_buffer]
        if returns:
            curve.append((at, fmean(returns)))

    model.learn(steps, callback=Every(max(steps // 100, 1), see))
    see(model.num_timesteps)
    return {"curve": curve, "final": curve[-1][1], "cpu_s": process_time() - started}


class Every(BaseCallback):  # type: ignore[misc]
    """Calls `see(steps)` after every so many steps."""

    def __init__(self, stride: int, see: Callable[[int], None]) -> None:
        super().__init__()
        self.stride, self.see, self.due = stride, see, stride

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.due:
            self.due += self.stride
            self.see(self.num_timesteps)
        return True


if __name__ == "__main__":
    tasks = (throughput, dqn, sac, learn_sac, startup, action, solve, trpo, solve_trpo, learn)
    task.main({f.__name__: f for f in tasks})
