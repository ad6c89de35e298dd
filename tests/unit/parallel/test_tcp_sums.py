"""Sums between learners over TCP: in threads here, which the kernel treats like processes."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shoal.parallel import tcp_sums
from shoal.parallel.tcp_sums import SocketGroup, listen

LENGTHS = (1, 1000, 3_000_000)  # the last one does not fit into the kernel's buffers


def array_of(rank: int, length: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(length).astype(np.float32)


def met(size: int, secrets: list[bytes] | None = None, before=lambda addresses: None) -> list[SocketGroup]:
    """A group's members, each as one of `size` threads has found the others."""
    secrets = secrets or [os.urandom(32)] * size
    listeners = [listen("127.0.0.1") for _ in range(size)]
    addresses = [listener.getsockname() for listener in listeners]
    before(addresses)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(SocketGroup, listeners, [addresses] * size, range(size), secrets))


def in_each(groups: list[SocketGroup], call) -> list:
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(call, groups))


@pytest.mark.repeats(3)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8])
def test_all_have_the_same_sum_to_the_bit(size) -> None:
    groups = met(size)
    for length in LENGTHS if size < 5 else LENGTHS[:2]:
        sums = in_each(groups, lambda group, n=length: group.sum(array_of(group.rank, n)))
        np.testing.assert_allclose(
            sums[0], sum(array_of(rank, length).astype(np.float64) for rank in range(size)), rtol=1e-4, atol=1e-5
        )
        for other in sums[1:]:
            np.testing.assert_array_equal(other, sums[0])
    for group in groups:
        group.close()


def test_an_array_may_have_any_shape() -> None:
    groups = met(3)
    columns = in_each(groups, lambda group: group.sum((np.arange(6).reshape(2, 3) * group.rank).T))
    for rank in range(3):
        np.testing.assert_array_equal(columns[rank], np.arange(6).reshape(2, 3).T * 3)
        groups[rank].close()


def test_the_result_is_in_the_callers_own_array() -> None:
    groups = met(2)
    whole = np.ones((2, 4), np.float32)
    kept = [whole[group.rank] for group in groups]
    in_each(groups, lambda group: group.sum(kept[group.rank]))
    np.testing.assert_array_equal(whole, np.full((2, 4), 2))
    for group in groups:
        group.close()


def test_a_partner_that_is_gone_is_a_connection_error() -> None:
    groups = met(2)
    groups[1].close()
    with pytest.raises(ConnectionError):
        groups[0].sum(np.ones(10))
    groups[0].close()


def test_strangers_are_shut_out(monkeypatch) -> None:
    """One that says nothing, one that talks nonsense and one that leaves do not keep the learners from meeting."""
    monkeypatch.setattr(tcp_sums, "GREETING_TIMEOUT_S", 0.2)
    strangers = []

    def call(addresses) -> None:
        strangers.extend(socket.create_connection(addresses[0]) for _ in range(3))
        strangers[1].sendall(bytes(36))
        strangers[2].close()

    groups = met(2, before=call)
    np.testing.assert_array_equal(in_each(groups, lambda group: group.sum(np.ones(3)))[0], np.full(3, 2.0))
    for end in (*groups, *strangers):
        end.close()


def test_another_secret_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(tcp_sums, "MEETING_TIMEOUT_S", 0.5)
    with pytest.raises((ConnectionError, TimeoutError)):
        met(2, secrets=[b"one", b"other"])
