"""What a run's episodes and rewards tell of why it does not learn: tests that read results and configuration alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shoal.config.settings import AlgorithmConfig
from shoal.data.findings import Finding, Verdict
from shoal.data.number_text import counted, number_text
from shoal.reports.run_facts import RunFacts

ENDLESS_STEPS = 2000  # of each environment, without the end of an episode
SAME_EPISODES = 20  # that have the same return
SAME_STEPS = 10_000
LARGE_VALUES = 2000.0
SMALL_VALUES = 1e-3
RARELY = 0.02  # the share of episodes that have any reward
LONGER = 10.0  # than what the discount looks ahead
FAILING = 0.05  # failures for each episode
FEW_FAILURES = 5
LOST = 0.5  # the share of what was gained
PEAK_SMOOTHING = 5
EVALUATION_GAP = 0.5  # of the spread of training's returns


def scaling_remedy(config: AlgorithmConfig) -> str:
    """What to type where the unit of rewards is in the way."""
    if "normalize_rewards" in type(config).model_fields:
        return "divide rewards by their scale: --set config.normalize_rewards=true"
    return "divide rewards in the environment, or limit them: --set config.clip_rewards=1"


def are_rewards_scaled(config: AlgorithmConfig) -> bool:
    """Whether the learner sees rewards in another unit than the environment's."""
    return bool(config.clip_rewards or getattr(config, "normalize_rewards", False))


def endless(facts: RunFacts) -> Iterator[Finding]:
    """No episode has ended."""
    if facts.config.learns_offline or facts.episodes or facts.steps < ENDLESS_STEPS * facts.config.num_envs:
        return
    each = facts.steps // facts.config.num_envs
    text = f"no episode has ended in {facts.steps:,} steps, {each:,} of each environment: there is no return to improve"
    yield Finding("endless episodes", "problem", text, "let episodes end, or limit them: --set config.horizon=1000")


def same_return(facts: RunFacts) -> Iterator[Finding]:
    """Every episode had the same return, so nothing that the agent did has mattered."""
    low, high = facts.series("episode_reward_min"), facts.series("episode_reward_max")
    if not len(low) or facts.episodes < SAME_EPISODES or facts.steps < SAME_STEPS:
        return
    if low.min() != high.max():
        return
    explore = _exploring(facts)
    if low[0] == 0:
        text = f"all {facts.episodes:,} episodes had the return 0: the agent has never seen a reward"
        remedy = (
            f"reward steps towards the goal, begin with easier tasks (config.curriculum), or explore more: {explore}"
        )
        yield Finding("no reward", "problem", text, remedy)
        return
    text = f"all {facts.episodes:,} episodes had the same return, {number_text(float(low[0]))}"
    remedy = (
        "unless that is the best there is, the agent has nothing to learn from: reward steps towards the goal, "
        f"begin with easier tasks (config.curriculum), or explore more: {explore}"
    )
    yield Finding("same return", "problem", text, remedy)


def sparse(facts: RunFacts) -> Iterator[Finding]:
    """Hardly any episode has a reward."""
    low, mean, high = (facts.last(f"episode_reward_{name}") for name in ("min", "mean", "max"))
    if facts.is_learning or low != 0 or high <= 0 or mean > RARELY * high or facts.episodes < SAME_EPISODES:
        return
    text = f"the mean return is {number_text(mean)} and the largest {number_text(high)}: rewards are rare"
    remedy = f"reward steps towards the goal, begin with easier tasks, or explore more: {_exploring(facts)}"
    yield Finding("sparse reward", "warning", text, remedy)


def reward_scale(facts: RunFacts) -> Iterator[Finding]:
    """Values are so large or small that a network takes long to reach them."""
    if are_rewards_scaled(facts.config) or not facts.episodes or facts.last("episode_reward_mean") == 0:
        return
    size = facts.value_scale
    if SMALL_VALUES <= size <= LARGE_VALUES:
        return
    kind = "large" if size > LARGE_VALUES else "small"
    text = (
        f"rewards are learned from as they are and values are {kind}, about {number_text(size)} "
        f"(mean return {number_text(facts.last('episode_reward_mean'))}): networks learn values around 1 best"
    )
    remedy = scaling_remedy(facts.config)
    if kind == "small" and "clip_rewards" in remedy:
        remedy = "multiply rewards in the environment"
    yield Finding("reward scale", "warning", text, remedy)


