"""`shoal cluster`: clusters that no scheduler gives."""

from __future__ import annotations

import sys
from pathlib import Path

import click

THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@click.group()
def cluster() -> None:
    """Write the file that starts a cluster on AWS."""


@cluster.command()
@click.option("--nodes", type=click.IntRange(1), required=True, help="Number of machines, with the head.")
@click.option(
    "--instance-type", metavar="TYPE", required=True, help="Type of the worker machines, such as m6i.4xlarge."
)
@click.option(
    "--head-instance-type", metavar="TYPE", help="Type of the head machine; default: the same as the workers."
)
@click.option("--image", metavar="AMI", help="Id of an Ubuntu image in the region, such as ami-0123456789abcdef0.")
@click.option(
    "--name", default="shoal", show_default=True, help="Name of the cluster; each running cluster needs its own."
)
@click.option("--region", default="us-west-2", show_default=True, help="AWS region of the machines.")
@click.option(
    "--spot", is_flag=True, help="Use spot machines as workers: they are cheaper, but AWS may take them back."
)
@click.option("--spot-price", type=float, metavar="DOLLARS", help="Highest price of a spot machine per hour.")
@click.option(
    "--disk-gb", type=click.IntRange(30, 16000), default=100, show_default=True, help="Disk size of each machine."
)
@click.option(
    "--key-name",
    metavar="NAME",
    help="EC2 key pair, with its private key in ~/.ssh/NAME.pem; created if it is missing.",
)
@click.option(
    "--ssh-from",
    metavar="CIDR",
    help="Addresses that may connect by ssh, such as 203.0.113.7/32; default: this machine.",
)
@click.option(
    "--security-group", metavar="ID", help="An existing security group; default: one is created for the cluster."
)
@click.option(
    "--python", default=THIS_PYTHON, show_default=True, metavar="VERSION", help="Python version on the machines."
)
@click.option(
    "--wheel",
    type=click.Path(path_type=Path),
    help="Wheel of shoal to install, if its version is not on a package index.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Folder to copy to every machine, such as your environment's files.",
)
@click.option("--check", is_flag=True, help="Check the file with Ray itself; this takes a few seconds.")
def aws(
    nodes: int,
    instance_type: str,
    head_instance_type: str | None,
    image: str | None,
    name: str,
    region: str,
    spot: bool,
    spot_price: float | None,
    disk_gb: int,
    key_name: str | None,
    ssh_from: str | None,
    security_group: str | None,
    python: str,
    wheel: Path | None,
    folder: Path | None,
    check: bool,
) -> None:
    """Print a cluster file for Ray's own `ray up`, and create the token that the file names.

    Type shoal cluster aws ... > cluster.yaml; the file begins with the commands to run next.
    """
    from shoal.cluster.aws import AwsCluster, check_with_ray, cluster_file, make_folder

    wanted = AwsCluster(
        nodes=nodes,
        instance_type=instance_type,
        head_instance_type=head_instance_type or instance_type,
        image=image,
        name=name,
        region=region,
        key_name=key_name or f"shoal-{region}",
        python=python,
        disk_gb=disk_gb,
        spot=spot,
        spot_price=spot_price,
        ssh_from=ssh_from,
        security_group=security_group,
        wheel=None if wheel is None else wheel.resolve(),
        folder=None if folder is None else folder.resolve(),
    )
    text = cluster_file(wanted)
    if check:
        click.echo(f"Ray {check_with_ray(text)} accepts the file.", err=True)
    click.echo(f"The cluster's token is in {make_folder(wanted)}.", err=True)
    click.echo(text, nl=False)
