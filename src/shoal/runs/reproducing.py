"""A run trained again from its configuration and seed, and where the two part, if they do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import CheckpointError, ConfigError
from shoal.runs.chain import machine_differences, read_chain
from shoal.runs.checkpoint_folders import checkpoints_of, iteration_of
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.outcomes import Outcome
from shoal.runs.resuming import finished_iterations
from shoal.runs.retraining import PastRun, past_run, scratch_run, with_workers
from shoal.runs.state_differences import differences


@dataclass(frozen=True)
class Reproduction:
    """How a run compares with itself.

    `identical_to` is the last iteration up to which every link is the same, `differs_at` the first that is not, and
    `parts` in what; `details` are sentences about a checkpoint at `compared_at`, `machine` what is different here.
    `unlinked` is the iteration that the run has come to by its results and checkpoints, if its chain ends before and so
    before what was asked for.
    """

    began_after: int
    identical_to: int
    differs_at: int | None
    parts: tuple[str, ...]
    compared_at: int | None
    details: tuple[str, ...]
    machine: tuple[str, ...]
    outcome: Outcome | None
    unlinked: int | None


def reproduce(
    folder: Path,
    scratch: Path,
    iterations: int,
    workers: int | None = None,
    trust: bool = False,
    tell: Callable[[int, bool], None] = lambda iteration, is_same: None,
) -> Reproduction:
    """Train a run again into `scratch`, and compare the two link by link; `tell` hears of each iteration."""
    # First, for a run that goes on meanwhile: its links are written before all else.
    come_to = max(finished_iterations(folder), *map(iteration_of, checkpoints_of(folder)), 0)
    past = with_workers(past_run(folder, trust), workers)
    chain = past.chain
    if chain is None:
        raise CheckpointError(f"{folder} has no chain.jsonl to compare with: it is of an earlier version of shoal.")
    if chain.problems:
        raise CheckpointError(f"the chain of {folder} is damaged: {chain.problems[0]}; see shoal verify {folder}")
    if not chain.links:
        raise ConfigError(f"{folder} has no finished iteration to compare with.")
    start = past.start_before(past.begins_after) if past.begins_after else None
    asked = min(past.begins_after + iterations, come_to)
    last = min(past.begins_after + iterations, max(chain.links))
    if last <= past.begins_after:
        raise ConfigError(f"{folder} has no finished iteration after {past.begins_after} to compare with.")
    run = scratch_run(past, scratch, start, last)
    differs_at: int | None = None
    parts: list[str] = []
    until = last
    at = past.begins_after
    with closing(run.results(hold_signals=True)) as results:
        for result in results:
            at = int(result["training_iteration"])
            assert run.last_link is not None
            is_same = run.last_link.link == chain.links[at].link
            tell(at, is_same)
            if not is_same and differs_at is None:
                differs_at, parts = at, chain.links[at].differing(run.last_link)
                until = _checkpoint_after(past, at, last)
            if at >= until:
                break
    here = read_chain(scratch)
    head = {} if here is None else {**here.head, **(here.machines[-1][1] if here.machines else {})}
    details = _details(past, run.last_checkpoint, at) if differs_at is not None else None
    return Reproduction(
        past.begins_after,
        at if differs_at is None else differs_at - 1,
        differs_at,
        tuple(parts),
        at if details is not None else None,
        tuple(details or ()),
        tuple(machine_differences(chain.head, head)),
        run.outcome,
        come_to if asked > last else None,
    )


def _checkpoint_after(past: PastRun, iteration: int, last: int) -> int:
    """The first iteration from this one on that the past run has a checkpoint of; else this one."""
    found = [iteration_of(path) for path in checkpoints_of(past.folder)]
    return min((number for number in found if iteration <= number <= last), default=iteration)


def _details(past: PastRun, here: Path | None, iteration: int) -> list[str] | None:
    """In what the two states after an iteration differ; None without a checkpoint of the past run to look into."""
    there = past.folder / f"checkpoint_{iteration:06d}"
    if here is None or not there.is_dir() or iteration_of(here) != iteration:
        return None
    try:
        return differences(read_checkpoint(there).state, read_checkpoint(here).state)
    except CheckpointError:
        return None
