"""Evaluation: whole episodes without learning, in environments of their own, with the filter frozen."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.changing import unchecked
from shoal.config.sections import RandomizeConfig
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Incident
from shoal.data.metrics import custom_metrics, episode_statistics, mean_interval
from shoal.data.streams import evaluation_seed
from shoal.envs.cases import Case
from shoal.envs.making import EnvMaker, spaces_of
from shoal.envs.randomizing import first_draw
from shoal.envs.recording import RecordingOptions
from shoal.errors import ConfigError, EnvError
from shoal.models.policy import Policy
from shoal.parallel.evaluators import Evaluators
from shoal.runs.incidents import append_of_evaluation
from shoal.sampling.evaluation_episodes import EpisodeResults, EvaluationPart, check_same_form

log = logging.getLogger("shoal")

PARTS_PER_WORKER = 4  # of cases: who gets the short ones takes more of them
NO_RECORDING = RecordingOptions()


@dataclass(frozen=True)
class EvaluationSetup:
    """Which policy is evaluated, on what, and by whom."""

    config: AlgorithmConfig
    maker: EnvMaker
    policy: Policy
    evaluators: Evaluators
    task: Any = None  # that training has now; None: the environments' own


class PendingEvaluation:
    """An evaluation that has begun, with the policy as it was then."""

    def __init__(self, setup: EvaluationSetup, whole: EvaluationPart, parts: Sequence[EvaluationPart]) -> None:
        self._whole = whole
        self._pending = setup.evaluators.start(parts, setup.policy)

    def results(self) -> tuple[dict[str, Any], EpisodeResults]:
        """Wait for its end: statistics over its episodes, and each of them."""
        results = joined_results(self._pending.wait())
        return statistics(results, self._whole), results

    def results_kept(self, folder: Path, **where: int) -> tuple[dict[str, Any], EpisodeResults]:
        """The same, and its failures are written down in the folder of the run; `where` is what that was at."""
        try:
            metrics, results = self.results()
        except EnvError as error:
            self._keep(folder, [(incident, Case()) for incident in error.incidents], where)
            raise
        self._keep(folder, results.incidents, where)
        return metrics, results

    def _keep(self, folder: Path, failed: Sequence[tuple[Incident, Case]], where: Mapping[str, int]) -> None:
        try:
            append_of_evaluation(folder, failed, self._whole.config.seed, **where)
        except OSError as error:
            log.warning("%s/incidents.jsonl cannot be written (%s)", folder, error.strerror)


def start_evaluation(
    setup: EvaluationSetup,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    explore: bool | None = None,
    seed: int | None = None,
    recording: RecordingOptions = NO_RECORDING,
) -> PendingEvaluation:
    """Begin an evaluation over `episodes` whole episodes, or over the episodes that end within `steps` steps.

    What is not given comes from the config's evaluation_* keys.
    """
    config = setup.config
    for name, given in (("episodes", episodes), ("steps", steps)):
        if given is not None and given < 1:
            raise ConfigError(f"{name}: must be at least 1 (got {given})")
    if episodes is None and steps is None:
        by_episode = config.evaluation_duration_unit == "episodes"
        episodes, steps = (config.evaluation_duration, None) if by_episode else (None, config.evaluation_duration)
    whole = whole_evaluation(setup, explore, seed)
    return PendingEvaluation(setup, whole, _parts(config, whole, episodes, steps, recording))


def start_cases(
    setup: EvaluationSetup,
    cases: Sequence[Case],
    *,
    explore: bool | None = None,
    seed: int | None = None,
    recording: RecordingOptions = NO_RECORDING,
) -> PendingEvaluation:
    """Begin an evaluation of one episode of every case; an episode has the place of its case, and some may fail.

    A case says all that is different, so nothing else is drawn for its episode.
    """
    whole = whole_evaluation(setup, explore, seed)
    whole = replace(whole, config=unchecked(whole.config, randomize=RandomizeConfig()), recording=recording)
    workers = setup.config.evaluation_num_workers
    size = len(cases)
    if workers and not recording.videos:
        size = ceil(len(cases) / (PARTS_PER_WORKER * workers))
    parts = [replace(whole, first_index=at, cases=tuple(cases[at : at + size])) for at in range(0, len(cases), size)]
    return PendingEvaluation(setup, whole, parts)


def config_for_evaluation(
    config: AlgorithmConfig, seed: int | None = None, explore: bool | None = None
) -> AlgorithmConfig:
    """The configuration of evaluation's environments: that of training, but for what is said to be different."""
    own = config.evaluation_config
    if seed is None:
        seed = own.seed if own.seed is not None else evaluation_seed(config.seed)
    drawn = {name: sampler for name, sampler in config.randomize.env_config.items() if name not in own.env_config}
    return unchecked(
        config,
        seed=seed,
        explore=own.explore if explore is None else explore,
        batch_mode="truncate_episodes",  # episodes are counted here, not fragments
        straggler_quorum=None,  # which episodes come first must not depend on time
        horizon=config.horizon if own.horizon is None else own.horizon,
        env_config={**config.env_config, **own.env_config},
        randomize=unchecked(config.randomize, env_config=drawn) if own.randomize else RandomizeConfig(),
        env_task_fn=None,  # it stays in the driver
        num_workers=0,
        render_env=False,
    )


