"""A Ray that was started by hand is joined, with its token or without; what cannot be joined is told in one line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.errors import ConfigError
from shoal.parallel import ray_address
from shoal.parallel.ray_address import inspect_cluster, named_address

RAY = "from ray.scripts.scripts import main; main()"
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # the head of these tests is on this machine's own address


def home_with(folder: str, token: str) -> str:
    home = tempfile.mkdtemp(dir=folder)
    if token:
        path = Path(home, ".ray", "auth_token")
        path.parent.mkdir()
        path.write_text(token)
    return home


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="a-") as path:
        yield path


@pytest.fixture(scope="module")
def head(folder: str) -> Iterator[str]:
    """The address of a Ray that asks for a token, because there was one in the HOME of who typed `ray start`."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    words = ["start", "--head", "--block", "--port=0", "--num-cpus=2", "--node-ip-address=127.0.0.1"]
    words += [f"--temp-dir={folder}/r", "--include-dashboard=false", "--disable-usage-stats"]
    with subprocess.Popen(
        [sys.executable, "-c", RAY, *words],
        env={**variables, **LOOPBACK, "HOME": home_with(folder, "a" * 64)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = ""
        while "will now block forever" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield Path(folder, "r", "ray_current_cluster").read_text().strip()
        below = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        for each in psutil.wait_procs(below, timeout=20)[1]:
            each.kill()


@pytest.fixture(autouse=True)
def clean_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    for name, value in LOOPBACK.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_a_token_in_the_home_folder_is_sent(head: str, folder: str) -> None:
    words = ["train", "CartPole-v1", "--num-workers", "1", "--ray-address", head, "--stop", "training_iteration=1"]
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words, "--results-dir", f"{folder}/results"],
        env={**os.environ, "HOME": home_with(folder, "a" * 64)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Finished" in done.stdout


@pytest.mark.repeats(1)
@pytest.mark.parametrize(
    ("token", "variables", "sentence"),
    [
        ("", {}, "asks for a token, and none is here; .*export RAY_AUTH_TOKEN_PATH=FILE"),
        ("b" * 64, {}, "was started with another token than the one in ~/.ray/auth_token; "),
        ("b" * 64, {"RAY_AUTH_TOKEN": "c" * 64}, "another token than the one in RAY_AUTH_TOKEN; "),
        ("a" * 64, {"RAY_AUTH_MODE": "disabled"}, "RAY_AUTH_MODE is disabled; type `unset RAY_AUTH_MODE`"),
    ],
)
def test_who_has_not_its_token_is_told_what_to_set(
    head: str, folder: str, monkeypatch: pytest.MonkeyPatch, token: str, variables: dict[str, str], sentence: str
) -> None:
    monkeypatch.setenv("HOME", home_with(folder, token))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=sentence) as told:
        inspect_cluster(head)
    assert "\n" not in str(told.value)


def test_auto_is_what_ray_start_has_written_down(head: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home_with(folder, "a" * 64))
    monkeypatch.setenv("RAY_TMPDIR", home_with(folder, ""))
    with pytest.raises(ConfigError, match="auto finds no Ray on this host"):
        inspect_cluster("auto")
    record = Path(os.environ["RAY_TMPDIR"], "ray", "ray_current_cluster")
    record.parent.mkdir()
    record.write_text(head)
    assert inspect_cluster("auto") == ray_address.JoinableCluster(head, needs_token=True)
    if os.getuid() == 0:
        os.chown(record, 4711, 4711)
        with pytest.raises(ConfigError, match="a Ray of another user"):
            inspect_cluster("auto")


def test_another_version_is_one_sentence(head: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home_with(folder, "a" * 64))
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.54.0")
    with pytest.raises(ConfigError, match=r"has Ray .* on Python .*, and this is Ray 2\.54\.0 on Python .*") as told:
        inspect_cluster(head)
    assert "\n" not in str(told.value)


def test_a_cluster_without_a_node_here_is_refused(head: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home_with(folder, "a" * 64))
    elsewhere = ray_address.LOOK.replace("services.find_node_ids()", "()")  # as on a host that has no raylet
    monkeypatch.setattr(ray_address, "LOOK", elsewhere)
    with pytest.raises(ConfigError, match=f"no node of the cluster at {head} runs on this host; type `ray start"):
        inspect_cluster(head)


@pytest.mark.parametrize(
    ("answer", "sentence"), [(b"SSH-2.0-OpenSSH_9.2\r\n", "is not a Ray cluster"), (b"", "is not a Ray cluster")]
)
def test_something_else_listens_there(answer: bytes, sentence: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConfigError, match=sentence):
            inspect_cluster(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("nonsense", r"give HOST:PORT, e.g. 10.0.0.1:6379, or auto \(got nonsense\)"),
        ("host:", "give HOST:PORT"),
        (":6379", "give HOST:PORT"),
        ("host:70000", "give HOST:PORT"),
        ("ray://host:10001", "is not the address of a cluster's head; give HOST:PORT"),
        ("no-such-host.invalid:6379", "no host no-such-host.invalid is known here"),
    ],
)
def test_what_is_no_address_is_refused(address: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        inspect_cluster(address)


def test_nothing_listens_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    words = ["train", "CartPole-v1", "--num-workers", "1", "--ray-address", address, "--results-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"{address} cannot be reached: connection refused" in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was trained, so nothing is left"


def test_local_means_a_private_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "local"):
        monkeypatch.setenv("RAY_ADDRESS", value)
        assert named_address() is None
    monkeypatch.setenv("RAY_ADDRESS", "host:6379")
    assert named_address() == "host:6379"
