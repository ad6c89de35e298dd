"""Where a run broke: the iteration by its results, then minibatch and environment by training that stretch again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal.algorithms.optimizer import Optimizer
from shoal.config.problems import printable
from shoal.data.batch import Batch, Sample
from shoal.data.number_text import number_text
from shoal.data.results import flat, number_in
from shoal.data.state import State
from shoal.errors import CheckpointError
from shoal.runs.atomic_files import remove_tree, replace_file
from shoal.runs.checkpoints import read_checkpoint, write_checkpoint
from shoal.runs.retraining import PastRun, past_run, with_workers
from shoal.runs.run import make_trainer
from shoal.runs.trainer import Trainer

RETURN = "episode_reward_mean"
LOST = 0.5  # of what the return had gained
FEWEST = 3  # results before a return can collapse
FAR = 10.0  # times the median of environments is far out
BISECT_FOLDER = "bisect"
SCRIPT = "show.py"

RULES = (
    "not finite: a minibatch or step was refused because its gradient was not finite, or a loss is not a number",
    f"collapse: the mean return lost more than {LOST:.0%} of all that it had gained since the first iteration, and "
    "never had more again",
)


@dataclass(frozen=True)
class Breakdown:
    """Where results show that a run broke: in an iteration later than `after`, when all was well, up to `iteration`."""

    kind: str
    after: int
    iteration: int
    sentence: str


@dataclass
class WatchedIteration:
    """What was seen in one iteration."""

    iteration: int
    norms: list[float | None] = field(default_factory=list)
    """The gradient's norm of each minibatch in order; None where it was refused."""
    extremes: list[tuple[str, int, int, float, float]] = field(default_factory=list)
    """Where an environment is far out: what, its index, the step of the fragment, the value, and the usual one."""
    kl: float | None = None

    @property
    def first_refused(self) -> int | None:
        """The number of the first minibatch that was refused, from 1."""
        return next((place for place, norm in enumerate(self.norms, start=1) if norm is None), None)

    @property
    def worst(self) -> tuple[int, float] | None:
        """The minibatch with the largest gradient, from 1, and its norm."""
        sizes = [(norm, place) for place, norm in enumerate(self.norms, start=1) if norm is not None]
        return (max(sizes)[1], max(sizes)[0]) if sizes else None

    @property
    def largest(self) -> float:
        """The largest norm of a gradient."""
        return max((norm for norm in self.norms if norm is not None), default=0.0)

    def lines(self) -> list[str]:
        """What a person wants to know of it."""
        found = [f"iteration {self.iteration}: {len(self.norms)} minibatches"]
        if self.first_refused is not None:
            refused = sum(norm is None for norm in self.norms)
            found.append(f"  minibatch {self.first_refused} is the first of {refused} whose gradient is not finite")
        if self.worst is not None:
            usual = float(np.median([norm for norm in self.norms if norm is not None]))
            place, norm = self.worst
            found.append(f"  minibatch {place} has the largest gradient: norm {norm:.3g}, the median is {usual:.3g}")
        if self.kl is not None:
            found.append(f"  the policy moved by a KL of {self.kl:.3g}")
        for what, index, step, value, usual in self.extremes:
            found.append(f"  environment {index}, step {step}: {what} {value:.3g}, of others at most {usual:.3g}")
        return found


def breakdown(results: Sequence[Mapping[str, Any]]) -> Breakdown | None:
    """Where a run broke by its results, the first of the rules that holds; None if none does."""
    return _not_finite(results) or _collapse(results)


def _not_finite(results: Sequence[Mapping[str, Any]]) -> Breakdown | None:
    for result in results:
        iteration = int(result["training_iteration"])
        for name in ("refused_minibatches", "refused_steps"):
            if count := _summed(result, name):
                words = f"{int(count)} {name.replace('_', ' ')} in iteration {iteration}"
                return Breakdown("not finite", iteration - 1, iteration, words)
        learner = result.get("learner") or {}
        for name, value in learner.items():
            if name.endswith("_loss") and value is None:
                words = f"learner/{name} is not a number in iteration {iteration}"
                return Breakdown("not finite", iteration - 1, iteration, words)
    return None