def check_environment(config: AlgorithmConfig, maker: EnvMaker, policy: Policy) -> None:
    """Refuse an environment of evaluation that the policy does not fit, before anything is trained."""
    if config.evaluation_interval is not None and config.evaluation_config.env_config:
        there = config_for_evaluation(config)
        drawn = first_draw(there, maker.user_code)
        check_same_form(policy, *spaces_of(maker, {**there.env_config, **drawn.env_config}, config.env_ranks))


def joined_results(parts: Sequence[EpisodeResults]) -> EpisodeResults:
    """The results of an evaluation's parts as one."""
    return EpisodeResults(
        [episode for part in parts for episode in part.episodes],
        sum(part.num_steps for part in parts),
        sum(part.failures for part in parts),
        {index: why for part in parts for index, why in part.failed_cases.items()},
        [trajectory for part in parts for trajectory in part.trajectories],
        " ".join(part.video_problem for part in parts if part.video_problem),
        [failed for part in parts for failed in part.incidents],
    )


def statistics(results: EpisodeResults, whole: EvaluationPart) -> dict[str, Any]:
    """What a result says of an evaluation."""
    episodes = results.episodes
    rewards = [episode.reward for episode in episodes]
    low, high = mean_interval(rewards)
    return {
        **episode_statistics(episodes),
        "episode_reward_std": float(np.std(rewards)) if rewards else None,
        "episode_reward_ci_low": low,
        "episode_reward_ci_high": high,
        "episodes_this_iter": len(episodes),
        "timesteps_this_iter": results.num_steps,
        "env_failures": results.failures,
        "custom_metrics": custom_metrics(episodes),
        "episode_rewards": rewards,
        "episode_lengths": [episode.length for episode in episodes],
        "explore": whole.config.explore,
        "seed": whole.config.seed,
    }


def whole_evaluation(setup: EvaluationSetup, explore: bool | None, seed: int | None) -> EvaluationPart:
    """What all parts of an evaluation have in common; what is not given comes from the config."""
    own = setup.config.evaluation_config
    return EvaluationPart(
        config_for_evaluation(setup.config, seed, explore),
        setup.maker,
        index_offset=setup.config.num_envs,
        task=setup.task if own.task is None else own.task,
    )


def _parts(
    config: AlgorithmConfig, whole: EvaluationPart, episodes: int | None, steps: int | None, recording: RecordingOptions
) -> list[EvaluationPart]:
    """The evaluation spread over its workers: the same episodes for any number that has as many environments in all."""
    workers = max(config.evaluation_num_workers, 1)
    if steps is not None:
        sizes = [(1, 0, count) for count in _spread(steps, min(workers, steps))]
    else:
        assert episodes is not None
        in_a_row = bool(recording.videos) and recording.video_episodes > 1
        most = 1 if in_a_row else config.max_concurrent_envs or episodes
        num_envs = min(workers * config.envs_per_worker, episodes, most)
        widths, wanted = _spread(num_envs, min(workers, num_envs)), _spread(episodes, num_envs)
        sizes = [(w, sum(wanted[end - w : end]), 0) for w, end in zip(widths, accumulate(widths), strict=True)]
    parts: list[EvaluationPart] = []
    at = 0
    for width, own_episodes, own_steps in sizes:
        part = replace(whole, first_index=at, episodes=own_episodes, steps=own_steps, recording=recording)
        parts.append(replace(part, config=unchecked(whole.config, num_envs_per_worker=width)))
        recording = replace(recording, videos=())  # they show the first environment
        at += width
    return parts


def _spread(total: int, places: int) -> list[int]:
    """`total` as evenly as can be, larger numbers first."""
    return [total // places + (place < total % places) for place in range(places)]
