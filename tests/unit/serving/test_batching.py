"""Questions that wait together are answered together, each by its own answer, whatever becomes of the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from shoal.serving.batching import Batcher
from shoal.serving.served_policy import ChosenActions, Question


def question(*numbers: float) -> Question:
    return Question((np.array(numbers)[:, None],), explore=False)


class Doubling:
    """Answers with twice each number, and remembers what came together."""

    def __init__(self) -> None:
        self.passes: list[list[float]] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.threads: set[int] = set()

    def __call__(self, questions: Sequence[Question]) -> list[ChosenActions]:
        self.may_go.wait(60)
        self.threads.add(threading.get_ident())
        rows = [each.parts[0][:, 0].tolist() for each in questions]
        self.passes.append([number for row in rows for number in row])
        if any(number < 0 for row in rows for number in row):
            raise ValueError("below 0")
        return [ChosenActions([2 * number for number in row], 1) for row in rows]


def batcher(ask: Any, wait_s: float = 0.0, max_rows: int = 100) -> Batcher:
    return Batcher(ask, wait_s, max_rows, 1000, lambda rows, seconds: None)


def run(wait_s: float, max_rows: int, *questions: Question) -> tuple[Doubling, list[Any]]:
    ask = Doubling()

    async def all_at_once() -> list[Any]:
        made = batcher(ask, wait_s, max_rows)
        return await asyncio.gather(*(made.answer(each) for each in questions), return_exceptions=True)

    return ask, asyncio.run(all_at_once())


def test_who_comes_together_shares_a_pass() -> None:
    ask, answers = run(0.0, 100, question(1), question(2, 3), question(4))
    assert ask.passes == [[1, 2, 3, 4]]
    assert [each.actions for each in answers] == [[2], [4, 6], [8]]


def test_a_full_pass_does_not_wait_for_the_deadline() -> None:
    ask, answers = run(3600.0, 2, question(1), question(2))
    assert ask.passes == [[1, 2]]
    ask, answers = run(0.0, 2, question(1, 2), question(3), question(4, 5, 6))
    assert ask.passes == [[1, 2], [3], [4, 5, 6]], "a question is never cut"
    assert [each.actions for each in answers] == [[2, 4], [6], [8, 10, 12]]


def test_a_deadline_gathers_who_comes_later() -> None:
    ask = Doubling()

    async def one_after_another() -> None:
        made = batcher(ask, wait_s=0.2)
        first = asyncio.ensure_future(made.answer(question(1)))
        for _ in range(5):
            await asyncio.sleep(0)
        await asyncio.gather(first, made.answer(question(2)))

    asyncio.run(one_after_another())
    assert ask.passes == [[1, 2]]


def test_a_failure_is_heard_by_all_who_waited_and_by_nobody_else() -> None:
    ask = Doubling()

    async def failing() -> list[Any]:
        made = batcher(ask)
        bad = await asyncio.gather(made.answer(question(-1)), made.answer(question(1)), return_exceptions=True)
        return [*bad, await made.answer(question(5))]

    *bad, good = asyncio.run(failing())
    assert [type(each) for each in bad] == [ValueError, ValueError]
    assert good.actions == [10]


def test_long_passes_run_in_a_thread_and_others_gather_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.serving.batching.QUICK_S", -1.0)
    ask = Doubling()

    async def gathering() -> list[Any]:
        made = batcher(ask)
        ask.may_go.clear()
        first = asyncio.ensure_future(made.answer(question(1)))
        for _ in range(5):
            await asyncio.sleep(0)
        others = [asyncio.ensure_future(made.answer(question(number))) for number in (2, 3, 4)]
        others[0].cancel()  # its client has gone
        for _ in range(5):
            await asyncio.sleep(0)
        ask.may_go.set()
        found = await asyncio.gather(first, *others[1:])
        made.close()
        return found

    answers = asyncio.run(gathering())
    assert [each.actions for each in answers] == [[2], [6], [8]]
    assert ask.passes == [[1], [3, 4]]
    assert threading.get_ident() not in ask.threads


def test_too_many_that_wait_are_told() -> None:
    async def fill() -> tuple[bool, bool]:
        made = Batcher(Doubling(), 3600.0, 100, 3, lambda rows, seconds: None)
        before = made.is_full
        waiting = asyncio.ensure_future(made.answer(question(1, 2, 3)))
        await asyncio.sleep(0)
        after = made.is_full
        waiting.cancel()
        return before, after

    assert asyncio.run(fill()) == (False, True)
