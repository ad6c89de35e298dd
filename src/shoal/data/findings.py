"""What a check or a diagnosis has found: one thing seen, how bad it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that a check saw.

    - `ok`       as it should be;
    - `note`     worth knowing, nothing to do;
    - `warning`  training works, but slower, less exactly or less well than it could;
    - `problem`  a run would break, or cannot learn.
    """

    check: str
    verdict: Verdict
    text: str
    remedy: str = ""
