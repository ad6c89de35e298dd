"""The GPUs of this host that are ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.machine.gpus import gpus_of_this_host


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, ["0", "2"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-12ab, MIG-34cd"}, ["GPU-12ab", "MIG-34cd"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, ["0"]),
        ({"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "0,1"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "0,1"}, ["0", "1"]),
        ({"ZE_AFFINITY_MASK": "0.0,0.1"}, ["0.0", "0.1"]),
    ],
)
def test_gpus_are_those_that_the_variables_name(tmp_path: Path, environ: dict[str, str], gpus: list[str]) -> None:
    written(tmp_path / "dev/nvidia7", "")
    assert gpus_of_this_host(environ, tmp_path) == gpus


def test_without_variables_gpus_are_those_that_can_be_opened(tmp_path: Path) -> None:
    assert gpus_of_this_host({}, tmp_path) == []
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        written(tmp_path / "dev" / name, "")
    (tmp_path / "dev/nvidia3").mkdir()  # cannot be opened, like a device of another job
    assert gpus_of_this_host({}, tmp_path) == ["0", "2", "10"]


def test_without_variables_gpus_of_amd_are_the_driver_s_nodes(tmp_path: Path) -> None:
    for node, gpu in enumerate(["0", "0", "4711", "4712"]):
        written(tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}/gpu_id", f"{gpu}\n")
    assert gpus_of_this_host({}, tmp_path) == []
    written(tmp_path / "dev/kfd", "")
    assert gpus_of_this_host({}, tmp_path) == ["0", "1"]
