"""Videos and windows of a run: whether they can be had, and where they go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.config.settings import AlgorithmConfig
from shoal.envs.context import EnvContext
from shoal.envs.making import EnvMaker
from shoal.envs.randomizing import first_draw
from shoal.envs.recording import Film
from shoal.envs.video import check_videos, has_screen, made_to_be_filmed
from shoal.errors import ConfigError
from shoal.runs.evaluation import evaluated
from shoal.runs.folders import check_writable

if TYPE_CHECKING:
    from shoal.runs.trainer import Trainer


def check_pictures(config: AlgorithmConfig, maker: EnvMaker) -> None:
    """Refuse a window without a screen, and videos that cannot be made, before anything is trained."""
    if config.render_env and not has_screen():
        raise ConfigError(
            "config.render_env: there is no screen here (DISPLAY is not set); for videos say record_env: true instead"
        )
    if config.record_env:
        check_videos("config.record_env")
        if isinstance(config.record_env, str):
            _check_folder(_folder(config.record_env))
        there = evaluated(config)
        drawn = first_draw(there, maker.user_code)
        ctx = EnvContext({**there.env_config, **drawn.env_config}, env_index=config.num_envs)
        made_to_be_filmed(maker, ctx, drawn.options).close()


def film_of(trainer: Trainer, iteration: int) -> Film:
    """The video of one evaluation, in `videos/` of the run or where `record_env` says."""
    record = trainer.config.record_env
    if isinstance(record, str):
        folder = _folder(record)
    else:
        from shoal.runs.saving import folder_of

        folder = folder_of(trainer) / "videos"
    return Film(folder / f"iteration_{iteration:06d}.mp4")


def _folder(name: str) -> Path:
    return Path(name).expanduser().absolute()


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder)
    except OSError as error:
        raise ConfigError(
            f"config.record_env: {folder} cannot be written: {error.strerror or error}; give another folder, or true"
        ) from error
