"""The example's rod, which writes down where its ranks are, and fails when it is told to."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "simulators" / "mpi"))
import rod_env


class PlacedRod(rod_env.Rod):
    """Writes a line to `records` of its config when its ranks are there."""

    def __init__(self, config):
        rod_env.SOLVER = config["solver"]
        super().__init__(config)
        record = {
            "env_index": config.env_index,
            "worker_index": config.worker_index,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "slots": [[slot.host, slot.number, slot.is_core] for slot in config.slots],
            "places": self.ask("places").split(),
        }
        with open(config["records"], "a") as file:
            file.write(json.dumps(record) + "\n")
