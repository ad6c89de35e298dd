"""Every call to the file system that a save makes is failed once, and the old checkpoint survives each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(sys.platform != "linux", reason="the shim is for glibc")
@pytest.mark.slow
def test_the_old_checkpoint_survives_whatever_call_fails(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    shim = tmp_path / "failing_calls.so"
    source = HERE / "failing_calls.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, source, "-ldl", "-lpthread"], check=True)
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a thousand times fsync takes long on a disk
    with TemporaryDirectory(dir=in_memory) as runs:
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
    assert {"write", "fsync", "rename", "mkdir", "open64", "linkat"} <= set(told["calls"])
