"""The names of hosts."""

from __future__ import annotations

import socket

import pytest

from shoal.machine.host_names import is_own_name, short_name


@pytest.mark.parametrize(
    ("name", "short"),
    [("n01", "n01"), ("n01.cluster.example", "n01"), ("NID00012", "nid00012"), ("10.1.0.7", "10.1.0.7")],
)
def test_a_short_name(name: str, short: str) -> None:
    assert short_name(name) == short


def test_this_host_by_its_name_in_any_form() -> None:
    own = socket.gethostname()
    for name in (own, own.upper(), f"{short_name(own)}.another.domain"):
        assert is_own_name(name)
    assert not is_own_name(f"not-{own}")
