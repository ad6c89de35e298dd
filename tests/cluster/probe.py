"""The command that the tests launch: tells what it sees of its cluster, in JSON at every change, until it is let go.

python probe.py GO [CODE]       until the file GO is there (`-`: at once), then ends with CODE
python probe.py work GO [CODE]  the same, after a task on every node
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=0)
def where() -> str:
    return socket.gethostname()


def main() -> None:
    words = sys.argv[1:]
    works = words[0] == "work"
    go, code = [*words[works:], "0"][:2]
    ray.init(log_to_driver=False, logging_level="ERROR")
    if works:
        places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes()]
        print(json.dumps(sorted(ray.get([where.options(scheduling_strategy=place).remote() for place in places]))))
    told = None
    while True:
        alive = sorted(node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"])
        if alive != told:
            told = alive
            cpus = ray.cluster_resources().get("CPU", 0)
            print(json.dumps({"here": socket.gethostname(), "nodes": alive, "cpus": cpus}), flush=True)
        if go == "-" or Path(go).exists():
            os._exit(int(code))  # at once, as the worst of commands do
        time.sleep(0.1)


main()
