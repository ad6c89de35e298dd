"""Sampled steps as files: whole episodes in a folder of Parquet files (`output`).

The driver writes, from the batches that it learns from, so the files are the same with any number of workers. An
episode is written when it has ended. What is not written yet is part of the checkpoint, and files are numbered: a run
that is resumed writes its next file over whatever an earlier process wrote beyond the checkpoint. So there are neither
gaps nor steps that are there twice, however a run ended. A file appears whole or not at all.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Batch, Parts, Sample
from shoal.data.state import State
from shoal.envs.experience_columns import ExperienceColumns
from shoal.errors import ConfigError, ShoalError
from shoal.models.policy import Policy
from shoal.parallel.workers import Workers
from shoal.runs.atomic_files import replace_file
from shoal.runs.folders import check_writable

FILE_BYTES = 16 << 20  # of steps in memory from which on they become a file


@dataclass
class RecordedEpisode:
    """The steps of one episode, in the pieces in which they were sampled."""

    env_index: int
    obs: list[Parts] = field(default_factory=list)
    actions: list[NDArray[Any]] = field(default_factory=list)
    rewards: list[NDArray[np.float32]] = field(default_factory=list)
    length: int = 0
    terminated: bool = False
    truncated: bool = False
    following: Parts | None = None  # the observation after the last step, each part [1, ...]

    def add(self, batch: Batch, rows: NDArray[np.int64], column: int) -> None:
        """Add steps of one environment; a batch is valid until the next is sampled, so they are copied."""
        self.obs.append(tuple(part[rows, column] for part in batch.obs))
        self.actions.append(batch.actions[rows, column])
        self.rewards.append(batch.rewards[rows, column])
        self.length += len(rows)

    @property
    def num_bytes(self) -> int:
        """What its observations and actions take."""
        return sum(part.nbytes for piece in self.obs for part in piece) + sum(rows.nbytes for rows in self.actions)


class ExperienceOutput:
    """Writes episodes to `folder/NAME-000000.parquet` and so on."""

    def __init__(self, folder: Path, policy: Policy, env_name: str) -> None:
        self.folder, self.env_name, self._policy = folder, env_name, policy
        self.columns = ExperienceColumns(policy.obs_spec, policy.action_spec)
        self.name = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', env_name)}-{os.urandom(4).hex()}"
        self._open: dict[int, RecordedEpisode] = {}  # by environment
        self._ended: list[RecordedEpisode] = []
        self._num_files = 0
        self._num_episodes = 0  # in files
        self._joins_late = False  # inside of episodes whose beginning nobody has
        self._joined: set[int] = set()  # environments, since then
        _make_folder(folder)

    def add(self, batch: Batch, env_indices: Sequence[int]) -> None:
        """Take the steps of a batch, whose columns are these environments."""
        finals = {(int(t), int(n)): f for f, (t, n) in enumerate(batch.final_at)}
        done = batch.terminated | batch.truncated
        for column, env_index in enumerate(env_indices):
            rows = np.flatnonzero(batch.valid[:, column])
            if self._joins_late and env_index not in self._joined:
                self._joined.add(env_index)
                ends = np.flatnonzero(done[rows, column])
                rows = rows[ends[0] + 1 :] if len(ends) else rows[:0]
            if len(rows):
                self._check_continues(batch, int(rows[0]), column, env_index)
            for piece in np.split(rows, np.flatnonzero(done[rows, column]) + 1):
                if len(piece):
                    self._add_piece(batch, piece, column, env_index, finals)

    def check_new(self) -> None:
        """Refuse a place that is taken, where nothing is continued."""

    def end_iteration(self) -> None:
        """Write a file if enough has come together."""
        if sum(episode.num_bytes for episode in self._ended) >= FILE_BYTES:
            self._write(self._ended)
            self._ended = []

    def close(self) -> None:
        """Write the rest, also of episodes that go on; a run that is resumed writes this file again."""
        rest = [*self._ended, *(self._open[index] for index in sorted(self._open))]
        if rest:
            files, episodes = self._num_files, self._num_episodes
            self._write(rest)
            self._num_files, self._num_episodes = files, episodes

    def get_state(self) -> State:
        """What is not in files yet, and how many of these there are."""
        episodes = [*self._ended, *(self._open[index] for index in sorted(self._open))]
        told = [
            [e.env_index, e.length, e.terminated, e.truncated, e.following is not None, k < len(self._ended)]
            for k, e in enumerate(episodes)
        ]
        values = {"name": self.name, "files": self._num_files, "written": self._num_episodes, "episodes": told}
        return State(values, {**self._arrays(episodes), **_named("final", self._finals(episodes))})

    def set_state(self, state: State | None) -> None:
        """Take over what was not in files yet; without a state, go on from where the next episodes begin."""
        if state is None:
            self._joins_late, self._joined = True, set()
            return
        values = state.values
        self.name, self._num_files = str(values["name"]), int(values["files"])
        self._num_episodes = int(values["written"])
        self._open, self._ended = {}, []
        count = len(self._policy.obs_spec.shapes)
        begin = final = 0
        for env_index, length, terminated, truncated, has_final, is_ended in values["episodes"]:
            rows = slice(begin, begin + length)
            following = None
            if has_final:
                following = tuple(state.arrays[f"final{k}"][final : final + 1] for k in range(count))
            episode = RecordedEpisode(
                env_index,
                [tuple(state.arrays[f"obs{k}"][rows] for k in range(count))],
                [state.arrays["actions"][rows]],
                [state.arrays["rewards"][rows]],
                length,
                terminated,
                truncated,
                following,
            )
            if is_ended:
                self._ended.append(episode)
            else:
                self._open[env_index] = episode
            begin += length
            final += has_final

    def files(self) -> list[Path]:
        """The files of this output, in their order."""
        return sorted(self.folder.glob(f"{self.name}-[0-9]*.parquet"))

    def _check_continues(self, batch: Batch, row: int, column: int, env_index: int) -> None:
        """End an open episode that the environment does not go on with: it was lost with its process."""
        episode = self._open.get(env_index)
        if episode is None or episode.following is None:
            return
        pairs = zip(batch.obs, episode.following, strict=True)
        if not all(np.array_equal(part[row, column], known[0]) for part, known in pairs):
            self._end(episode, truncated=True)

    def _add_piece(
        self, batch: Batch, rows: NDArray[np.int64], column: int, env_index: int, finals: dict[tuple[int, int], int]
    ) -> None:
        """Add steps in a row of one episode, of which at most the last ends it."""
        episode = self._open.setdefault(env_index, RecordedEpisode(env_index))
        episode.add(batch, rows, column)
        last = int(rows[-1])
        at = finals.get((last, column))
        episode.following = None if at is None else tuple(part[at : at + 1].copy() for part in batch.final_obs)
        if batch.terminated[last, column] or batch.truncated[last, column]:
            episode.terminated = bool(batch.terminated[last, column])
            self._end(episode, truncated=bool(batch.truncated[last, column]))

    def _end(self, episode: RecordedEpisode, truncated: bool) -> None:
        episode.truncated = truncated
        self._ended.append(episode)
        del self._open[episode.env_index]

    def _write(self, episodes: Sequence[RecordedEpisode]) -> None:
        """Write the next file; what an earlier process wrote in its place or after it is gone with that."""
        import pyarrow.parquet as pq

        room = io.BytesIO()
        pq.write_table(self._table(episodes), room, compression="zstd")
        file = self.folder / f"{self.name}-{self._num_files:06d}.parquet"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(file, room.getvalue())
            for later in self.files():
                if later.name > file.name:
                    later.unlink()
        except OSError as error:
            raise ShoalError(f"config.output: {file} cannot be written: {error.strerror or error}") from error
        self._num_files += 1
        self._num_episodes += len(episodes)

    def _table(self, episodes: Sequence[RecordedEpisode]) -> Any:
        """Episodes as a table (see `envs/experience_columns.py`)."""
        import pyarrow as pa

        lengths = np.array([episode.length for episode in episodes])
        last = np.cumsum(lengths) - 1
        arrays = self._arrays(episodes)
        parts = tuple(arrays[f"obs{k}"] for k in range(len(self._policy.obs_spec.shapes)))
        follows = [not episode.terminated and episode.following is not None for episode in episodes]
        present = np.zeros(lengths.sum(), bool)
        present[last] = follows
        room = self._policy.obs_spec.allocate(len(present))
        kept = [episode for episode, has_more in zip(episodes, follows, strict=True) if has_more]
        for part, known in zip(room, self._finals(kept), strict=True):
            part[present] = known
        ends = np.zeros((2, len(present)), bool)
        ends[0, last] = [episode.terminated for episode in episodes]
        ends[1, last] = [episode.truncated for episode in episodes]
        first = self._num_episodes
        columns = {
            "episode_id": pa.array(np.repeat(np.arange(first, first + len(episodes)), lengths)),
            "t": pa.array(np.concatenate([np.arange(length) for length in lengths]).astype(np.int32)),
            **self.columns.observations(parts),
            **self.columns.actions(arrays["actions"]),
            "reward": pa.array(arrays["rewards"]),
            "terminated": pa.array(ends[0]),
            "truncated": pa.array(ends[1]),
            **self.columns.observations(room, present),
        }
        return pa.table(columns).replace_schema_metadata(self.columns.metadata(self.env_name))

    def _arrays(self, episodes: Sequence[RecordedEpisode]) -> dict[str, NDArray[Any]]:
        """The steps of episodes one after another."""
        spec = self._policy.action_spec
        none = self._policy.obs_spec.allocate(0)
        pieces = [none, *(piece for episode in episodes for piece in episode.obs)]
        obs = tuple(np.concatenate(part) for part in zip(*pieces, strict=True))
        actions = [np.zeros((0, spec.size), spec.dtype), *(rows for each in episodes for rows in each.actions)]
        rewards = [np.zeros(0, np.float32), *(rows for each in episodes for rows in each.rewards)]
        return {**_named("obs", obs), "actions": np.concatenate(actions), "rewards": np.concatenate(rewards)}

    def _finals(self, episodes: Sequence[RecordedEpisode]) -> Parts:
        """The observations after episodes that have one."""
        found = [self._policy.obs_spec.allocate(0)]
        found += [episode.following for episode in episodes if episode.following is not None]
        return tuple(np.concatenate(part) for part in zip(*found, strict=True))


class WritingWorkers:
    """Workers whose samples are written down before a learner gets them."""

    def __init__(self, workers: Workers, output: ExperienceOutput) -> None:
        self._workers, self._output = workers, output

    def sample(self, steps: int) -> Sample:
        """See `Workers`."""
        return self._written(self._workers.sample(steps))

    def finished_fragments(self, wait: bool = True) -> list[Sample]:
        """See `Workers`."""
        return [self._written(sample) for sample in self._workers.finished_fragments(wait)]

    def _written(self, sample: Sample) -> Sample:
        indices: Sequence[int] = range(sample.batch.valid.shape[1])
        if sample.env_indices is not None:
            indices = sample.env_indices
        elif sample.batch.columns is not None:  # of one worker's fragment
            indices = sample.batch.columns.tolist()
        self._output.add(sample.batch, indices)
        return sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workers, name)


def _named(prefix: str, parts: Parts) -> dict[str, NDArray[Any]]:
    return {f"{prefix}{k}": part for k, part in enumerate(parts)}


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder)
    except OSError as error:
        raise ConfigError(
            f"config.output: {folder} cannot be written: {error.strerror or error}; give another folder"
        ) from error
