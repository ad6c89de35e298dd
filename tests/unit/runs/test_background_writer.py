"""The thread that writes while training goes on: nothing is left out unless the disk is behind, and that is told."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from shoal.runs import background_writer
from shoal.runs.background_writer import BackgroundWriter

SOON_S = 30.0  # a machine may be busy


class Disk:
    """Work that ends when it may, and what has been carried out."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def work(self, name: str) -> Callable[[], None]:
        def write() -> None:
            self.begun.release()
            assert self.may_end.acquire(timeout=SOON_S)
            self.done.append(name)

        return write


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    for _ in range(10):
        made.may_end.release()


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_what_is_given_is_carried_out_in_order(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_writer, "PATIENCE_S", SOON_S)
    writer = BackgroundWriter("in order")
    assert threads("in order") == []
    assert writer.busy_s() == 0
    assert writer.wait(0), "nothing was given"
    assert writer.give(disk.work("one"))
    (thread,) = threads("in order")
    assert thread.daemon, "a program may end without it"
    assert disk.begun.acquire(timeout=SOON_S)
    assert 0 < writer.busy_s() < SOON_S
    assert not writer.wait(0), "one is being carried out"
    assert writer.give(disk.work("two")), "one may wait"
    threading.Timer(0.01, disk.may_end.release).start()
    assert writer.give(disk.work("three")), "it waits for the first"
    assert disk.done == ["one"]
    assert not writer.wait(0)
    disk.may_end.release()
    disk.may_end.release()
    assert writer.wait(SOON_S)
    assert disk.done == ["one", "two", "three"]
    assert writer.busy_s() == 0
    for name in ("four", "five"):  # which find the thread asleep
        assert writer.give(disk.work(name))
        disk.may_end.release()
        assert writer.wait(SOON_S)
    assert disk.done[3:] == ["four", "five"]
    assert threads("in order") == [thread]
    writer.close()
    assert threads("in order") == []


def test_the_newest_takes_the_place_of_what_waits(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_writer, "PATIENCE_S", 0.01)
    writer = BackgroundWriter("behind")
    assert writer.give(disk.work("one"))
    assert disk.begun.acquire(timeout=SOON_S)
    assert writer.give(disk.work("two"))
    assert not writer.give(disk.work("three")), "two is left out"
    monkeypatch.setattr(background_writer, "PATIENCE_S", 10 * SOON_S)
    assert not writer.give(disk.work("four")), "it is known to be behind, and is not waited for again"
    disk.may_end.release()
    assert disk.begun.acquire(timeout=SOON_S)
    assert not writer.wait(0)
    assert disk.done == ["one"]
    assert writer.give(disk.work("five")), "nothing is left out any more"
    threading.Timer(0.01, disk.may_end.release).start()
    assert writer.give(disk.work("six")), "it keeps up again, so it is waited for again"
    disk.may_end.release()
    disk.may_end.release()
    writer.close()
    assert disk.done == ["one", "four", "five", "six"]


def test_its_end_waits_for_all_of_it_and_it_may_be_used_again(disk: Disk) -> None:
    writer = BackgroundWriter("ended")
    writer.close()  # which has nothing to wait for
    assert writer.give(disk.work("one"))
    assert writer.give(disk.work("two"))
    for _ in range(2):
        threading.Timer(0.01, disk.may_end.release).start()
    writer.close()
    assert disk.done == ["one", "two"]
    assert threads("ended") == []
    assert writer.give(disk.work("three"))
    assert len(threads("ended")) == 1
    disk.may_end.release()
    assert writer.wait(SOON_S)
    assert threads("ended"), "it waits for more"
    writer.close()
    assert disk.done[2:] == ["three"]


def test_who_is_interrupted_while_it_ends_may_go_on_with_it(disk: Disk) -> None:
    writer = BackgroundWriter("interrupted")
    main = threading.main_thread().ident
    assert main is not None
    assert writer.give(disk.work("one"))
    assert disk.begun.acquire(timeout=SOON_S)

    def interrupted() -> None:
        threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
        writer.close()  # which waits for the first

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    disk.may_end.release()
    assert writer.wait(SOON_S)
    for name in ("two", "three"):
        assert writer.give(disk.work(name))
        disk.may_end.release()
        assert writer.wait(SOON_S)
    assert disk.done == ["one", "two", "three"]
    writer.close()
    assert threads("interrupted") == []


def test_work_that_fails_does_not_hold_what_comes_after_it(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda caught: failed.append(str(caught.exc_value)))
    writer = BackgroundWriter("failing")

    def fails() -> None:
        raise OSError("its own error")

    writer.give(fails)
    assert writer.wait(SOON_S), "it is not busy for ever"
    writer.close()
    assert failed == ["its own error"]
