"""What is said of a thing that takes long: how much of it is done, and when the rest is due."""

from __future__ import annotations

from shoal.data.number_text import duration_text, rate_text
from shoal.runs.activity import Activity

FIRST_TOLD_S = (10.0, 60.0)
TOLD_EVERY_S = 600.0
LONG_S = 120.0  # an iteration of which somebody will want to know how to make it shorter


class ReminderTimes:
    """When a thing that takes long is told of: after 10 s, after a minute, and then every 10 minutes."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._told_s = 0.0

    def is_time(self, since: float, now: float) -> bool:
        """Whether a line is due about what began at `since`."""
        if since != self._since:
            self._since, self._told_s = since, 0.0
        elapsed = now - since
        due = next((moment for moment in FIRST_TOLD_S if moment > self._told_s), self._told_s + TOLD_EVERY_S)
        if elapsed < due:
            return False
        self._told_s = elapsed
        return True


def activity_phrases(activity: Activity, phase: str, now: float) -> list[str]:
    """`iteration 1: 340 of 2,048 steps in 5 min 40 s, 1.0 steps/s`, `its result is due in 28 min 28 s`, and more.

    `phase` is what was said last of a run that is starting or ending.
    """
    elapsed = now - activity.since
    so_far = f"({duration_text(elapsed)} so far)"
    if activity.kind in ("starting", "ending"):
        return [f"{phase or 'starting'} {so_far}"]
    if activity.kind == "closing":
        return [f"closing the environments {so_far}"]
    head = f"iteration {activity.iteration}:"
    if activity.kind == "evaluating":
        return [f"{head} evaluating {so_far}"]
    steps, due = activity.sampled(), activity.due
    if not due:
        counted = f" {steps:,} steps of whole episodes" if steps else ""
        return [f"{head}{counted} {so_far}"]
    if steps >= due:
        return [f"{head} {steps:,} steps are sampled, the agent learns from them {so_far}"]
    if activity.workers:
        who = f"{activity.workers} worker{'s' * (activity.workers != 1)}"
        return [f"{head} {steps:,} of {due:,} steps have come from {who} {so_far}"]
    if steps == 0:
        return [f"{head} the first of {due:,} steps is not done yet {so_far}"]
    speed = steps / max(elapsed, 1e-3)
    phrases = [
        f"{head} {steps:,} of {due:,} steps in {duration_text(elapsed)}, {rate_text(speed)} steps/s",
        f"its result is due in {duration_text((due - steps) / speed)}",
    ]
    if due / speed > LONG_S:
        phrases.append(f"a smaller config.{activity.size_key} gives results sooner")
    return phrases
