"""How messages list the algorithms that `run` may name."""

from __future__ import annotations

from shoal.config.algorithms import BUILT_IN

*FIRST, LAST = BUILT_IN
ANY_ALGORITHM = f"{', '.join(FIRST)} or {LAST}"
EVERY_ALGORITHM = ", ".join(BUILT_IN)
