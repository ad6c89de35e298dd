"""`shoal submit` at a login node: what goes to which stream, and which file goes before which."""

from __future__ import annotations

from typing import Any

SLURM = ("--scheduler", "slurm", "--walltime", "20m")


def test_a_dry_run_prints_the_script_and_nothing_else(desk: Any) -> None:
    done = desk.shoal("submit", *SLURM, "--nodes", "3", "--dry-run", "--", "shoal", "train", "-f", "my case.yml")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=shoal\n#SBATCH --nodes=3\n")
    assert "-- shoal train -f 'my case.yml' </dev/null &\n" in done.stdout
    assert list(desk.home.iterdir()) == []


def test_a_flag_goes_before_the_jobs_file_and_that_before_the_sites(desk: Any) -> None:
    site = desk.home / ".config/shoal/site.yml"
    site.parent.mkdir(parents=True)
    site.write_text("account: water\npartition: debug\nnodes: 5\n")
    (desk.work / "job.yml").write_text("partition: standard\nnodes: 7\ncommand: shoal train CartPole-v1\n")
    done = desk.shoal("submit", *SLURM, "-f", "job.yml", "--nodes", "3", "--dry-run")
    assert done.stderr == f"With the keys of {site}.\n"
    directives = [line.partition("--")[2] for line in done.stdout.splitlines() if line.startswith("#SBATCH")]
    assert {"account=water", "partition=standard", "nodes=3"} <= set(directives)


def test_where_there_is_no_scheduler_it_is_said_what_was_looked_for(desk: Any) -> None:
    done = desk.shoal("submit", "--walltime", "20m", "--", "true", PATH=str(desk.work))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: no scheduler is here: neither sbatch (Slurm) nor bsub (LSF) nor qsub")
    assert "--scheduler" in done.stderr
    done = desk.shoal("submit", *SLURM, "--", "true", PATH=str(desk.work))
    assert done.stderr.startswith("Error: there is no sbatch on PATH")
    assert not list(desk.home.glob(".shoal/jobs/*"))


def test_a_file_that_is_not_ours_is_not_replaced(desk: Any) -> None:
    (desk.work / "mine.sh").write_text("echo precious\n")
    done = desk.shoal("submit", *SLURM, "--script", "mine.sh", "--", "true")
    assert done.returncode == 1
    assert "mine.sh is there already, and not one of ours" in done.stderr
    assert (desk.work / "mine.sh").read_text() == "echo precious\n"
