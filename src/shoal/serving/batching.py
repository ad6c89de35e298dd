"""Many requests, one pass of the network: those that wait together are answered together, within a deadline."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter, thread_time

from shoal.serving.served_policy import ChosenActions, Question

Ask = Callable[[Sequence[Question]], list[ChosenActions]]
Told = Callable[[int, float], None]

QUICK_S = 2e-3
"""A pass that takes less is made where requests are read; a longer one in a thread, and others are read meanwhile."""

Waiting = tuple[Question, "asyncio.Future[ChosenActions]"]


@dataclass(frozen=True)
class Pass:
    """What came of one pass of the network."""

    answers: list[ChosenActions]
    failure: Exception | None
    seconds: float
    cpu_s: float


class Batcher:
    """Gathers questions for at most `wait_s`, or until there are `max_rows` rows, and has them answered in one pass.

    With no wait, a pass takes whatever has come in while the one before it ran. `told` hears of each pass: its rows,
    and the seconds it took.
    """

    def __init__(self, ask: Ask, wait_s: float, max_rows: int, most_waiting: int, told: Told) -> None:
        self._ask, self._told = ask, told
        self._wait_s, self._max_rows, self._most_waiting = wait_s, max_rows, most_waiting
        self._waiting: deque[Waiting] = deque()
        self._num_rows = 0  # of those that wait
        self._is_due = False  # a pass is scheduled or runs
        self._timer: asyncio.Handle | None = None
        self._usual_s = 0.0
        self._thread: ThreadPoolExecutor | None = None

    @property
    def is_full(self) -> bool:
        """Whether so many rows wait that no more should."""
        return self._num_rows >= self._most_waiting

    async def answer(self, question: Question) -> ChosenActions:
        """The answer to one question."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ChosenActions] = loop.create_future()
        self._waiting.append((question, future))
        self._num_rows += question.num_rows
        if not self._is_due:
            self._is_due = True
            # `call_soon`: after everybody has been read who has something to say at this moment.
            self._timer = loop.call_later(self._wait_s, self._begin) if self._wait_s else loop.call_soon(self._begin)
        elif self._num_rows >= self._max_rows and self._timer is not None:
            self._timer.cancel()
            self._begin()
        return await future

    def close(self) -> None:
        """End the thread, if there is one."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    def _begin(self) -> None:
        """Take what waits, and have it answered: here if that is quick, else in a thread."""
        self._timer = None
        taken = self._taken()
        if not taken:
            self._is_due = False
            return
        if self._usual_s < QUICK_S:
            self._finish(taken, self._asked(taken))
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-serve")
        asyncio.get_running_loop().create_task(self._in_thread(taken, self._thread))

    async def _in_thread(self, taken: list[Waiting], thread: ThreadPoolExecutor) -> None:
        self._finish(taken, await asyncio.get_running_loop().run_in_executor(thread, self._asked, taken))

    def _asked(self, taken: list[Waiting]) -> Pass:
        started, began = perf_counter(), thread_time()
        answers: list[ChosenActions] = []
        failure = None
        try:
            answers = self._ask([question for question, _ in taken])
        except Exception as error:  # whoever waits must hear of it
            failure = error
        # By processor time, since a busy machine does not make the work longer.
        return Pass(answers, failure, perf_counter() - started, thread_time() - began)

    def _finish(self, taken: list[Waiting], made: Pass) -> None:
        """Hand the answers out, and go on with who has come meanwhile."""
        self._usual_s += 0.2 * (made.cpu_s - self._usual_s)
        self._told(sum(question.num_rows for question, _ in taken), made.seconds)
        for at, (_, future) in enumerate(taken):
            if future.done():  # the client has gone
                continue
            found = made.answers[at] if made.failure is None else made.failure
            if isinstance(found, Exception):
                future.set_exception(found)
            else:
                future.set_result(found)
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_soon(self._begin)
        else:
            self._is_due = False

    def _taken(self) -> list[Waiting]:
        """The oldest of those that wait, as many as one pass takes, and at least one."""
        taken: list[Waiting] = []
        rows = 0
        while self._waiting:
            question, future = self._waiting[0]
            if taken and rows + question.num_rows > self._max_rows:
                break
            self._waiting.popleft()
            self._num_rows -= question.num_rows
            if not future.cancelled():
                taken.append((question, future))
                rows += question.num_rows
        return taken
