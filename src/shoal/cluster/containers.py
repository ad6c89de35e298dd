"""How a batch script starts shoal inside a container: the words of Apptainer, podman-hpc and Shifter.

The scheduler's launcher starts one container on every node, and shoal in each finds its place among the ranks. So
nothing of the scheduler is needed inside: no srun, no munge socket, and the host needs no shoal.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from shoal.cluster.job import Job
from shoal.errors import ConfigError

FILE_IMAGE = re.compile(r"(?!\w+://)(.*\.(sif|simg|sqsh)|[./~].*)")
ADDRESS = re.compile(r"(docker|oras|library|shub|https?)://[\w.:/@?&=%+~-]+", re.ASCII)
NAMED = re.compile(r"(?!-|.*://)[\w.:/@-]+", re.ASCII)
SANDBOX = (".singularity.d", "bin", "usr")
"""Folders of which an image that is a folder has at least one."""


def container_runtime(job: Job, environ: Mapping[str, str]) -> str:
    """Which program runs the image; ConfigError where nobody can know."""
    image = job.container or ""
    if job.container_runtime != "auto":
        return job.container_runtime
    if FILE_IMAGE.fullmatch(image) or ADDRESS.fullmatch(image):
        return "apptainer"
    for program in ("podman-hpc", "shifter"):
        if shutil.which(program, path=environ.get("PATH")):
            return program
    raise ConfigError(
        f"container: {image} is neither a file (.sif) nor an address (docker://...), and there is no podman-hpc or "
        "shifter on PATH; set container_runtime to apptainer, podman-hpc or shifter"
    )


def check_image_folder(image: str) -> None:
    """Refuse a folder of this machine that is no image; Apptainer's sandboxes are folders too."""
    place = Path(image).expanduser()
    if FILE_IMAGE.fullmatch(image) and place.is_dir() and not any((place / name).exists() for name in SANDBOX):
        raise ConfigError(f"container: {image} is a folder and no image; give a .sif file, or an Apptainer sandbox")


def container_problems(job: Job) -> list[str]:
    """What is wrong with what a job says about its container."""
    found = []
    if job.container is None:
        unused = {"container_binds": job.container_binds, "container_runtime": job.container_runtime != "auto"}
        found += [f"{key}: there is no container; set container, or leave it out" for key in unused if unused[key]]
    elif not (
        FILE_IMAGE.fullmatch(job.container) or ADDRESS.fullmatch(job.container) or NAMED.fullmatch(job.container)
    ):
        found.append("container: must be a .sif file, an address such as docker://..., or an image's name")
    elif any(
        not Path(bind.partition(":")[0]).is_absolute() and not bind.startswith("$") for bind in job.container_binds
    ):
        found.append("container_binds: must be absolute folders, such as /scratch, or $SCRATCH, or HOST:INSIDE")
    return found


def container_lines(job: Job, runtime: str, jobs_folder: Path) -> list[str]:
    """Shell that sets the array `container`: the words before a command that is to run inside."""
    assert job.container is not None
    folder = shlex.quote(str(jobs_folder))
    lines = [
        "# The shoal and the python of the container are used; packages in ~/.local stay out of it.",
        "export PYTHONNOUSERSITE=1",
        f"mkdir -p {folder}",
        *(f"export {name}={shlex.quote(value)}" for name, value in job.variables.items()),
    ]
    if runtime == "apptainer":
        missing = 'echo "There is neither apptainer nor singularity on PATH; load its module in the preamble." >&2'
        lines.append(f"runtime=$(command -v apptainer || command -v singularity) || {{ {missing}; exit 1; }}")
    return [*lines, f"container=({' '.join(_words(job, runtime, folder))})"]


def _words(job: Job, runtime: str, folder: str) -> list[str]:
    binds = ['"$PWD"', folder, *(_bind(bind) for bind in job.container_binds)]
    has_gpus = bool(job.gpus_per_node)
    if runtime == "apptainer":
        image = os.path.expanduser(job.container or "")
        if FILE_IMAGE.fullmatch(image):
            image = os.path.abspath(image)
        nvidia = ["--nv"] if has_gpus else []
        return ['"$runtime" exec', *nvidia, '--pwd "$PWD"', *(f"--bind {bind}" for bind in binds), shlex.quote(image)]
    image = shlex.quote(job.container or "")
    if runtime == "shifter":
        volumes = [f"--volume={bind if ':' in bind else f'{bind}:{bind}'}" for bind in binds[2:]]
        return ["shifter", f"--image={image}", *(["--module=gpu"] if has_gpus else []), '--workdir="$PWD"', *volumes]
    volumes = [f"--volume {bind if ':' in bind else f'{bind}:{bind}'}" for bind in ('"$HOME"', *binds)]
    shared = "--env-host --network=host --ipc=host --pid=host"  # the job's variables, its nodes, /dev/shm, its ranks
    return ["podman-hpc run --rm", shared, *(["--gpu"] if has_gpus else []), '--workdir "$PWD"', *volumes, image]


def _bind(text: str) -> str:
    """A folder as the shell of the job reads it: variables are the job's own."""
    return f'"{text}"' if "$" in text else shlex.quote(text)
