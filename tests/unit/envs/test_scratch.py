"""A folder and a port of an environment's own, in the worker's process and in one of its own."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal.envs import scratch
from shoal.envs.context import EnvContext, NoSuchItem
from shoal.envs.making import env_maker
from shoal.errors import ConfigError


class Writer(gym.Env[Any, Any]):
    """Writes its number into its folder."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: EnvContext) -> None:
        self.folder, self.port = config.scratch_dir, config.port
        assert os.listdir(self.folder) == []
        Path(self.folder, "index").write_text(str(config.env_index))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_each_has_its_own_and_nothing_is_left(isolation: str) -> None:
    with shoal.PPO(env=Writer, config={"num_envs_per_worker": 3, "env_isolation": isolation}) as trainer:
        told = trainer.workers.foreach_env(lambda env: (env.folder, env.port))
        assert [Path(folder, "index").read_text() for folder, _ in told] == ["0", "1", "2"]
    assert len({port for _, port in told}) == 3
    assert not any(os.path.exists(folder) for folder, _ in told)


def test_they_are_attributes_and_made_when_asked_for(tmp_path: Path) -> None:
    ctx = EnvContext({"a": 1}, env_index=4, scratch=str(tmp_path))
    assert dict(ctx) == {"a": 1}
    assert list(tmp_path.iterdir()) == []
    again = pickle.loads(pickle.dumps(ctx))
    assert Path(again.scratch_dir).parent == tmp_path
    assert again.scratch_dir == again.scratch_dir
    again.release()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NoSuchItem, match=r"type config\.port"):
        ctx["port"]


class Failing(Writer):
    """Fails in its third step, in the way that it is told."""

    def __init__(self, config: EnvContext) -> None:
        super().__init__(config)
        self.way, self.taken = config["way"], 0

    def step(self, action: int) -> Any:
        self.taken += 1
        if self.taken == 3 and self.way == "raise":
            raise ArithmeticError("diverged")
        if self.taken == 3 and self.way == "exit":
            os._exit(3)
        if self.taken == 3 and self.way == "fill":
            with open(Path(self.folder, "field.dat"), "wb") as file:
                while file.tell() < 200_000_000:  # of which one is allowed
                    file.write(bytes(100_000))
                    file.flush()
                    sleep(0.01)
        return super().step(action)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The host's own disk, with nothing on it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    scratch.scratch_root.cache_clear()
    yield tmp_path
    scratch.scratch_root.cache_clear()


@pytest.mark.repeats(1)
@pytest.mark.parametrize(
    ("isolation", "way", "kind"),
    [("none", "raise", "error"), ("process", "raise", "error"), ("process", "exit", "exit"), ("auto", "fill", "disk")],
)
def test_what_a_failed_environment_wrote_is_kept(disk: Path, isolation: str, way: str, kind: str) -> None:
    config = {"num_envs_per_worker": 1, "env_isolation": isolation, "env_config": {"way": way}}
    if way == "fill":
        config["env_scratch_limit_mb"] = 1
    with shoal.PPO(env=Failing, config=config) as trainer:
        sample = trainer.workers.sample(4)
        (folder,) = trainer.workers.foreach_env(lambda env: env.folder)
    (incident,) = sample.incidents
    assert incident.kind == kind
    assert kind != "disk" or "and env_scratch_limit_mb is 1" in incident.cause
    assert Path(incident.scratch, "index").read_text() == "0"
    assert Path(incident.scratch).is_relative_to(disk)
    assert not os.path.exists(folder)
    kept = list(Path(incident.scratch).parent.iterdir())
    assert kept == [Path(incident.scratch)]


def test_few_are_kept_and_no_empty_ones(disk: Path) -> None:
    for index in range(scratch.MOST_KEPT + 3):
        folder = scratch.scratch_folder(index)
        Path(folder, "log").touch()
        assert scratch.keep_failed(folder).startswith(str(disk))
        os.utime(disk / f"shoal-failed-{os.getuid()}" / Path(folder).name, (index, index))
    kept = sorted(p.name.split("-")[0] for p in (disk / f"shoal-failed-{os.getuid()}").iterdir())
    assert len(kept) == scratch.MOST_KEPT
    assert "env0" not in kept
    assert scratch.keep_failed(scratch.scratch_folder(99)) == ""


def test_a_folder_for_temporary_files_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "away"))
    scratch.scratch_root.cache_clear()
    try:
        with pytest.raises(ConfigError, match=f"TMPDIR: there is no folder {tmp_path}/away; make it, or set TMPDIR"):
            env_maker(Writer).make(EnvContext())
    finally:
        scratch.scratch_root.cache_clear()
