"""Lists of hosts, as schedulers and people write them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.cluster.host_lists import (
    Host,
    expand,
    host_file,
    host_names,
    hosts_and_slots,
    hosts_of_lines,
    hosts_with_slots,
)
from shoal.errors import ClusterError

LETTERS = st.text("abcxyz", min_size=1, max_size=4)


@st.composite
def brackets(draw: st.DrawFn) -> tuple[str, list[str]]:
    """What stands in a pair of brackets, and what it means."""
    texts, meanings = [], []
    for _ in range(draw(st.integers(1, 3))):
        first, more, width = draw(st.integers(0, 120)), draw(st.integers(0, 4)), draw(st.integers(1, 5))
        numbers = [str(number).zfill(width) for number in range(first, first + more + 1)]
        texts.append(numbers[0] if more == 0 else f"{numbers[0]}-{numbers[-1]}")
        meanings += numbers
    return f"[{','.join(texts)}]", meanings


@st.composite
def compressed_lists(draw: st.DrawFn, suffixes: bool = True) -> tuple[str, list[str]]:
    """A list of hosts in Slurm's grammar, and the hosts."""
    texts, meanings = [], []
    for _ in range(draw(st.integers(1, 4))):
        text = draw(LETTERS)
        names = [text]
        for _ in range(draw(st.integers(0, 2))):
            between = draw(LETTERS)
            bracket, numbers = draw(brackets())
            text += between + bracket
            names = [name + between + number for name in names for number in numbers]
        if suffixes and draw(st.booleans()):
            text, names = f"{text}-ib", [f"{name}-ib" for name in names]
        texts.append(text)
        meanings += names
    return ",".join(texts), meanings


@given(compressed_lists())
def test_expanding_a_compressed_list_gives_the_list(case: tuple[str, list[str]]) -> None:
    text, names = case
    assert expand(text) == names


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="Slurm's scontrol is not on PATH")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(case=compressed_lists(suffixes=False))  # older Slurms allow nothing behind the last bracket
def test_expanding_agrees_with_scontrol(case: tuple[str, list[str]], tmp_path: Path) -> None:
    text, names = case
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=test\nSlurmctldHost=localhost\nNodeName=localhost\nPartitionName=p Nodes=ALL\n")
    asked = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        env={"SLURM_CONF": str(conf), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.split() == names == expand(text)


def test_the_grammar_of_slurm() -> None:
    assert expand("n[1-3,07-10],gpu-[a]01") == ["n1", "n2", "n3", "n07", "n08", "n09", "n10", "gpu-a01"]
    assert expand("r[1-2]n[08-09]") == ["r1n08", "r1n09", "r2n08", "r2n09"]
    assert expand(" n1 , n2.example.org") == ["n1", "n2.example.org"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a name is missing, at character 1"),
        ("n1,,n2", "a name is missing, at character 4"),
        ("n1,", "a name is missing, at character 4"),
        ("n[1-3", "a bracket that is never closed, at character 2"),
        ("n1]", "a bracket that was never opened, at character 3"),
        ("n[1[2]]", "a bracket inside a bracket, at character 4"),
        ("a,n[3-1]", "the range 3-1 runs backwards, at character 3"),
        ("n[]", "'' is neither a number nor a range"),
        ("n[1-x]", "'1-x' is neither a number nor a range"),
        ("n[1--2]", "'1--2' is neither a number nor a range"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' is not a host name"),
        ("n1 n2", "'n1 n2' is not a host name"),
        ("n;ls", "'n;ls' is not a host name"),
        ("n[0-100000]", "more than 100000 hosts"),
        ("n[0-999999999999999999]", "more than 100000 hosts"),
        ("a[0-999]b[0-999]", "more than 100000 hosts"),
        ("n1,m[1-100000]", "more than 100000 hosts, at character 4"),
    ],
)
def test_nonsense_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(ClusterError) as refused:
        expand(text, "SLURM_JOB_NODELIST")
    assert str(refused.value).startswith(f"SLURM_JOB_NODELIST: {problem}")


@given(st.text("n1[]-,x ", max_size=12))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    with contextlib.suppress(ClusterError):
        assert all(expand(text))


def test_hosts_of_the_command_line_are_each_once() -> None:
    assert host_names("n1,n[2-3],n1") == [Host("n1"), Host("n2"), Host("n3")]
    assert host_names("me@n1,fe80::1%eth0") == [Host("me@n1"), Host("fe80::1%eth0")]


def test_a_host_file_may_say_how_many_cpus() -> None:
    text = "# my machines\n\nn1 slots=4\nn2:8   # the big one\nn[3-4]\nn1 slots=2\nfe80::1\n"
    assert host_file(text) == [Host("n1", 6), Host("n2", 8), Host("n3"), Host("n4"), Host("fe80::1")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("n1\nn2 max_slots=4", "hosts.txt, line 2: cannot read 'max_slots=4'; write `host slots=N`"),
        ("n1 slots=0", "hosts.txt, line 1: '0' is not a number of CPUs"),
        ("n1 slots=many", "hosts.txt, line 1: 'many' is not a number of CPUs"),
        ("n1:2 slots=2", "hosts.txt, line 1: n1 has two numbers of CPUs"),
        ("n1\nn[1", "hosts.txt, line 2: a bracket that is never closed"),
        ("# nothing yet\n", "hosts.txt names no host"),
    ],
)
def test_a_host_file_is_refused_with_the_line(text: str, problem: str) -> None:
    with pytest.raises(ClusterError, match="^" + problem.replace("[", r"\[")):
        host_file(text, "hosts.txt")


@given(st.lists(st.sampled_from(["n1", "n2.site.org", "n3"]), min_size=1))
def test_repeats_in_a_node_file_add_up_in_the_order_of_first_appearance(lines: list[str]) -> None:
    hosts = hosts_of_lines("\n".join(lines) + "\n", "PBS_NODEFILE")
    assert hosts == [Host(name, lines.count(name)) for name in dict.fromkeys(lines)]


def test_pairs_of_lsf() -> None:
    assert hosts_and_slots("h1 16 h2 8 h1 4", "LSB_MCPU_HOSTS") == [Host("h1", 20), Host("h2", 8)]
    with pytest.raises(ClusterError, match="LSB_MCPU_HOSTS: 'h2' is not followed by a number of slots"):
        hosts_and_slots("h1 16 h2", "LSB_MCPU_HOSTS")
    with pytest.raises(ClusterError, match="'x' is not a number of CPUs"):
        hosts_and_slots("h1 x", "LSB_MCPU_HOSTS")


def test_host_file_of_grid_engine() -> None:
    text = "n1.site 4 all.q@n1.site UNDEFINED\nn2.site 2 all.q@n2.site <NULL>\nn1.site 1 big.q@n1.site UNDEFINED\n"
    assert hosts_with_slots(text, "PE_HOSTFILE") == [Host("n1.site", 5), Host("n2.site", 2)]
    with pytest.raises(ClusterError, match="PE_HOSTFILE, line 2: 'n2' is not followed by a number of slots"):
        hosts_with_slots("n1 4\nn2\n", "PE_HOSTFILE")
