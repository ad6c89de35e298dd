"""Which variables are secrets, and what becomes of them in texts."""

from __future__ import annotations

import pytest

from shoal.machine.redaction import redacted, secret_variables


@pytest.mark.parametrize(
    "name",
    ["WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "db_password", "PGPASSWORD", "SLACK_WEBHOOK", "MY_KEY"],
)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert redacted("postgres://ada:s3cr3t-s3cr3t@host", {name: "s3cr3t-s3cr3t"}) == f"postgres://ada:[{name}]@host"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOME", "/home/ada-lovelace"),
        ("RAY_AUTH_TOKEN_PATH", "/tmp/shl-x/token"),
        ("MY_TOKEN", "yes"),
        ("MY_TOKEN", ""),
    ],
)
def test_what_is_no_secret_stays(name: str, value: str) -> None:
    assert redacted(f"it is {value}.", {name: value}) == f"it is {value}."


def test_a_secret_that_is_a_part_of_another_does_not_give_it_away() -> None:
    environ = {"A_TOKEN": "12345678", "B_TOKEN": "12345678-abcdef"}
    assert list(secret_variables(environ)) == ["B_TOKEN", "A_TOKEN"]
    assert redacted("12345678-abcdef 12345678", environ) == "[B_TOKEN] [A_TOKEN]"
