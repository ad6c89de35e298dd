"""Whether a rank of a launch could run on this host: run there when one has not shown up.

`python -m shoal.cluster.rank_check FOLDER PROGRAM` says in one sentence what is missing. Where not even this starts,
whoever starts it says so.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from shoal.cluster.job_folder import published
from shoal.errors import ClusterError


def missing(folder: Path, program: str) -> str | None:
    """Why a rank that was started by this program would not find its head; None where it would."""
    if os.path.basename(program) == "shoal" and shutil.which(program) is None:
        return f"{program} is not there, or cannot be run"
    try:
        is_seen = published(folder) is not None
    except ClusterError as error:
        return str(error)
    if is_seen:
        return None
    return f"the job's folder {folder} is not seen here; set one that all hosts share with --job-dir or SHOAL_JOBS_DIR"


def main() -> None:
    """Run as a program."""
    folder, program = sys.argv[1:]
    sys.exit(missing(Path(folder), program))


if __name__ == "__main__":
    main()
