"""Whole episodes without learning: what one process does of an evaluation."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from shoal.config.changing import unchecked
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Episode, Incident
from shoal.envs.cases import Case
from shoal.envs.checking import check_first_steps
from shoal.envs.context import EnvContext
from shoal.envs.making import EnvMaker
from shoal.envs.randomizing import Randomizer, first_draw
from shoal.envs.recording import EpisodeRecorder, RecordingOptions, Trajectory, recorded
from shoal.envs.scratch import scratch_folder
from shoal.envs.spaces import Path as LeafPath
from shoal.envs.spaces import Space, leaves_of, path_name
from shoal.errors import ConfigError, EnvError
from shoal.models.policy import Policy
from shoal.sampling.fragment import LONGEST_EPISODE
from shoal.sampling.worker import Worker

CHUNK = 100


@dataclass(frozen=True)
class EvaluationPart:
    """One process's part of an evaluation: so many episodes, or steps, or one episode of each case.

    `config` has the evaluation's own seed, horizon, env_config and explore, and in num_envs_per_worker how many
    environments are here; `first_index` is the place of the first of them, or of the first case, among all of the
    evaluation, and `index_offset` what sets their env_index apart from those of training.
    """

    config: AlgorithmConfig
    maker: EnvMaker
    index_offset: int
    task: Any = None  # None: the environments' own
    first_index: int = 0
    episodes: int = 0
    steps: int = 0
    cases: tuple[Case, ...] = ()
    recording: RecordingOptions = field(default_factory=RecordingOptions)


@dataclass(frozen=True)
class EpisodeResults:
    """What came of an evaluation, or of a part: episodes in the order of environments, or of cases."""

    episodes: list[Episode]
    num_steps: int
    failures: int = 0  # of environments
    failed_cases: dict[int, str] = field(default_factory=dict)  # those that have no episode, with the reason
    trajectories: list[Trajectory] = field(default_factory=list)  # in the order of episodes
    video_problem: str = ""  # why there is no video
    incidents: list[tuple[Incident, Case]] = field(default_factory=list)  # the failures, and in what case each was


def run_part(part: EvaluationPart, policy: Policy) -> EpisodeResults:
    """Run the episodes; the policy and its filter stay as they are."""
    folder = None
    if part.config.isolates_envs and not part.recording.is_empty:
        folder = scratch_folder(part.first_index)
    recorder = EpisodeRecorder(part.recording, None if folder is None else Path(folder))
    try:
        if part.cases:
            results = _run_cases(part, policy, recorder)
        else:
            results = _run_episodes(part, policy, recorder)
        recorder.finish()
        return replace(results, video_problem=recorder.video_problem)
    finally:
        recorder.close()
        if folder is not None:
            rmtree(folder, ignore_errors=True)


def _run_episodes(part: EvaluationPart, policy: Policy, recorder: EpisodeRecorder) -> EpisodeResults:
    worker = Worker(
        part.config,
        _maker(part, recorder),
        policy=policy,
        any_size=True,
        index_offset=part.index_offset,
        first_index=part.first_index,
    )
    try:
        check_same_form(policy, worker.observation_space, worker.action_space)
        worker.task = part.task
        recorder.is_on = True
        if part.steps:
            results = _within_steps(worker, part.steps, recorder)
        else:
            results = _first_episodes(worker, part, recorder)
    finally:
        worker.stop()
    recorder.collect()
    results.episodes.sort(key=_env_index)
    return replace(results, trajectories=_trajectories(results.episodes, recorder, part.index_offset))


def _maker(part: EvaluationPart, recorder: EpisodeRecorder) -> EnvMaker:
    """Makes the environments, recorded if anything is to be kept of their episodes."""
    maker = part.maker
    if part.recording.is_empty:
        return maker
    randomizer = Randomizer.from_config(part.config, maker.user_code)
    recorder.one_env_per_episode = randomizer is not None and randomizer.has_env_config
    return recorded(maker, recorder, first_options=first_draw(part.config, maker.user_code).options)


def _first_episodes(worker: Worker, part: EvaluationPart, recorder: EpisodeRecorder) -> EpisodeResults:
    """Every environment gives its first episodes, so that short ones are not counted more often than long ones."""
    num_envs = worker.num_envs
    wanted = [part.episodes // num_envs] * num_envs
    for row in range(part.episodes % num_envs):
        wanted[row] += 1
    episodes: list[Episode] = []
    incidents: list[Incident] = []
    steps_since_end = 0
    while any(wanted):
        sample = worker.sample(CHUNK)
        recorder.collect()
        incidents += sample.incidents
        steps_since_end = 0 if sample.episodes else steps_since_end + CHUNK
        if steps_since_end > LONGEST_EPISODE:
            raise EnvError(
                f"no episode ended within {steps_since_end} steps; set evaluation_config.horizon, or use --steps"
            )
        for episode in sample.episodes:
            row = episode.env_index - part.first_index
            if wanted[row]:
                wanted[row] -= 1
                episodes.append(episode)
    return _results(episodes, _total_length(episodes), incidents)


def _within_steps(worker: Worker, steps: int, recorder: EpisodeRecorder) -> EpisodeResults:
    """The episodes that end within so many steps."""
    episodes: list[Episode] = []
    incidents: list[Incident] = []
    taken = 0
    while taken < steps:
        sample = worker.sample(min(CHUNK, steps - taken))
        recorder.collect()
        incidents += sample.incidents
        taken += sample.num_steps
        episodes += sample.episodes
    return _results(episodes, taken, incidents)


def _results(episodes: list[Episode], steps: int, incidents: list[Incident]) -> EpisodeResults:
    of_no_case = [(incident, Case()) for incident in incidents]
    return EpisodeResults(episodes, steps, len(incidents), incidents=of_no_case)


def _trajectories(episodes: list[Episode], recorder: EpisodeRecorder, index_offset: int) -> list[Trajectory]:
    """Those of the episodes that count; environments that had theirs went on while others had not."""
    if not recorder.options.trajectories:
        return []
    by_env: dict[int, list[Trajectory]] = {}
    for trajectory in recorder.trajectories:
        by_env.setdefault(trajectory.env_index - index_offset, []).append(trajectory)
    trajectories = []
    for episode in episodes:
        own = by_env[episode.env_index]
        while len(own[0].actions) != episode.length:
            own.pop(0)  # it failed, and is no episode
        trajectories.append(own.pop(0))
    return trajectories


def _run_cases(part: EvaluationPart, policy: Policy, recorder: EpisodeRecorder) -> EpisodeResults:
    """One episode of each case, one after another, each in an environment of its own."""
    if not part.config.isolates_envs:  # else each is looked at in its own process
        part = _checked(part, policy, recorder)
    recorder.is_on = True
    episodes: list[Episode] = []
    failed: dict[int, str] = {}
    incidents: list[tuple[Incident, Case]] = []
    for place, case in enumerate(part.cases):
        try:
            episodes.append(_run_case(part, place, policy, recorder))
        except EnvError as error:
            failed[part.first_index + place] = str(error).splitlines()[0]
            incidents += [(incident, case) for incident in error.incidents]
        recorder.collect()
    trajectories = _trajectories(episodes, recorder, part.index_offset)
    return EpisodeResults(episodes, _total_length(episodes), len(failed), failed, trajectories, incidents=incidents)


def _checked(part: EvaluationPart, policy: Policy, recorder: EpisodeRecorder) -> EvaluationPart:
    """The part, after a look at the first of its cases that begins at all; those that do not say so when they run."""
    for place, case in enumerate(part.cases):
        index = part.index_offset + part.first_index + place
        ctx = EnvContext(part.config.env_config, env_index=index, env_ranks=part.config.env_ranks)
        make = functools.partial(recorded(part.maker, recorder, case).make, ctx)
        with suppress(EnvError):
            report = check_first_steps(make)
            report.env.close()
            ctx.release()
            assert isinstance(report.env, gym.Env)
            check_same_form(policy, report.env.observation_space, report.env.action_space)
            if report.legacy:
                return replace(part, maker=replace(part.maker, legacy=True))
            return part
    return part


def _run_case(part: EvaluationPart, place: int, policy: Policy, recorder: EpisodeRecorder) -> Episode:
    """The episode of one case; if the environment fails in it, that is its result."""
    worker = Worker(
        unchecked(part.config, num_envs_per_worker=1, max_env_failures=0, batch_mode="complete_episodes"),
        recorded(part.maker, recorder, part.cases[place]),
        policy=policy,
        index_offset=part.index_offset,
        first_index=part.first_index + place,
        is_checked=True,
    )
    try:
        check_same_form(policy, worker.observation_space, worker.action_space)
        worker.task = part.task
        return worker.sample(1).episodes[0]
    finally:
        worker.stop()


def _env_index(episode: Episode) -> int:
    return episode.env_index


def _total_length(episodes: list[Episode]) -> int:
    return sum(episode.length for episode in episodes)


def check_same_form(policy: Policy, observation_space: Space, action_space: Space) -> None:
    """Refuse an environment that the policy was not made for."""
    for what, mine, theirs in (
        ("observations", policy.obs_spec.space, observation_space),
        ("actions", policy.action_spec.space, action_space),
    ):
        if _form(mine) != _form(theirs):
            raise ConfigError(
                f"the environment of the evaluation has other {what} than the policy was trained on: {theirs}, "
                f"not {mine}; fix evaluation_config.env_config or the cases"
            )


def _form(space: Space) -> list[tuple[str, ...]]:
    """What a network must fit: structure, shapes and numbers of choices; bounds may differ."""
    return [_leaf_form(path, leaf) for path, leaf in leaves_of(space)]


def _leaf_form(path: LeafPath, leaf: Space) -> tuple[str, ...]:
    choices = getattr(leaf, "n", getattr(leaf, "nvec", getattr(leaf, "max_len", "")))
    form: tuple[str, ...] = (path_name(path), type(leaf).__name__, str(leaf.shape), str(choices))
    if isinstance(leaf, spaces.Sequence):
        form += tuple(map(str, _form(leaf.feature_space)))
    return form
