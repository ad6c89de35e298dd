from __future__ import annotations

import pytest

from shoal.config.durations import seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90m", 5400),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("45s", 45),
        ("2d", 172800),
        ("02:30:00", 9000),
        ("100:00:00", 360000),
        ("1-12:00:00", 129600),
        (" 90m ", 5400),
    ],
)
def test_lengths_of_time(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["90", "1.5", "02:30", "", "m", "90 m x", "-90m", "1-12:00", "00:99:00", "1e3s", "٣m"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="90m"):
        seconds(text)
