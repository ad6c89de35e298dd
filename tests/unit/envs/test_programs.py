"""Programs as environments: what is spoken, what goes wrong, and that nothing is left of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import shoal
from shoal.config.experiment import experiment_from
from shoal.config.program_envs import checked_program
from shoal.config.program_names import program_name
from shoal.envs.context import EnvContext
from shoal.envs.importing import UserCode
from shoal.envs.making import env_maker
from shoal.envs.programs import ProgramEnv
from shoal.errors import ConfigError, EnvError, EnvStartError, ProgramLost

HERE = Path(__file__).parent


def made(how: str = "well", ctx: EnvContext | None = None, **config: Any) -> ProgramEnv:
    described = {"command": [sys.executable, "speaking.py", how], **config}
    env = env_maker(described, UserCode.at(HERE)).make(ctx or EnvContext())
    assert isinstance(env, ProgramEnv)
    return env


def played(env: ProgramEnv, steps: int = 3) -> Any:
    env.reset(seed=5)
    for _ in range(steps):
        result = env.step(2)
    return result


@pytest.mark.parametrize("connection", ["pipe", "unix", "tcp"])
def test_a_program_answers_over_any_connection(connection: str) -> None:
    env = made(ctx=EnvContext({"size": 3}), connection=connection)
    try:
        obs, info = env.reset(seed=5)
        assert obs.dtype == np.float32
        assert obs.tolist() == [0.5, 0.0]
        assert info["seed"] == 5
        assert info["config"] == {"size": 3}
        assert info["cwd"] == str(HERE)
        obs, reward, terminated, truncated, _ = env.step(2)
        assert (reward, terminated, truncated) == (2.0, False, False)
        assert [env.step(1)[2] for _ in range(49)] == [False] * 48 + [True]
    finally:
        env.close()


def test_braces_are_filled_in() -> None:
    ctx = EnvContext({"size": 3}, env_index=7)
    env = made(ctx=ctx, command=[sys.executable, "speaking.py", "well", "--i={env_index}", "{size}{{}}"])
    try:
        assert env.reset()[1]["argv"] == ["well", "--i=7", "3{}"]
    finally:
        env.close()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("noise", "not a message: 'Iteration 3 residual 1e-5'"),
        ("error", "reports: 'diverged at t = 3'"),
        ("shape", "does not fit Box"),
        ("column", "does not fit Box"),
        ("reward", "needs a number as reward"),
        ("flag", "true, false, 1 or 0 as terminated"),
        ("misspelt", "true, false, 1 or 0 as truncated"),
        ("nothing", "has no obs"),
        ("dies", "was ended by SIGFPE; it printed last: solver: floating point exception"),
        ("error after an answer", "reports: 'it had diverged'"),
        ("exits while it writes", "ended with code 0, in the middle of the line '{\"obs\": [0.'"),
    ],
)
def test_nonsense_and_death_are_errors_that_say_what_was_sent(how: str, words: str) -> None:
    env = made(how)
    try:
        with pytest.raises(EnvError, match=re.escape(words)):
            played(env, steps=4)
    finally:
        env.close()


def test_numbers_as_c_prints_them_are_numbers() -> None:
    env = made("nan")
    try:
        obs, *_ = played(env)
        assert np.isnan(obs[0])
        assert obs[1] == -np.inf
    finally:
        env.close()


def test_a_program_that_prints_much_is_not_waited_for() -> None:
    env = made("floods")
    try:
        assert played(env)[1] == 1
    finally:
        env.close()


def test_one_that_hangs_is_ended_with_its_children() -> None:
    env = made("hangs", timeout_s=1)
    assert env._program is not None
    assert env._program.process is not None
    session = env._program.process.pid
    env.reset()
    env.step(0)
    env.step(0)
    with pytest.raises(EnvError, match="did not answer step within 1 s"):
        env.step(0)
    env.close()
    deadline = time.monotonic() + 30
    while left := [pid for pid in psutil.pids() if _session(pid) == session and _lives(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)


@pytest.mark.parametrize("connection", ["pipe", "unix"])
def test_what_one_that_hangs_has_printed_is_told(connection: str) -> None:
    env = made("hangs while it writes", timeout_s=1, connection=connection)
    try:
        with pytest.raises(ProgramLost) as caught:
            played(env)
    finally:
        env.close()
    words = """did not answer step within 1 s, in the middle of the line '{"obs": [0.'; it printed last: """
    assert words in str(caught.value)
    assert str(caught.value).endswith("iterating...")
    assert (caught.value.kind, caught.value.status) == ("hang", None)
    assert caught.value.output.endswith("iterating...\n")


@pytest.mark.parametrize(
    ("how", "kind", "code", "output"),
    [
        ("hangs while it writes", "hang", None, "iterating...\n"),
        ("exits while it writes", "exit", 0, ""),
        ("dies", "signal", -8, "solver: floating point exception\n"),
        ("noise", "error", None, ""),
    ],
)
@pytest.mark.parametrize("isolation", ["none", pytest.param("process", marks=pytest.mark.slow)])
def test_an_incident_says_what_became_of_the_program(
    how: str, kind: str, code: int | None, output: str, isolation: str
) -> None:
    config = {
        "env": {"command": [sys.executable, "speaking.py", how], "timeout_s": 1 if kind == "hang" else 60},
        "env_isolation": isolation,
        "num_envs_per_worker": 1,
        "train_batch_size": 4,
        "max_env_failures": None,
    }
    with shoal.PPO(config, search_path=[HERE]) as trainer:
        [incident, *_] = trainer.workers.sample(4).incidents
    assert (incident.kind, incident.exit_code, incident.output) == (kind, code, output)


@pytest.mark.parametrize("how", ["answers twice", "answers a reset twice"])
@pytest.mark.parametrize("connection", ["pipe", "unix"])
def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next_one(how: str, connection: str) -> None:
    """At the next question, or where the second line came later than that, at one of those that follow."""
    env = made(how, connection=connection)
    try:
        with pytest.raises(EnvError, match=r"sent a line that nobody had asked for: '\{.*it answers each request once"):
            played(env, steps=10_000)
    finally:
        env.close()


def test_programs_are_all_told_to_end_before_any_is_waited_for(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    config = {
        "env": {"command": [sys.executable, "speaking.py", "stays", str(notes)]},
        "num_envs_per_worker": 3,
        "train_batch_size": 6,
    }
    with shoal.PPO(config, search_path=[HERE]) as trainer:
        trainer.workers.sample(2)
        notes.write_text("")  # without what the first look has left
    assert notes.read_text().split() == ["told"] * 3 + ["ended"] * 3
    assert not programs_below()


def _lives(pid: int) -> bool:
    """Whether a process is there; one that has ended and waits to be taken note of is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("early", "ended with code 3; it printed last: no licence"),
        ("banner", "not a message: 'Reading mesh ...'"),
        ("version", "the version of the protocol"),
        ("spaceless", "does not send its observation space"),
        ("space", "its type must be one of Box"),
        ("huge", r"more than 33554432 numbers"),
        ("silent", "did not answer hello within"),
        ("half a hello", """did not answer hello within 1.5 s, in the middle of the line '{"shoal": 1, "obs'"""),
    ],
)
def test_what_never_comes_to_life_says_why(how: str, words: str) -> None:
    with pytest.raises(EnvStartError, match=words):
        made(how, start_timeout_s=1.5 if how in ("silent", "half a hello") else 60)


