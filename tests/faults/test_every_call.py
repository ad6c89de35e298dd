"""Every call to the file system that a save makes is failed once, and the old checkpoint survives each."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

HERE = Path(__file__).parent


# What the kernel is asked for, and what the shim calls it. Of those in the second table the C library asks for more by
# itself, inside a call that the shim sees, or for fewer: of a folder's entries it asks for many at once.
EXACTLY = {
    **dict.fromkeys(("mkdir", "mkdirat"), "mkdir"),
    **dict.fromkeys(("rename", "renameat", "renameat2"), "rename"),
    **dict.fromkeys(("link", "linkat"), "linkat"),
    **dict.fromkeys(("access", "faccessat", "faccessat2"), "access"),
    **{name: name for name in ("write", "read", "fsync", "unlink", "unlinkat", "rmdir", "ftruncate", "utimensat")},
    "pwrite64": "pwrite",
}
AT_LEAST_ONCE = {
    "openat": ("open", "open64", "openat64"),
    "close": ("close",),
    "getdents64": ("readdir",),
    "lseek": ("lseek",),
    "fcntl": ("fcntl",),
    **dict.fromkeys(("newfstatat", "fstat", "stat", "lstat"), ("stat", "lstat", "fstat", "fstatat")),
}
HARMLESS = ("ioctl",)  # Python asks of each file whether it is a terminal, and takes any error for a no


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("the shim is for glibc, and wants a C compiler")
    made = tmp_path_factory.mktemp("shim") / "failing_calls.so"
    source = HERE / "failing_calls.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source, "-ldl", "-lpthread"], check=True)
    return made


@pytest.fixture
def runs() -> Iterator[str]:
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a thousand times fsync takes long on a disk
    with TemporaryDirectory(dir=in_memory) as folder:
        yield folder


def test_no_call_that_a_save_makes_is_unknown_to_the_shim(shim: Path, runs: str, tmp_path: Path) -> None:
    """By what the kernel is asked for, which strace sees: nothing goes past the shim, through whichever library."""
    strace = ["strace", "--follow-forks", "--output", str(tmp_path / "trace"), "--trace=%file,%desc"]
    if shutil.which("strace") is None or subprocess.run([*strace, "true"], capture_output=True).returncode:
        pytest.skip("strace is not installed, or may not trace here")
    done = subprocess.run(
        [*strace, f"--env=LD_PRELOAD={shim}", sys.executable, HERE / "save_under_failures.py", runs, "--once"],
        env={**os.environ, "LD_PRELOAD": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    asked = asked_for((tmp_path / "trace").read_text())
    for seen, kernel in zip(json.loads(done.stdout).values(), asked[-2:], strict=True):
        exact, calls = Counter[str](), Counter(seen)
        for name, count in kernel.items():
            assert name in EXACTLY or name in AT_LEAST_ONCE or name in HARMLESS, f"{name} goes past the shim"
            if name in EXACTLY:
                exact[EXACTLY[name]] += count
            elif name in AT_LEAST_ONCE:
                assert any(calls[known] for known in AT_LEAST_ONCE[name]), name
        assert exact == Counter({name: calls[name] for name in set(EXACTLY.values()) if calls[name]})
        assert {"write", "fsync", "rename", "mkdir", "linkat", "unlinkat"} <= set(exact)


def asked_for(trace: str) -> list[Counter[str]]:
    """What the thread that the shim watches has asked the kernel for, from each arming to its disarming."""
    found: list[Counter[str]] = []
    watched = ""
    for line in trace.splitlines():
        asked = re.match(r"(\d+) +(\w+)\((.*)", line)
        if asked is None:  # the second half of a call that another thread has interrupted
            continue
        thread, name, arguments = asked.groups()
        if '"/armed"' in arguments:
            found += [] if watched else [Counter()]
            watched = thread
        elif '"/disarmed"' in arguments:
            watched = ""
        elif thread == watched and not (name == "mmap" and ", -1, 0" in arguments):  # of no file
            found[-1][name] += 1
    return found


@pytest.mark.slow
def test_the_old_checkpoint_survives_whatever_call_fails(shim: Path, runs: str) -> None:
    done = subprocess.run(
        [sys.executable, HERE / "save_under_failures.py", runs],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        timeout=600,  # half a minute on a machine with nothing else to do
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    print(f"the old checkpoint is intact at all {told['points']} points: {told['calls']}")
    assert told["points"] > 100
    assert {"write", "fsync", "rename", "mkdir", "open64", "linkat", "read", "readdir", "lseek"} <= set(told["calls"])
