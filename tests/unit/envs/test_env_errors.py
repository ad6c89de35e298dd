"""How failures of a user's code are named."""

from __future__ import annotations

import pytest

from shoal.envs.env_errors import error_text, named_text


@pytest.mark.parametrize(
    ("error", "named", "text"),
    [
        (KeyboardInterrupt(), "KeyboardInterrupt", "KeyboardInterrupt"),
        (ValueError("no\nnumber"), "ValueError: no\nnumber", "ValueError: no number"),
        (SystemExit(3), "SystemExit: 3", "SystemExit: 3"),
    ],
)
def test_an_error_without_words_is_its_type_alone(error: BaseException, named: str, text: str) -> None:
    assert (named_text(error), error_text(error)) == (named, text)
