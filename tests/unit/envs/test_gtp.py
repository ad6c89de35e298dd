"""Programs that speak GTP: what they answer, how they fail, and that nothing is left of them."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from shoal.envs import GtpEngine
from shoal.errors import ConfigError, EnvError

ENGINE = """
import subprocess, sys, time
how = sys.argv[1]
if how == "banner":
    print("Welcome!")
if how == "early":
    print("no book", file=sys.stderr)
    sys.exit(3)
for line in sys.stdin:
    word = line.split()[0]
    if word == "quit":
        print("= \\n", flush=True)
        if how != "stubborn":
            break
    elif word == "name":
        print("= Slow Stone\\n", flush=True)
    elif word == "board":
        print("\\n= first\\r\\nsecond\\r\\n\\r\\n", end="", flush=True)
    elif word == "child":
        child = subprocess.Popen(["sleep", "1000"])
        print(f"= {child.pid}\\n", flush=True)
    elif word == "hang":
        time.sleep(1000)
    elif word == "die":
        print("out of liberties", file=sys.stderr, flush=True)
        sys.exit(4)
    elif word == "noise":
        print("thinking\\n", flush=True)
    else:
        print("? unknown command\\n", flush=True)
while how == "stubborn":
    time.sleep(1)
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    file = tmp_path / "engine.py"
    file.write_text(ENGINE)
    return [sys.executable, str(file)]


def child_of(engine: GtpEngine) -> psutil.Process:
    return psutil.Process(int(engine.ask("child")))


def test_answers_come_without_their_marks(program: list[str]) -> None:
    engine = GtpEngine([*program, "well"], 20)
    try:
        assert engine.name == "Slow Stone"
        assert engine.ask("board") == "first\nsecond"
        with pytest.raises(EnvError, match=r"refused 'castle': 'unknown command'"):
            engine.ask("castle")
        assert engine.ask("name") == "Slow Stone", "a refusal is no end"
    finally:
        engine.close()


@pytest.mark.repeats(1)
@pytest.mark.parametrize(
    ("command", "timeout_s", "words"),
    [
        ("hang", 0.5, "did not answer 'hang' within 0.5 s"),
        ("die", 20, "ended with code 4; it printed last: out of liberties"),
        ("noise", 20, "answered 'noise' with 'thinking', which is not an answer of GTP"),
    ],
)
def test_one_that_fails_raises_and_ends_with_what_it_started(
    command: str, timeout_s: float, words: str, program: list[str]
) -> None:
    engine = GtpEngine([*program, "well"], 20)
    child = child_of(engine)
    engine.timeout_s = timeout_s
    with pytest.raises(EnvError, match=words):
        engine.ask(command)
    with pytest.raises(EnvError):
        engine.ask("name")
    engine.close()
    child.wait(20)


@pytest.mark.slow
def test_closing_ends_one_that_does_not_want_to(program: list[str]) -> None:
    engine = GtpEngine([*program, "stubborn"], 20)
    child = child_of(engine)
    engine.close()
    child.wait(20)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("banner", "does not speak GTP: .* answered 'name' with 'Welcome!"),
        ("early", "does not speak GTP: .* ended with code 3; it printed last: no book"),
    ],
)
def test_a_program_that_is_something_else_is_refused(how: str, words: str, program: list[str]) -> None:
    with pytest.raises(EnvError, match=words):
        GtpEngine([*program, how], 20)


def test_a_program_that_is_missing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no program 'deep-thought' here, neither in PATH nor in /usr/games"):
        GtpEngine(["deep-thought"], 1)
