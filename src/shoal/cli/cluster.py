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
@click.option("--head-instance-type", metavar="TYPE", help="Type of the head machine; default: that of the workers.")
@click.option("--image", metavar="AMI", help="An Ubuntu of the region, such as ami-0123456789abcdef0.")
@click.option(
    "--name", default="shoal", show_default=True, help="Name of the cluster; each running cluster needs its own."
)
@click.option("--region", default="us-west-2", show_default=True, help="Where the machines are.")
@click.option("--spot", is_flag=True, help="Spot machines as workers: cheaper, and AWS may take them back.")
@click.option("--spot-price", type=float, metavar="DOLLARS", help="The most that a spot machine may cost in an hour.")
@click.option(
    "--disk-gb", type=click.IntRange(30, 16000), default=100, show_default=True, help="Size of each machine's disk."
)
@click.option("--key-name", metavar="NAME", help="An EC2 key pair with ~/.ssh/NAME.pem; made if it is new.")
@click.option("--ssh-from", metavar="CIDR", help="Who may ssh in, such as 203.0.113.7/32; this machine unless given.")
@click.option("--security-group", metavar="ID", help="One that is there already, instead of one made for the cluster.")
@click.option(
    "--python", default=THIS_PYTHON, show_default=True, metavar="VERSION", help="Python version on the machines."
)
@click.option("--wheel", type=click.Path(path_type=Path), help="This shoal as a wheel, if it is from no package index.")
@click.option("--folder", type=click.Path(path_type=Path), help="Brought to every machine: your environment's files.")
@click.option("--check", is_flag=True, help="Have Ray itself check the file; takes some seconds.")
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
    """Print the file that Ray's own `ray up` makes a cluster from, and make the token that it names.

    Type shoal cluster aws ... > cluster.yaml; the file begins with the commands that come next.
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
        click.echo(f"Ray {check_with_ray(text)} takes it.", err=True)
    click.echo(f"The cluster's token is in {make_folder(wanted)}.", err=True)
    click.echo(text, nl=False)
