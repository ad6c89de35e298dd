"""What is told of a worker's last lines."""

from __future__ import annotations

from pathlib import Path

from shoal.parallel.ray_logs import crash_summary, errors_in


def test_of_a_crash_the_line_before_it_and_its_place_are_told() -> None:
    lines = [
        "mesh read",
        "floating point exception in cell 17",
        "Fatal Python error: Floating-point exception",
        "Stack (most recent call first):",
        'File "my_env.py", line 33 in step',
        'File "vector.py", line 100 in step',
        "Extension modules: numpy (total: 24)",
    ]
    assert crash_summary(lines) == (
        "floating point exception in cell 17 | Fatal Python error: Floating-point exception | "
        'File "my_env.py", line 33 in step'
    )


def test_of_another_end_the_last_lines_are_told() -> None:
    assert crash_summary(["a", "b", "c", "STOP: negative density"]) == "b | c | STOP: negative density"
    assert crash_summary([]) == ""


def test_what_a_daemon_calls_an_error(tmp_path: Path) -> None:
    log = tmp_path / "raylet.out"
    log.write_text(
        "[2026-11-17 02:13:37,766 I 6646 6646] (raylet) grpc_server.cc:144: NodeManager server started.\n"
        "[2026-11-17 02:23:19,519 C 32487 32487] (raylet) node_manager.cc:3582:  An unexpected system state. "
        "You have likely discovered a bug in Ray. Check failed: status.has_value() Timed out waiting for file /tmp/x\n"
        "*** StackTrace Information ***\n"
    )
    assert errors_in(log) == ["status.has_value() Timed out waiting for file /tmp/x"]
