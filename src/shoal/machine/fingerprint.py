"""What numbers may depend on beside code and seed: versions, the BLAS and the kind of processor."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

PACKAGES = ("numpy", "gymnasium", "torch", "mujoco", "ale_py", "envpool", "pettingzoo", "cma", "scipy")
"""Libraries whose versions decide what a network or a simulator computes; those that are imported are told."""


def fingerprint() -> dict[str, Any]:
    """Versions, BLAS and processor of this process, in JSON's types; the same on machines that round alike."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            versions[name] = version
    return {"versions": versions, "blas": _blas(), "cpu": _cpu()}


def _blas() -> str:
    """`openblas 0.3.31 Haswell`: the library, and the kernels that it chose for this processor."""
    found = []
    for pool in threadpool_info():
        if pool.get("user_api") == "blas":
            words = (pool.get("internal_api"), pool.get("version"), pool.get("architecture"))
            found.append(" ".join(str(word) for word in words if word))
    return ", ".join(sorted(set(found))) or "unknown"


def _cpu() -> str:
    """`AuthenticAMD family 25 model 17`, or what the system calls its processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.machine()
    first = text.partition("\n\n")[0]
    facts = dict(_fact(line) for line in first.splitlines() if ":" in line)
    vendor = facts.get("vendor_id")
    if vendor is None:
        return platform.machine()
    return f"{vendor} family {facts.get('cpu family', '?')} model {facts.get('model', '?')}"


def _fact(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
