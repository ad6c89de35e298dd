"""What an evaluator or a learner answers after another has taken its place is not used: nobody asks for it any more.

A worker's host hears nothing of a process that it has given up. Evaluators and learners answer each question once, by
a reference that is forgotten with whoever was asked; here Ray's answers are scripted, so that the one who was given up
answers after all.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from shoal.data.state import State
from shoal.errors import WorkerError
from shoal.parallel.ray_evaluators import RayResults
from shoal.parallel.ray_learners import RayLearners


class LosingEvaluators:
    """Two evaluators; the first is lost with its part, and answers just when its successor has been asked."""

    count = 2

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self.generation = [0, 0]

    def put(self, state: State) -> State:
        return state

    def ask(self, actor: int, part: str, state: State) -> str:
        reference = f"{part} by {actor}.{self.generation[actor]}"
        self.answers[reference] = f"results of {reference}"
        return reference

    def first_of(self, references: list[str]) -> str:
        return sorted(references)[0]

    def results_of(self, reference: str) -> str:
        if reference == "a by 0.0" and self.generation[0] == 0:
            raise WorkerError("an evaluation worker was lost: cut off")
        return self.answers[reference]

    def replace(self, actor: int) -> None:
        self.generation[actor] += 1


def test_a_late_answer_of_an_evaluator_is_not_used() -> None:
    evaluators: Any = LosingEvaluators()
    policy: Any = SimpleNamespace(get_state=lambda: State())
    parts: Any = ["a", "b", "c"]
    results: list[Any] = RayResults(evaluators, parts, policy).wait()
    assert "a by 0.0" in evaluators.answers  # it is there by now, and whoever asked for it would get it
    assert results[0] == "results of a by 0.1"
    assert [str(each)[:12] for each in results] == ["results of a", "results of b", "results of c"]


class RayError(Exception):
    """As Ray has it for an actor that is gone."""


class RayTaskError(RayError):
    """As Ray has it for what an actor raises."""


def answered(weight: float) -> tuple[dict[str, float], State, State]:
    """What the first of several learners answers."""
    return {"weight": weight}, State({}, {"params": np.full(2, weight)}), State({"weight": weight})


class LosingRay:
    """The second of two learners is lost in the first attempt; the first answers that attempt all the same, later."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self) -> None:
        self.asked: list[str] = []

    def put(self, value: Any) -> Any:
        return value

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": "n", "Alive": True}]

    def kill(self, actor: Any) -> None:
        """It is cut off, and hears nothing of this."""

    def wait(self, answers: list[str], num_returns: int, timeout: float | None = None) -> tuple[list[str], list[str]]:
        return answers[-1:], answers[:-1]  # the last of them is always the first to answer

    def get(self, reference: Any) -> Any:
        for each in reference if isinstance(reference, list) else [reference]:
            self.asked.append(each)
            if each == "learner 1 of meeting 1":
                raise RayError("cut off")
        return answered(float(str(reference)[-1])) if isinstance(reference, str) else None


def actor(name: str) -> Any:
    return SimpleNamespace(update=SimpleNamespace(remote=lambda *_: name))


def test_a_late_answer_of_a_learner_is_not_used() -> None:
    learners = RayLearners.__new__(RayLearners)
    ray = LosingRay()
    learners._ray, learners._actors, learners._nodes, learners._known = ray, [], ["n", "n"], None
    learners._state, learners._meetings = State({"weight": 0.0}), 0
    learners._config: Any = SimpleNamespace(rows_per_worker=1)
    taken: list[State] = []
    network = SimpleNamespace(params=np.zeros(2))
    policy = SimpleNamespace(network=network, get_state=lambda: State(), set_state=taken.append)
    learners._workers: Any = SimpleNamespace(policy=policy)

    def start() -> None:
        learners._meetings += 1
        learners._actors = [actor(f"learner {rank} of meeting {learners._meetings}") for rank in range(2)]

    learners._start = start  # type: ignore[method-assign]
    fragments: Any = [SimpleNamespace(index=1, node="n", batches="of its host", place=0)]
    assert learners._update(fragments, 0) == {"weight": 2.0}
    assert "learner 0 of meeting 1" not in ray.asked  # although it would answer
    assert [state.arrays["params"].tolist() for state in taken] == [[2.0, 2.0]]
    assert learners.get_state().values == {"weight": 2.0}
