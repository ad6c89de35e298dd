"""Who is below whom."""

from __future__ import annotations

import subprocess
import sys

from shoal.machine.processes import below, children_of_all, is_stopped, process_name, processes

# Its first thread ends, which makes it look dead, while another of its threads lives on and has a child.
HALF_DEAD = """
import ctypes, subprocess, sys, threading, time
child = subprocess.Popen(["sleep", "1000"])
def lives():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    print(child.pid, flush=True)
    sys.stdin.read()
    child.kill()
threading.Thread(target=lives).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_the_children_of_a_process_that_looks_dead_are_found() -> None:
    process = subprocess.Popen([sys.executable, "-c", HALF_DEAD], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert {pid: is_dead for pid, _, is_dead in processes()}[process.pid]
    assert child in below([process.pid], children_of_all())
    process.communicate(timeout=60)
    process.wait()
    assert process.pid not in children_of_all()


def test_a_stopped_process() -> None:
    with subprocess.Popen(["sh", "-c", "kill -STOP $$; echo on"], stdout=subprocess.PIPE) as process:
        while not is_stopped(process.pid):
            assert process.poll() is None
        assert process_name(process.pid) == "sh"
        process.kill()
    assert not is_stopped(process.pid)
    assert process_name(process.pid) == ""
