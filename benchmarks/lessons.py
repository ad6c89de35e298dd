"""What `learning.py` teaches: environments, steps and settings, each in shoal's words.

- `bars`: shoal alone with its default settings, against a return that it has to reach with every seed.
- `peers`: twelve tasks beside Stable-Baselines3 and sb3-contrib at equal steps, once with each library's defaults and
  its usual normalisation, and once with the same settings: the peer's defaults, said in shoal's words. What the peer
  does not have stands beside its nearest: APPO beside PPO, ES, CEM and CMAES beside ARS.
- `recorded`: BC and MARWIL beside RLlib's, from the same recorded steps: an expert's, and those of all its learning.
- `layouts`: shoal alone, a batch of 2048 steps as 8 environments with 256 steps each, the default, as one with all, and
  as 8 whose first episodes end at different steps.
- `zoo`: four tasks beside SB3 with the zoo's settings, without its observation normalisation, state-dependent noise and
  clip schedules, which the two do differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

SEEDS = 5


@dataclass(frozen=True)
class Lesson:
    """One task for one algorithm, with its settings."""

    part: str
    name: str
    run: str
    env: str
    steps: int
    kind: str = "defaults"  # or "same": settings that are said to every library
    config: dict[str, Any] = field(default_factory=dict)
    env_config: dict[str, Any] = field(default_factory=dict)
    reward_unit: float = 1.0  # every reward is multiplied by this, and reported returns divided by it
    who: tuple[str, ...] = ("shoal", "sb3")
    normalize: bool = False  # with the library's usual normalisation of observations and rewards
    least: float | None = None  # the return that every seed has to reach
    peer_run: str = ""  # what the peer learns by, where it has nothing of that name
    recorded: str = ""  # which steps of a PPO run are learned from, in place of the environment's own

    @property
    def key(self) -> str:
        """What tells it from all others."""
        return "/".join((self.part, self.run, self.name, self.kind))


UNITS = (0.001, 0.01, 0.1, 1, 10, 100, 1000, 10_000, 100_000)


def bars() -> Iterator[Lesson]:
    """Tasks that shoal's defaults have to learn with every seed."""
    for run in ("PPO", "TRPO", "DQN"):
        for unit in UNITS:
            name = f"CartPole-v1 x{unit:g}"
            yield Lesson("bars", name, run, "CartPole-v1", 41_000, reward_unit=unit, who=("shoal",))
    yield Lesson("bars", "Pendulum-v1", "PPO", "Pendulum-v1", 100_000, who=("shoal",), least=-200)
    yield Lesson("bars", "LunarLander-v3", "PPO", "LunarLander-v3", 200_000, who=("shoal",), least=80)


TASKS: tuple[tuple[str, int, int], ...] = (
    ("CartPole-v1", 40_000, 1),
    ("Acrobot-v1", 50_000, 1),
    ("Pendulum-v1", 60_000, 1),
    ("MountainCarContinuous-v0", 30_000, 1),
    ("LunarLander-v3", 100_000, 1),
    ("BipedalWalker-v3", 60_000, 4),
    ("HalfCheetah-v5", 51_200, 6),
    ("Hopper-v5", 51_200, 3),
    ("Walker2d-v5", 51_200, 6),
    ("Swimmer-v5", 51_200, 2),
    ("Reacher-v5", 40_000, 2),
    ("ALE/Pong-v5", 60_000, 1),
)
"""Environment, steps, and numbers in an action.

The steps are those after which learning shows, not those after which it ends: one seed of PPO with every task and both
libraries takes about half an hour of one core, both kinds of settings together.
"""
SAC_TASKS = (("Pendulum-v1", 20_000), ("HalfCheetah-v5", 300_000), ("Hopper-v5", 300_000))
"""Environment and steps for SAC, whose update of 256 for each step makes 300,000 of them an hour of a core."""
SEARCH_TASKS = (("CartPole-v1", 20_000), ("Pendulum-v1", 100_000), ("Swimmer-v5", 100_000))
"""Environment and steps for algorithms that try whole parameter vectors."""
DISCRETE = ("CartPole-v1", "Acrobot-v1", "LunarLander-v3", "ALE/Pong-v5")

