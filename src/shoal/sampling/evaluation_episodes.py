"""Whole episodes without learning: what one process does of an evaluation."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from shoal.config.changing import unchecked
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Episode
from shoal.envs.cases import Case
from shoal.envs.checking import check_first_steps
from shoal.envs.context import EnvContext
from shoal.envs.making import EnvMaker
from shoal.envs.randomizing import Randomizer, first_draw
from shoal.envs.recording import Film, Recorder, Trace, watched
from shoal.envs.spaces import Space, leaves_of, path_name
from shoal.errors import ConfigError, EnvError
from shoal.models.policy import Policy
from shoal.sampling.sampler import LONGEST_EPISODE
from shoal.sampling.worker import Worker

CHUNK = 100
IN_THIS_PROCESS: dict[str, Any] = {
    "env_isolation": "none",
    "env_step_timeout_s": None,
    "env_reset_timeout_s": None,
    "env_memory_limit_mb": None,
    "env_restart_delay_s": 0.0,
}


@dataclass(frozen=True)
class Share:
    """One process's part of an evaluation: so many episodes, or steps, or one episode of each case.

    `config` has the evaluation's own seed, horizon and env_config, and in num_envs_per_worker the environments here;
    `first_index` is the place of the first of them, or of the first case, among all of the evaluation, and
    `index_offset` what sets their env_index apart from those of training.
    """

    config: AlgorithmConfig
    maker: EnvMaker
    explore: bool
    index_offset: int
    task: Any = None  # None: the environments' own
    first_index: int = 0
    episodes: int = 0
    steps: int = 0
    cases: tuple[Case, ...] = ()
    trace: bool = False
    film: Film | None = None


@dataclass(frozen=True)
class Found:
    """What came of a share: episodes in the order of environments, or of cases; `failed` are cases that have none."""

    episodes: list[Episode]
    num_steps: int
    failures: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    traces: list[Trace] = field(default_factory=list)  # in the order of episodes
    trouble: str = ""  # why there is no video


def run_share(share: Share, policy: Policy) -> Found:
    """Run the episodes; the policy and its filter stay as they are."""
    if share.trace or share.film is not None:
        # Who records looks at the environment itself.
        share = replace(share, config=unchecked(share.config, **IN_THIS_PROCESS))
    recorder = Recorder(share.trace, share.film)
    try:
        found = (_cases if share.cases else _episodes)(share, policy, recorder)
        recorder.finish()
        return replace(found, trouble=recorder.trouble)
    finally:
        recorder.close()


def _episodes(share: Share, policy: Policy, recorder: Recorder) -> Found:
    maker = share.maker
    if share.trace or share.film is not None:
        randomizer = Randomizer.of(share.config, maker.search_path)
        recorder.one_env_per_episode = randomizer is not None and randomizer.has_env_config
        maker = watched(maker, recorder, first_options=first_draw(share.config, maker.search_path).options)
    worker = Worker(
        share.config,
        maker,
        policy=policy,
        any_size=True,
        index_offset=share.index_offset,
        first_index=share.first_index,
    )
    try:
        check_same_form(policy, worker.observation_space, worker.action_space)
        worker.set_task(share.task)
        recorder.on = True
        found, taken = _over_steps(worker, share) if share.steps else _over_episodes(worker, share)
        failures = worker.vector.get_state().get("failures", 0)
    finally:
        worker.stop()
    found.sort(key=lambda episode: episode.env_index)
    return Found(found, taken, failures, traces=_traces_of(found, recorder, share.index_offset))


def _over_episodes(worker: Worker, share: Share) -> tuple[list[Episode], int]:
    """Every environment gives its first episodes, so that short ones are not counted more often than long ones."""
    num_envs, episodes = worker.vector.num_envs, share.episodes
    # The first `episodes % num_envs` environments give one more than the others.
    wanted = [episodes // num_envs + (row < episodes % num_envs) for row in range(num_envs)]
    found: list[Episode] = []
    longest = 0
    while any(wanted):
        sample = worker.sampler.sample(CHUNK, share.explore)
        longest = 0 if sample.episodes else longest + CHUNK
        if longest > LONGEST_EPISODE:
            raise EnvError(f"no episode ended within {longest} steps; set evaluation_config.horizon, or give --steps")
        for episode in sample.episodes:
            row = episode.env_index - share.first_index
            if wanted[row]:
                wanted[row] -= 1
                found.append(episode)
    return found, sum(e.length for e in found)


def _over_steps(worker: Worker, share: Share) -> tuple[list[Episode], int]:
    found: list[Episode] = []
    taken = 0
    while taken < share.steps:
        sample = worker.sampler.sample(min(CHUNK, share.steps - taken), share.explore)
        taken += sample.batch.num_steps
        found += sample.episodes
    return found, taken


def _traces_of(found: list[Episode], recorder: Recorder, index_offset: int) -> list[Trace]:
    """The traces of the episodes that count; environments that had theirs went on while others had not."""
    if not recorder.trace:
        return []
    by_env: dict[int, list[Trace]] = {}
    for trace in recorder.traces:
        by_env.setdefault(trace.env_index - index_offset, []).append(trace)
    traces = []
    for episode in found:
        own = by_env[episode.env_index]
        while len(own[0].actions) != episode.length:
            own.pop(0)  # it failed, and is no episode
        traces.append(own.pop(0))
    return traces


def _cases(share: Share, policy: Policy, recorder: Recorder) -> Found:
    """One episode of each case, one after another, each in an environment of its own."""
    if not share.config.isolates_envs:  # else each looks at its own, in its process
        share = _looked_at(share, policy, recorder)
    recorder.on = True
    episodes: list[Episode] = []
    failed: dict[int, str] = {}
    for place in range(len(share.cases)):
        index = share.first_index + place
        try:
            episodes.append(_case(share, place, policy, recorder))
        except EnvError as error:
            failed[index] = str(error).splitlines()[0]
    return Found(
        episodes,
        sum(episode.length for episode in episodes),
        len(failed),
        failed,
        _traces_of(episodes, recorder, share.index_offset),
    )


def _looked_at(share: Share, policy: Policy, recorder: Recorder) -> Share:
    """The share, after a look at the first of its cases that begins at all; those that do not say so when they run."""
    for place, case in enumerate(share.cases):
        make = functools.partial(watched(share.maker, recorder, case).make, _context(share, place))
        with suppress(EnvError):
            report = check_first_steps(make)
            report.env.close()
            assert isinstance(report.env, gym.Env)
            check_same_form(policy, report.env.observation_space, report.env.action_space)
            return replace(share, maker=replace(share.maker, legacy=True)) if report.legacy else share
    return share


def _case(share: Share, place: int, policy: Policy, recorder: Recorder) -> Episode:
    """The episode of one case; if the environment fails in it, that is its result."""
    worker = Worker(
        unchecked(share.config, num_envs_per_worker=1, max_env_failures=0),
        watched(share.maker, recorder, share.cases[place]),
        policy=policy,
        index_offset=share.index_offset,
        first_index=share.first_index + place,
        is_checked=True,
    )
    try:
        check_same_form(policy, worker.observation_space, worker.action_space)
        worker.set_task(share.task)
        return worker.sampler.sample(1, share.explore, complete_episodes=True).episodes[0]
    finally:
        worker.stop()


def _context(share: Share, place: int) -> EnvContext:
    return EnvContext(share.config.env_config, env_index=share.index_offset + share.first_index + place)


def check_same_form(policy: Policy, observation_space: Space, action_space: Space) -> None:
    """Refuse an environment that the policy was not made for."""
    for what, mine, theirs in (
        ("observations", policy.obs_spec.space, observation_space),
        ("actions", policy.action_spec.space, action_space),
    ):
        if _form(mine) != _form(theirs):
            raise ConfigError(
                f"the environment of the evaluation has other {what} than the policy was trained on: {theirs}, "
                f"not {mine}; mend evaluation_config.env_config or the cases"
            )


def _form(space: Space) -> list[tuple[str, ...]]:
    """What a network must fit: structure, shapes and numbers of choices; bounds may differ."""
    return [
        (
            path_name(path),
            type(leaf).__name__,
            str(leaf.shape),
            str(getattr(leaf, "n", getattr(leaf, "nvec", getattr(leaf, "max_len", "")))),
            *(map(str, _form(leaf.feature_space)) if isinstance(leaf, spaces.Sequence) else ()),
        )
        for path, leaf in leaves_of(space)
    ]
