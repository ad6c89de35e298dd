"""Steps that `output` has recorded, as the episodes that RLlib's offline algorithms read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.bridges.plain_spaces import PlainForm
from shoal.config.rllib import RecordedInRLlib
from shoal.data.experience import Experience
from shoal.envs.experience_columns import ExperienceColumns
from shoal.envs.experience_files import find_steps
from shoal.envs.spaces import Space
from shoal.errors import ConfigError

READ_AS_EPISODES: dict[str, Any] = {"input_read_method": "from_items", "input_read_episodes": True}
"""RLlib's keys for data that has its own episodes, one in each row; `episode_dataset` makes that data."""


def read_input(config: RecordedInRLlib, form: PlainForm, spaces: tuple[Space, Space]) -> Experience:
    """The recorded steps of `input`, which must be of these spaces."""
    steps = find_steps(config.input)
    columns = ExperienceColumns(form.obs_spec, form.action_spec)
    steps.check(spaces, [*columns.names, "reward", "terminated"])
    names = [*columns.names, *columns.final_names, "reward", "terminated"]
    return columns.experience(steps.table(names), steps.starts, f"config.input: {steps.name}")


def episode_dataset(experience: Experience, form: PlainForm) -> Any:
    """One of Ray Data's datasets, with one whole episode of RLlib's in each row."""
    import msgpack
    import msgpack_numpy
    import ray.data

    rows = [
        {"item": msgpack.packb(episode.get_state(), default=msgpack_numpy.encode)}
        for episode in episodes_of(experience, form)
    ]
    if not rows:
        raise ConfigError("config.input: of no recorded step it is known what followed; record more than single steps")
    return ray.data.from_items(rows)


def episodes_of(experience: Experience, form: PlainForm) -> Iterator[Any]:
    """RLlib's episodes, which have one observation more than steps.

    What followed a termination is not recorded, and nothing is learned from it: the last observation stands there
    again. An episode that goes on, without the observation after its last step, ends with the step before.
    """
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    obs, finals = form.seen(experience.obs), form.seen(experience.final_obs)
    actions = form.actions(experience.actions)
    for number, (start, length) in enumerate(zip(experience.starts, experience.lengths, strict=True)):
        final = int(experience.final_of[number])
        stop = int(start + length)
        is_terminated = bool(experience.terminated[stop - 1])
        if final >= 0:
            last = finals[final]
        else:
            last = obs[stop - 1]
            stop -= not is_terminated
        if stop == start:
            continue
        taken = [tuple(part[t] for part in actions) for t in range(start, stop)]
        yield SingleAgentEpisode(
            id_=str(number),
            observations=[*obs[start:stop], last],
            observation_space=form.observation_space,
            actions=[action if len(action) > 1 else action[0] for action in taken],
            action_space=form.action_space,
            rewards=experience.rewards[start:stop].tolist(),
            infos=[{} for _ in range(stop - start + 1)],
            terminated=is_terminated,
            truncated=not is_terminated,
            len_lookback_buffer=0,
        ).to_numpy()
