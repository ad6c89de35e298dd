"""`shoal check`: each illness is found, told with a remedy, and not seen in what is healthy."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

from shoal.data.findings import Finding
from shoal.envs.examination import CHECKS, Examination
from shoal.envs.examination_of_states import own_state
from shoal.envs.examining import Wanted, examine
from shoal.envs.making import env_maker
from shoal.errors import ConfigError

SICK = str(Path(__file__).with_name("sick_envs.py"))


def findings(env: str, **limits: float) -> list[Finding]:
    """All findings of the checks, made in this process."""
    name = env if env in gymnasium.registry else f"{SICK}:{env}"
    exam = Examination(env_maker(name), {}, **{"episodes": 6, "max_steps": 300, **limits})
    return [finding for check in CHECKS.values() for finding in check(exam)]


def not_ok(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.check, finding.verdict) for finding in found if finding.verdict in ("warning", "problem")]


@pytest.mark.repeats(2)
@pytest.mark.parametrize(
    "env",
    ["Healthy", "Masked", "CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0", "FrozenLake-v1"],
)
def test_the_healthy_pass(env: str) -> None:
    found = findings(env, max_steps=1000)
    assert not_ok(found) == []
    assert {finding.check for finding in found} >= {*CHECKS}


@pytest.mark.parametrize(("is_randomized", "words"), [(False, "or the seed is ignored"), (True, "draws nothing")])
def test_one_start_for_every_seed_is_told(is_randomized: bool, words: str) -> None:
    exam = Examination(env_maker("FrozenLake-v1"), {}, episodes=1, max_steps=20)
    exam.is_randomized = is_randomized
    exam.look(exam.make())
    (note,) = (finding for finding in CHECKS["seeding"](exam) if finding.verdict == "note")
    assert words in note.text


@pytest.mark.repeats(3)
@pytest.mark.parametrize(
    ("env", "check", "verdict", "words"),
    [
        ("Unseeded", "seeding", "warning", "differs at reset()"),
        ("Shared", "two at once", "warning", "differs from step"),
        ("NaNAtTheEdge", "extreme actions", "problem", "not finite"),
        ("Outside", "random actions", "warning", "outside its space"),
        ("Leaking", "leaks", "warning", "memory grows by"),
        ("ProgramThatGrows", "leaks", "warning", "memory grows by"),
        ("ProgramThatOpensFiles", "leaks", "problem", "more files or sockets are open"),
        ("StartingSolvers", "leaks", "problem", "more child processes run"),
        ("Endless", "random actions", "warning", "6 episodes of 6 did not end within 300 steps"),
        ("OpeningFiles", "leaks", "problem", "more files or sockets are open"),
        ("ClosingOnce", "close", "warning", "closed already"),
    ],
)
def test_an_illness_is_found(env: str, check: str, verdict: str, words: str) -> None:
    found = findings(env)
    told = [finding for finding in found if finding.verdict in ("warning", "problem") and words in finding.text]
    assert (check, verdict) in not_ok(told)
    assert all(finding.remedy for finding in told)


@pytest.mark.repeats(2)
@pytest.mark.parametrize(
    ("env", "check", "words"),
    [
        ("Segfault", "extreme actions", ["step() ended the process (SIGSEGV) in File", "sick_envs.py"]),
        ("ExitAtOnce", "first steps", ["step() ended the process (exit code 3)"]),
        ("Exit", "random actions", ["exit code 3", "the licence is lost"]),
        ("HangAtOnce", "first steps", ["reset() did not return within 5 s"]),
        ("Hang", "random actions", ["step() did not return within 5 s"]),
        ("Raising", "random actions", ["RuntimeError: the solver diverged", "sick_envs.py:"]),
    ],
)
def test_what_ends_or_stops_its_process_is_a_finding(env: str, check: str, words: list[str]) -> None:
    timeout_s = 5 if env.startswith("Hang") else 100
    found = list(examine(Wanted(f"{SICK}:{env}", {}, episodes=2, timeout_s=timeout_s)))
    [problem] = [finding for finding in found if finding.verdict == "problem"]
    assert problem.check == check
    for word in words:
        assert word in problem.text
    assert problem.remedy


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes no such argument"):
        list(examine(Wanted("CartPole-v1", {"nonsense": 1})))


def own_states(env: str) -> list[Finding]:
    exam = Examination(env_maker(f"{SICK}:{env}"), {})
    exam.look(exam.make())
    return list(own_state(exam))


def test_a_state_that_leads_back_is_told_from_one_that_does_not() -> None:
    assert own_states("Healthy") == []
    [sound] = own_states("TellingAll")
    assert (sound.check, sound.verdict) == ("own state", "ok")
    [poor] = own_states("TellingHalf")
    assert poor.verdict == "problem"
    assert "steps later: resumed runs would go another way" in poor.text
    [odd] = own_states("TellingAnObject")
    assert odd.verdict == "problem"
    assert "state.self is of type TellingAnObject, which cannot be saved" in odd.text


def test_a_batch_is_played_as_a_whole() -> None:
    found = list(examine(Wanted(f"{SICK}:cart_poles", {})))
    assert [finding.check for finding in found] == ["first steps", "first steps", "random actions"]
    assert found[2].text.startswith("8 environments, 2,000 steps of each")