def _summed(result: Mapping[str, Any], name: str) -> float:
    """A count of the learner, over all policies."""
    found = [value for key, value in flat(result).items() if key.startswith("learner/") and key.endswith(f"/{name}")]
    return float(sum(found))


def _collapse(results: Sequence[Mapping[str, Any]]) -> Breakdown | None:
    pairs = [(int(result["training_iteration"]), number_in(result, RETURN)) for result in results]
    returns = [(iteration, value) for iteration, value in pairs if value is not None]
    if len(returns) <= FEWEST:
        return None
    first = returns[0][1]
    peak_at, peak = max(returns, key=lambda pair: pair[1])
    line = peak - LOST * (peak - first)
    after = [(iteration, value) for iteration, value in returns if iteration > peak_at]
    if peak <= first or not after or after[-1][1] >= line:
        return None
    broke = after[-1][0]
    for iteration, value in reversed(after):
        if value >= line:
            break
        broke = iteration
    words = (
        f"{RETURN} was {number_text(peak)} at iteration {peak_at}, fell below {number_text(line)} at iteration {broke} "
        f"and is {number_text(after[-1][1])} at the end"
    )
    # A return is that of the policy before its iteration's update, which may be the one to blame.
    return Breakdown("collapse", peak_at - 1, broke, words)


class WatchedWorkers:
    """Workers whose samples are looked at before a learner gets them."""

    def __init__(self, workers: Any, look: Callable[[Batch, Sequence[int]], None]) -> None:
        self._workers, self._look = workers, look

    def sample(self, steps: int) -> Sample:
        """See `Workers`."""
        return self._looked_at(self._workers.sample(steps))

    def finished_fragments(self, wait: bool = True) -> list[Sample]:
        """See `Workers`."""
        return [self._looked_at(sample) for sample in self._workers.finished_fragments(wait)]

    def _looked_at(self, sample: Sample) -> Sample:
        batch = sample.batch
        indices: Sequence[int] = range(batch.valid.shape[1])
        if sample.env_indices is not None:
            indices = sample.env_indices
        elif batch.columns is not None:
            indices = batch.columns.tolist()
        self._look(batch, indices)
        return sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workers, name)


@contextmanager
def watching(trainer: Trainer) -> Iterator[WatchedIteration]:
    """Watch the next iteration of a trainer: every minibatch that this process steps along, and every environment."""
    watch = WatchedIteration(trainer.iteration + 1)
    step, sampled = Optimizer.step, trainer._sampled

    def stepped(optimizer: Optimizer, gradient: Any, lr: float) -> float | None:
        norm = step(optimizer, gradient, lr)
        watch.norms.append(norm)
        return norm

    Optimizer.step = stepped  # type: ignore[method-assign, assignment]
    trainer._sampled = WatchedWorkers(sampled, lambda batch, indices: watch.extremes.extend(far_out(batch, indices)))
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what is watched for is told in words
            yield watch
    finally:
        Optimizer.step = step  # type: ignore[method-assign]
        trainer._sampled = sampled


def far_out(batch: Batch, indices: Sequence[int]) -> list[tuple[str, int, int, float, float]]:
    """The environment whose largest reward or observation is far from that of the others, if one is."""
    found = []
    sizes = {"reward": np.abs(np.where(batch.valid, batch.rewards, 0))}
    vectors = [part for part in batch.obs if part.dtype.kind == "f"]
    if vectors:
        largest = [np.abs(part).reshape(*part.shape[:2], -1).max(axis=2, initial=0) for part in vectors]
        sizes["observation"] = np.where(batch.valid, np.max(largest, axis=0), 0)
    for what, size in sizes.items():
        highest = size.max(axis=0)
        column = int(highest.argmax())
        others = np.delete(highest, column)
        usual = float(others.max()) if len(others) else float(np.median(size[:, column]))
        if highest[column] > FAR * usual and highest[column] > 0:
            found.append((what, int(indices[column]), int(size[:, column].argmax()), float(highest[column]), usual))
    return found


