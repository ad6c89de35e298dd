"""Sessions end by themselves, tokens stay private, sockets are this user's alone."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from shoal.errors import ConfigError
from shoal.serving.metrics import Counter, Histogram
from shoal.serving.sessions import Sessions
from shoal.serving.tokens import token_in


def test_sessions_are_forgotten_when_nobody_uses_them() -> None:
    now = [0.0]
    sessions = Sessions(timeout_s=10, most=2, clock=lambda: now[0])
    first, second = sessions.new(), sessions.new()
    assert sessions.keep(first)
    assert sessions.keep(second)
    assert not sessions.keep(sessions.new())
    now[0] = 6.0
    assert sessions.find(first.id) is first
    now[0] = 11.0
    assert sessions.find(second.id) is None
    assert sessions.find(first.id) is first
    assert sessions.keep(sessions.new())
    now[0] = 30.0
    first.is_busy = True
    sessions.forget_old()
    assert sessions.find(first.id) is first, "it is still answered"
    assert sessions.end(first.id)
    assert not sessions.end(first.id)
    assert len(sessions) == 0


def test_a_token_file_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token, is_new = token_in(path)
    assert is_new
    assert len(token) >= 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_in(path) == (token, False)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        token_in(path)
    path.chmod(0o600)
    for text in ("", "short", "with spaces in the middle of it", "x" * 600):
        path.write_text(text)
        with pytest.raises(ConfigError, match="holds no token"):
            token_in(path)
    (tmp_path / "link").symlink_to(path)
    for bad in (tmp_path / "link", tmp_path, tmp_path / "no" / "such"):
        with pytest.raises(ConfigError, match="--token-file"):
            token_in(bad)


def test_a_unix_socket_is_private_and_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    from shoal.serving.server import unix_socket

    path = tmp_path / "s"
    with unix_socket(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(ConfigError, match="in use by another server"), unix_socket(path):
            pass
        assert path.exists()
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with unix_socket(path):  # what a killed server has left
        pass
    path.write_text("mine")
    with pytest.raises(ConfigError, match="is not a socket"), unix_socket(path):
        pass
    assert path.read_text() == "mine"
    with pytest.raises(ConfigError, match="107 bytes"), unix_socket(tmp_path / ("a" * 120)):
        pass
    with pytest.raises(ConfigError, match="cannot be made"), unix_socket(Path(os.devnull) / "s"):
        pass


def test_metrics_are_text_of_prometheus() -> None:
    counter = Counter("n_total", "Things.")
    counter.add(policy='a"b\\c')
    counter.add(2, policy='a"b\\c')
    assert counter.lines() == ['n_total{policy="a\\"b\\\\c"} 3']
    histogram = Histogram("s", "Seconds.", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7):
        histogram.add(value)
    assert histogram.lines() == [
        's_bucket{le="0.1"} 2',
        's_bucket{le="1"} 3',
        's_bucket{le="+Inf"} 4',
        "s_sum 7.65",
        "s_count 4",
    ]