def test_who_does_not_know_the_secret_is_refused() -> None:
    with pytest.raises(EnvError, match="does not know the secret"):
        made("token", connection="unix")


@pytest.mark.parametrize("connection", ["pipe", "unix"])
def test_one_that_stops_reading_is_ended_by_the_deadline(connection: str) -> None:
    env = made("deaf", timeout_s=1, connection=connection)
    try:
        env.reset()
        with pytest.raises(EnvError, match="did not even read step within 1 s"):
            env.step(np.zeros(100_000, np.float32))  # more than fits into the pipe
    finally:
        env.close()


class Strangers:
    """Connections to an address from nobody that was asked for: one says nothing, one guesses, one speaks otherwise."""

    def __init__(self, address: Any, family: int = socket.AF_INET) -> None:
        self._stack = contextlib.ExitStack()
        self.refused = []
        for words in (b"", json.dumps({"shoal": 1, "token": "guess"}).encode() + b"\n", b"GET / HTTP/1.1\r\n\r\n"):
            stranger = self._stack.enter_context(socket.socket(family))
            stranger.settimeout(60)
            stranger.connect(address)
            stranger.sendall(words)
            if words:
                self.refused.append(stranger)

    def close(self) -> None:
        for stranger in self.refused:
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""  # they were hung up on
        self._stack.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def awaited_server(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        assert time.monotonic() < deadline, "nobody listens"
        time.sleep(0.01)


def test_strangers_do_not_keep_the_right_program_out(monkeypatch: Any) -> None:
    monkeypatch.setenv("SHOAL_TOKEN", "secret")
    port = free_port()
    found: list[Any] = []

    def come() -> None:
        awaited_server(port)
        strangers = Strangers(("127.0.0.1", port))
        variables = {**os.environ, "SHOAL_ADDRESS": f"tcp:127.0.0.1:{port}"}
        subprocess.run([sys.executable, "speaking.py"], cwd=HERE, env=variables, check=True)
        found.append(strangers)

    thread = threading.Thread(target=come)
    thread.start()
    env = env_maker({"listen": f"127.0.0.1:{port}", "start_timeout_s": 60}, UserCode.at(HERE)).make(EnvContext())
    try:
        assert env.reset(seed=1)[1]["seed"] == 1
    finally:
        env.close()
        thread.join()
    found[0].close()


def test_when_only_strangers_have_come_the_deadline_says_so(monkeypatch: Any) -> None:
    monkeypatch.setenv("SHOAL_TOKEN", "secret")
    port = free_port()

    def come() -> None:
        awaited_server(port)
        Strangers(("127.0.0.1", port)).close()

    thread = threading.Thread(target=come)
    thread.start()
    with pytest.raises(EnvStartError, match="no program has connected in time; of another that has: "):
        env_maker({"listen": f"127.0.0.1:{port}", "start_timeout_s": 3}, UserCode.at(HERE)).make(EnvContext())
    thread.join()


def test_programs_elsewhere_may_leave_and_come_again(monkeypatch: Any) -> None:
    """Two environments listen; the program of one leaves in each episode and calls again, and training goes on."""
    monkeypatch.setenv("SHOAL_TOKEN", "secret")
    ports = [free_port()]
    ports.append(ports[0] + 1)
    is_over = threading.Event()
    calls = [0, 0]

    def call(place: int, how: str) -> None:
        variables = {**os.environ, "SHOAL_ADDRESS": f"tcp:127.0.0.1:{ports[place]}"}
        while not is_over.is_set():
            done = subprocess.run([sys.executable, "speaking.py", how], cwd=HERE, env=variables, capture_output=True)
            calls[place] += done.returncode == 0

    threads = [threading.Thread(target=call, args=each) for each in ((0, "well"), (1, "leaves"))]
    for thread in threads:
        thread.start()
    config = {
        "env": {"listen": f"127.0.0.1:{ports[0]}", "start_timeout_s": 60},
        "num_envs_per_worker": 2,
        "train_batch_size": 8,
        "max_env_failures": None,
    }
    try:
        with shoal.PPO(config, search_path=[HERE]) as trainer:
            sample = trainer.workers.sample(3)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert sample.batch.valid[:, 0].all()
    assert {incident.env_index for incident in sample.incidents} == {1}
    assert calls[1] >= 3  # a first look, and after each incident


def test_spaces_may_stand_in_the_file() -> None:
    env = made(
        "spaceless",
        observation={"type": "box", "low": [-1, 0], "high": 1},
        action={"type": "Dict", "spaces": {"gear": {"type": "Discrete", "n": 3}, "gas": {"type": "Box", "low": 0}}},
    )
    try:
        assert str(env.observation_space) == "Box([-1.  0.], 1.0, (2,), float32)"
        assert set(env.action_space.spaces) == {"gear", "gas"}
        env.reset()
        with pytest.raises(EnvError, match=r'"reward": \{"gear": 1, "gas": '):  # it sends back what it was given
            env.step({"gear": np.int64(1), "gas": np.zeros(1, np.float32)})
    finally:
        env.close()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"command": ["./no_such_program"]}, "there is no program './no_such_program'"),
        ({"command": ["no_such_program_anywhere"]}, "nor in PATH"),
        ({"command": ["./speaking.py"]}, "may not be executed"),
        ({"command": ["echo", "{siz}"]}, "unknown name in braces"),
        ({"listen": "127.0.0.1:1"}, "needs a secret"),
    ],
)
def test_a_command_that_cannot_be_is_refused(env: dict[str, Any], words: str, monkeypatch: Any) -> None:
    monkeypatch.delenv("SHOAL_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=words):
        env_maker(env, UserCode.at(HERE)).make(EnvContext())


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"comand": "./a"}, "config.env: must have the key command (a program to start), listen or fmu"),
        ({"command": "./a", "protocoll": "lines"}, "env.protocoll: unknown key; did you mean env.protocol?"),
        ({"command": "./a", "protocol": "xml"}, "env.protocol: must be lines (got 'xml')"),
        ({"command": []}, "env.command: must be a program and its arguments"),
        ({"command": "./a", "listen": "a:1"}, "both are given"),
        ({"listen": "here"}, "env.listen: must be HOST:PORT"),
        ({"command": "./a", "action": {"n": 3}}, "env.action: must be a space"),
        ({"command": "./a", "timeout_s": -1}, "env.timeout_s: must be more than 0"),
    ],
)
def test_what_a_file_says_is_checked(env: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment_from({"env": env, "run": "PPO"})
    assert problem in str(caught.value)


def test_a_description_is_kept_as_it_was_written() -> None:
    written = {"command": ["./solver", "--case", "a"], "timeout_s": 5.0}
    assert checked_program({**written, "protocol": "lines"}) == written
    assert program_name(written) == "solver"
    assert program_name({"command": ["python3", "-u", "plant/thermostat.py"]}) == "thermostat"
    assert program_name({"command": ["mpirun", "-n", "4", "./cfd.x"]}) == "cfd"


def test_a_program_that_is_started_elsewhere_calls_in(monkeypatch: Any) -> None:
    monkeypatch.setenv("SHOAL_TOKEN", "secret")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    described = {"listen": f"127.0.0.1:{port - 2}", "start_timeout_s": 60}

    def call() -> None:
        variables = {**os.environ, "SHOAL_ADDRESS": f"tcp:127.0.0.1:{port}"}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if (
                subprocess.run([sys.executable, "speaking.py"], cwd=HERE, env=variables, capture_output=True).returncode
                == 0
            ):
                return

    thread = threading.Thread(target=call)
    thread.start()
    env = env_maker(described, UserCode.at(HERE)).make(EnvContext(env_index=2))
    try:
        assert env.reset(seed=1)[1]["seed"] == 1
    finally:
        env.close()
        thread.join()


def test_nothing_is_left_when_the_trainer_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from shoal.envs.programs import ProgramEnv\nfrom shoal.envs.context import EnvContext\n"
        f"env = ProgramEnv({{'command': [sys.executable, 'speaking.py', 'hangs']}}, {str(HERE)!r}, EnvContext())\n"
        "print(env._program.process.pid, flush=True)\nenv.reset(); env.step(0); env.step(0); env.step(0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(json.loads(parent.stdout.readline()))
        parent.kill()
    deadline = time.monotonic() + 30
    while _lives(pid):
        assert time.monotonic() < deadline, "the program lives on"
        time.sleep(0.05)


def programs_below() -> list[psutil.Process]:
    """The programs that this process, or one that it has started, has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "speaking.py" in process.cmdline():
                found.append(process)
    return found


def test_a_program_ends_with_the_process_of_its_environment() -> None:
    config = {
        "env": {"command": [sys.executable, "speaking.py", "well"]},
        "env_isolation": "process",
        "num_envs_per_worker": 1,
        "train_batch_size": 60,
    }
    trainer = shoal.PPO(config, search_path=[HERE])
    try:
        trainer.train()
        [program] = programs_below()
        env_process = program.parent()
        assert env_process is not None
        assert env_process.pid != os.getpid()
        env_process.kill()
        trainer.train()
        [another] = programs_below()
        assert another.pid != program.pid
        assert not program.is_running()
    finally:
        trainer.stop()
    assert not programs_below()
