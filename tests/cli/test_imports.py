"""What each command imports: heavy packages only where they are used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.config.logger_names import LOGGERS

YAML = "fast: {env: CartPole-v1, stop: {training_iteration: 2}}\n"
SWEEP = "sweep: {env: CartPole-v1, stop: {training_iteration: 2}, config: {lr: {grid_search: [1e-3, 1e-4]}}}\n"


def imported(desk: Any, *arguments: str) -> set[str]:
    """The top-level packages that a command imports, by Python's own account."""
    command = [sys.executable, "-X", "importtime", desk.command, *arguments]
    done = subprocess.run(
        command, cwd=desk.work, env=desk.environment(), capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr[-2000:]
    modules = re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", done.stderr, re.MULTILINE)
    assert "click" in modules
    return {module.partition(".")[0] for module in modules}


@pytest.mark.repeats(5, slow=3)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["train", "--help"],
        ["evaluate", "--help"],
        ["completion", "bash"],
        ["doctor", "--help"],
        ["cluster", "aws", "--help"],
        ["config", "show"],
        ["config", "schema"],
        ["migrate", "fast.yml", "--run", "PPO"],
        ["config", "check", "fast.yml"],
        ["config", "check", "sweep.yml"],
        ["tune", "--help"],
        ["submit", "--help"],
        ["submit", "-f", "job.yml", "--scheduler", "slurm", "--dry-run", "--", "true"],
        ["jobs", "--all"],
    ],
    ids=" ".join,
)
def test_a_command_that_only_answers_imports_nothing_heavy(desk: Any, arguments: list[str]) -> None:
    (desk.work / "fast.yml").write_text(YAML)
    (desk.work / "job.yml").write_text("walltime: 20m\n")
    (desk.work / "sweep.yml").write_text(SWEEP)
    assert not {"numpy", "gymnasium", "torch", "ray"} & imported(desk, *arguments)


def test_looking_at_a_sweep_imports_neither_torch_nor_ray(desk: Any) -> None:
    (desk.work / "sweep.yml").write_text(SWEEP)
    assert not {"torch", "ray"} & imported(desk, "tune", "-f", "sweep.yml", "--dry-run")


def test_training_on_vectors_imports_neither_torch_nor_ray(
    desk: Any, small: list[str], trained: tuple[Any, Any, Path]
) -> None:
    used = imported(desk, "train", "CartPole-v1", "--stop", "training_iteration=2", *small)
    assert "numpy" in used
    assert not {"torch", "ray"} & used
    for command in ("evaluate", "resume"):
        assert not {"torch", "ray"} & imported(desk, command, str(desk.runs()[0]))


def test_a_logger_is_imported_if_it_is_named_and_no_other(desk: Any, small: list[str]) -> None:
    path = desk.work / "installed"
    for name in LOGGERS:  # the real ones need not be here; by `import_module`, of which Python's account does not tell
        (path / name).mkdir(parents=True)
        (path / name / "__init__.py").write_text("open(__file__ + '.imported', 'w').close()")
    environment = {**desk.environment(), "PYTHONPATH": str(path)}
    for more, names in (
        ([], set()),
        (["--set", "loggers=[trackio]", "--new"], {"trackio"}),
    ):  # which fails: it is empty
        command = [desk.command, "train", "CartPole-v1", "--stop", "training_iteration=1", *small, *more]
        subprocess.run(command, cwd=desk.work, env=environment, capture_output=True, check=True, timeout=100)
        assert {file.parent.name for file in path.rglob("*.imported")} == names


def test_signals_are_heard_before_anything_is_imported() -> None:
    heavy = "{'typing', 'contextlib', 'click', 'logging'}"
    words = f"import sys, shoal.cli.entry; sys.exit(str({heavy} & set(sys.modules) or ''))"
    # Without `site`, which imports what it likes; so the path must be told.
    source = f"import sys; sys.path.insert(0, {str(Path(shoal.__file__).parents[1])!r}); {words}"
    done = subprocess.run([sys.executable, "-S", "-c", source], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
