"""What schedulers have learned goes from one life of a sweep to the next, about the trials of that life."""

from __future__ import annotations

from typing import Any

import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, MedianStoppingRule

from shoal.tune.scheduler_state import pickled, unpickled

WORDS = {"time_attr": "training_iteration", "metric": "score", "mode": "max"}


def trials() -> list[Trial]:
    return [Trial("nothing", trial_id=f"trial{k}", stub=True) for k in range(4)]


def told(scheduler: Any, of: list[Trial]) -> None:
    for score, trial in enumerate(of):
        scheduler.on_trial_add(None, trial)
        scheduler.on_trial_result(None, trial, {"training_iteration": 1, "score": score, "time_total_s": 1.0})


def test_asha_keeps_its_rungs() -> None:
    old, new = (ASHAScheduler(**WORDS, max_t=9, reduction_factor=3) for _ in range(2))
    told(old, trials())
    unpickled(new, pickled(old), {trial.trial_id: trial for trial in trials()})
    assert new._brackets[0]._rungs == old._brackets[0]._rungs
    assert new._brackets[0]._rungs[-1][1] == {"trial0": 0, "trial1": 1, "trial2": 2, "trial3": 3}


@pytest.mark.parametrize("kind", [HyperBandScheduler, MedianStoppingRule])
def test_trials_are_those_of_the_new_life(kind: Any) -> None:
    old, new = kind(**WORDS), kind(**WORDS)
    for trial in trials():
        old.on_trial_add(None, trial)
    if kind is MedianStoppingRule:
        for trial in trials():
            old._results[trial].append({"score": 1.0})
    again = trials()
    unpickled(new, pickled(old), {trial.trial_id: trial for trial in again})
    known = new._trial_info if kind is HyperBandScheduler else new._results
    assert [id(trial) for trial in known] == [id(trial) for trial in again]


def test_a_trial_that_is_gone_is_an_error() -> None:
    old = HyperBandScheduler(**WORDS)
    for trial in trials():
        old.on_trial_add(None, trial)
    with pytest.raises(KeyError, match="trial3"):
        unpickled(HyperBandScheduler(**WORDS), pickled(old), {trial.trial_id: trial for trial in trials()[:3]})
