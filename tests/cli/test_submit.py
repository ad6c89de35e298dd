"""`shoal submit` at a login node: what goes to which stream, and which file goes before which."""

from __future__ import annotations

from typing import Any

import pytest

SLURM = ("--scheduler", "slurm", "--walltime", "20m")


def test_a_dry_run_prints_the_script_and_nothing_else(desk: Any) -> None:
    (desk.work / "my case.yml").write_text("a: {env: CartPole-v1}\n")
    done = desk.shoal("submit", *SLURM, "--nodes", "3", "--dry-run", "--", "shoal", "train", "-f", "my case.yml")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("#!/bin/bash --login\n#SBATCH --job-name=shoal\n#SBATCH --nodes=3\n")
    assert "-- shoal train -f 'my case.yml' </dev/null &\n" in done.stdout
    assert list(desk.home.iterdir()) == []


@pytest.mark.repeats(1)
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("train CartPole-v9", "env 'CartPole-v9': there is no such version; type CartPole-v0 or CartPole-v1"),
        ("train CartPole-v1 --lr 1e-3", "There is no option --lr; write --set config.lr=1e-3"),
        ("train elsewhere:Env --set config.lrr=1", "config.lrr: unknown key; did you mean config.lr?"),
    ],
)
def test_a_command_with_a_mistake_does_not_wait_in_the_queue(desk: Any, words: str, problem: str) -> None:
    done = desk.shoal("submit", *SLURM, "--dry-run", "--", "shoal", *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: the command would fail: {problem}\n"


def test_what_others_call_restarts_are_requeues(desk: Any) -> None:
    done = desk.shoal("submit", *SLURM, "--max-restarts", "3", "--dry-run", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("Error: There is no option --max-restarts; use --max-requeues.\n")
    (desk.work / "job.yml").write_text("max_restarts: 3\n")
    done = desk.shoal("submit", "-f", "job.yml", "--dry-run", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "job.yml:1: max_restarts: unknown key; did you mean max_requeues?\n" in done.stderr


@pytest.mark.repeats(1)
@pytest.mark.parametrize("words", ["-f elsewhere.yml", "elsewhere:Env", "elsewhere.py:Env"])
def test_what_only_the_nodes_may_have_is_a_warning(desk: Any, words: str) -> None:
    done = desk.shoal("submit", *SLURM, "--dry-run", "--", "shoal", "train", *words.split())
    assert done.returncode == 0
    assert done.stdout.startswith("#!/bin/bash")
    (warning,) = done.stderr.splitlines()
    assert warning.startswith("Warning: the command fails here, but may not on the nodes: ")


def test_a_flag_goes_before_the_jobs_file_and_that_before_the_sites(desk: Any) -> None:
    site = desk.home / ".config/shoal/site.yml"
    site.parent.mkdir(parents=True)
    site.write_text("account: water\npartition: debug\nnodes: 5\n")
    (desk.work / "job.yml").write_text("partition: standard\nnodes: 7\ncommand: shoal train CartPole-v1\n")
    done = desk.shoal("submit", *SLURM, "-f", "job.yml", "--nodes", "3", "--dry-run")
    assert done.stderr == f"Using the keys of {site}.\n"
    directives = [line.partition("--")[2] for line in done.stdout.splitlines() if line.startswith("#SBATCH")]
    assert {"account=water", "partition=standard", "nodes=3"} <= set(directives)


def test_where_there_is_no_scheduler_it_is_said_what_was_looked_for(desk: Any) -> None:
    done = desk.shoal("submit", "--walltime", "20m", "--", "true", PATH=str(desk.work))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: there is no scheduler here: neither sbatch (Slurm) nor bsub (LSF) nor qsub")
    assert "--scheduler" in done.stderr
    done = desk.shoal("submit", *SLURM, "--", "true", PATH=str(desk.work))
    assert done.stderr.startswith("Error: there is no sbatch on PATH")
    assert not list(desk.home.glob(".shoal/jobs/*"))


def test_a_file_that_is_not_ours_is_not_replaced(desk: Any) -> None:
    (desk.work / "mine.sh").write_text("echo precious\n")
    done = desk.shoal("submit", *SLURM, "--script", "mine.sh", "--", "true")
    assert done.returncode == 1
    assert "mine.sh exists already, and shoal did not write it" in done.stderr
    assert (desk.work / "mine.sh").read_text() == "echo precious\n"


def test_a_folder_is_an_image_only_if_it_is_a_sandbox(desk: Any) -> None:
    words = ("submit", *SLURM, "--dry-run", "--container", "./image", "--", "true")
    (desk.work / "image").mkdir()
    done = desk.shoal(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "container: ./image is a folder and no image; give a .sif file, or an Apptainer sandbox" in done.stderr
    (desk.work / "image" / "usr").mkdir()
    assert desk.shoal(*words).returncode == 0
