"""A symbolic link in a run's folder is never written through."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import shoal
from shoal.config.experiment import experiment_from
from shoal.errors import CheckpointError
from shoal.runs.atomic_files import open_own
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.checkpoints import prune, tidy
from shoal.runs.lease import Lease
from shoal.runs.logs import log_to
from shoal.runs.run import Run

PRECIOUS = "export PATH=$HOME/bin:$PATH\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one iteration."""
    tree = {
        "env": "CartPole-v1",
        "results_dir": str(tmp_path_factory.mktemp("results")),
        "stop": {"training_iteration": 1},
        "config": {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_envs_per_worker": 2, "num_sgd_iter": 1},
    }
    run = Run.open(experiment_from(tree))
    assert len(list(run.results())) == 1
    return run.folder


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of the user's."""
    path = tmp_path / "bashrc"
    path.write_text(PRECIOUS)
    return path


def with_link(trained: Path, precious: Path, name: str) -> Path:
    """A copy of the run in which one file is a link to the user's."""
    folder = precious.with_name("run")
    shutil.copytree(trained, folder)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(precious)
    return folder


@pytest.mark.parametrize("name", [".lease.lock", "log.txt"])
def test_a_link_is_refused_by_name(trained: Path, precious: Path, name: str) -> None:
    folder = with_link(trained, precious, name)
    with pytest.raises(CheckpointError, match=f"{folder / name} is a symbolic link") as refused:
        list(Run.resume(folder, {"stop": {"training_iteration": 2}}).results())
    assert "\n" not in str(refused.value)
    assert precious.read_text() == PRECIOUS
    assert not (folder / ".lease").exists()


@pytest.mark.parametrize("name", ["result.json", "progress.csv"])
def test_records_that_lie_elsewhere_are_refused(trained: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    elsewhere = (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    with pytest.raises(CheckpointError, match=f"{name} is a symbolic link"):
        list(Run.resume(folder, {"stop": {"training_iteration": 2}}).results())
    assert elsewhere.read_bytes() == before


@pytest.mark.parametrize("name", ["config.yaml", "result.json", "progress.csv"])
def test_a_file_that_is_replaced_takes_the_place_of_a_link(trained: Path, precious: Path, name: str) -> None:
    folder = with_link(trained, precious, name)
    assert len(list(Run.resume(folder, {"stop": {"training_iteration": 2}}).results())) == 1
    assert precious.read_text() == PRECIOUS
    assert not (folder / name).is_symlink()


def test_a_link_in_the_place_of_the_lease_is_put_away_and_not_touched(tmp_path: Path, precious: Path) -> None:
    os.utime(precious, (1, 1))
    (tmp_path / ".lease").symlink_to(precious)
    os.utime(tmp_path / ".lease", (1, 1), follow_symlinks=False)
    with Lease(tmp_path):
        assert not (tmp_path / ".lease").is_symlink()
    assert (precious.read_text(), precious.stat().st_mtime) == (PRECIOUS, 1)


def test_a_link_that_leads_nowhere_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "log.txt").symlink_to(tmp_path / "made")
    with pytest.raises(CheckpointError, match="symbolic link"), log_to(tmp_path / "log.txt", "WARN"):
        pass
    assert not (tmp_path / "made").exists()


def test_an_own_file_keeps_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("before")
    os.close(open_own(tmp_path / "log.txt", os.O_WRONLY))
    assert (tmp_path / "log.txt").read_text() == "before"


def test_a_checkpoint_that_is_a_link_is_pruned_without_a_trace(tmp_path: Path) -> None:
    kept = tmp_path / "elsewhere"
    kept.mkdir()
    (kept / "precious").write_text(PRECIOUS)
    run = tmp_path / "run"
    (run / "checkpoint_000002").mkdir(parents=True)
    (run / "checkpoint_000001").symlink_to(kept)
    (run / ".tmp-checkpoint_000001-1-abc").symlink_to(kept)
    prune(run, 1)
    tidy(run)
    assert [path.name for path in run.iterdir()] == ["checkpoint_000002"]
    assert checkpoints_of(run) == [run / "checkpoint_000002"]
    assert (kept / "precious").read_text() == PRECIOUS


def test_videos_are_not_written_through_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    config = {"record_env": True, "train_batch_size": 64, "num_envs_per_worker": 2, "evaluation_interval": 1}
    with shoal.PPO(env="CartPole-v1", config=config) as trainer:
        trainer.folder = tmp_path / "run"
        trainer.folder.mkdir()
        (trainer.folder / "videos").symlink_to(elsewhere)
        with pytest.raises(CheckpointError, match="videos is a symbolic link"):
            trainer.evaluate()
    assert not list(elsewhere.iterdir())
