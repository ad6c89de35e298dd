"""The file with which Ray's own `ray up` makes a cluster on AWS: text for people, checked as Ray checks it.

What Ray 2.60 does with it decided its form. `ray up` adds a rule that lets ssh in from everywhere to a security group
that it makes, whatever `IpPermissions` says, and leaves a group alone that has rules: so the group is made before. Its
own default image is an Ubuntu of 2018, too old for today's wheels: so the image is the user's choice. Workers are
started by the head, whose role may not ask AWS's parameter store: so the image is given by its id.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import secrets
import shutil
import sys
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from shoal.config.yaml_files import load_text
from shoal.errors import ClusterError, ConfigError
from shoal.version import DISTRIBUTION, __version__

INSTANCE_TYPE = r"[a-z][a-z0-9-]*\.[a-z0-9-]+"
PLAIN_PATH = r"/[A-Za-z0-9._/+@-]+"
# After the generation's number a g stands for AWS's own ARM processors: m7g, c6gn, x2gd.
ARM = re.compile(r"[a-z]+\d+[a-z]*g")


@dataclass(frozen=True)
class AwsCluster:
    """What a user says of a cluster on AWS; every word is checked, since it goes into shell commands."""

    nodes: int
    instance_type: str
    head_instance_type: str
    image: str | None
    name: str
    region: str
    key_name: str
    python: str
    disk_gb: int
    spot: bool = False
    spot_price: float | None = None
    ssh_from: str | None = None
    security_group: str | None = None
    wheel: Path | None = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        if problems := _problems(self):
            raise ConfigError(problems)

    @property
    def is_spot(self) -> bool:
        """Whether the workers are spot machines, which AWS may take back."""
        return self.spot or self.spot_price is not None

    @property
    def keep(self) -> str:
        """Where the cluster's token and wheel are kept, on this machine and on those of the cluster."""
        return f"~/.shoal/aws/{self.name}"


def _problems(cluster: AwsCluster) -> list[str]:
    words = [
        ("--name", r"[A-Za-z][A-Za-z0-9-]{0,60}", cluster.name, "letters, digits and -"),
        ("--instance-type", INSTANCE_TYPE, cluster.instance_type, "a type such as m6i.4xlarge"),
        ("--head-instance-type", INSTANCE_TYPE, cluster.head_instance_type, "a type such as m6i.4xlarge"),
        ("--region", r"[a-z]{2}(-[a-z]+)+-\d", cluster.region, "a region such as us-west-2"),
        ("--image", r"ami-[0-9a-f]{8,17}", cluster.image, "an id such as ami-0123456789abcdef0"),
        ("--key-name", r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}", cluster.key_name, "letters, digits, -, _ and ."),
        ("--security-group", r"sg-[0-9a-f]{8,17}", cluster.security_group, "an id such as sg-0123456789abcdef0"),
        ("--python", r"3\.1\d", cluster.python, "3.10 or later, such as 3.11"),
        ("--wheel", rf".*/shoal_rl-{re.escape(__version__)}-[^/]*\.whl", cluster.wheel, f"one of shoal {__version__}"),
        ("--wheel", PLAIN_PATH, cluster.wheel, "a path without spaces and quotes"),
        ("--folder", PLAIN_PATH, cluster.folder, "a path without spaces and quotes"),
    ]
    problems = [
        f"{option}: must be {meaning} (got {str(value)!r})"
        for option, pattern, value, meaning in words
        if value is not None and not re.fullmatch(pattern, str(value))
    ]
    problems += _file_problems(cluster)
    if cluster.image is None:
        problems.append(f'--image: is missing; the newest Ubuntu is --image "$({newest_image(cluster)})"')
    if bool(ARM.match(cluster.instance_type)) != bool(ARM.match(cluster.head_instance_type)):
        problems.append(
            "--head-instance-type: one image runs on ARM or on Intel and AMD; choose both types of the same kind"
        )
    if cluster.spot_price is not None and not 0 < cluster.spot_price < 1000:
        problems.append(f"--spot-price: must be US dollars per hour and machine (got {cluster.spot_price:g})")
    if cluster.is_spot and cluster.nodes == 1:
        problems.append("--spot: the head is never a spot machine, and there is no other; add --nodes N")
    if cluster.ssh_from is not None and cluster.security_group is not None:
        problems.append(
            "--ssh-from: the rules of --security-group decide who may connect by ssh; leave one of them out"
        )
    if cluster.ssh_from is not None:
        try:
            ipaddress.IPv4Network(cluster.ssh_from)
        except ValueError:
            problems.append(f"--ssh-from: must be a network such as 203.0.113.7/32 (got {cluster.ssh_from!r})")
    if cluster.wheel is None and (source := installed_from()) is not None:
        problems.append(
            "--wheel: the machines need this shoal, which is not on a package index; type pip wheel --no-deps -w dist "
            f"{source} and add --wheel dist/shoal_rl-{__version__}-py3-none-any.whl"
        )
    return problems


