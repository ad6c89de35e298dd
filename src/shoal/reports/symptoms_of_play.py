"""What a few played episodes tell of why a run does not learn: tests that read arrays of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from shoal.data.findings import Finding
from shoal.data.number_text import number_text
from shoal.data.played import Played
from shoal.reports.run_facts import RunFacts
from shoal.reports.symptoms_of_episodes import are_rewards_scaled, scaling_remedy

ENOUGH_STEPS = 200
MANY_STEPS = 1000
OFTEN_OUTSIDE = 0.6
UNEQUAL = 1000.0  # times as large as another number of the observation
APART = 10.0  # times: worth naming beside one that is large
LARGE_OBS = 100.0
OUTLIER = 1000.0  # times the usual reward
SAME_LENGTHS = 5  # episodes
LEAST_LIMIT = 10  # steps of an episode that looks like a time limit
DOMINANT = 20.0  # times the rewards of the other environments
SAME_OUTPUTS = 1e-5
MOST_NAMES = 5


def of_trials(_: RunFacts, played: Played) -> Iterator[Finding]:
    """What trials with the environment alone have found: seeds, and actions without effect."""
    yield from played.findings


def constant_observations(facts: RunFacts, played: Played) -> Iterator[Finding]:
    """Numbers of the observation that never change."""
    if facts.is_learning or played.num_steps < ENOUGH_STEPS or not played.obs.shape[-1]:
        return
    rows = played.obs[played.valid]
    constant = np.flatnonzero(np.ptp(rows, axis=0) == 0)
    if len(constant) == rows.shape[1]:
        text = f"observations were all the same in {played.num_steps:,} steps: the policy cannot tell states apart"
        yield Finding(
            "same observation", "problem", text, "return what reset() and step() see, in a new array each time"
        )
    elif len(constant):
        names = ", ".join(played.columns[column] for column in constant[:MOST_NAMES])
        text = f"{len(constant)} of {rows.shape[1]} numbers of the observation never changed in play: {names}"
        yield Finding(
            "same observation", "note", text, "leave out of observations what is constant, if it is by mistake"
        )


def observation_scale(facts: RunFacts, played: Played) -> Iterator[Finding]:
    """Measurements of very different size."""
    rows = played.obs[played.valid][:, played.measured]
    if facts.config.observation_filter != "NoFilter" or len(rows) < ENOUGH_STEPS or not rows.shape[1]:
        return
    sizes = np.sqrt(np.mean(rows.astype(np.float64) ** 2, axis=0))
    varying = np.ptp(rows, axis=0) > 0
    if not varying.any():
        return
    names = np.array(played.columns)[played.measured]
    largest, smallest = sizes[varying].max(), sizes[varying].min()
    if largest <= LARGE_OBS and largest <= UNEQUAL * smallest:
        return
    high, low = names[varying][sizes[varying].argmax()], names[varying][sizes[varying].argmin()]
    text = f"{high} is about {number_text(float(largest))}"
    if largest > APART * smallest:
        text += f" and {low} about {number_text(float(smallest))}"
    remedy = "scale observations: --set config.observation_filter=MeanStdFilter"
    yield Finding("observation scale", "warning", text, remedy)


def clipped_actions(facts: RunFacts, played: Played) -> Iterator[Finding]:
    """Most continuous actions lie beyond their bounds."""
    share = played.outside_share
    if facts.is_learning or share is None or played.num_steps < ENOUGH_STEPS or share <= OFTEN_OUTSIDE:
        return
    text = f"{share:.0%} of the continuous actions lie beyond their bounds and are clipped to them"
    remedy = "--set config.squash_actions=true"
    if not facts.config.normalize_actions:
        remedy = "--set config.normalize_actions=true"
    yield Finding("actions clipped", "warning", text, remedy)


def unused_actions(facts: RunFacts, played: Played) -> Iterator[Finding]:
    """Actions that the policy never takes."""
    if facts.is_learning or played.num_steps < MANY_STEPS or played.masks is not None:
        return  # a mask may well forbid an action for long
    unused = []
    rows = played.actions[played.valid]
    for number, (column, count) in enumerate(played.choices):
        taken = np.bincount(rows[:, column].astype(np.int64), minlength=count)
        prefix = f"choice {number}: " if len(played.choices) > 1 else ""
        unused += [f"{prefix}{value}" for value in np.flatnonzero(taken == 0)]
    if not unused:
        return
    total = sum(count for _, count in played.choices)
    text = (
        f"{len(unused)} of {total} actions were never taken in {played.num_steps:,} steps with chance: "
        f"{', '.join(unused[:MOST_NAMES])}"
    )
    remedy = "explore more"
    if "entropy_coeff" in type(facts.config).model_fields:
        remedy = "explore more: --set config.entropy_coeff=0.01"
    yield Finding("unused actions", "warning", text, remedy)


def time_limit(_: RunFacts, played: Played) -> Iterator[Finding]:
    """A time limit that says `terminated`, so that the value of what would follow is taken for 0."""
    episodes = played.episodes
    lengths = {episode.length for episode in episodes}
    if len(episodes) < SAME_LENGTHS or len(lengths) != 1 or not all(episode.terminated for episode in episodes):
        return
    length = lengths.pop()
    if length < LEAST_LIMIT:
        return
    text = f"all {len(episodes)} episodes ended after exactly {length} steps with terminated=True, as a time limit does"
    remedy = f"return truncated=True there, or end no episode and --set config.horizon={length}"
    yield Finding("time limit", "warning", text, remedy)


def dominant_environment(_: RunFacts, played: Played) -> Iterator[Finding]:
    """One environment has so much larger rewards that all learn for it alone."""
    steps = played.valid.sum(axis=0)
    if played.valid.shape[1] < 3 or steps.min() < ENOUGH_STEPS // 4:
        return
    sizes = np.where(played.valid, np.abs(played.rewards), 0).sum(axis=0) / steps
    largest = int(sizes.argmax())
    others = float(np.median(np.delete(sizes, largest)))
    if not others or sizes[largest] <= DOMINANT * others:
        return
    text = (
        f"environment {largest} has rewards of about {number_text(float(sizes[largest]))} and the others of about "
        f"{number_text(others)}: learning follows that one"
    )
    remedy = "see what differs by env_index or worker_index, and give all environments rewards of one size"
    yield Finding("one dominates", "warning", text, remedy)


def constant_masks(_: RunFacts, played: Played) -> Iterator[Finding]:
    """A mask that says the same always."""
    if played.masks is None or played.num_steps < ENOUGH_STEPS:
        return
    rows = played.masks[played.valid]
    if len(played.choices) == 1 and rows.sum(axis=1).max() == 1:
        text = f"action_mask allowed one action alone in each of {played.num_steps:,} steps: there is nothing to choose"
        yield Finding("constant mask", "problem", text, "see that a 1 in it allows an action, and a 0 forbids it")
        return
    if (rows != rows[0]).any():
        return
    if rows[0].all():
        text = f"action_mask allowed every action in {played.num_steps:,} steps"
        yield Finding("constant mask", "warning", text, "see that it is computed anew in every step, or leave it out")
        return
    never = np.flatnonzero(~rows[0])[:MOST_NAMES].tolist()
    text = f"action_mask was the same in {played.num_steps:,} steps: {never} were never allowed"
    remedy = "see that it is computed anew in every step, or leave these actions out of action_space"
    yield Finding("constant mask", "warning", text, remedy)


def reward_outliers(facts: RunFacts, played: Played) -> Iterator[Finding]:
    """Rare rewards that are far larger than all others."""
    sizes = np.abs(played.rewards[played.valid])
    sizes = sizes[sizes > 0]
    if are_rewards_scaled(facts.config) or len(sizes) < ENOUGH_STEPS or sizes.max() <= OUTLIER * np.median(sizes):
        return
    text = (
        f"a reward is usually about {number_text(float(np.median(sizes)))}, and the largest was "
        f"{number_text(float(sizes.max()))}: rare steps outweigh all others"
    )
    yield Finding("reward outliers", "warning", text, scaling_remedy(facts.config))


def clipped_rewards(facts: RunFacts, played: Played) -> Iterator[Finding]:
    """`clip_rewards` leaves no difference between rewards."""
    clip, rewards = facts.config.clip_rewards, played.rewards[played.valid]
    if not clip or len(rewards) < ENOUGH_STEPS or np.ptp(rewards) == 0:
        return
    seen = np.sign(rewards) if clip is True else np.clip(rewards, -float(clip), float(clip))
    if np.ptp(seen) > 0:
        return
    text = (
        f"rewards lie between {number_text(float(rewards.min()))} and {number_text(float(rewards.max()))}, and "
        f"clip_rewards makes all of them {number_text(float(seen[0]))}"
    )
    yield Finding("rewards clipped", "problem", text, "--set config.clip_rewards=null")


def same_answer(_: RunFacts, played: Played) -> Iterator[Finding]:
    """The policy does the same whatever it sees."""
    rows = played.outputs[played.valid]
    if len(rows) < ENOUGH_STEPS or not rows.shape[1] or not played.obs.shape[-1]:
        return
    if np.ptp(played.obs[played.valid], axis=0).max() == 0 or np.ptp(rows, axis=0).max() > SAME_OUTPUTS:
        return
    text = "the policy's network gives the same answer to every observation: its units are saturated or dead"
    remedy = "scale observations: --set config.observation_filter=MeanStdFilter; and take a smaller config.lr"
    yield Finding("same answer", "problem", text, remedy)


Symptom = Callable[[RunFacts, Played], Iterator[Finding]]

SYMPTOMS: tuple[Symptom, ...] = (
    of_trials,
    constant_observations,
    clipped_rewards,
    same_answer,
    time_limit,
    observation_scale,
    clipped_actions,
    reward_outliers,
    dominant_environment,
    constant_masks,
    unused_actions,
)
"""The most important first."""
