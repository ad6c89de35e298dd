"""Why a run does not learn: all tests of its results, its learner's numbers and its play, the worst finding first."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.data.findings import Finding
from shoal.data.number_text import counted, number_text
from shoal.data.played import Played
from shoal.reports import symptoms_of_episodes, symptoms_of_learning, symptoms_of_play
from shoal.reports.run_facts import FEW_RESULTS, RunFacts

GRAVITY = {"problem": 0, "warning": 1, "note": 2, "ok": 3}


def diagnosis(facts: RunFacts, played: Played | None = None, others: Iterable[Finding] = ()) -> list[Finding]:
    """Every finding of a run beside those of others; without `played`, those that can be read alone."""
    found = list(others)
    for symptom in (*symptoms_of_episodes.SYMPTOMS, *symptoms_of_learning.SYMPTOMS):
        found += symptom(facts)
    if played is not None:
        for of_play in symptoms_of_play.SYMPTOMS:
            found += of_play(facts, played)
    return sorted(found, key=lambda finding: GRAVITY[finding.verdict])


def progress_text(facts: RunFacts) -> str:
    """In a line, how far the run is and how its return has moved."""
    counts = {"iteration": facts.iterations, "step": facts.steps, "episode": facts.episodes}
    text = ", ".join(counted(count, noun) for noun, count in counts.items())
    returns = facts.series("episode_reward_mean")
    if len(returns):
        text += f"; mean return {number_text(float(returns[0]))} -> {number_text(float(returns[-1]))}"
    if facts.iterations < FEW_RESULTS:
        return f"{text}; too few iterations to see a trend"
    if len(returns):
        text += ", rising" if facts.is_learning else ", not rising"
    return text
