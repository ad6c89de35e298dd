"""Numbers as people read them."""

from __future__ import annotations

import pytest

from shoal.data.number_text import column_text, duration_text, number_text, rate_text, tick_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.0, "0"),
        (475.0, "475"),
        (-21, "-21"),
        (481.234, "481.2"),
        (99.996, "100"),
        (12.3456, "12.35"),
        (-0.032123, "-0.03212"),
        (1e-5, "1e-05"),
        (123456.78, "123456.8"),
        (1234567.8, "1.235e+06"),
        (10**18, "1000000000000000000"),
        (1e18, "1e+18"),
    ],
)
def test_a_number(value: float | None, text: str) -> None:
    assert number_text(value) == text


def test_columns_stand_still() -> None:
    assert [column_text(value) for value in (None, 9.0, 187.34, -200, 99999.9, 123456.0)] == [
        "-",
        "9.0",
        "187.3",
        "-200.0",
        "99999.9",
        "1.23e+05",
    ]


def test_rates_ticks_and_times() -> None:
    assert [rate_text(value) for value in (0, 0.3, 9.96, 830.4, 2345, 23456, 1.2e6)] == [
        *("0", "0.3", "10", "830", "2.3k", "23k", "1.2M")
    ]
    assert [tick_text(value) for value in (0, 1e-5, 0.25, 1500, 20_000, 1.5e6, -3e9)] == [
        *("0", "1e-5", "0.25", "1500", "20k", "1.5M", "-3G")
    ]
    assert [duration_text(seconds) for seconds in (0.2, 60, 200, 7500, 273600)] == [
        *("1 s", "1 min", "3 min 20 s", "2 h 5 min", "3 d 4 h")
    ]
