"""Signals stay with who has them while Ray is started or joined."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def signals_kept(ray: Any) -> Iterator[None]:
    """Have Ray take no signal from who has it, in C or in Python.

    The handler that Ray's core has for crashes takes SIGTERM too: it sets an alarm that aborts the process three
    seconds later, whatever Python's handler does meanwhile, and when the core ends it leaves SIGTERM to nobody. The
    core asks this constant when it is made. Of a crash, `faulthandler` tells the place in Python all the same.
    """
    constants, utils = ray._private.ray_constants, ray._private.utils
    is_disabled, take_sigterm = constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER, utils.set_sigterm_handler
    constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = True
    # Where nobody has SIGTERM, Ray's own handler ends its processes with the program.
    if callable(signal.getsignal(signal.SIGTERM)):
        utils.set_sigterm_handler = lambda _: None
    try:
        yield
    finally:
        constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = is_disabled
        utils.set_sigterm_handler = take_sigterm