@dataclass(frozen=True)
class Found:
    """Where a run broke, and what training that stretch again showed; `watch` is None if it did not break again."""

    breakdown: Breakdown
    watch: WatchedIteration | None
    script: Path | None


def bisect(
    folder: Path,
    results: Sequence[Mapping[str, Any]],
    trust: bool = False,
    tell: Callable[[WatchedIteration], None] = lambda watch: None,
) -> Found | None:
    """Find where a run broke, train from the checkpoint before, and leave a script that shows it; None if it did not.

    `tell` hears of each iteration that is trained again within the stretch.
    """
    broke = breakdown(results)
    if broke is None:
        return None
    past = with_workers(past_run(folder, trust), None)
    watches: list[WatchedIteration] = []
    trainer = _opened(past, past.start_before(broke.after))
    try:
        while trainer.iteration < broke.iteration:
            if trainer.iteration < broke.after:
                trainer.train()
                continue
            before = trainer.get_state()
            watch = _watched(trainer)
            tell(watch)
            watches.append(watch)
            if watch is _worst(watches, broke):
                # At once, for what is remembered (replay) is in a state by reference: a later iteration writes over it.
                _keep_before(folder / BISECT_FOLDER, watch.iteration, before, past.tree)
    finally:
        trainer.stop()
    worst = _worst(watches, broke)
    if worst is None:
        return Found(broke, None, None)
    script = folder / BISECT_FOLDER / SCRIPT
    replace_file(script, _script(folder, broke, worst).encode())
    return Found(broke, worst, script)


def _keep_before(place: Path, iteration: int, state: State, tree: Mapping[str, Any]) -> None:
    """Leave in a folder, in place of what was there, the state that an iteration began with; the first has none."""
    remove_tree(place)
    if iteration > 1:
        counters = {"training_iteration": iteration - 1, "timesteps_total": state.values["timesteps_total"]}
        write_checkpoint(place, state, tree, counters)
    place.mkdir(exist_ok=True)


def _watched(trainer: Trainer) -> WatchedIteration:
    with watching(trainer) as watch:
        result = trainer.train()
    watch.kl = number_in(result, "learner/kl")
    return watch


def _worst(watches: Sequence[WatchedIteration], broke: Breakdown) -> WatchedIteration | None:
    """The iteration that is to blame: the first with a refused gradient, or the one that moved the policy the most."""
    if broke.kind == "not finite":
        return next((watch for watch in watches if watch.first_refused is not None), None)
    return max(watches, key=lambda watch: (watch.kl or 0.0, watch.largest), default=None)


def _opened(past: PastRun, start: Path | None) -> Trainer:
    return make_trainer(past.experiment, past.user_code, read_checkpoint(start) if start is not None else None)


@contextmanager
def reopened(folder: str | Path, before: int, trust: bool = False) -> Iterator[Trainer]:
    """The trainer of a run as it was before an iteration that `bisect` has found."""
    past = with_workers(past_run(Path(folder), trust), None)
    start = past.folder / BISECT_FOLDER / f"checkpoint_{before - 1:06d}" if before > 1 else None
    if start is not None and not start.is_dir():
        raise CheckpointError(f"{start} is missing; type shoal bisect {folder}")
    trainer = _opened(past, start)
    try:
        yield trainer
    finally:
        trainer.stop()


def _script(folder: Path, broke: Breakdown, worst: WatchedIteration) -> str:
    # Names come from the run, which may be a stranger's: in a comment, on one line each, they are no code.
    told = [f"Shows where {folder.name} broke: {broke.sentence}.", "", *worst.lines()]
    comment = "\n".join(f"# {printable(line)}".rstrip() for line in told)
    return f"""{comment}

from shoal.runs.bisecting import reopened, watching

with reopened({str(folder)!a}, before={worst.iteration}) as trainer, watching(trainer) as watch:
    trainer.train()
for line in watch.lines():
    print(line)
for number, norm in enumerate(watch.norms, start=1):
    print(number, "not finite" if norm is None else norm)
"""
