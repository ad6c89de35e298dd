"""What is told of a worker's last lines."""

from __future__ import annotations

from shoal.parallel.ray_session import last_words


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
    assert last_words(lines) == (
        "floating point exception in cell 17 | Fatal Python error: Floating-point exception | "
        'File "my_env.py", line 33 in step'
    )


def test_of_another_end_the_last_lines_are_told() -> None:
    assert last_words(["a", "b", "c", "STOP: negative density"]) == "b | c | STOP: negative density"
    assert last_words([]) == ""
