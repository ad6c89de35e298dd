"""An agent plays while somebody watches: the episodes of an evaluation, one after another, as they end."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config.changing import unchecked
from shoal.data.batch import Episode
from shoal.envs.context import EnvContext
from shoal.envs.randomizing import first_draw
from shoal.envs.video import check_videos
from shoal.envs.watching import EnvView, Film, Watch, render_modes, watched
from shoal.errors import CheckpointError, ConfigError, EnvError
from shoal.runs.checkpoints import Checkpoint
from shoal.runs.evaluation import EvaluationSetup, whole_evaluation
from shoal.runs.folders import check_writable
from shoal.runs.loaded_policy import find_checkpoint
from shoal.runs.trained_agent import trained_agent
from shoal.sampling.evaluation_episodes import check_same_form
from shoal.sampling.fragment import LONGEST_EPISODE
from shoal.sampling.worker import Worker

IN_THIS_PROCESS: dict[str, Any] = {
    "env_isolation": "none",
    "env_step_timeout_s": None,
    "env_reset_timeout_s": None,
    "env_memory_limit_mb": None,
    "env_scratch_limit_mb": None,
    "env_restart_delay_s": 0.0,
}
"""Settings of environments that somebody watches, who may end the command."""

REPLAY_FILE = "replay.mp4"
REPLAY_PICTURES = 1000
"""Pictures of a replay: twenty seconds or so, and of most environments less than a megabyte."""


def modes_of(setup: EvaluationSetup) -> Sequence[str]:
    """How the environment of an evaluation says that it can draw."""
    config = whole_evaluation(setup, None, None).config
    drawn = first_draw(config, setup.maker.user_code)
    ctx = EnvContext({**config.env_config, **drawn.env_config}, env_ranks=config.env_ranks)
    try:
        return render_modes(setup.maker, ctx)
    finally:
        ctx.release()


def played_episodes(
    setup: EvaluationSetup, view: EnvView, explore: bool | None = None, seed: int | None = None
) -> Generator[Episode | None, None, None]:
    """Episodes as they end, and None after every other step, until the caller has seen enough.

    They are those that an evaluation of one environment has.
    """
    part = whole_evaluation(setup, explore, seed)
    config = unchecked(part.config, **IN_THIS_PROCESS, num_envs_per_worker=1)
    watch = Watch(view)
    maker = watched(setup.maker, watch, first_draw(config, setup.maker.user_code).options)
    worker = Worker(config, maker, policy=setup.policy, any_size=True, index_offset=part.index_offset, first_index=0)
    try:
        check_same_form(setup.policy, worker.observation_space, worker.action_space)
        worker.task = part.task
        watch.is_on = True
        steps_since_end = 0
        while True:
            ended = worker.sample(1).episodes
            if watch.problem is not None:
                raise watch.problem
            steps_since_end = 0 if ended else steps_since_end + 1
            if steps_since_end > LONGEST_EPISODE:
                raise EnvError(f"no episode ended within {steps_since_end} steps; set evaluation_config.horizon")
            if not ended:
                yield None
            yield from ended
    finally:
        worker.stop()


@dataclass(frozen=True)
class FilmedEpisode:
    """A replay, and what it shows: an episode, if it is whole, of a checkpoint."""

    path: Path
    checkpoint: str
    episode: Episode | None


def film_replay(run: Path, trust: bool = False) -> FilmedEpisode:
    """Film one episode of a run's best policy, or of its last, as `replay.mp4` in its folder."""
    check_videos("--video")
    try:
        check_writable(run)
    except OSError as error:
        raise ConfigError(f"--video: {run} cannot be written: {error.strerror or error}") from error
    checkpoint = _best_or_last(run)
    film = Film(run / REPLAY_FILE, most_pictures=REPLAY_PICTURES)
    try:
        with ExitStack() as stack:
            setup = trained_agent(checkpoint, trust).setup(stack)
            modes_of(setup)
            with closing(played_episodes(setup, film)) as played:
                found = next(one for one in played if one is not None or film.is_full)
        film.finish()
    finally:
        film.close()
    return FilmedEpisode(film.path, checkpoint.path.name, found)


def _best_or_last(run: Path) -> Checkpoint:
    try:
        return find_checkpoint(run, best=True)
    except CheckpointError:
        return find_checkpoint(run)