def discount(facts: RunFacts) -> Iterator[Finding]:
    """What happens at the end of an episode is invisible at its start."""
    length, ahead = facts.last("episode_len_mean"), facts.discount_steps
    if facts.is_learning or length <= LONGER * ahead:
        return
    text = f"episodes have {length:,.0f} steps, and gamma {facts.config.gamma:g} looks about {ahead:,.0f} steps ahead"
    gamma = round(1 - 1 / length, 5)
    yield Finding("discount", "warning", text, f"--set config.gamma={gamma:g}, or repeat each action for several steps")


def lost_again(facts: RunFacts) -> Iterator[Finding]:
    """It had learned, and lost most of it."""
    returns = facts.series("episode_reward_mean")
    if len(returns) < 2 * PEAK_SMOOTHING:
        return
    windows = np.lib.stride_tricks.sliding_window_view(returns, PEAK_SMOOTHING)
    smooth = np.median(windows, axis=1)
    gained = smooth.max() - smooth[0]
    if gained <= 0.15 * facts.spread or gained <= 0 or smooth.max() - smooth[-1] <= LOST * gained:
        return
    at = int(smooth.argmax()) + PEAK_SMOOTHING // 2
    text = (
        f"the mean return had reached {number_text(float(smooth.max()))} at iteration {at + 1} and is "
        f"{number_text(float(smooth[-1]))} now"
    )
    remedy = f"smaller steps: --set config.lr={facts.smaller_lr(3)}; `shoal evaluate RUN --best` takes the best one"
    yield Finding("lost again", "warning", text, remedy)


def few_episodes(facts: RunFacts) -> Iterator[Finding]:
    """An iteration learns from parts of episodes only."""
    ended, length = facts.late("episodes_this_iter"), facts.last("episode_len_mean")
    if facts.config.learns_from_replay or not facts.episodes or len(ended) < 2 or ended.mean() >= 1:
        return
    text = (
        f"an iteration has {number_text(facts.last('timesteps_this_iter'))} steps and episodes have "
        f"{number_text(length)}: {ended.mean():.2g} of them end in one"
    )
    size = int(np.ceil(4 * length / 1024)) * 1024
    yield Finding("few episodes", "warning", text, f"--set config.train_batch_size={size}")


def failures(facts: RunFacts) -> Iterator[Finding]:
    """Environments fail often."""
    count = int(facts.last("env_failures_total"))
    share = count / max(facts.episodes, 1)
    if count < FEW_FAILURES or share < FAILING:
        return
    why = ""
    if facts.causes:
        cause, times = next(iter(facts.causes.items()))
        why = f"; {counted(times, 'time')}: {cause[:160]}"
    text = f"environments failed {counted(count, 'time')} in {counted(facts.episodes, 'episode')}{why}"
    verdict: Verdict = "problem" if share > 0.5 else "warning"
    remedy = (
        "`shoal incidents RUN` lists them, `shoal replay RUN N` runs one again, `shoal check` tries the environment"
    )
    yield Finding("failures", verdict, text, remedy)


def evaluation_gap(facts: RunFacts) -> Iterator[Finding]:
    """The policy does much worse in evaluation than in training."""
    if not len(facts.series("evaluation/episode_reward_mean")):
        return
    trained, shown = facts.last("episode_reward_mean"), facts.last("evaluation/episode_reward_mean")
    high = facts.last("evaluation/episode_reward_ci_high", shown)
    if high >= trained or trained - shown <= EVALUATION_GAP * max(facts.spread, abs(trained) * 0.2):
        return
    own = facts.config.evaluation_config
    text = f"the mean return is {number_text(trained)} in training and {number_text(shown)} in evaluation"
    if own.env_config or own.task is not None:
        remedy = "evaluation has an env_config or task of its own; train on such values too (config.randomize)"
    elif own.explore is not True:
        remedy = "evaluation takes the most likely action; try chance: --set config.evaluation_config.explore=true"
    else:
        remedy = "see whether the environment differs by seed or env_index: `shoal check` tries both"
    yield Finding("evaluation", "warning", text, remedy)


def _exploring(facts: RunFacts) -> str:
    """What to type to explore more."""
    if facts.config.acts_by_value:
        return f"--set config.exploration_config.epsilon_timesteps={max(2 * facts.steps, 10_000)}"
    if "entropy_coeff" in type(facts.config).model_fields:
        return "--set config.entropy_coeff=0.01"
    if "initial_alpha" in type(facts.config).model_fields:
        return f"--set config.initial_alpha={10 * getattr(facts.config, 'initial_alpha', 0.02):.2g}"
    return f"--set config.train_batch_size={2 * facts.config.train_batch_size}"


SYMPTOMS = (
    endless,
    same_return,
    failures,
    reward_scale,
    lost_again,
    sparse,
    discount,
    few_episodes,
    evaluation_gap,
)
"""The most important first."""
