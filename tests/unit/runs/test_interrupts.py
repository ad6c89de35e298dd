"""Signals in one process: which are one, which are two, and what other people's code makes of them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FunctionType

import pytest

from shoal.errors import Interrupted
from shoal.machine.signals import exit_code
from shoal.runs import interrupts as module
from shoal.runs.interrupts import SIGNALS, Interrupts


class Ended(Exception):
    """Stands for the end of the process."""


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_exit_codes() -> None:
    assert [exit_code(number) for number in SIGNALS] == [130, 143, 85, 129]


@pytest.mark.parametrize("number", SIGNALS)
def test_what_others_make_of_it_is_translated_back(number: signal.Signals) -> None:
    def swallowed_as(error: BaseException) -> None:
        try:
            send(number)
            time.sleep(60)
        except KeyboardInterrupt:
            raise error from None

    for error in (KeyboardInterrupt(), SystemError("a result with an exception set"), SystemExit(1)):
        with Interrupts(hold=True) as interrupts:
            with pytest.raises(Interrupted), interrupts.cutting():
                swallowed_as(error)
            assert interrupts.signal == number


def test_errors_without_a_signal_are_left_alone() -> None:
    with Interrupts(hold=True) as interrupts:
        for error in (KeyboardInterrupt(), SystemExit(3), ValueError("x")):
            with pytest.raises(type(error)) as raised, interrupts.cutting():
                raise error
            assert raised.value is error
        assert interrupts.signal is None


def test_what_a_bare_except_swallows_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INSIST_S", 0.1)
    swallowed = []

    def step() -> None:
        for _ in range(2):
            try:
                if not swallowed:
                    send(signal.SIGTERM)
                time.sleep(60)
            except BaseException as error:
                swallowed.append(error)
        time.sleep(60)

    with Interrupts(hold=True) as interrupts, pytest.raises(Interrupted), interrupts.cutting(insist=True):
        step()
    assert len(swallowed) == 2


def test_what_is_being_cleaned_up_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INSIST_S", 0.02)
    cleaned = []

    def start() -> None:
        try:
            send(signal.SIGTERM)
            time.sleep(60)
        finally:
            time.sleep(0.2)
            cleaned.append(True)

    with Interrupts(hold=True) as interrupts, pytest.raises(Interrupted), interrupts.cutting():
        start()
    assert cleaned


@pytest.mark.parametrize(
    ("first", "second", "after_s", "ends"),
    [
        (signal.SIGINT, signal.SIGINT, 0.05, False),
        (signal.SIGINT, signal.SIGINT, 0.5, True),
        (signal.SIGTERM, signal.SIGTERM, 0.5, False),
        (signal.SIGTERM, signal.SIGTERM, 1.5, True),
        (signal.SIGHUP, signal.SIGTERM, 0.5, False),
        (signal.SIGTERM, signal.SIGHUP, 9.0, False),
        (signal.SIGUSR1, signal.SIGUSR1, 9.0, False),
        (signal.SIGUSR1, signal.SIGTERM, 9.0, True),
    ],
)
def test_what_is_a_second_signal(
    monkeypatch: pytest.MonkeyPatch, first: signal.Signals, second: signal.Signals, after_s: float, ends: bool
) -> None:
    clock = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])

    def end(_code: int) -> None:
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    with Interrupts(hold=True) as interrupts:
        send(first)
        clock[0] += after_s
        if ends:
            with pytest.raises(Ended):
                send(second)
        else:
            send(second)
        assert interrupts.signal == first


def test_handlers_come_back_and_what_was_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts(hold=True) as interrupts:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # an environment's doing
            interrupts.install()
            send(signal.SIGHUP)
            assert interrupts.signal is None
            send(signal.SIGTERM)
            assert interrupts.signal == signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_handler_that_an_environment_takes_has_no_effect() -> None:
    own = signal.getsignal(signal.SIGTERM)
    for handler in (signal.SIG_IGN, lambda *_: None):
        with Interrupts(hold=True) as interrupts:
            before = signal.signal(signal.SIGTERM, handler)
            assert signal.signal(signal.SIGTERM, before) is handler  # as if it had been set
            signal.signal(signal.SIGTERM, handler)
            with pytest.raises(TypeError):
                signal.signal(signal.SIGTERM, "no handler")  # type: ignore[arg-type]
            with pytest.raises(Interrupted), interrupts.cutting():
                send(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is own
    assert signal.signal is module._set_handler


def test_what_the_loop_body_sets_holds_after_the_run() -> None:
    def mine(*_: object) -> None:
        pass

    own = signal.getsignal(signal.SIGUSR1)
    try:
        with Interrupts(hold=False) as outer, outer.away():
            with Interrupts(hold=False) as inner:
                signal.signal(signal.SIGUSR1, signal.SIG_IGN)
                send(signal.SIGUSR1)
                assert (inner.signal, outer.signal) == (signal.SIGUSR1, None)
            signal.signal(signal.SIGUSR1, mine)
            send(signal.SIGUSR1)
            assert outer.signal == signal.SIGUSR1
        assert signal.getsignal(signal.SIGUSR1) is mine
    finally:
        signal.signal(signal.SIGUSR1, own)


def test_runs_that_end_in_any_order_leave_signals_as_they_were() -> None:
    first, second = Interrupts(hold=True), Interrupts(hold=True)
    own = signal.getsignal(signal.SIGTERM)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, own)


def test_ctrl_c_past_the_guard_is_told_as_what_it_is() -> None:
    with Interrupts(hold=True) as interrupts:
        module._set_handler(signal.SIGINT, signal.default_int_handler)  # as from C
        with pytest.raises(Interrupted), interrupts.cutting():
            send(signal.SIGINT)
        assert interrupts.signal == signal.SIGINT


def test_a_forked_child_takes_what_signals_it_likes() -> None:
    with Interrupts(hold=True):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os._exit(0 if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_full_device_is_a_loss_that_nobody_notices(tmp_path: Path) -> None:
    from shoal.cli.output import GuardedStream, _text

    with open("/dev/full", "w") as full, open(tmp_path / "good", "w+") as good:
        lost, kept = GuardedStream(full.fileno(), "stdout"), GuardedStream(good.fileno(), "stderr")
        for outlet, like in ((lost, full), (kept, good)):
            with _text(outlet, like) as stream:
                for _ in range(3):
                    print("words", file=stream, flush=True)
        assert lost.loss is not None
        assert kept.loss is None
        assert (tmp_path / "good").read_text() == "words\n" * 3


def test_no_signal_is_raised_where_logging_has_just_taken_a_lock() -> None:
    lock = threading.Lock()

    def take() -> None:
        lock.acquire()
        signal.raise_signal(signal.SIGTERM)

    take_in_logging = FunctionType(take.__code__, {**vars(logging), "signal": signal}, closure=take.__closure__)
    deadline = time.monotonic() + 60

    def call(interrupts: Interrupts) -> None:
        with interrupts.cutting():
            take_in_logging()
            lock.release()
            while time.monotonic() < deadline:
                time.sleep(0.01)

    with Interrupts(hold=True) as interrupts, pytest.raises(Interrupted):
        call(interrupts)
    assert not lock.locked(), "it was raised before the lock could be given back"
    assert time.monotonic() < deadline, "and a moment later where it could be"


@pytest.mark.parametrize(("variables", "is_shown"), [({}, True), ({"OMPI_COMM_WORLD_RANK": "0"}, False)])
def test_the_cursor_is_shown_again_on_a_persons_terminal_alone(variables: dict[str, str], is_shown: bool) -> None:
    child = "from shoal.runs.interrupts import Interrupts; Interrupts(hold=True)._end_at_once(15)"
    done = subprocess.run(
        ["script", "-qec", f'{sys.executable} -c "{child}"', "/dev/null"],
        env={**os.environ, "TERM": "xterm", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert b"Stopped at once by SIGTERM" in done.stdout
    assert (b"\x1b[?25h" in done.stdout) == is_shown


AT_FORK = """
import os, signal, sys
from shoal.runs.interrupts import Interrupts

asks = []
os.register_at_fork(after_in_child=lambda: asks and os.kill(os.getpid(), signal.SIGTERM))  # before ours is told
with Interrupts(hold=True) as interrupts, interrupts.cutting():
    asks.append(1)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    asks.clear()
    assert interrupts.signal is None
print(status)
"""


def test_a_signal_in_a_child_that_is_being_forked_ends_it_without_a_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", AT_FORK], capture_output=True, text=True, timeout=100, check=False)
    assert ended.stderr == ""
    assert ended.stdout == f"{-signal.SIGTERM}\n"
