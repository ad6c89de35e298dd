"""What a run keeps on disk: its experiment, and its last finished iteration as a checkpoint.

What is saved on schedule is written by a thread beside training, from a copy in memory. What is saved at the end, at a
signal or because a program says so is written at once, after whatever that thread has to do.
"""

from __future__ import annotations

import errno
import json
import logging
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from shoal.config.experiment import Experiment, experiment_yaml
from shoal.data.state import State
from shoal.envs.importing import UserCode
from shoal.errors import CheckpointError, FolderGone, RowsLost, ShoalError
from shoal.machine.memory import available_memory
from shoal.runs.atomic_files import remove_folder, replace_file
from shoal.runs.background_writer import BackgroundWriter
from shoal.runs.chain import Chain, has_chain
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.checkpoints import Checkpoint, newest_good, prune, rows_of, tidy, write_checkpoint
from shoal.runs.folders import EXPERIMENT_FILE
from shoal.runs.lease import Lease
from shoal.runs.lost_processes import forget_memory, note_memory
from shoal.runs.outcomes import Outcome, free_room, keep_room, write_outcome
from shoal.runs.resuming import tree_of
from shoal.runs.row_segments import SavedRows, Snapshot, copied_bytes, moved_to, snapshot

logger = logging.getLogger("shoal.runs")

Summary = dict[str, float]

FIRST_REMINDER_S = 600.0  # after which a save that fails again is told again, then after twice as long
SLOW_S = 10.0  # after which a checkpoint that is still being written is told of
SMALL_COPY = 64 << 20  # bytes of memory that a save beside training may always take
WRITE_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "make it writable, or copy it to where you may write"),
}
"""What to do about what a disk says."""
SHARE_FOR_COPIES = 0.25  # of the memory that is available: beyond that, training waits for the disk


@dataclass
class SaveTimes:
    """Seconds that saving has taken since they were last told: of training, and of the disk."""

    blocked: float = 0.0
    written: float = 0.0


