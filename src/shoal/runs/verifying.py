"""Whether a run is what its training wrote: its experiment, results, chain and checkpoints, one against the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.data.findings import Finding
from shoal.errors import CheckpointError
from shoal.runs.bounded_files import bounded_bytes, bounded_json
from shoal.runs.chain import PARTS, ChainRecord, has_chain, hashes_of, read_chain
from shoal.runs.checkpoint_folders import LIMITS, checkpoints_of, iteration_of
from shoal.runs.checkpoints import Checkpoint, best_checkpoint, checkpoint_hash, checkpoint_size, read_in_place
from shoal.runs.folders import EXPERIMENT_FILE, env_text
from shoal.runs.lease import LeaseWatch
from shoal.runs.results_check import Receipts, checked_results
from shoal.runs.resuming import stored_tree
from shoal.runs.user_files import CODE_FOLDER, kept_code, kept_hashes

NOTHING_LEFT = "no checkpoint of the run is good, so nothing is left to go on from"


@dataclass(frozen=True)
class ListedCheckpoint:
    """One checkpoint of a run; `sha256` is that of its manifest, `problem` why it is refused, if it is."""

    path: Path
    iteration: int
    timesteps_total: int | None
    size: int
    sha256: str | None
    is_newest: bool
    is_best: bool
    problem: str | None

    def to_json(self) -> dict[str, Any]:
        """The same in JSON's types."""
        return {
            "path": str(self.path),
            "iteration": self.iteration,
            "timesteps_total": self.timesteps_total,
            "bytes": self.size,
            "sha256": self.sha256,
            "newest": self.is_newest,
            "best": self.is_best,
            "good": self.problem is None,
            "problem": self.problem,
        }


def listed_checkpoints(folder: Path, score: str | None = None) -> list[ListedCheckpoint]:
    """The checkpoints of a run, oldest first, after every byte of each was compared with its hash."""
    newest = next(iter(checkpoints_of(folder)), None)
    best = best_checkpoint(folder, score or score_of(folder))
    found = []
    for path in reversed(checkpoints_of(folder)):
        problem, timesteps = None, None
        try:
            timesteps = read_in_place(path).summary.get("timesteps_total")
        except CheckpointError as error:
            problem = str(error)
        number, size, proof = iteration_of(path), checkpoint_size(path), checkpoint_hash(path)
        found.append(ListedCheckpoint(path, number, timesteps, size, proof, path == newest, path == best, problem))
    return found


def score_of(folder: Path) -> str:
    """By which result the best checkpoint of a run is told: its own `checkpoint_score_attr`, or the mean return."""
    tree = stored_tree(folder) or {}
    return str(tree.get("checkpoint_score_attr") or "episode_reward_mean")


def verify_run(folder: Path) -> list[Finding]:
    """What is right and wrong with a run's experiment, results, checkpoints and chain."""
    findings: list[Finding] = []
    is_written = LeaseWatch().is_written(folder)  # first: it may end while its files are read
    chain: ChainRecord | None = None
    try:
        chain = read_chain(folder)
    except CheckpointError as error:
        findings.append(Finding("chain", "problem", f"{error}", "the run can go on; its chain begins anew"))
    else:
        findings.append(_of_chain(chain))
    findings += _of_other_files(folder, chain)
    of_checkpoints, summaries = _of_checkpoints(folder, chain)
    findings.append(checked_results(folder, _receipts(chain, summaries, is_written)))
    return [*findings, *of_checkpoints]


def _receipts(chain: ChainRecord | None, summaries: Mapping[int, Mapping[str, float]], is_written: bool) -> Receipts:
    """What the results must agree with: of a chain that is damaged nothing is known."""
    if chain is None or chain.problems:
        return Receipts(summaries=summaries, is_written=is_written)
    timesteps = {iteration: link.timesteps_total for iteration, link in chain.links.items()}
    return Receipts(timesteps, not chain.begins_after, summaries, is_written)


