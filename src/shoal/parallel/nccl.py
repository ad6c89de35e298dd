"""All-reduce by torch.distributed: NCCL between learners on GPUs, and whatever joins the processes of Ray Train."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from shoal.parallel.group import Numbers

TIMEOUT = timedelta(minutes=30)  # a learner that dies is noticed by the driver, which ends the others


class TorchGroup:
    """Keeps the `Group` contract over torch.distributed; a process belongs to one group at a time."""

    def __init__(self, meeting: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._device = torch.device("cuda")
        dist.init_process_group("nccl", init_method=meeting, rank=rank, world_size=size, timeout=TIMEOUT)

    def sum(self, x: Numbers) -> Numbers:
        """See `Group`."""
        tensor = self._tensor(x)
        dist.all_reduce(tensor)
        return self._array(tensor, x)

    def _tensor(self, x: NDArray[Any]) -> Any:
        return torch.from_numpy(np.ascontiguousarray(x)).to(self._device)

    def _array(self, tensor: Any, x: Numbers) -> Numbers:
        """The result in the caller's own array, so that its views stay true."""
        x[...] = tensor.cpu().numpy()
        return x


class JoinedGroup(TorchGroup):
    """The group that this process belongs to already, because Ray Train has brought it together."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def use_interface_of(host: str) -> None:
    """Talk to others over the interface that has this address."""
    for interface, addresses in psutil.net_if_addrs().items():
        if any(address.address == host for address in addresses):
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
