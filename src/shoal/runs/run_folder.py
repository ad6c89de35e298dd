"""What a run keeps on disk: its experiment, and its last finished iteration as a checkpoint."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

from shoal.config.experiment import Experiment, experiment_yaml
from shoal.data.state import State
from shoal.envs.importing import UserCode
from shoal.errors import CallbackError, CheckpointError, FolderGone, ShoalError
from shoal.runs.atomic_files import remove_folder, replace_file
from shoal.runs.chain import Chain, has_chain
from shoal.runs.checkpoints import Checkpoint, checkpoints_of, newest_good, prune, tidy, write_checkpoint
from shoal.runs.folders import EXPERIMENT_FILE
from shoal.runs.lease import Lease
from shoal.runs.outcomes import Outcome, write_outcome
from shoal.runs.resuming import tree_of

logger = logging.getLogger("shoal.runs")

Summary = dict[str, float]

FIRST_REMINDER_S = 600.0  # after which a save that fails again is told again, then after twice as long


class RunFolder:
    """The folder of a run, which it writes alone while it is `held`.

    `path` changes where somebody moves the folder. `newest` is its newest checkpoint, `saved_iteration` the iteration
    of the one that the run goes on from, or has written. `on_checkpoint` is called with each that is written.
    `chain` is its receipt, if it has one.
    """

    def __init__(self, path: Path, experiment: Experiment, user_code: UserCode) -> None:
        self.path = path
        self.newest = next(iter(checkpoints_of(path)), None)
        self.saved_iteration = 0
        self.on_checkpoint: Callable[[Path], None] = lambda _: None
        self.chain: Chain | None = None
        self._experiment, self._user_code = experiment, user_code
        self._lease: Lease | None = None
        self._last: tuple[Summary, State] | None = None
        self._untold: Path | None = None
        self._writing = threading.RLock()
        self._reminder_s, self._remind_at = FIRST_REMINDER_S, 0.0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be its only writer, and write down the experiment."""
        with ExitStack() as stack:
            with write_errors_named(self.path):
                lease = stack.enter_context(Lease(self.path))
                tidy(self.path)
                self._write_down()
            self._lease = lease
            try:
                yield
            finally:
                self._lease = None

    def begin(self) -> Checkpoint | None:
        """The checkpoint to go on from, the newest that is good."""
        start = newest_good(self.path)
        if start is None and checkpoints_of(self.path):
            raise CheckpointError(f"no checkpoint of {self.path} can be read; start another run with --new.")
        if start is None:
            self.newest, self.saved_iteration = None, 0
        else:
            self.newest, self.saved_iteration = start.path, _iteration(start.summary)
        return start

    def note(self, summary: Summary, state: State) -> None:
        """Remember the last finished iteration: this is what will be saved."""
        self._last = summary, state

    def link(self) -> None:
        """Write the receipt of the last finished iteration, unless it has one."""
        with self._writing:
            if self.chain is not None and self._last is not None and has_chain(self._last[1]):
                self.chain.append(self._last[1])

    def save(self) -> None:
        """Make the last finished iteration a checkpoint, unless it is one, and tell of it."""
        self.write()
        self._tell()

    def save_if_due(self) -> None:
        """Save on schedule; a disk that is full now may have room at the next time, so training goes on."""
        every = self._experiment.checkpoint_freq
        if self._last is None or not every or _iteration(self._last[0]) % every != 0:
            return
        try:
            self.save()
        except (CallbackError, FolderGone):
            raise
        except ShoalError as error:
            self._complain(error)

    def write(self) -> None:
        """Write the last finished iteration unless it is written; any thread may, and `save` tells of it later."""
        with self._writing:
            if self._lease is not None and self._last is not None:
                summary, state = self._last
                if _iteration(summary) > self.saved_iteration:
                    self._write(summary, state)

    def replace(self, checkpoint: Checkpoint, state: State) -> None:
        """Put another state in the place of a checkpoint's own, whose iteration and numbers stay."""
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
                write_outcome(self.path, outcome)

    def remove(self) -> None:
        """Leave nothing of a run that never began."""
        remove_folder(self.path)
        with suppress(OSError):  # other runs are in it
            self.path.parent.rmdir()

    def _write(self, summary: Summary, state: State) -> None:
        self.confirm()
        self.link()
        if self.chain is not None:
            self.chain.sync()
        self.newest = write_checkpoint(self.path, state, self._tree(), summary)
        self.saved_iteration, self._untold = _iteration(summary), self.newest
        self._reminder_s, self._remind_at = FIRST_REMINDER_S, 0.0
        prune(self.path, self._experiment.keep_checkpoints_num, self._experiment.checkpoint_score_attr)

    def _tell(self) -> None:
        if self._untold is not None:
            checkpoint, self._untold = self._untold, None
            self.on_checkpoint(checkpoint)

    def _complain(self, error: ShoalError) -> None:
        """Tell that a save failed; the same again only after ever longer times."""
        if monotonic() >= self._remind_at:
            again = f"{self._reminder_s / 60:.0f} min"
            logger.error("%s Training continues, and every save is tried; the next reminder is in %s.", error, again)
            self._remind_at = monotonic() + self._reminder_s
            self._reminder_s *= 2

    def _rescued(self, error: FolderGone) -> FolderGone:
        """Save the last iteration where the folder is now, or in a new folder at its old place; the error tells it.

        What is there by now is somebody else's, and stays as it is.
        """
        is_whole = error.moved_to is not None
        self.path = error.moved_to or self.path
        self.newest = next(iter(checkpoints_of(self.path)), None) if is_whole else None
        if self._last is None:
            return error
        summary, state = self._last
        try:
            if not is_whole:
                self.path.mkdir(parents=True, exist_ok=error.is_there)
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
        raise CheckpointError(
            f"{folder} cannot be written: {error.strerror or error}; free some space, or use --new."
        ) from error


def _iteration(summary: Summary) -> int:
    return int(summary["training_iteration"])