SAME: dict[str, dict[str, Any]] = {
    "PPO": {
        "num_envs_per_worker": 1,
        "train_batch_size": 2048,
        "sgd_minibatch_size": 64,
        "num_sgd_iter": 10,
        "lr": 3e-4,
        "gamma": 0.99,
        "lambda_": 0.95,
        "clip_param": 0.2,
        "entropy_coeff": 0.0,
        "vf_loss_coeff": 0.5,
        "grad_clip": 0.5,
        "normalize_rewards": False,
        "normalize_actions": False,
    },
    "TRPO": {
        "num_envs_per_worker": 1,
        "train_batch_size": 2048,
        "sgd_minibatch_size": 128,
        "num_sgd_iter": 10,
        "lr": 1e-3,
        "gamma": 0.99,
        "lambda_": 0.95,
        "cg_iters": 15,
        "grad_clip": None,
        "normalize_rewards": False,
        "normalize_actions": False,
    },
    "DQN": {
        "num_envs_per_worker": 4,
        "lr": 1e-4,
        "gamma": 0.99,
        "train_batch_size": 32,
        "rollout_fragment_length": 4,
        "training_intensity": 8.0,
        "learning_starts": 1000,
        "target_network_update_freq": 1000,
        "grad_clip": 10.0,
        "n_step": 1,
        "double_q": False,
        "dueling": False,
        "td_error_loss_fn": "huber",
        "normalize_rewards": False,
        "replay_buffer_config": {"capacity": 50_000},
        "exploration_config": {"final_epsilon": 0.05},
    },
    "ARS": {
        "num_envs_per_worker": 1,
        "num_rollouts": 16,
        "lr": 0.02,
        "noise_stdev": 0.05,
        "observation_filter": "NoFilter",
    },
}


TWO_WORKERS = {"num_workers": 2, "num_envs_per_worker": 4, "num_cpus_per_worker": 0.5}
APPO_TASKS = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "LunarLander-v3", "HalfCheetah-v5")


