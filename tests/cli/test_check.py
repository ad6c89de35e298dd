"""`shoal check`: what it prints, and how it ends."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium
import pytest
from click.testing import CliRunner, Result

from shoal.cli.main import main
from shoal.envs.examination import Examination, factory
from shoal.envs.importing import UserCode
from shoal.envs.making import env_maker

SICK = str(Path(__file__).parents[1] / "unit/envs/sick_envs.py")


def check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments], prog_name="shoal")


def test_a_healthy_environment_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(f"one: {{env: '{SICK}:Healthy', run: PPO, config: {{horizon: 20}}}}\n")
    result = check(str(tmp_path / "a.yml"), "--episodes", "2")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == f"Checking {SICK}:Healthy"
    assert "2 episodes did not end within 20 steps" in result.output.replace(" of 2 did", " did")
    assert lines[-1] == "It can be trained; 1 warning to look at."


def test_a_problem_ends_with_1_and_programs_can_read_it() -> None:
    result = check(f"{SICK}:Raising", "--episodes", "1", "--json")
    assert result.exit_code == 1
    rows = json.loads(result.output)
    [problem] = [row for row in rows if row["verdict"] == "problem"]
    assert problem["check"] == "random actions"
    assert "the solver diverged" in problem["text"]


EXAMPLES = Path(__file__).parents[2] / "examples" / "simulators"
SPEAKING = Path(__file__).parents[1] / "unit" / "envs" / "speaking.py"


def checks_of(*arguments: str) -> dict[str, str]:
    """The worst verdict of every check of what can be trained."""
    result = check(*arguments, "--episodes", "2", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)
    order = ["ok", "note", "warning"]
    found: dict[str, str] = {}
    for row in rows:
        found[row["check"]] = max(found.get(row["check"], "ok"), row["verdict"], key=order.index)
    return found


def test_a_program_is_checked_as_an_environment_is() -> None:
    found = checks_of(f"{sys.executable} {EXAMPLES / 'python' / 'thermostat.py'}", "--protocol", "lines")
    for name in ("seeding", "two at once", "close", "workers", "leaks"):
        assert found[name] == "ok", found


@pytest.mark.parametrize(
    ("how", "words"), [("shape", "does not fit"), ("dies", "was ended by SIGFPE"), ("nothing", "has no obs")]
)
def test_what_is_wrong_with_a_program_is_told(how: str, words: str) -> None:
    result = check(f"{sys.executable} {SPEAKING} {how}", "--protocol", "lines", "--episodes", "1")
    assert result.exit_code == 1
    assert words in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_case_is_checked_as_an_environment_is(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "case", tmp_path, dirs_exist_ok=True)
    [command] = re.findall(r"cc -O2 .*", (tmp_path / "burgers.c").read_text())
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    found = checks_of(f"{tmp_path}/burgers_env.py:Burgers")
    for name in ("random actions", "seeding", "two at once", "close", "workers", "leaks"):
        assert found[name] == "ok", found


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_an_fmu_is_checked_and_trained_at_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fmpy", reason="FMPy is not installed")
    build = EXAMPLES / "fmu" / "build_fmu.py"
    UserCode.at(build.parent).load_file(str(build)).build("2.0", tmp_path / "heater.fmu")
    monkeypatch.chdir(tmp_path)
    asked = ["--set", "env.reward=-abs(T - 20)", "--set", "env.step_size=1", "--set", "env.stop_time=40"]
    found = checks_of("heater.fmu", *asked)
    assert found["seeding"] == "note"  # it always starts alike
    for name in ("random actions", "two at once", "close", "workers", "leaks"):
        assert found[name] == "ok", found
    stop = ["--stop", "training_iteration=1", "--set", "train_batch_size=200", "--results-dir", "results"]
    trained = CliRunner().invoke(main, ["train", "heater.fmu", *asked, *stop], prog_name="shoal")
    assert trained.exit_code == 0, trained.output
    assert len(list(tmp_path.glob("results/*/*/result.json"))) == 1


CLOSES = {
    "hangs": "time.sleep(1000)",
    "cannot be cut short": """while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass""",
}


@pytest.mark.parametrize("how", CLOSES)
def test_a_close_that_hangs_is_named(how: str, tmp_path: Path) -> None:
    (tmp_path / "closing.py").write_text(
        f"import sys, time\nsys.path.append({str(Path(SICK).parent)!r})\nfrom sick_envs import Healthy\n\n\n"
        f"class Closing(Healthy):\n    def close(self):\n        {CLOSES[how]}\n"
    )
    result = check(f"{tmp_path / 'closing.py'}:Closing", "--episodes", "1", "--timeout", "2", "--json")
    assert result.exit_code == 1, result.output
    [problem] = [row for row in json.loads(result.output) if row["verdict"] == "problem"]
    assert problem["text"].startswith("close() did not return within 2 s")
    assert "end in close()" in problem["remedy"]


def test_a_program_that_does_not_end_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(
        "import json, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        'space = {"type": "Box", "low": [-1, -1], "high": 1}\n'
        'print(json.dumps({"shoal": 1, "observation": space, "action": space}), flush=True)\n'
        "for line in sys.stdin:\n    asked = json.loads(line)\n"
        '    answer = {"obs": [0, 0], "reward": 0.5, "terminated": False, "truncated": True}\n'
        '    if "reset" in asked or "step" in asked:\n        print(json.dumps(answer), flush=True)\n'
        "time.sleep(1000)\n"
    )
    command = f"{sys.executable} {tmp_path / 'deaf.py'}"
    result = check(command, "--protocol", "lines", "--episodes", "1", "--timeout", "2", "--json")
    problems = [row for row in json.loads(result.output) if row["verdict"] == "problem"]
    assert problems[0]["text"] == "close() did not return within 2 s"
    assert problems[0]["check"] == "close"


def test_a_factory_that_no_other_process_can_have_is_a_problem() -> None:
    lock = threading.Lock()

    def make(_: object) -> object:
        with lock:
            return gymnasium.make("CartPole-v1")

    exam = Examination(env_maker(make), {}, episodes=1)
    [finding] = factory(exam)
    assert finding.verdict == "problem"
    assert "another process could not make it" in finding.text
    assert finding.remedy


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "There is no environment to check"),
        (["CartPole"], "which version?"),
        ([SICK], "shoal check"),
        (["CartPole-v1", "--set", "config.lrr=1"], "did you mean config.lr?"),
        (["CartPole-v1", "--episodes", "0"], "--episodes"),
        (["nothing.yml"], "nothing.yml"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], words: str) -> None:
    result = check(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output
