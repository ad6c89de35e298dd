"""What `shoal check` tries of an environment with several agents."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from shoal.data.findings import Finding
from shoal.envs.agent_vector import AgentEnvs, AgentRows, PolicySlots
from shoal.envs.agents import AgentsEnv
from shoal.envs.examination import SEED, Examination
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec, Space

MOST_STEPS = 2000


def agents_play(exam: Examination) -> Iterator[Finding]:
    """Random steps of all agents, through the guard that training has."""
    env = exam.make()
    assert isinstance(env, AgentsEnv)
    policies = []
    for slot, agent in enumerate(env.agents):
        actions = ActionSpec(env.action_spaces[agent])
        seen = ObsSpec(env.observation_spaces[agent], actions=actions, max_len=1)
        policies.append(PolicySlots(str(agent), (slot,), seen, actions))
    waiting = [env]
    envs = AgentEnvs(lambda _: waiting.pop(), 1, env.agents, policies, seed=SEED, max_failures=0)
    draws = [env.action_spaces[agent] for agent in env.agents]
    for number, space in enumerate(draws):
        space.seed(SEED + number)
    steps = taken = 0
    try:
        exam.alive("reset()")
        envs.begin()
        began = perf_counter()
        while steps < MOST_STEPS and perf_counter() - began < exam.budget_s:
            for group, space in zip(envs.groups, draws, strict=True):
                taken += _act(group, space)
            exam.alive("step()")
            envs.advance()
            steps += 1
        took = perf_counter() - began
    finally:
        exam.close(envs)
    lengths = [episode.length for episode in envs.episodes]
    ends = f"{len(lengths)} episodes of {min(lengths)} to {max(lengths)} steps" if lengths else "no episode ended"
    text = f"{len(env.agents)} agents, {taken:,} actions in {steps:,} steps, {ends}, {steps / took:,.0f} steps/s"
    yield Finding("random actions", "ok" if lengths else "note", text)


def _act(group: AgentRows, space: Space) -> int:
    """Give the one agent of a group a random action that its mask allows, if it is to act; how many were given."""
    spec = group.policy
    for row in group.asked().tolist():
        numbers = spec.action_spec.encode([space.sample()])
        mask = spec.obs_spec.mask
        if mask is not None:
            flags = group.rows.obs[-1][row]
            for start, (column, value) in zip(mask.starts.tolist(), mask.first_allowed(flags), strict=True):
                if not flags[start + int(numbers[0, column])]:
                    numbers[0, column] = value
        group.act(row, numbers[0])
        group.take_done()
        return 1
    return 0
