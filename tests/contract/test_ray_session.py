"""A private Ray comes with its workers and goes with them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

PROBES = Path(__file__).with_name("probe_env.py")


@pytest.fixture
def short_folder():
    """Sockets have short names only."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as folder:
        yield folder


def run(program: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a program in a process of its own, for a Ray that nobody else uses."""
    head = f"""
        import os, sys, tempfile, glob
        import psutil
        import shoal
        WALK = {f"{PROBES}:Walk"!r}
        CONFIG = dict(env=WALK, num_workers=2, num_envs_per_worker=2, num_cpus_per_worker=1, train_batch_size=64)
        def children():
            return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
        def left_behind(before):
            gone, alive = psutil.wait_procs(before, timeout=20)
            return alive
    """
    source = textwrap.dedent(head) + textwrap.dedent(program)
    variables = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | environment
    return subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=200, env=variables, check=False
    )


def test_no_process_and_no_folder_stays_after_stop(short_folder) -> None:
    done = run(
        """
        trainer = shoal.PPO(config=CONFIG)
        trainer.train()
        before = children()
        assert before
        assert glob.glob(os.path.join(tempfile.gettempdir(), "shoal-*"))
        (folder,) = glob.glob(os.path.join(tempfile.gettempdir(), "shoal-*"))
        assert os.stat(folder).st_mode & 0o777 == 0o700
        sockets = [c for p in [psutil.Process(), *before] for c in p.net_connections("inet")]
        heard = {c.laddr.ip for c in sockets if c.status == "LISTEN"}
        assert heard and heard <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, heard
        trainer.stop()
        assert not left_behind(before), left_behind(before)
        assert not glob.glob(os.path.join(tempfile.gettempdir(), "shoal-*"))
        trainer.stop()
        assert not children(), "stopping twice must not start another Ray"
        """,
        TMPDIR=str(short_folder),
    )
    assert done.returncode == 0, done.stderr


def test_one_after_another_in_one_program(short_folder) -> None:
    done = run(
        """
        for _ in range(2):
            with shoal.PPO(config=CONFIG) as trainer:
                assert trainer.train()["timesteps_total"] == 64
                before = children()
            assert not left_behind(before)
        """,
        TMPDIR=str(short_folder),
    )
    assert done.returncode == 0, done.stderr


def test_a_failed_start_leaves_nothing(short_folder) -> None:
    done = run(
        """
        try:
            shoal.PPO(config={**CONFIG, "env": WALK.replace("Walk", "Broken")})
        except shoal.errors.EnvError as error:
            assert "licence has run out" in str(error), error
        else:
            raise AssertionError("it started")
        assert not left_behind(children())
        """,
        TMPDIR=str(short_folder),
    )
    assert done.returncode == 0, done.stderr


def test_more_workers_than_cores_still_fit_a_private_ray(short_folder) -> None:
    done = run(
        """
        with shoal.PPO(config={**CONFIG, "num_workers": 4, "num_envs_per_worker": 1}) as trainer:
            assert trainer.train()["timesteps_total"] == 64
        """,
        TMPDIR=str(short_folder),
    )
    assert done.returncode == 0, done.stderr


def test_a_long_name_of_the_temporary_folder_does_no_harm(tmp_path) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    done = run(
        """
        with shoal.PPO(config=CONFIG) as trainer:
            trainer.train()
        """,
        TMPDIR=str(long),
    )
    assert done.returncode == 0, done.stderr


def test_a_second_trainer_that_finds_no_core_free_is_refused(short_folder) -> None:
    done = run(
        """
        with shoal.PPO(config=CONFIG) as first:
            try:
                shoal.PPO(config=CONFIG)
            except shoal.errors.ConfigError as error:
                assert "stop the trainer" in str(error), error
            else:
                raise AssertionError("it started")
            first.train()
        """,
        TMPDIR=short_folder,
    )
    assert done.returncode == 0, done.stderr


def test_a_program_may_have_had_a_ray_of_its_own_before(short_folder) -> None:
    done = run(
        """
        import ray
        ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
        ray.shutdown()
        for _ in range(2):
            with shoal.PPO(config=CONFIG) as trainer:
                assert trainer.train()["timesteps_total"] == 64
        """,
        TMPDIR=short_folder,
        RAY_AUTH_MODE="disabled",
    )
    assert done.returncode == 0, done.stderr


def test_the_users_own_ray_is_used_and_left_running(short_folder) -> None:
    done = run(
        """
        import ray
        ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
        for _ in range(3):
            with shoal.PPO(config=CONFIG) as trainer:
                trainer.train()
        assert ray.is_initialized()
        assert ray.get(ray.remote(lambda: 7).remote()) == 7
        """,
        TMPDIR=short_folder,
    )
    assert done.returncode == 0, done.stderr
