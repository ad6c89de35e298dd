"""Minari's datasets: read as a table of steps, and made of one.

They lie where Minari keeps them: below ~/.minari/datasets, or MINARI_DATASETS_PATH.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from shoal.data.experience import Experience, Integers
from shoal.envs.experience_columns import ExperienceColumns
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec, Path
from shoal.errors import ConfigError, ShoalError

PARTS = ".shoal"  # Minari passes over hidden folders


def check_minari(key: str) -> None:
    """Refuse what needs Minari where it is not installed."""
    if find_spec("minari") is None:
        raise ConfigError(f"config.{key}: needs Minari, which is not installed; type: pip install 'shoal-rl[offline]'")


def check_dataset_name(name: str, key: str) -> None:
    """Refuse what is no name of a dataset."""
    check_minari(key)
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(name)
    except ValueError:
        raise ConfigError(
            f"config.{key}: minari:{name} is no name of a Minari dataset; write e.g. minari:cartpole/expert-v0"
        ) from None


def parts_folder(name: str) -> FilePath:
    """Where the episodes of a dataset wait until it is made."""
    check_dataset_name(name, "output")
    from minari.storage.datasets_root_dir import get_dataset_path

    return FilePath(get_dataset_path(PARTS)) / name.replace("/", "_")


def has_dataset(name: str) -> bool:
    """Whether there is a dataset of this name."""
    from minari.storage.datasets_root_dir import get_dataset_path

    return (FilePath(get_dataset_path(name)) / "data").exists()


def minari_table(name: str) -> Any:
    """The steps of a dataset as a pyarrow.Table, with its spaces in the metadata."""
    check_dataset_name(name, "input")
    import minari
    import pyarrow as pa

    try:
        dataset = minari.load_dataset(name)
    except FileNotFoundError:
        raise ConfigError(
            f"config.input: there is no Minari dataset {name} on this machine; type: minari download {name}"
        ) from None
    except Exception as error:  # whatever a damaged dataset makes of it
        raise ConfigError(f"config.input: the Minari dataset {name} cannot be read: {error}") from error
    actions = ActionSpec(dataset.action_space)
    columns = ExperienceColumns(ObsSpec(dataset.observation_space, actions=actions), actions)
    tables = [_episode_table(number, episode, columns) for number, episode in enumerate(dataset.iterate_episodes())]
    if not tables:
        raise ConfigError(f"config.input: the Minari dataset {name} has no episodes in it")
    env = getattr(dataset.env_spec, "id", name)
    return pa.concat_tables(tables).replace_schema_metadata(columns.metadata(env))


def make_dataset(name: str, columns: ExperienceColumns, table: Any, starts: Integers, env: str, algorithm: str) -> None:
    """Make a dataset of a table of steps, in the place of one that the same run has made before."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer

    experience = columns.experience(table, starts, name)
    truncated = table["truncated"].to_numpy()
    buffers = [
        EpisodeBuffer(id=number, **parts) for number, parts in enumerate(_episodes(columns, experience, truncated))
    ]
    spec = gymnasium.registry.get(env)
    try:
        _replace(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of authors that nobody has named
            dataset = minari.create_dataset_from_buffers(
                name,
                buffers,
                observation_space=columns.obs_spec.space,
                action_space=columns.action_spec.space,
                algorithm_name=algorithm,
                description=f"{experience.num_steps} steps that shoal has sampled with {algorithm}.",
                data_format="arrow",
                jpeg_encoding=False,
            )
            if spec is not None:
                dataset.storage.update_metadata({"env_spec": spec.to_json()})
    except Exception as error:  # Minari raises what its storage raises
        raise ShoalError(f"config.output: the Minari dataset {name} cannot be made: {error}") from error


def _replace(name: str) -> None:
    """Remove a dataset that the same run has made before; Minari prints that it has."""
    import minari

    if has_dataset(name):
        with contextlib.redirect_stdout(io.StringIO()):
            minari.delete_dataset(name)


def _episodes(
    columns: ExperienceColumns, experience: Experience, truncated: NDArray[np.bool_]
) -> Iterator[dict[str, Any]]:
    """Each episode in Minari's form: one more observation than steps.

    Of what an episode terminated in nothing is recorded, for nothing can be learned from it: there the last
    observation stands once more.
    """
    obs_spec, action_spec = columns.obs_spec, columns.action_spec
    for number, (start, length) in enumerate(zip(experience.starts, experience.lengths, strict=True)):
        rows = slice(start, start + length)
        final = int(experience.final_of[number])
        last = tuple(part[rows][-1:] for part in experience.obs)
        after = last if final < 0 else tuple(part[final : final + 1] for part in experience.final_obs)
        seen = tuple(np.concatenate([part[rows], more]) for part, more in zip(experience.obs, after, strict=True))
        yield {
            "observations": _stacked([obs_spec.get(seen, row) for row in range(length + 1)]),
            "actions": _stacked(list(action_spec.decode(experience.actions[rows]))),
            "rewards": experience.rewards[rows].tolist(),
            "terminations": experience.terminated[rows].tolist(),
            "truncations": truncated[rows].tolist(),
        }


def _stacked(values: Sequence[Any]) -> Any:
    """Values of a space as one structure of it, whose leaves hold those of all steps."""
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked([value[k] for value in values]) for k in range(len(first)))
    return list(values)


def _episode_table(number: int, episode: Any, columns: ExperienceColumns) -> Any:
    """One episode of a dataset."""
    import pyarrow as pa

    length = len(episode.rewards)
    seen = columns.obs_spec.allocate(length + 1)
    for leaf in columns.obs_spec.leaves:
        values = np.asarray(_at(episode.observations, leaf.path)).reshape(length + 1, -1)
        if leaf.columns is None:
            seen[leaf.part][:] = values.reshape(seen[leaf.part].shape)
        else:
            seen[leaf.part][:, leaf.columns] = leaf.stored(values)
    terminated = np.asarray(episode.terminations, bool)
    present = np.zeros(length, bool)
    present[-1] = not terminated[-1]
    after = tuple(part[1:] for part in seen)
    actions = [np.asarray(_at(episode.actions, leaf.path)).reshape(length, -1) for leaf in columns.action_spec.leaves]
    return pa.table(
        {
            "episode_id": pa.array(np.full(length, number)),
            "t": pa.array(np.arange(length, dtype=np.int32)),
            **columns.observations(tuple(part[:-1] for part in seen)),
            **columns.given_actions(actions),
            "reward": pa.array(np.asarray(episode.rewards, np.float32)),
            "terminated": pa.array(terminated),
            "truncated": pa.array(np.asarray(episode.truncations, bool)),
            **columns.observations(after, present),
        }
    )


def _at(values: Any, path: Path) -> Any:
    for key in path:
        values = values[key]
    return values
