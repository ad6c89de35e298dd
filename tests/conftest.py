"""What every test stands on."""

import atexit
import math
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import shoal

# A script's background job ignores Ctrl-C, and what runs under nohup a closed terminal; so would everything that these
# tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No test asserts a time, nor does Hypothesis for one: on a busy machine an example may take half a second.
with suppress(ImportError):  # some environments of their own have no Hypothesis
    from hypothesis import settings

    settings.register_profile("shoal", deadline=None)
    settings.load_profile("shoal")

# The secret by which shoal knows its user's own runs is not the tester's, whatever home a test gives its processes.
if "SHOAL_TEST_STATE" not in os.environ:
    os.environ["SHOAL_TEST_STATE"] = os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="shoal-test-state-")
    atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before `-m` is read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks cases of a test as `repeats(n, slow=m)` says: after the first n come m slow ones, and then long ones."""
    seen: Counter[str] = Counter()
    for item in items:
        repeats = item.get_closest_marker("repeats")
        if repeats is None:
            continue
        name = item.nodeid.partition("[")[0]
        quick, slow = repeats.args[0], repeats.kwargs.get("slow", math.inf)
        if seen[name] >= quick:
            item.add_marker("slow")
        if seen[name] >= quick + slow:
            item.add_marker("long")
        seen[name] += 1


@pytest.fixture(scope="module")
def compiled_kernels(tmp_path_factory):
    """Compiled kernels for the module, in a folder that all modules share and that is not the tester's own."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "kernels"))
        yield


@pytest.fixture(scope="module")
def ray_session(request):
    """One Ray for the module, which trainers find running, with its NUM_CPUS or four."""
    ray = pytest.importorskip("ray")
    ray.init(
        address="local",
        num_cpus=getattr(request.module, "NUM_CPUS", 4),
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    yield
    ray.shutdown()


@pytest.fixture
def start_trainer() -> Iterator[Callable[..., shoal.Trainer]]:
    """Makes trainers, `start_trainer("PPO", env=..., config=...)`, which stop when the test ends."""
    started: list[shoal.Trainer] = []

    def start(algorithm: str, env: Any, config: dict[str, Any]) -> shoal.Trainer:
        started.append(getattr(shoal, algorithm)(env=env, config=config))
        return started[-1]

    yield start
    for trainer in started:
        trainer.stop()