def _file_problems(cluster: AwsCluster) -> list[str]:
    """What is missing on this machine, or is not what it should be."""
    problems = []
    for option, path in (("--wheel", cluster.wheel), ("--folder", cluster.folder)):
        if path is not None and not path.exists():
            problems.append(f"{option}: there is no {path}")
    if cluster.wheel is not None and cluster.wheel.exists() and not zipfile.is_zipfile(cluster.wheel):
        size = cluster.wheel.stat().st_size
        problems.append(f"--wheel: {cluster.wheel} is no wheel, it has {size} bytes; build it again with pip wheel")
    return problems


def newest_image(cluster: AwsCluster) -> str:
    """The command that prints the id of Ubuntu's newest image for these machines."""
    processor = "arm64" if ARM.match(cluster.instance_type) else "amd64"
    parameter = f"/aws/service/canonical/ubuntu/server/24.04/stable/current/{processor}/hvm/ebs-gp3/ami-id"
    query = "--query 'Parameters[0].Value' --output text"
    return f"aws ssm get-parameters --region {cluster.region} --names {parameter} {query}"


def installed_from() -> str | None:
    """The folder or address that this shoal was installed from; None where pip found it by its name (PEP 610)."""
    told = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    return None if told is None else str(json.loads(told)["url"]).removeprefix("file://")


def make_folder(cluster: AwsCluster) -> Path:
    """Make the folder that every machine gets a copy of, for the user's eyes only; gives the token's file in it.

    A token that is there stays, since machines may run with it.
    """
    folder = Path(cluster.keep).expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    if cluster.wheel is not None:
        shutil.copy(cluster.wheel, folder)
    token = folder / "token"
    try:
        descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        token.chmod(0o600)
        return token
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return token


