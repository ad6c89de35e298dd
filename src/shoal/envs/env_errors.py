"""How this room tells a user about their environment: notices that come once, and errors that point into their code."""

from __future__ import annotations

import logging
import os
import signal
import traceback
from functools import cache
from pathlib import Path

import gymnasium

logger = logging.getLogger("shoal")

_SHOAL = str(Path(__file__).resolve().parents[1])
_GYMNASIUM = str(Path(gymnasium.__file__).resolve().parent)
_STDLIB = str(Path(os.__file__).resolve().parent)


@cache
def notice_once(sentence: str) -> None:
    """Log a sentence the first time it is said in this process."""
    logger.warning(sentence)


def pass_on_interrupts(error: BaseException) -> None:
    """Raise again what a signal has raised; what remains is a failure of the simulator, sys.exit() included.

    A run's handlers raise a class of their own, so a bare KeyboardInterrupt is a signal's only where Python's handler
    is in place.
    """
    if isinstance(error, KeyboardInterrupt):
        is_bare = type(error) is KeyboardInterrupt
        if not is_bare or signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise error


def named_text(error: BaseException) -> str:
    """The error's type and its words, if it has any."""
    words = str(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def error_text(error: BaseException) -> str:
    """The error's type and text in one line, and its place in the user's code if there is one."""
    named = f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else named_text(error)
    text = " ".join(named.split())
    place = user_place(error)
    return f"{text} ({place}){_advice(error)}" if place else f"{text}{_advice(error)}"


def _advice(error: BaseException) -> str:
    """What to do about the one package that so many old environments import."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "gym":
        return "; old Gym is not installed: write `import gymnasium as gym` there, or type pip install gym"
    return ""


def user_place(error: BaseException) -> str | None:
    """`file:line` of the last frame outside libraries, else of the last one that is neither ours nor Gymnasium's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<frozen", _SHOAL + os.sep, _GYMNASIUM + os.sep))
    ]
    own = [frame for frame in frames if not _is_library(frame.filename)] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


def _is_library(filename: str) -> bool:
    folders = Path(filename).parts
    return filename.startswith(_STDLIB + os.sep) or "site-packages" in folders or "dist-packages" in folders
