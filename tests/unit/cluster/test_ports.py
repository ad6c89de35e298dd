"""The ports of a node."""

from __future__ import annotations

import socket

import pytest

from shoal.cluster.ports import FEWEST_FOR_WORKERS, SINGLE, PortRange, listening_socket, port_options, port_range
from shoal.errors import ClusterError, ConfigError


def numbers(options: list[str]) -> list[int]:
    return [int(word) for option in options for word in option.partition("=")[2].split(",")]


@pytest.mark.parametrize("text", ["", "1-2", "80-2000", "40000", "40000-30000", "60000-70000", "30000-30010", "a-b"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--ports"):
        port_range(text)


@pytest.mark.parametrize("is_head", [True, False])
def test_every_port_is_in_the_range_and_given_once(is_head: bool) -> None:
    ports = port_range("31000-31099")
    used = numbers(port_options(ports, is_head))
    assert len(used) == len(set(used)) > len(SINGLE) + FEWEST_FOR_WORKERS
    assert all(ports.low <= port <= ports.high for port in used)
    assert ("--port" in [option.partition("=")[0] for option in port_options(ports, is_head)]) == is_head


def test_taken_ports_are_left_alone_and_too_few_are_refused() -> None:
    ports = PortRange(31200, 31239)
    with socket.socket() as taken:
        taken.bind(("", 31210))
        assert 31210 not in numbers(port_options(ports, True))
        with listening_socket("", PortRange(31209, 31210)) as listener:
            assert listener.getsockname()[1] == 31209
            with pytest.raises(ClusterError, match="no port in 31209-31210 is free"):
                listening_socket("", PortRange(31209, 31210))
    with pytest.raises(ClusterError, match="wider range"):
        port_options(PortRange(31200, 31210), True)


def test_without_a_range_nothing_is_fixed() -> None:
    assert set(numbers(port_options(None, True))) == {0}
