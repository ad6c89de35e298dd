"""Which GPUs of this host are ours."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from shoal.machine.control_groups import text_in

# ROCR counts before HIP: where both are set, HIP's numbers are those of what ROCR has left.
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def gpus_of_this_host(environ: Mapping[str, str], root: Path = Path("/")) -> list[str]:
    """The GPUs that this process may use, as its variables name them, or as the drivers do where none is set."""
    for variable in GPU_VARIABLES:
        if variable in environ:
            names = (name.strip() for name in environ[variable].split(","))
            # As for CUDA itself, the first name that is none ends the list.
            return list(itertools.takewhile(lambda name: name not in ("", "-1", "NoDevFiles"), names))
    return _nvidia_gpus(root) or _amd_gpus(root)


def _nvidia_gpus(root: Path) -> list[str]:
    # Not /proc/driver/nvidia: it has all GPUs of the machine, also in a container that was given none.
    devices = (device for device in (root / "dev").glob("nvidia[0-9]*") if _opens(device))
    return sorted((device.name.removeprefix("nvidia") for device in devices), key=int)


def _amd_gpus(root: Path) -> list[str]:
    if not (root / "dev/kfd").exists():
        return []
    # A CPU is a node too, with the id 0; a GPU that was given to another job has an id that cannot be read.
    ids = [text_in(node / "gpu_id") for node in (root / "sys/class/kfd/kfd/topology/nodes").glob("*")]
    return [str(index) for index, _ in enumerate(gpu for gpu in ids if gpu not in ("", "0"))]


def _opens(device: Path) -> bool:
    # A control group of devices refuses to open what was given to another job, whatever the file's mode says.
    try:
        os.close(os.open(device, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True
