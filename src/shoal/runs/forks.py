"""A run that continues another from one of its iterations with something changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from shoal.config.changing import changed
from shoal.data.number_text import counted
from shoal.errors import CheckpointError, ConfigError
from shoal.runs.atomic_files import remove_folder
from shoal.runs.chain import CHAIN_FILE
from shoal.runs.checkpoint_folders import checkpoints_of, iteration_of
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.folders import make_run_folder, results_folder
from shoal.runs.lineage import Lineage, write_lineage
from shoal.runs.resuming import experiment_of, with_changes
from shoal.runs.retraining import PastRun, copy_chain, past_run, scratch_run
from shoal.runs.run import Run
from shoal.runs.stopping import stop_reason
from shoal.runs.user_files import CODE_FOLDER


def fork(
    folder: Path,
    scratch: Path,
    iteration: int | None,
    changes: Mapping[str, Any],
    name: str | None = None,
    trust: bool = False,
    tell: Callable[[int], None] = lambda iteration: None,
) -> Run:
    """A new run that begins as another was after an iteration; without one, after its newest checkpoint.

    Where there is no checkpoint of it, the iterations from the one before are trained again in `scratch`, and must have
    the links of the parent's chain; `tell` hears of each.
    """
    past = past_run(folder, trust)
    at = _iteration(past, iteration)
    tree, told = with_changes(folder, past.tree, changes)
    stored, _ = experiment_of(tree, trust)
    experiment = changed(stored, name=name or f"{stored.name}-fork", restore=None)
    start = past.start_before(at)
    if start is None or iteration_of(start) != at:
        start = _trained_again(past, scratch, start, at, tell)
    done = stop_reason(read_checkpoint(start).summary, experiment.stop)
    if done is not None:
        raise ConfigError(f"its stop criterion is met at iteration {at} already ({done}); give another with --stop")
    link = past.chain.links[at].link if past.chain is not None and at in past.chain.links else None
    lineage = Lineage(str(folder), at, link, tuple(told))
    parent = results_folder(experiment.results_dir, experiment.name)
    place = make_run_folder(parent, experiment.run, experiment.config.env)
    try:
        shutil.copytree(start, place / start.name)
        copy_chain(folder, place)
        write_lineage(place, lineage)
    except OSError as error:
        remove_folder(place)
        raise CheckpointError(f"{place} cannot be written: {error.strerror or error}.") from error
    run = Run(experiment, place, past.user_code, None, (*told, f"It continues {folder} from iteration {at}."))
    run.keeps_code = (folder / CODE_FOLDER).is_dir()
    return run


def _iteration(past: PastRun, asked: int | None) -> int:
    last = past.last_iteration
    newest = next((iteration_of(path) for path in checkpoints_of(past.folder)), None)
    if asked is None:
        if newest is None:
            raise ConfigError(f"{past.folder} has no checkpoint; say which iteration to train again with --at")
        return newest
    if asked > last:
        raise ConfigError(f"--at: {past.folder} has {counted(last, 'iteration')} (got {asked})")
    return asked


def _trained_again(past: PastRun, scratch: Path, start: Path | None, until: int, tell: Callable[[int], None]) -> Path:
    """A checkpoint of an iteration that the parent has none of, by training from the one before it."""
    if past.chain is not None and past.chain.problems:
        raise CheckpointError(
            f"{past.folder}/{CHAIN_FILE} is damaged ({past.chain.problems[0]}), so nothing shows that it trains the "
            "same again; fork it at one of its checkpoints (shoal checkpoints lists them)"
        )
    run = scratch_run(past, scratch, start, until)
    with closing(run.results(hold_signals=True)) as results:
        for result in results:
            at = int(result["training_iteration"])
            tell(at)
            _check_link(past, run, at)
            if at >= until:
                break
    if run.outcome is not None and run.outcome.kind == "interrupted":
        raise CheckpointError(f"{run.outcome.sentence}; nothing was forked.")
    found = scratch / f"checkpoint_{until:06d}"
    if not found.is_dir():
        raise CheckpointError(f"{past.folder} did not come to iteration {until} again: {run.outcome}.")
    return found


def _check_link(past: PastRun, run: Run, iteration: int) -> None:
    there = past.chain.links.get(iteration) if past.chain is not None else None
    if there is not None and run.last_link is not None and there.link != run.last_link.link:
        raise CheckpointError(
            f"{past.folder} does not train the same again: iteration {iteration} has another "
            f"{' and '.join(there.differing(run.last_link))}; fork it at one of its checkpoints "
            "(shoal checkpoints lists them), and see shoal reproduce for why"
        )