class RunFolder:
    """The folder of a run, which it writes alone while it is `held`.

    `path` changes where somebody moves the folder. `newest` is its newest checkpoint, `saved_iteration` the iteration
    of the one that the run goes on from, or has written. `on_checkpoint` is called with each that is written.
    `chain` is its receipt, if it has one. `last_save_s` is how long the disk took for the last checkpoint.
    """

    def __init__(self, path: Path, experiment: Experiment, user_code: UserCode) -> None:
        self.path = path
        self.newest = next(iter(checkpoints_of(path)), None)
        self.saved_iteration = 0
        self.on_checkpoint: Callable[[Path], None] = lambda _: None
        self.chain: Chain | None = None
        self._experiment, self._user_code = experiment, user_code
        self._lease: Lease | None = None
        self._leases = ExitStack()  # what gives it back, and another that has taken its place
        self._last: tuple[Summary, State] | None = None
        self.last_save_s = 0.0
        self._rows: dict[str, SavedRows] = {}  # of the newest checkpoint, which the next may share
        self._untold: list[Path] = []
        self._errors: list[ShoalError] = []  # of the thread that writes, not told yet
        self._writing = threading.RLock()
        self._writer = BackgroundWriter("shoal-checkpoints")
        self._times = SaveTimes()
        self._is_told_slow = False
        self._may_prune = False  # whether the newest checkpoint is surely on the disk
        self._reminder_s, self._remind_at = FIRST_REMINDER_S, 0.0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be its only writer, and write down the experiment."""
        with ExitStack() as stack:
            with write_errors_named(self.path):
                stack.callback(lambda: forget_memory(self.path))
                stack.callback(lambda: free_room(self.path))
                lease = stack.enter_context(Lease(self.path, lambda: note_memory(self.path)))
                tidy(self.path)
                self._write_down()
                keep_room(self.path)
            self._lease, self._leases = lease, stack
            try:
                yield
            finally:
                self._writer.close()
                self._lease = None

    def begin(self) -> Checkpoint | None:
        """The checkpoint to go on from, the newest that is good."""
        start = newest_good(self.path)
        if start is None and checkpoints_of(self.path):
            again = f"shoal train -f {shlex.quote(str(self.path / 'config.yaml'))} --new"
            raise CheckpointError(f"no checkpoint of {self.path} can be read; start another run: {again}")
        if start is None:
            self.newest, self.saved_iteration = None, 0
        else:
            self.newest, self.saved_iteration = start.path, _iteration(start.summary)
            self._rows = start.saved_rows
        return start

    def note(self, summary: Summary, state: State) -> None:
        """Remember the last finished iteration: this is what will be saved."""
        self._last = summary, state

    def link(self) -> None:
        """Write the receipt of the last finished iteration, unless it has one."""
        last = self._last
        if self.chain is not None and last is not None and has_chain(last[1]):
            self.chain.append(last[1])

    def save(self) -> None:
        """Make the last finished iteration a checkpoint, unless it is one, and tell of it; return once it is there."""
        begun = monotonic()
        self.write()
        self._times.blocked += monotonic() - begun
        self._hear()
        self._prune()

    def save_if_due(self) -> None:
        """Save on schedule, beside training; a disk that is full now may have room at the next time."""
        begun = monotonic()
        self._hear()
        every = self._experiment.checkpoint_freq
        if self._last is not None and every and _iteration(self._last[0]) % every == 0:
            self._save_beside(*self._last)
        self._times.blocked += monotonic() - begun

    def settle(self) -> None:
        """Wait for what is being written, and tell of it, or of what was wrong."""
        begun = monotonic()
        self.wait()
        self._hear()
        self._prune()
        self._times.blocked += monotonic() - begun

    def wait(self) -> None:
        """Wait until nothing is being written beside training."""
        while not self._writer.wait(SLOW_S):
            self._tell_if_slow()

    def take_times(self) -> dict[str, float]:
        """How long saving has held up training, and the disk, since this was asked last; by names of results."""
        taken, self._times = self._times, SaveTimes()
        return {"save_s": taken.blocked, "save_beside_s": taken.written}

    def write(self) -> None:
        """Write the last finished iteration unless it is written; any thread may, and `save` tells of it later."""
        self.wait()
        with self._writing:
            if self._lease is not None and self._last is not None:
                summary, state = self._last
                if _iteration(summary) > self.saved_iteration:
                    self._write(summary, state)

    def replace(self, checkpoint: Checkpoint, state: State) -> None:
        """Put another state in the place of a checkpoint's own, whose iteration and numbers stay."""
        self.wait()
        with self._writing:
            self.note(checkpoint.summary, state)
            if self.chain is not None and has_chain(state):
                self.chain.again(state)
            self._write(checkpoint.summary, state)
        self._tell()

    def confirm(self) -> None:
        """Make sure that the folder is there and ours; if it is gone, save what there is before that is told."""
        assert self._lease is not None
        try:
            self._lease.confirm()
        except FolderGone as error:
            raise self._rescued(error) from None

    def leave_word(self, outcome: Outcome) -> None:
        """Write down how the run ended, if the folder is still ours; a disk that takes no more was told of already."""
        with suppress(OSError, ShoalError):
            if self._lease is not None:
                self._lease.confirm()
                iteration = None if self._last is None else _iteration(self._last[0])
                write_outcome(self.path, replace(outcome, iteration=iteration))

    def remove(self) -> None:
        """Leave nothing of a run that never began."""
        remove_folder(self.path)
        with suppress(OSError):  # other runs are in it
            self.path.parent.rmdir()

    def _save_beside(self, summary: Summary, state: State) -> None:
        """Let the last finished iteration be written while training goes on, if there is memory for a copy of it."""
        needed = copied_bytes(state, self._rows)
        if needed > SMALL_COPY and needed > SHARE_FOR_COPIES * available_memory():
            self._write_or_complain()
            return
        taken = snapshot(state, self._rows)
        if not self._writer.give(lambda: self._work(summary, taken)):
            self._tell_if_slow(anyway=True)

    def _write_or_complain(self) -> None:
        """Write the last finished iteration at once; a disk that is full now may have room at the next time."""
        try:
            self.write()
        except FolderGone:
            raise
        except ShoalError as error:
            self._complain(error)
        self._tell()

    def _work(self, summary: Summary, taken: Snapshot) -> None:
        """Write a checkpoint in the thread beside training, and keep what went wrong for the run."""
        try:
            with self._writing:
                if self._lease is not None and _iteration(summary) > self.saved_iteration:
                    self._lease.confirm()
                    self._put(summary, moved_to(taken, self._rows))
        except ShoalError as error:
            if isinstance(error, RowsLost):
                self._rows = {}
            self._errors.append(error)
        except Exception as error:
            self._errors.append(CheckpointError(f"a checkpoint could not be written: {type(error).__name__}: {error}."))

    def _write(self, summary: Summary, state: State) -> None:
        """Write a checkpoint in the calling thread."""
        self.confirm()
        self.link()
        try:
            self._put(summary, snapshot(state, self._rows, copies=False))
        except RowsLost:
            self._rows = {}
            self._put(summary, snapshot(state, copies=False))

    def _put(self, summary: Summary, taken: Snapshot) -> None:
        """Write a checkpoint after the receipt of its iteration, and remove those that are too many."""
        begun = monotonic()
        self._may_prune = False
        if self.chain is not None:
            self.chain.sync()
        path = write_checkpoint(self.path, taken, self._tree(), summary)
        self._rows = rows_of(path, taken)
        self.newest, self.saved_iteration = path, _iteration(summary)
        self._untold.append(path)
        self._may_prune = True
        self._reminder_s, self._remind_at = FIRST_REMINDER_S, 0.0
        self._prune()
        self.last_save_s = monotonic() - begun
        self._times.written += self.last_save_s

    def _prune(self) -> None:
        """Remove the checkpoints that are too many, but none that the user's hook has not been told of."""
        wanted = self._experiment
        with self._writing:
            if self._lease is not None and self._may_prune:
                prune(self.path, wanted.keep_checkpoints_num, wanted.checkpoint_score_attr, self._untold)

    def _hear(self) -> None:
        """Tell of what the thread beside training has written, and of what went wrong."""
        self._tell_if_slow()
        self._tell()
        while self._errors:
            error = self._errors.pop(0)
            if isinstance(error, RowsLost):  # but all of them are still in memory
                self._write_or_complain()
            elif not isinstance(error, FolderGone):  # which is found out, and answered, by `confirm`
                self._complain(error)

    def _tell(self) -> None:
        while self._untold:
            self.on_checkpoint(self._untold.pop(0))

    def _tell_if_slow(self, anyway: bool = False) -> None:
        """Tell once that the disk is slow."""
        since = self._writer.busy_s()
        if (since > SLOW_S or anyway) and not self._is_told_slow:
            self._is_told_slow = True
            logger.warning(
                "The disk of %s is slow: a checkpoint has been written for %.0f s. Training continues; of checkpoints "
                "that are due meanwhile only the newest is written.",
                self.path,
                since,
            )

    def _complain(self, error: ShoalError) -> None:
        """Tell that a save failed; the same again only after ever longer times."""
        if monotonic() >= self._remind_at:
            again = f"{self._reminder_s / 60:.0f} min"
            logger.error("%s Training continues, and every save is tried; the next reminder is in %s.", error, again)
            self._remind_at = monotonic() + self._reminder_s
            self._reminder_s *= 2

    def _rescued(self, error: FolderGone) -> FolderGone:
        """Save the last iteration where the folder is now, or in a new folder at its old place; the error tells it.

        From then on that place is ours. What is there by now is somebody else's, and stays as it is.
        """
        assert self._lease is not None
        self._writer.wait(SLOW_S)  # in vain, if it waits for who asks here
        is_whole = error.moved_to is not None
        if error.moved_to is not None:
            self.path = error.moved_to
            self._lease.follow(self.path)
        self.newest = next(iter(checkpoints_of(self.path)), None) if is_whole else None
        if self._last is None:
            return error
        summary, state = self._last
        try:
            if not is_whole:
                self.path.mkdir(parents=True, exist_ok=error.is_there)
                self._lease = self._leases.enter_context(Lease(self.path))
            if not is_whole or _iteration(summary) > self.saved_iteration:
                self.newest = write_checkpoint(self.path, state, self._tree(), summary)
                self.saved_iteration = _iteration(summary)
            if not is_whole:
                self._write_down()
        except (OSError, ShoalError) as another:
            why = another.strerror if isinstance(another, OSError) else another
            error.args = (f"{error} Its last iteration could not be saved: {why}.",)
            return error
        error.args = (f"{error} Its last iteration is saved in {self.newest}.",)
        return error

    def _write_down(self) -> None:
        """Write the resolved experiment, for people and for `resume`."""
        from shoal.config.yaml_files import schema_line  # here, so that who only reads runs needs no YAML parser

        text = schema_line() + experiment_yaml(self._experiment)
        replace_file(self.path / "config.yaml", text.encode())
        replace_file(self.path / EXPERIMENT_FILE, json.dumps(self._tree(), indent=1).encode())

    def _tree(self) -> dict[str, Any]:
        return tree_of(self._experiment, self._user_code)


@contextmanager
def write_errors_named(folder: Path) -> Iterator[None]:
    """Turn what the disk says into a sentence."""
    try:
        yield
    except OSError as error:
        remedy = WRITE_REMEDIES.get(error.errno or 0, "look at the file system that it is on")
        raise CheckpointError(f"{folder} cannot be written: {error.strerror or error}; {remedy}.") from error


def _iteration(summary: Summary) -> int:
    return int(summary["training_iteration"])