def peers() -> Iterator[Lesson]:
    """Twelve tasks, at equal steps, for every algorithm that can act in them."""
    for run in ("PPO", "TRPO", "DQN"):
        for env, steps, num_actions in TASKS:
            if run == "DQN" and env not in DISCRETE:
                continue
            env_config = {"obs_type": "ram"} if env == "ALE/Pong-v5" else {}
            usual = {"observation_filter": "MeanStdFilter"} if run != "DQN" else {}
            yield Lesson("peers", env, run, env, steps, "defaults", usual, env_config, normalize=run != "DQN")
            same = dict(SAME[run])
            if run == "TRPO":  # sb3-contrib takes the KL's mean over the numbers of an action, shoal the sum
                same |= {"max_kl": 0.01 * num_actions, "cg_damping": 0.1 * num_actions}
            if run == "DQN":
                same["exploration_config"] = {**same["exploration_config"], "epsilon_timesteps": steps // 10}
            yield Lesson("peers", env, run, env, steps, "same", same, env_config)
    for env, steps in SAC_TASKS:
        yield Lesson("peers", env, "SAC", env, steps, "defaults")
    yield from asynchronous()
    yield from searches()


def asynchronous() -> Iterator[Lesson]:
    """APPO with two workers, without which it is PPO, beside the peer's PPO."""
    usual = {"observation_filter": "MeanStdFilter", **TWO_WORKERS}
    for env, steps, _ in TASKS:
        if env in APPO_TASKS:
            yield Lesson("peers", env, "APPO", env, steps, "defaults", usual, normalize=True, peer_run="PPO")


def searches() -> Iterator[Lesson]:
    """Search without gradients, beside the only one that the peer has."""
    for env, steps in SEARCH_TASKS:
        yield Lesson("peers", env, "ARS", env, steps, "defaults", normalize=True)
        yield Lesson("peers", env, "ARS", env, steps, "same", SAME["ARS"])
        for run in ("ES", "CEM", "CMAES"):
            yield Lesson("peers", env, run, env, steps, "defaults", normalize=True, peer_run="ARS")


def recorded() -> Iterator[Lesson]:
    """Imitation: all passes together learn from so many steps."""
    for env, source in product(("CartPole-v1", "Pendulum-v1"), ("expert", "learning")):
        for run in ("BC", "MARWIL"):
            name = f"{env}, {source}"
            yield Lesson("recorded", name, run, env, 200_000, who=("shoal", "rllib"), recorded=source)


def layouts() -> Iterator[Lesson]:
    """Tasks with long episodes, in which a fragment of 256 steps is a small part of one."""
    alone = {"num_envs_per_worker": 1}
    for run, env in (("PPO", "Swimmer-v5"), ("TRPO", "Hopper-v5")):
        yield Lesson("layouts", f"{env}, 8 environments", run, env, 51_200, who=("shoal",))
        yield Lesson("layouts", f"{env}, 1 environment", run, env, 51_200, config=alone, who=("shoal",))
    # All episodes of Swimmer have 1000 steps, so that all environments are always at the same step of theirs.
    apart = "Swimmer-v5, 8 environments out of step"
    yield Lesson("layouts", apart, "PPO", "out-of-step:Swimmer-v5", 51_200, who=("shoal",))


ZOO = {
    "clip_param": 0.2,
    "entropy_coeff": 0.0,
    "vf_loss_coeff": 0.5,
    "grad_clip": 0.5,
    "normalize_actions": False,
    "normalize_rewards": False,
}


def zoo() -> Iterator[Lesson]:
    """Four tasks with the zoo's settings."""
    tasks: tuple[tuple[str, int, int, int, dict[str, Any]], ...] = (
        ("CartPole-v1", 8, 32, 390, {"sgd_minibatch_size": 256, "num_sgd_iter": 20, "gamma": 0.98, "lambda_": 0.8}),
        ("Acrobot-v1", 16, 256, 49, {"sgd_minibatch_size": 64, "num_sgd_iter": 4, "gamma": 0.99, "lambda_": 0.94}),
        (
            "Pendulum-v1", 4, 1024, 49,
            {"sgd_minibatch_size": 64, "num_sgd_iter": 10, "lr": 1e-3, "gamma": 0.9, "lambda_": 0.95},
        ),
        (
            "LunarLander-v3", 16, 1024, 31,
            {"sgd_minibatch_size": 64, "num_sgd_iter": 4, "gamma": 0.999, "lambda_": 0.98, "entropy_coeff": 0.01},
        ),
    )  # fmt: skip
    for env, num_envs, fragment, iterations, own in tasks:
        steps = num_envs * fragment * iterations
        config = {**ZOO, "num_envs_per_worker": num_envs, "train_batch_size": num_envs * fragment, "lr": 3e-4, **own}
        if env == "CartPole-v1":
            config |= {"lr": 1e-3, "lr_schedule": [[0, 1e-3], [steps, 0.0]]}
        yield Lesson("zoo", env, "PPO", env, steps, "same", config)


LESSONS: tuple[Lesson, ...] = (*bars(), *peers(), *recorded(), *layouts(), *zoo())


def peer_lesson(lesson: Lesson) -> Lesson:
    """What the peer is taught where it has nothing of that name: its nearest algorithm's lesson on the same task."""
    key = "/".join((lesson.part, lesson.peer_run, lesson.name, lesson.kind))
    (found,) = (each for each in LESSONS if each.key == key)
    assert found.steps == lesson.steps
    return found
