"""A private Ray comes with its workers and goes with them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"


@pytest.fixture
def short_folder():
    """Sockets have short names only."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as folder:
        yield folder


def run(program: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a program in a process of its own, for a Ray that nobody else uses."""
    head = f"""
        import os, signal, sys, tempfile, glob
        import psutil
        import shoal
        WALK = {f"{PROBES}:Walk"!r}
        CONFIG = dict(env=WALK, num_workers=2, num_envs_per_worker=2, num_cpus_per_worker=1, train_batch_size=64)
        def lives(process):
            try:
                return process.status() != psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                return False
        def children():
            return [p for p in psutil.Process().children(recursive=True) if lives(p)]
        def left_behind(before):
            gone, alive = psutil.wait_procs(before, timeout=60)
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
        (folder,) = glob.glob(os.path.join(tempfile.gettempdir(), "shl-*"))
        assert os.stat(folder).st_mode & 0o777 == 0o700
        def connections(process):
            try:
                return process.net_connections("inet")
            except psutil.NoSuchProcess:  # Ray's own, which come and go
                return []

        sockets = [c for p in [psutil.Process(), *before] for c in connections(p)]
        heard = {c.laddr.ip for c in sockets if c.status == "LISTEN"}
        assert heard and heard <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, heard

        # What a scheduler tells every process of a job is for the program alone; simulators can be signalled as ever.
        for process in before:
            for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                try:
                    process.send_signal(number)
                except psutil.NoSuchProcess:  # Ray's own, which come and go
                    pass
        result = trainer.train()
        assert result["timesteps_this_iter"] == 64 and result["num_remote_worker_restarts"] == 0, result
        def blocked(worker):
            import subprocess
            told = subprocess.run(["grep", "SigBlk", "/proc/self/status"], capture_output=True, text=True).stdout
            return bool(int(told.split()[1], 16) & 1 << signal.SIGTERM - 1)
        assert trainer.workers.foreach_worker(blocked) == [False, False]
        trainer.stop()
        assert not left_behind(before), left_behind(before)
        assert not glob.glob(os.path.join(tempfile.gettempdir(), "shl-*"))
        trainer.stop()
        assert not children(), "stopping twice must not start another Ray"
        """,
        TMPDIR=str(short_folder),
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
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


@pytest.mark.slow
def test_neither_more_workers_than_cores_nor_a_long_name_of_the_temporary_folder_does_harm(tmp_path) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    done = run(
        """
        with shoal.PPO(config={**CONFIG, "num_workers": 4, "num_envs_per_worker": 1}) as trainer:
            assert trainer.train()["timesteps_total"] == 64
        """,
        TMPDIR=str(long),
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
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


@pytest.mark.slow
def test_one_after_another_in_a_program_that_had_a_ray_of_its_own_before(short_folder) -> None:
    done = run(
        """
        import ray
        ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
        ray.shutdown()
        for _ in range(2):
            with shoal.PPO(config=CONFIG) as trainer:
                assert trainer.train()["timesteps_total"] == 64
                before = children()
            assert not left_behind(before)
        """,
        TMPDIR=short_folder,
        RAY_AUTH_MODE="disabled",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_users_own_ray_is_used_and_left_running(short_folder) -> None:
    done = run(
        """
        import ray
        ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
        for _ in range(2):
            with shoal.PPO(config=CONFIG) as trainer:
                trainer.train()
        assert ray.is_initialized()
        assert ray.get(ray.remote(lambda: 7).remote()) == 7
        """,
        TMPDIR=short_folder,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_a_worker_has_started_ends_with_it_and_what_is_not_ours_is_left_alone(short_folder) -> None:
    """Not ours: a folder of the user's with such a name, and a process that only reads our folder."""
    done = run(
        """
        import subprocess
        kept = [os.path.join(tempfile.gettempdir(), name) for name in ("shoal-2024-results", "shl-2024-results")]
        for folder in kept:
            os.mkdir(folder)
        def start(worker):
            return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid
        with shoal.PPO(config={**CONFIG, "num_workers": 1}) as trainer:
            solvers = [psutil.Process(pid) for pid in trainer.workers.foreach_worker(start)]
            assert solvers and all(solver.is_running() for solver in solvers)
            (folder,) = set(glob.glob(os.path.join(tempfile.gettempdir(), "shl-*"))) - set(kept)
            (log,) = glob.glob(os.path.join(folder, "r", "session_2*", "logs", "raylet.out"))
            reader = subprocess.Popen(["tail", "-f", log], stdout=subprocess.DEVNULL, start_new_session=True)
            before = [p for p in children() if p.pid != reader.pid]
        assert not left_behind([*before, *solvers])
        assert reader.poll() is None, "it was only looking"
        reader.kill()
        reader.wait()
        assert all(map(os.path.isdir, kept))
        """,
        TMPDIR=short_folder,
    )
    assert done.returncode == 0, done.stderr


def test_a_ray_that_cannot_start_is_two_lines_and_its_logs(short_folder) -> None:
    """A limit on the size of files ends the raylet when it makes the memory that processes share."""
    limited = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20)); "
    limited += "os.execv(sys.executable, [sys.executable, '-m', 'shoal', *sys.argv[1:]])"
    words = ["train", "CartPole-v1", "--num-workers", "1", "--results-dir", f"{short_folder}/results", "--quiet"]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", limited, *words],
        env={**variables, "TMPDIR": short_folder},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1
    warning, why, where = done.stderr.splitlines()
    assert warning.startswith("Warning: Ray did not start ("), "it is tried again"
    assert why.startswith("Error: Ray did not start on this machine in 2 attempts: its process raylet ends as soon as")
    (logs,) = Path(short_folder).glob("shoal-ray-logs-*")
    assert where.startswith(f"Its logs are in {logs}; ")
    assert (logs / "raylet.out").is_file()
    assert not list(Path(short_folder).glob("shl-*")), "the token is not kept"


@pytest.mark.long
@pytest.mark.slow
def test_a_busy_machine_is_no_reason_not_to_start(short_folder) -> None:
    count = 12 * (os.cpu_count() or 1)
    spin = "import os, time; end = time.time() + 250\nwhile time.time() < end and os.getppid() == {}: pass"
    others = [subprocess.Popen([sys.executable, "-c", spin.format(os.getpid())]) for _ in range(count)]
    try:
        done = run(
            """
            with shoal.PPO(config={**CONFIG, "num_workers": 1}) as trainer:
                assert trainer.train()["timesteps_total"] == 64
            """,
            TMPDIR=short_folder,
        )
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_start_says_what_it_does(short_folder) -> None:
    done = run(
        """
        import logging
        logging.getLogger("shoal.progress").setLevel(logging.INFO)
        handler = logging.StreamHandler(sys.stdout)
        logging.getLogger("shoal.progress").addHandler(handler)
        config = {**CONFIG, "num_cpus_per_worker": 0.5, "num_learners": 2, "evaluation_num_workers": 1}
        shoal.PPO(config={**config, "evaluation_interval": 1}).stop()
        shoal.PPO(config={"env": WALK}).stop()
        shoal.PPO(config={"env": WALK, "num_envs_per_worker": 3}).stop()
        """,
        TMPDIR=short_folder,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "starting a private Ray",
        "starting 2 workers of 2 environments each",
        "starting 2 learners",
        "starting 1 worker for evaluation",
        "making the environments",
        "making 3 environments",
    ]
