"""Secrets of the environment, kept out of what is written down.

A simulator that fails may print its environment, or an address with a password in it. What shoal keeps of such texts
passes through `redacted`: the values of variables whose names sound like secrets are replaced by the names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

SECRET_NAMES = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY|AUTH_?KEY|_KEY$|^KEY_|COOKIE|WEBHOOK",
    re.IGNORECASE,
)
FEWEST_CHARACTERS = 8  # a shorter value is a word like any other: `yes`, `none`, `1`
PATHS = re.compile(r"_(PATH|FILE|DIR)$", re.IGNORECASE)
"""Names of variables that say where a secret is, which helps who looks for an error and nobody else."""


def secret_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold secrets, by their names; the longest values first, for one may be a part of another."""
    found = {
        name: value
        for name, value in environ.items()
        if len(value) >= FEWEST_CHARACTERS and SECRET_NAMES.search(name) and not PATHS.search(name)
    }
    return dict(sorted(found.items(), key=lambda pair: -len(pair[1])))


def redacted(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The text with `[NAME]` in the place of each secret of the environment."""
    for name, value in secret_variables(os.environ if environ is None else environ).items():
        text = text.replace(value, f"[{name}]")
    return text
