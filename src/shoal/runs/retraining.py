"""A run trained again, or a stretch of it: from its configuration and seed or a checkpoint, in a scratch folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.config.changing import changed
from shoal.config.experiment import Experiment, with_settings
from shoal.envs.importing import UserCode
from shoal.errors import CheckpointError, ConfigError
from shoal.runs.chain import CHAIN_FILE, ChainRecord, read_chain
from shoal.runs.checkpoint_folders import checkpoints_of, iteration_of
from shoal.runs.checkpoints import read_in_place
from shoal.runs.lineage import Lineage, read_lineage, write_lineage
from shoal.runs.resuming import experiment_of, stored_tree
from shoal.runs.run import Run
from shoal.runs.trust import code_to_run
from shoal.runs.user_files import CODE_FOLDER, kept_code

QUIET: dict[str, Any] = {
    "checkpoint_freq": 0,
    "checkpoint_at_end": False,
    "keep_checkpoints_num": None,
    "checkpoint_score_attr": None,
    "report": False,
}
"""What a training in a scratch folder does not leave behind."""


@dataclass(frozen=True)
class PastRun:
    """A run that has been, and what is needed to train it again."""

    folder: Path
    tree: Mapping[str, Any]
    experiment: Experiment
    user_code: UserCode
    chain: ChainRecord | None
    begins_after: int = 0
    """The iteration that it continues from: of a fork, or of a run that had no chain before."""

    @property
    def last_iteration(self) -> int:
        """The last iteration that is known of, by the chain or by a checkpoint."""
        linked = max(self.chain.links, default=0) if self.chain is not None else 0
        return max(linked, *(iteration_of(path) for path in checkpoints_of(self.folder)), 0)

    def start_before(self, iteration: int) -> Path | None:
        """The newest good checkpoint of at most that iteration; None if there is none, and it begins at the start."""
        for path in checkpoints_of(self.folder):
            if iteration_of(path) <= iteration:
                try:
                    read_in_place(path)
                except CheckpointError:
                    continue
                return path
        if self.begins_after:
            raise CheckpointError(
                f"{self.folder} begins after iteration {self.begins_after}, and has no good checkpoint of up to "
                f"iteration {iteration} to train again from."
            )
        return None


def past_run(folder: Path, trust: bool = False) -> PastRun:
    """Read a run that shall be trained again; the code that a stranger's run names is refused without `trust`.

    Where the run keeps a copy of its code, that is what is used.
    """
    tree = stored_tree(folder)
    if tree is None:
        raise CheckpointError(f"{folder}: its experiment cannot be read, so that it cannot be trained again.")
    experiment, user_code = experiment_of(tree, trust)
    if experiment.config.trainer:
        raise ConfigError(f"{folder}: a run of {experiment.run} cannot be trained again to the last bit.")
    copy = kept_code(folder, trust) if user_code.is_trusted else None
    own = {"search_path": [str(folder / CODE_FOLDER)]}  # of which a refusal tells
    told = {**tree, **own} if (folder / CODE_FOLDER).is_dir() else tree
    user_code = copy or code_to_run(told, experiment, user_code, folder)
    chain, lineage = read_chain(folder), read_lineage(folder)
    begins_after = max(chain.begins_after if chain is not None else 0, lineage.iteration if lineage is not None else 0)
    return PastRun(folder, tree, experiment, user_code, chain, begins_after)


def with_workers(past: PastRun, workers: int | None) -> PastRun:
    """The run with another number of workers and the same environments; with None, as it was, `auto` resolved."""
    config = past.experiment.config
    layout = past.chain.head.get("layout", {}) if past.chain is not None else {}
    was = (layout.get("workers", config.worker_count), layout.get("envs_per_worker", config.envs_per_worker))
    if workers is None and "auto" not in (config.num_workers, config.num_envs_per_worker):
        return past
    total = max(was[0], 1) * was[1]
    count = was[0] if workers is None else workers
    each, left = divmod(total, max(count, 1))
    if left:
        fit = [number for number in range(1, total + 1) if total % number == 0]
        raise ConfigError(f"--workers: {total} environments cannot be shared among {count}; use one of {fit}")
    settings = {"num_workers": count, "num_envs_per_worker": each}
    return replace(past, experiment=with_settings(past.experiment, settings))


def scratch_run(past: PastRun, scratch: Path, start: Path | None, until: int) -> Run:
    """A run in `scratch` that trains the past run again up to an iteration, from a checkpoint of it or the start."""
    scratch.mkdir(parents=True, exist_ok=True)
    if start is not None:
        shutil.copytree(start, scratch / start.name)
        copy_chain(past.folder, scratch)
        write_lineage(scratch, Lineage(str(past.folder), iteration_of(start), None, ()))  # where its results begin
    # An iteration of many short fragments ends at this limit, so the limit is a part of the training.
    limit = {key: value for key, value in past.experiment.stop.items() if key == "timesteps_total"}
    experiment = changed(past.experiment, **QUIET, stop={"training_iteration": until, **limit})
    settings = {key: None for key in ("output", "record_env") if getattr(experiment.config, key)}
    if settings:
        experiment = with_settings(experiment, settings)
    return Run(experiment, scratch, past.user_code)


def copy_chain(source: Path, target: Path) -> None:
    """Let a run go on with the receipts of another; what is after the iteration that it goes on from is cut off."""
    if (source / CHAIN_FILE).is_file():
        shutil.copyfile(source / CHAIN_FILE, target / CHAIN_FILE)