def check_with_ray(text: str) -> str:
    """Have Ray itself check the file, as `ray up` does before it asks AWS for anything; gives Ray's version."""
    import ray
    from jsonschema import ValidationError  # type: ignore[import-untyped]
    from ray.autoscaler._private.util import prepare_config, validate_config

    try:
        # Ray's remarks go where ours do: what is printed is the file.
        with contextlib.redirect_stdout(sys.stderr):
            validate_config(prepare_config(load_text(text, "cluster.yaml").tree))
    except (ValidationError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ClusterError(
            f"cluster.yaml: Ray {ray.__version__} refuses it: {reason}; type pip install ray==2.60.0, which accepts it"
        ) from None
    return str(ray.__version__)


def cluster_file(cluster: AwsCluster) -> str:
    """The whole file."""
    return "\n".join((_header(cluster), _machines(cluster), _files(cluster), _commands(cluster)))


def _header(cluster: AwsCluster) -> str:
    group = "#\n" if cluster.security_group else _group_commands(cluster)
    go = f"cd ~/{cluster.folder.name} && " if cluster.folder else ""
    machines = "1 machine" if cluster.nodes == 1 else f"{cluster.nodes} machines"
    return f"""\
# {machines} on AWS for shoal {__version__}, for Ray's own `ray up`. Type on your own machine:
#
#   pip install boto3 && aws configure        # once: Ray needs boto3, and your credentials
{group}#   ray up cluster.yaml                       # start the machines; again after a change of this file
#   ray attach --tmux cluster.yaml            # a shell on the head that outlives the connection; in it:
#       {go}shoal train ENV --num-workers auto --ray-address auto
#   ray rsync-down cluster.yaml '~/shoal_results/' ./shoal_results/    # copy the results to this machine
#   ray down cluster.yaml                     # stop the machines: until then they cost money
#
# ENV is the environment, as on your own machine. {cluster.keep}/token is the key to the cluster: whoever reads
# it can run code there. It is not in this file.
"""


def _group_commands(cluster: AwsCluster) -> str:
    allow = f"aws ec2 authorize-security-group-ingress --region {cluster.region} --group-id $GROUP"
    return f"""\
#
#   Once: a security group that lets ssh in from {cluster.ssh_from or "this machine"}, the machines to each other, and
#   nothing else. Ray uses a group of this name as it is; without one it creates one that lets ssh in from everywhere,
#   though only with the key. If the account has several VPCs, choose one (--vpc-id), and write this file again with
#   --security-group $GROUP.
#
#   GROUP=$(aws ec2 create-security-group --region {cluster.region} --group-name {_group(cluster)} \\
#           --description "Ray cluster {cluster.name}" --query GroupId --output text)
#   {allow} \\
#           --protocol tcp --port 22 --cidr {cluster.ssh_from or "$(curl -s https://checkip.amazonaws.com)/32"}
#   {allow} \\
#           --protocol all --source-group $GROUP
#
"""


def _group(cluster: AwsCluster) -> str:
    return f"{cluster.name}-cluster"


def _machines(cluster: AwsCluster) -> str:
    group = "" if cluster.security_group else f"  security_group:\n    GroupName: {_group(cluster)}\n"
    workers = "" if cluster.nodes == 1 else _machine(cluster, "worker", cluster.instance_type, cluster.nodes - 1)
    return f"""\
cluster_name: {cluster.name}
max_workers: {cluster.nodes - 1}

provider:
  type: aws
  region: {cluster.region}
  cache_stopped_nodes: false  # `ray down` ends machines with their disks, instead of keeping the disks at a price
  key_pair:
    key_name: {cluster.key_name}  # created by the first `ray up`, if ~/.ssh/{cluster.key_name}.pem is not there
{group}
auth:
  ssh_user: ubuntu

head_node_type: head
available_node_types:
{_machine(cluster, "head", cluster.head_instance_type, 0)}{workers}"""


def _machine(cluster: AwsCluster, role: str, instance_type: str, count: int) -> str:
    group = f"      SecurityGroupIds: [{cluster.security_group}]\n" if cluster.security_group else ""
    price = f'        SpotOptions:\n          MaxPrice: "{cluster.spot_price:g}"\n' if cluster.spot_price else ""
    spot = f"      InstanceMarketOptions:\n        MarketType: spot\n{price}"
    return f"""\
  {role}:
    min_workers: {count}
    max_workers: {count}
    resources: {{}}  # Ray asks AWS how many CPUs and GPUs the type has
    node_config:
      InstanceType: {instance_type}
      ImageId: {cluster.image}
{group}{spot if cluster.is_spot and role == "worker" else ""}\
      BlockDeviceMappings:
        - DeviceName: /dev/sda1
          Ebs:
            VolumeSize: {cluster.disk_gb}
            VolumeType: gp3
"""


def _files(cluster: AwsCluster) -> str:
    mounts = {cluster.keep: cluster.keep}
    if cluster.folder is not None:
        mounts[f"~/{cluster.folder.name}"] = str(cluster.folder)
    lines = "".join(f'  "{there}": "{here}"\n' for there, here in mounts.items())
    return f"""\
# Paths there and here. Every machine gets these: workers need the files of your environment as the head does.
file_mounts:
{lines}rsync_exclude: [.git, .venv, __pycache__]
"""


def _commands(cluster: AwsCluster) -> str:
    package = f"{cluster.keep}/{cluster.wheel.name}" if cluster.wheel else f"{DISTRIBUTION}=={__version__}"
    install = "~/.shoal/tools/bin/uv pip install --python ~/.shoal/venv"
    apt = "sudo apt-get -qq -o DPkg::Lock::Timeout=300"
    begin = ". ~/.shoal/env && ulimit -n 65535"
    return f"""\
setup_commands:
  - chmod -R go= ~/.shoal/aws
  - cloud-init status --wait > /dev/null; {apt} update && {apt} install -y python3-venv
  - python3 -m venv ~/.shoal/tools && ~/.shoal/tools/bin/pip install --quiet uv
  - test -d ~/.shoal/venv || ~/.shoal/tools/bin/uv venv --python {cluster.python} ~/.shoal/venv
  - {install} {package} 'ray[tune]=={metadata.version("ray")}'
  # What else your environment needs, or torch for images and GPUs: one more line like the last.
  - >-
    printf '%s\\n' 'export PATH=$HOME/.shoal/venv/bin:$PATH'
    'export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={cluster.keep.replace("~", "$HOME")}/token' > ~/.shoal/env
  - grep -qs shoal/env ~/.bashrc || echo '. ~/.shoal/env' >> ~/.bashrc
head_setup_commands:
  - {install} boto3

# The machines are this cluster's alone, so `ray stop` ends nobody else's. ~/.shoal/env switches the token on: without
# it nothing starts.
head_start_ray_commands:
  - . ~/.shoal/env && ray stop
  - >-
    {begin} && ray start --head --port=6379 --include-dashboard=false --disable-usage-stats
    --autoscaling-config=~/ray_bootstrap_config.yaml
worker_start_ray_commands:
  - . ~/.shoal/env && ray stop
  - {begin} && ray start --address=$RAY_HEAD_IP:6379
"""