def _of_checkpoints(folder: Path, chain: ChainRecord | None) -> tuple[list[Finding], dict[int, Mapping[str, float]]]:
    """What is right and wrong with each checkpoint, and the numbers of those that are good, by their iteration."""
    paths = checkpoints_of(folder)[::-1]
    if not paths:
        return [Finding("checkpoints", "note", "there are none")], {}
    findings: list[Finding] = []
    refused: dict[str, str] = {}
    summaries: dict[int, Mapping[str, float]] = {}
    for path in paths:
        try:
            checkpoint = read_in_place(path)
        except CheckpointError as error:
            refused[path.name] = str(error)
            findings.append(Finding(path.name, "problem", str(error)))
            continue
        findings.append(_of_checkpoint(checkpoint, chain))
        if findings[-1].verdict != "problem":
            summaries[iteration_of(path)] = checkpoint.summary
    left = [path.name for path in paths if path.name not in refused]
    remedy = f"the run goes on from {left[-1]}, without it" if left else NOTHING_LEFT
    return [replace(one, remedy=remedy) if one.check in refused else one for one in findings], summaries


def _of_other_files(folder: Path, chain: ChainRecord | None) -> list[Finding]:
    """What is wrong with the experiment and with the copy of the user's code, which a run can go on without."""
    found = []
    try:
        tree = bounded_json(bounded_bytes(folder / EXPERIMENT_FILE, LIMITS[EXPERIMENT_FILE]), EXPERIMENT_FILE)
        _check_experiment(tree)
    except CheckpointError as error:
        found.append(Finding(EXPERIMENT_FILE, "problem", str(error), "the newest checkpoint has a copy of it"))
    try:
        kept_code(folder, trust=True)  # hashes alone: nothing of it is imported
        _check_code(folder, chain)
    except CheckpointError as error:
        found.append(Finding(CODE_FOLDER, "problem", str(error)))
    return found


def _check_code(folder: Path, chain: ChainRecord | None) -> None:
    """Refuse a copy of the user's code that is not what any of the run's processes had by its chain."""
    if chain is None or chain.problems or not (folder / CODE_FOLDER).is_dir():
        return
    known = [about["code"] for about in (chain.head, *(machine for _, machine in chain.machines)) if "code" in about]
    kept = kept_hashes(folder)
    if known and kept not in known:
        last = known[-1]
        name = next(name for name in sorted({*kept, *last}) if kept.get(name) != last.get(name))
        raise CheckpointError(f"{folder / CODE_FOLDER / name} is not that of the chain (SHA-256 differs)")


def _check_experiment(tree: Any) -> None:
    """Refuse what has not the keys of an experiment, without which a run cannot be listed."""
    try:
        str(tree["name"]), str(tree["run"]), dict(tree.get("stop") or {})
        env_text(dict(tree["config"]).get("env", ""))
    except (TypeError, ValueError, KeyError, AttributeError):
        raise CheckpointError(f"{EXPERIMENT_FILE} is no experiment: it needs name, run, stop and config") from None


def _of_chain(chain: ChainRecord | None) -> Finding:
    if chain is None:
        why = "there is none: it was removed, or the run is of an earlier version or of an algorithm of RLlib"
        return Finding("chain", "note", why)
    if chain.problems:
        return Finding("chain", "problem", "; ".join(chain.problems), "it was changed, or the disk lost a part of it")
    torn = "its last line is cut off, by a kill or a full disk, and does not count" if chain.is_cut_off else ""
    if not chain.links:
        return Finding("chain", "note", f"it has no iteration yet{torn and '; '}{torn}")
    last = chain.links[max(chain.links)]
    since = f" after {chain.begins_after}" if chain.begins_after else ""
    text = f"{len(chain.links)} iterations{since}, seed {chain.head.get('seed')}; the last link is {last.link[:16]}"
    if torn:
        return Finding("chain", "note", f"{text}; {torn}")
    return Finding("chain", "ok", text)


def _of_checkpoint(checkpoint: Checkpoint, chain: ChainRecord | None) -> Finding:
    path, iteration = checkpoint.path, iteration_of(checkpoint.path)
    whole = "every file is what was saved"
    if chain is None or not has_chain(checkpoint.state) or iteration <= chain.begins_after:
        return Finding(path.name, "ok", f"{whole}; the chain says nothing of it")
    link = chain.links.get(iteration)
    if link is None:
        return Finding(path.name, "problem", f"{whole}, but the chain has no iteration {iteration}")
    found = hashes_of(checkpoint.state)
    wrong = [part for part in PARTS if found[part] != getattr(link, part)]
    if wrong:
        text = f"its files are whole, but its {' and '.join(wrong)} are not those of the chain"
        return Finding(path.name, "problem", text, "it was put in another's place, or the chain was")
    return Finding(path.name, "ok", f"{whole}, and as in the chain")
