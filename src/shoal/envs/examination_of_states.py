"""What `shoal check` tries on environments that tell their state, and on batches, which are examined as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np

from shoal.data.findings import Finding
from shoal.envs.env_errors import error_text, pass_on_interrupts
from shoal.envs.env_states import offers_state, restore_state, state_of
from shoal.envs.examination import SEED, Examination, Play
from shoal.envs.making import strip
from shoal.envs.native import NativeVector
from shoal.envs.observations import ObsSpec
from shoal.envs.vector import Steps

BEFORE, AFTER = 10, 50  # steps until the state is taken, and steps that are compared
MOST_BATCH_STEPS = 2000


def own_state(exam: Examination) -> Iterator[Finding]:
    """`get_state` and `set_state`: another environment goes on from the state as the first one does."""
    first, second = (strip(exam.make())[0] for _ in range(2))
    try:
        if not offers_state(first):
            return
        if exam.play(first, exam.random_actions(SEED), BEFORE, SEED).ended:
            exam.reset(first, SEED)
        exam.alive("get_state()")
        state = state_of(first)
        if state is None:
            text = "get_state() gives None: a resumed run replays the actions of unfinished episodes"
            yield Finding("own state", "note", text)
            return
        one = _go_on(exam, first)
        exam.reset(second, SEED + 1)
        exam.alive("set_state()")
        restore_state(second, state)
        difference = one.first_difference(_go_on(exam, second))
    except BaseException as error:
        pass_on_interrupts(error)
        remedy = "return text, numbers, bytes, arrays, lists and mappings, and take the same; or leave out both methods"
        yield Finding("own state", "problem", f"get_state() and set_state() failed: {error_text(error)}", remedy)
        return
    finally:
        exam.close(first)
        exam.close(second)
    if difference is None:
        yield Finding("own state", "ok", f"from its state another one goes on with the same {len(one.rewards)} steps")
        return
    text = f"another one that has its state differs {difference} steps later: resumed runs would go another way"
    remedy = "put all that a step depends on into get_state(), counters and generators too; or leave out both methods"
    yield Finding("own state", "problem", text, remedy)


def _go_on(exam: Examination, env: Any) -> Play:
    """The next steps of an environment in mid-episode."""
    play, draw = Play(), exam.random_actions(SEED + 1)
    obs = None
    for _ in range(AFTER):
        action = draw() if obs is None else exam.allowed(draw(), obs)
        exam.alive("step()")
        obs, reward, terminated, truncated, _ = env.step(action)
        play.observations.append(np.copy(obs) if isinstance(obs, np.ndarray) else obs)
        play.rewards.append(float(reward))
        if terminated or truncated:
            break
    return play


def batch_play(exam: Examination) -> Iterator[Finding]:
    """Random steps of a whole batch, through the guard that training has."""
    env = exam.make()
    spec = ObsSpec(exam.observation_space, actions=exam.actions, max_len=1)
    vector = NativeVector(env, spec, exam.actions, SEED)
    draw = exam.random_actions(SEED)
    count, steps = vector.num_envs, 0
    obs = spec.allocate(count)
    try:
        exam.alive("reset()")
        vector.reset(obs)
        began = perf_counter()
        while exam.mask is None and steps < MOST_BATCH_STEPS and perf_counter() - began < exam.budget_s:
            exam.alive("step()")
            terminated, truncated = np.zeros(count, bool), np.zeros(count, bool)
            room = Steps(obs, np.zeros(count, np.float32), terminated, truncated, np.ones(count, bool))
            vector.step(exam.actions.encode([draw() for _ in range(count)]), None, room)
            steps += 1
        took = perf_counter() - began
    finally:
        exam.close(vector)
    if not steps:
        return
    lengths = [episode.length for episode in vector.episodes]
    ends = f"{len(lengths)} episodes of {min(lengths)} to {max(lengths)} steps" if lengths else "no episode ended"
    text = f"{count} environments, {steps:,} steps of each, {ends}, {count * steps / took:,.0f} steps/s in all"
    yield Finding("random actions", "ok" if lengths else "note", text)
