"""Videos and windows of a run: whether they can be had, and where they go."""

from __future__ import annotations

from pathlib import Path

from shoal.config.settings import AlgorithmConfig
from shoal.envs.context import EnvContext
from shoal.envs.making import EnvMaker
from shoal.envs.randomizing import first_draw
from shoal.envs.video import check_videos, has_screen, make_filmable
from shoal.errors import ConfigError
from shoal.runs.evaluation import config_for_evaluation
from shoal.runs.folders import check_writable


def check_pictures(config: AlgorithmConfig, maker: EnvMaker) -> None:
    """Refuse a window without a screen, and videos that cannot be made, before anything is trained."""
    if config.render_env and not has_screen():
        raise ConfigError(
            "config.render_env: there is no screen here (DISPLAY is not set); for videos set record_env: true instead"
        )
    if config.record_env:
        check_videos("config.record_env")
        folder = videos_folder(config)
        if folder is not None:
            _check_folder(folder)
        there = config_for_evaluation(config)
        drawn = first_draw(there, maker.user_code)
        ctx = EnvContext(
            {**there.env_config, **drawn.env_config}, env_index=config.num_envs, env_ranks=config.env_ranks
        )
        make_filmable(maker, ctx, drawn.options).close()
        ctx.release()


def videos_folder(config: AlgorithmConfig) -> Path | None:
    """The folder that `record_env` names for videos; None if it names none."""
    return Path(config.record_env).expanduser().absolute() if isinstance(config.record_env, str) else None


def video_in(folder: Path, iteration: int) -> Path:
    """The video of the evaluation that belongs to an iteration."""
    return folder / f"iteration_{iteration:06d}.mp4"


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder)
    except OSError as error:
        raise ConfigError(
            f"config.record_env: {folder} cannot be written: {error.strerror or error}; give another folder, or true"
        ) from error
