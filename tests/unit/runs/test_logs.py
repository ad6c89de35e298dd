"""log.txt and its limits."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from shoal.runs.logs import RateLimit, log_to


def test_repeated_lines_are_limited(tmp_path: Path) -> None:
    log = logging.getLogger("shoal.test")
    with log_to(tmp_path / "log.txt", "ERROR"):
        for number in range(10_000):
            log.info("environment %d fails", number)
        log.info("another line")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert len(lines) == 21
    assert "not shown again" in lines[19]
    assert lines[20].endswith("another line")


def test_the_count_is_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("shoal.runs.logs.time.monotonic", lambda: now)
    limit = RateLimit(burst=2, period_s=60)
    records = [logging.LogRecord("shoal", logging.INFO, "", 0, "x %d", (1,), None) for _ in range(6)]
    assert [limit.filter(record) for record in records[:5]] == [True, True, False, False, False]
    now = 61.0
    assert limit.filter(records[5])
    assert records[5].getMessage() == "x 1 [and 3 more like it before]"


def test_warnings_reach_stderr_if_nobody_listens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("shoal")
    monkeypatch.setattr(log, "propagate", False)
    with log_to(tmp_path / "log.txt", "WARN"):
        log.info("quiet")
        log.warning("loud")
    assert capsys.readouterr().err == "loud\n"
    assert "quiet" in (tmp_path / "log.txt").read_text()


def test_a_disk_that_is_full_at_the_end_makes_no_traceback() -> None:
    log = logging.getLogger("shoal.test")
    with log_to(Path("/dev/full"), "ERROR"):
        log.info("a line that nothing takes")
