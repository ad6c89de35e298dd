"""Trials keep their numbers and groups, also where Tune has forgotten them."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import shoal
from shoal.config.sweep import Sweep, sweep_from
from shoal.reports.records import Exploit
from shoal.tune.trial_ids import TrialIds


def sweep(**words: Any) -> Sweep:
    config = {"env": "CartPole-v1", "lr": shoal.tune.loguniform(1e-5, 1e-1)}
    return sweep_from({"name": "test", "config": config, "stop": {"training_iteration": 1}, **words})


def trial(lr: float, **more: Any) -> Any:
    return SimpleNamespace(config={"config.lr": lr, **more})


class Named:
    """A trial of an earlier life, as Tune has it."""

    def __init__(self, name: str, lr: float) -> None:
        self.name, self.config = name, {"config.lr": lr}

    def __str__(self) -> str:
        return self.name


def test_new_trials_count_on_and_equal_settings_are_a_group() -> None:
    trial_ids = TrialIds(sweep(seeds=2), [])
    names = [trial_ids(trial(lr, seed=seed)) for lr in (1e-2, 1e-3) for seed in (0, 1)]
    assert names == ["00000", "00001", "00002", "00003"]
    assert [(r.group, r.seed) for r in trial_ids.in_order] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert trial_ids.records[2].folder == "trials/00002"


def test_without_seeds_equal_settings_are_trials_of_their_own() -> None:
    trial_ids = TrialIds(sweep(), [])
    for _ in range(3):
        trial_ids(trial(1e-2))
    assert [record.group for record in trial_ids.in_order] == [0, 1, 2]
    assert [record.group for record in TrialIds(sweep(), trial_ids.in_order).in_order] == [0, 1, 2]


def test_forgotten_trials_are_found_again_by_their_settings() -> None:
    first = TrialIds(sweep(), [])
    for lr in (1e-1, 1e-2, 1e-2, 1e-3):
        first(trial(lr))
    again = TrialIds(sweep(), first.in_order)
    again.claim([Named("00000", 1e-1)])
    assert [again(trial(lr)) for lr in (1e-3, 1e-2, 1e-2, 1e-2, 1e-1)] == ["00003", "00001", "00002", "00004", "00005"]


def test_trials_that_tune_alone_remembers_keep_their_numbers() -> None:
    trial_ids = TrialIds(sweep(), [])
    trial_ids.claim([Named("00002", 1e-1)])
    assert trial_ids(trial(1e-1)) == "00003"
    assert [record.index for record in trial_ids.in_order] == [2, 3]
    assert trial_ids.records[2].settings == {"config.lr": 1e-1}


def test_a_trial_of_a_population_goes_on_with_the_settings_it_has_now() -> None:
    first = TrialIds(sweep(), [])
    first(trial(1e-1))
    now = {"config.lr": 5e-2}
    record = replace(first.records[0], settings=now, exploits=(Exploit(2, 100, 1, now),))
    again, found = TrialIds(sweep(), [record]), trial(1e-1)
    assert again(found) == "00000"
    assert found.config == now


def test_seeds_that_train_together_are_one_trial_to_tune() -> None:
    asked = sweep(seeds=3)
    first = TrialIds(asked, [], together=True)
    assert [first(trial(lr)) for lr in (1e-1, 1e-2)] == ["00000", "00003"]
    assert [(r.index, r.group, r.seed) for r in first.in_order] == [
        *((k, 0, k) for k in range(3)),
        *((3 + k, 1, k) for k in range(3)),
    ]
    assert list(first.members(3)) == [3, 4, 5]
    assert first.settings_of(trial(1e-2)) == {"config.lr": 1e-2}
    known = [record for record in first.in_order if record.index != 5]  # which was not written any more
    again = TrialIds(asked, known, together=True)
    again.claim([Named("00000", 1e-1)])
    assert [again(trial(lr)) for lr in (1e-2, 1e-2)] == ["00003", "00006"]
    assert [record.seed for record in again.in_order] == [0, 1, 2] * 3


def test_copies_are_the_numbering_of_the_process() -> None:
    old = TrialIds(sweep(), [])
    kept = pickle.dumps(old)
    new = TrialIds(sweep(), [])
    assert copy.deepcopy(old) is old
    assert pickle.loads(kept) is new
