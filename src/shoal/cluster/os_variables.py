"""The environment that Ray and the command get: what breaks them on clusters is mended, and said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from shoal.machine.threads import are_limited, thread_variables

PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
NO_PROXY = ("no_proxy", "NO_PROXY")

# A node that is killed refuses connections and is dropped after 3 s; one that is cut off, or hangs, after 8 s.
HEALTH = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1500",
    "RAY_health_check_failure_threshold": "3",
    # For work to move away from a host that leaves; less than what schedulers leave a job that they end.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "20",
}


def variables_for_ray(environ: Mapping[str, str], hosts: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """The variables for Ray on these hosts, and what was changed, in a few words each."""
    env, changes = dict(environ), []
    if env.pop("LD_PRELOAD", None):
        changes.append("LD_PRELOAD unset")
    for name in [name for name in env if name.startswith("RAY_") and name not in KEPT]:
        del env[name]
        changes.append(f"{name} unset")
    if any(env.get(name) for name in PROXIES):
        for name in NO_PROXY:
            listed = [word for word in re.split(r"[\s,]+", env.get(name, "")) if word]
            env[name] = ",".join(dict.fromkeys([*listed, "localhost", "127.0.0.1", *hosts]))
        changes.append("proxies bypassed for the cluster's hosts")
    if "ROCR_VISIBLE_DEVICES" in env and "HIP_VISIBLE_DEVICES" not in env:
        env["HIP_VISIBLE_DEVICES"] = env.pop("ROCR_VISIBLE_DEVICES")
        changes.append("ROCR_VISIBLE_DEVICES given as HIP_VISIBLE_DEVICES")
    if not any(env.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG")) or env.get("LC_ALL") in ("C", "POSIX"):
        env["LC_ALL"] = "C.UTF-8"
        changes.append("LC_ALL=C.UTF-8")
    if env.get("KMP_AFFINITY"):  # made for one process that owns the node; every worker would pin itself to core 0
        env["KMP_AFFINITY"] = "disabled"
        changes.append("KMP_AFFINITY=disabled")
    if not are_limited(env):
        env.update(thread_variables(1))
        changes.append("one thread per process in BLAS and OpenMP")
    env["RAY_worker_niceness"] = "0"
    env["RAY_USAGE_STATS_ENABLED"] = "0"
    env.update(HEALTH)
    return env, changes


KEPT = (
    "RAY_TMPDIR",
    "RAY_DEDUP_LOGS",
    "RAY_BACKEND_LOG_LEVEL",
    "RAY_memory_usage_threshold",
    "RAY_memory_monitor_refresh_ms",
)
