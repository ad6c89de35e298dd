"""What a job's description may say, and the sentence for everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.cluster.job import Job
from shoal.cluster.job_files import Source, job_from, source_of
from shoal.errors import ConfigError

SMALL = {"walltime": "20m", "command": ["true"]}


def job(**keys: Any) -> Job:
    return job_from([Source({**SMALL, **keys})])


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        ("walltime", "20m", 1200),
        ("walltime", "02:30:00", 9000),
        ("walltime", "1.5s", 2),
        ("memory_per_node", "64GB", 65536),
        ("memory_per_node", "512 mb", 512),
        ("preamble", "module load a\n\nconda activate b\n", ("module load a", "", "conda activate b")),
        ("preamble", ["f() {", "\techo x", "}"], ("f() {", "\techo x", "}")),
        ("command", "shoal train -f 'my case.yml'", ("shoal", "train", "-f", "my case.yml")),
        ("command", ["shoal", "train", "--seed", 3], ("shoal", "train", "--seed", "3")),
        ("command", ["bash", "-c", "echo $HOME | wc"], ("bash", "-c", "echo $HOME | wc")),
        ("variables", {"N": 3, "EMPTY": "", "X": "a b"}, {"N": "3", "EMPTY": "", "X": "a b"}),
        ("extra_directives", [" --exclusive "], ("--exclusive",)),
        ("output", "logs/%j.log", "logs/%j.log"),
        ("ports", "30000-30999", "30000-30999"),
    ],
)
def test_what_is_kept(key: str, value: Any, kept: Any) -> None:
    assert getattr(job(**{key: value, "signal_before": "1s"}), key) == kept


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"queue": "debug"}, "--queue: unknown key; did you mean partition?"),
        ({"time": "20m"}, "--time: unknown key; did you mean walltime?"),
        ({"noodes": 3}, "--noodes: unknown key; did you mean nodes?"),
        ({"xyzzy": 3}, "--xyzzy: unknown key"),
        ({"walltime": 20}, '--walltime: must have a unit, such as "90m"'),
        ({"walltime": "20"}, '--walltime: must have a unit, such as "90m"'),
        ({"walltime": "02:30"}, "--walltime: must be a length of time such as"),
        ({"walltime": "0s"}, "--walltime: must be more than 0 (got '0s')"),
        ({"walltime": None}, "--walltime: must be a length of time such as"),
        ({"nodes": 0}, "--nodes: must be at least 1 (got 0)"),
        ({"nodes": "3"}, "--nodes: must be a whole number (got '3')"),
        ({"gpus_per_node": -1}, "--gpus-per-node: must be at least 0 (got -1)"),
        ({"memory_per_node": 64}, '--memory-per-node: must be memory with its unit, such as "64GB"'),
        ({"memory_per_node": "0GB"}, "--memory-per-node: must be memory"),
        (
            {"scheduler": "slrum"},
            "must be auto or one of slurm, lsf, cobalt, pbs, sge; did you mean slurm? (got 'slrum')",
        ),
        ({"name": "a\n#SBATCH --exclusive"}, "--name: must be one line of printable text"),
        ({"name": "3d"}, "--name: must be a letter followed by"),
        ({"account": "a b"}, "--account: must be one word"),
        ({"account": "a\x1b[2J"}, "--account: must be one line of printable text"),
        ({"partition": "-x"}, "--partition: must be one word"),
        ({"output": "a$(b).log"}, "--output: must be a file name of letters"),
        ({"output": "%u.log"}, "--output: must be a file name of letters"),
        ({"extra_directives": ["a\nb"]}, "--extra-directives: each must be one line of printable text"),
        ({"extra_directives": ["#SBATCH --x"]}, "--extra-directives: leave the directive word out"),
        ({"extra_directives": "--x"}, "--extra-directives: must be a list of directives"),
        ({"preamble": ["echo \x07"]}, "--preamble: a line has a character that does not print"),
        ({"preamble": 3}, "--preamble: must be a list of shell lines, or one text"),
        ({"variables": {"a-b": 1}}, "--variables: a-b is not the name of a variable"),
        ({"variables": {"A": True}}, "--variables: A must be text or a number; put it in quotes"),
        ({"variables": {"A": "x\ny"}}, "--variables: A must be one line"),
        ({"command": "a | b"}, "command: is not read by a shell"),
        ({"command": "echo $HOME"}, 'use [bash, -c, "..."]'),
        ({"command": "echo 'a"}, "command: has a quote that is not closed"),
        ({"command": []}, "command: must be a list of words"),
        ({"command": [""]}, "command: must be a list of words"),
        ({"ports": "3000"}, "--ports: must be a range within"),
        ({"ports": 3000}, "--ports: must be a range within"),
        ({"ports": "30000-30009"}, "--ports: a node needs"),
        ({"ports": "40000-30000"}, "--ports: must be a range within"),
        ({"on_node_loss": "panic"}, "--on-node-loss: must be continue or stop (got 'panic')"),
        ({"requeue": "no"}, "--requeue: must be true or false (got 'no')"),
        ({"max_requeues": 0}, "--max-requeues: must be at least 1"),
        ({"min_nodes": 2}, "min-nodes: must be at most nodes, which is 1 (got 2)"),
        ({"walltime": "1m"}, "signal_before: 120 s is not before the end of a walltime of 60 s"),
    ],
)
def test_what_is_refused(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        job(**keys)
    assert any(problem in sentence for sentence in refused.value.problems), refused.value.problems


def test_what_is_missing_is_told_with_what_to_type() -> None:
    with pytest.raises(ConfigError) as refused:
        job_from([])
    walltime, command = refused.value.problems
    assert walltime.startswith("walltime: is missing; use --walltime 20m")
    assert command.startswith("command: is missing; write it after --")


def test_later_sources_go_before_earlier_ones_and_each_problem_has_its_place(tmp_path: Path) -> None:
    site, own = tmp_path / "site.yml", tmp_path / "job.yml"
    site.write_text("account: water\npartition: debug\nwalltime: 30\nqueue: long\n")
    own.write_text('nodes: 2\nwalltime: "1h"\ncommand: shoal train CartPole-v1\n')
    described = job_from([Source({"account": "water", "partition": "debug"}), source_of(own), Source({"nodes": 3})])
    assert (described.account, described.nodes, described.walltime) == ("water", 3, 3600)
    with pytest.raises(ConfigError) as refused:
        job_from([source_of(site), Source({"nodes": 0})])
    assert refused.value.problems == [
        f"{site}:4: queue: unknown key; did you mean partition?",
        "--nodes: must be at least 1 (got 0)",
        f'{site}:3: walltime: must have a unit, such as "90m", "1h30m", "02:30:00" or "1-12:00:00" (got 30)',
        "command: is missing; write it after --, as in `shoal submit --walltime 20m -- shoal train CartPole-v1`",
    ]


@pytest.mark.parametrize("text", ["", "- a\n", "3\n"])
def test_a_file_that_is_no_mapping(text: str, tmp_path: Path) -> None:
    (tmp_path / "job.yml").write_text(text)
    with pytest.raises(ConfigError, match="must be a mapping of keys"):
        source_of(tmp_path / "job.yml")
