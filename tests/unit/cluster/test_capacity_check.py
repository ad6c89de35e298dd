"""What a command says of its needs: an answer, a refusal of its own words, or nothing."""

from __future__ import annotations

import asyncio
import os

import pytest

from shoal.cluster import capacity_check
from shoal.cluster.capacity_check import answer
from shoal.errors import ConfigError


def told(script: str) -> str | None:
    return asyncio.run(answer(["sh", "-c", script], os.environ))


def test_an_answer_is_what_is_printed() -> None:
    assert told("echo custom:; echo noise >&2") == "custom:\n"


@pytest.mark.parametrize("script", ["exit 1", "echo Error: by chance >&2; exit 7", "exec /nowhere"])
def test_what_fails_otherwise_is_no_answer(script: str) -> None:
    assert told(script) is None
    assert asyncio.run(answer(["/nowhere"], os.environ)) is None


def test_a_refusal_of_its_words_is_passed_on() -> None:
    with pytest.raises(ConfigError) as refused:
        told("printf 'Usage: shoal\\n\\nError: one\\n  more\\nError: two\\n' >&2; exit 2")
    assert refused.value.problems == ["one\n  more", "two"]


def test_who_takes_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_check, "ANSWERING_TIMEOUT_S", 0.2)
    assert told("exec sleep 1000") is None
