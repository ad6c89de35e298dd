"""One suite over all schedulers, each simulated by small programs on PATH, and each one's script run by bash."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shoal.cli.main import main
from shoal.cluster.allocation import allocation
from shoal.cluster.batch_scripts import batch_script
from shoal.cluster.job_files import Source, job_from
from shoal.cluster.scheduler import Scheduler, Script
from shoal.cluster.schedulers import BUILT_IN
from shoal.cluster.start_commands import agents_command
from shoal.errors import ConfigError

# A stand-in keeps its job's state in $DESK/state, and its arguments, where a test asks for them, in $DESK/requeued.
PROGRAMS: dict[str, dict[str, str]] = {
    "slurm": {
        "sbatch": '[ "$1" = --parsable ] && cp "$2" $DESK/taken && echo RUNNING >$DESK/state && echo "41;cluster"',
        "squeue": 'read -r state <$DESK/state; [ "$state" = CANCELLED ] || echo "41|$state"',
        "sacct": 'read -r state <$DESK/state; echo "41|$state by 1000"',
        "scancel": '[ "$1" = 41 ] && echo CANCELLED >$DESK/state',
        "scontrol": 'echo "$*" >>$DESK/requeued',
    },
    "pbs": {
        "qsub": 'echo "$*" >>$DESK/requeued; cp "${!#}" $DESK/taken; echo R >$DESK/state; echo 41.pbs01',
        "qstat": """
            [ "$1" = -help ] && { echo "usage: qstat [-f] [-J] [-p]"; exit 2; }
            read -r state <$DESK/state
            [ "$state" = F ] && [ "$2" != -x ] && { echo "qstat: 41.pbs01 Job has finished, use -x" >&2; exit 35; }
            printf 'Job Id: 41.pbs01\\n    Job_Name = ppo\\n    job_state = %s\\n    queue = q\\n\\n' "$state" """,
        "qdel": '[ "$1" = 41.pbs01 ] && echo F >$DESK/state',
    },
    "lsf": {
        "bsub": 'cat >$DESK/taken; echo RUN >$DESK/state; echo "Job <41> is submitted to default queue <normal>."',
        "bjobs": 'read -r state <$DESK/state; echo "41 $state"',
        "bkill": '[ "$1" = 41 ] && echo EXIT >$DESK/state; echo "Job <41> is being terminated"',
    },
    "cobalt": {
        "qsub": """
            [ -x "${!#}" ] || exit 1
            echo "$*" >>$DESK/requeued; cp "${!#}" $DESK/taken; echo running >$DESK/state
            echo "Job routed to queue debug" >&2; echo 41""",
        "qstat": """
            [ "$1" = -help ] && { echo "Usage: qstat [--header <fields>] [<jobid|queue> ...]"; exit 0; }
            read -r state <$DESK/state || exit 1
            printf 'JobID  State\\n===========\\n41     %s\\n' "$state" """,
        "qdel": '[ "$1" = 41 ] && : >$DESK/state',
    },
    "sge": {
        "qsub": '[ "$1" = -terse ] && cp "$2" $DESK/taken && echo r >$DESK/state && echo 41',
        "qstat": """
            [ "$1" = -help ] && { echo "SGE 8.1.9"; echo "usage: qstat [options]"; exit 0; }
            read -r state <$DESK/state || exit 0
            echo "job-ID  prior   name  user  state submit/start at     queue  slots"
            echo "     41 0.55500 ppo   ada   $state     11/15/2026 21:30:05 all.q@n1  36" """,
        "qdel": '[ "$1" = 41 ] && : >$DESK/state; echo "ada has registered the job 41 for deletion"',
    },
}
TOOLS = ("bash", "cat", "cp", "grep", "mkdir", "sed", "sleep", "touch")
JOB_IDS = {"pbs": "41.pbs01"}  # 41 elsewhere
SHOAL = f"""#!{sys.executable}
import os, signal, sys
desk = os.environ["DESK"]
def note(file, text):
    with open(f"{{desk}}/{{file}}", "a") as out:
        out.write(text + "\\n")
def heard(number, frame):
    note("heard", signal.Signals(number).name)
    sys.exit(85 if number == signal.SIGUSR1 else 7)
signal.signal(signal.SIGUSR1, heard)
signal.signal(signal.SIGTERM, heard)
print("the command's own words", flush=True)
note("launched", " ".join(sys.argv[1:]))
if "ENDS_WITH" in os.environ:
    sys.exit(int(os.environ["ENDS_WITH"]))
note("up", str(os.getpid()))
signal.pause()
"""


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@dataclass(frozen=True)
class Desk:
    """A login node of one scheduler: `folder` has what its programs remember, `work` is the working folder."""

    scheduler: str
    folder: Path
    work: Path
    environment: dict[str, str]

    @property
    def known(self) -> Scheduler:
        return BUILT_IN[self.scheduler]

    @property
    def needed(self) -> dict[str, str]:
        """A value for each key that this scheduler must be told."""
        return dict.fromkeys(self.known.script.needed, "mpi")

    def shoal(self, *words: str) -> Result:
        done = CliRunner().invoke(main, list(words), prog_name="shoal")
        assert done.exit_code == 0, done.output
        return done

    def submit(self, *more: str) -> Result:
        needed = [f"--{key.replace('_', '-')}={value}" for key, value in self.needed.items()]
        return self.shoal("submit", "--name", "ppo", "--walltime", "20m", *needed, *more, "--", "shoal", "train", "x")

    def script(self, **keys: Any) -> Path:
        tree = {"name": "ppo", "walltime": "20m", "command": ["true"], "max_requeues": 2, **self.needed, **keys}
        path = self.folder / "job.sh"
        path.write_text(batch_script(job_from([Source(tree)]), self.known, self.folder / "bin", self.folder / "nodes"))
        path.chmod(0o700)
        return path

    def variables(self, **more: str) -> dict[str, str]:
        job_id = {self.known.job_variable: JOB_IDS.get(self.scheduler, "41")}
        return {**self.environment, **job_id, "PBS_O_WORKDIR": str(self.work), **more}

    def run(self, script: Path, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", script],
            cwd=self.work,
            env=self.variables(**more),
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    @contextmanager
    def running(self, script: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        """The batch shell and the process number of its `shoal launch`, once that listens."""
        with subprocess.Popen(["bash", script], cwd=self.work, env=self.variables(), stderr=subprocess.PIPE) as shell:
            up = self.folder / "up"
            yield shell, int(until(lambda: up.exists() and up.read_text().strip()))

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""


@pytest.fixture(params=BUILT_IN)
def desk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    programs = {name: f"#!/bin/bash\n{body}\n" for name, body in PROGRAMS[request.param].items()} | {"shoal": SHOAL}
    for folder in ("bin", "work", "home"):
        (tmp_path / folder).mkdir()
    for name, body in programs.items():
        (tmp_path / "bin" / name).write_text(body)
        (tmp_path / "bin" / name).chmod(0o700)
    for name in TOOLS:  # the machine's own folders may have a real scheduler in them
        found = shutil.which(name)
        assert found is not None
        (tmp_path / "bin" / name).symlink_to(found)
    foreign = ("SLURM", "PBS", "LSB", "COBALT", "SGE", "SHOAL")
    for name in [name for name in os.environ if name.startswith(foreign)]:
        monkeypatch.delenv(name)
    for name, value in {
        "PATH": f"{tmp_path}/bin",
        "HOME": f"{tmp_path}/home",
        "DESK": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path / "work")
    return Desk(request.param, tmp_path, tmp_path / "work", dict(os.environ))


@pytest.mark.repeats(2)
def test_simulated_submit_ask_follow_and_cancel(desk: Desk) -> None:
    done = desk.submit()
    (record,) = (desk.folder / "home/.shoal/jobs").glob("ppo-*/job.json")
    job = json.loads(record.read_text())
    assert job["scheduler"] == desk.scheduler
    assert job["id"].partition(".")[0] == "41"
    assert job["log"] == f"{desk.work}/ppo-41.log"
    assert Path(job["script"]).read_text() == desk.read("taken")
    assert Path(job["script"]).read_text() in done.output
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    assert "shoal logs 41 -f" in done.output

    _, row = desk.shoal("jobs").output.splitlines()
    assert row.split()[1:3] == [desk.read("state").strip(), "ppo"]
    missing = CliRunner().invoke(main, ["logs", "41"])
    assert missing.exit_code == 1
    assert "does not exist yet" in missing.output

    Path(job["log"]).write_bytes(b"iter 1\n\xff\n")
    shown = desk.shoal("logs", "41")
    assert shown.stdout_bytes == b"iter 1\n\xff\n"
    assert f"{record.parent}-41" in shown.stderr
    desk.shoal("cancel", "41")
    assert desk.shoal("logs", "41", "-f").stdout_bytes == b"iter 1\n\xff\n"
    assert desk.shoal("jobs").output == "No job is waiting or running; --all lists past ones.\n"
    assert "ppo-41.log" in desk.shoal("jobs", "--all").output


def test_simulated_a_job_knows_its_hosts_and_starts_a_process_on_each(desk: Desk) -> None:
    hosts = desk.folder / "hosts"
    hosts.write_text("n1 2 q\nn2 2 q\n" if desk.scheduler == "sge" else "n1\nn2\n")
    values = {"SLURM_JOB_NODELIST": "n[1-2]", "LSB_MCPU_HOSTS": "n1 2 n2 2"}
    variables = {name: values.get(name, str(hosts)) for name in desk.known.host_variables[0].names}
    given = allocation({**desk.variables(), **variables})
    assert given is not None
    assert (given.scheduler, given.job_id.partition(".")[0]) == (desk.scheduler, "41")
    assert [host.name for host in given.hosts] == ["n1", "n2"]
    for start in desk.known.starts:
        (desk.folder / "bin" / start.program).write_text("#!/bin/bash\n")
        (desk.folder / "bin" / start.program).chmod(0o700)
        commands = agents_command([start], given.hosts, ["/bin/true"], {**desk.variables(), **variables})
        assert len(commands) in (1, 2), "one command for both, or one for each"
        assert all(any("/bin/true" in word for word in command) for command in commands)


@pytest.mark.repeats(2)
def test_simulated_the_scheduler_of_the_machine_is_found(desk: Desk) -> None:
    told = desk.submit("--dry-run", "--scheduler", desk.scheduler).output.splitlines()
    assert desk.submit("--dry-run").output.splitlines()[:6] == told[:6]


@pytest.mark.repeats(2)
def test_simulated_a_refusal_passes_on_what_the_scheduler_says(desk: Desk) -> None:
    program = desk.known.commands.submit[0]
    (desk.folder / "bin" / program).write_text("#!/bin/bash\necho 'invalid account rlwater' >&2\nexit 3\n")
    with pytest.raises(AssertionError, match=f"Error: {program} refused the job: invalid account rlwater"):
        desk.submit()
    assert list((desk.folder / "home/.shoal/jobs").iterdir()) == []


def test_simulated_the_script_passes_exit_codes_and_words_through(desk: Desk) -> None:
    script = desk.script(command=["python", "a b.py", "it's", "$HOME"], min_nodes=1)
    done = desk.run(script, ENDS_WITH="3")
    assert done.returncode == 3
    options = f"--job-dir {desk.folder}/nodes-41 --min-nodes 1 --on-node-loss continue"
    assert desk.read("launched") == f"launch {options} -- python a b.py it's $HOME\n"
    assert desk.run(script, ENDS_WITH="0").returncode == 0
    assert desk.run(script, ENDS_WITH="99").returncode == (1 if desk.known.script.requeue_code == 99 else 99)
    assert desk.read("requeued") == ""
    log = desk.work / "ppo-41.log"
    assert "the command's own words" in (log.read_text() if log.exists() else done.stdout)


@pytest.mark.parametrize(
    ("preamble", "sentence"),
    [
        (["export A=1", "load nothing"], "Line 2 of the preamble failed with exit code 127: load nothing"),
        (["for x in 1 2", "do false", "done"], "Line 2 of the preamble failed with exit code 1: do false"),
        ([". ./missing"], "Line 1 of the preamble failed with exit code 1: . ./missing"),
        (["(exit 99)"], "Line 1 of the preamble failed with exit code 99: (exit 99)"),
        (["set -u", 'echo "$NOWHERE"'], "The job ended in its preamble, with exit code"),
        (["exit 4"], "The job ended in its preamble, with exit code 4."),
    ],
)
def test_simulated_a_preamble_that_fails_ends_the_job(desk: Desk, preamble: list[str], sentence: str) -> None:
    done = desk.run(desk.script(preamble=preamble))
    log = desk.work / "ppo-41.log"
    assert sentence in done.stderr + (log.read_text() if log.exists() else "")
    assert done.returncode == 1, "and no code that a scheduler has its own meaning for"
    assert desk.read("launched") == ""


def test_simulated_what_may_fail_in_a_preamble(desk: Desk) -> None:
    (desk.work / "activate").write_text("false\nexport ACTIVE=yes\n")
    preamble = [". ./activate", "false || true", "if false; then :; fi", '[ "$ACTIVE" = yes ]']
    done = desk.run(desk.script(preamble=preamble), ENDS_WITH="3")
    assert done.returncode == 3, done.stderr
    assert "preamble" not in done.stderr


@pytest.mark.parametrize("is_login", [True, False])
def test_simulated_the_script_has_what_a_login_shell_has(desk: Desk, is_login: bool) -> None:
    (desk.folder / "home/.bash_profile").write_text("module() { export LOADED=$2; }\n")
    script = desk.script(preamble=["module load rl", '[ "$LOADED" = rl ]'], login_shell=is_login)
    # Grid Engine is told which shell to use, and then whether it is a login shell is the site's decision.
    words = ["bash", str(script)] if desk.known.script.chooses_shell else [str(script)]
    done = subprocess.run(
        words,
        cwd=desk.work,
        env=desk.variables(ENDS_WITH="3"),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == (3 if is_login else 1), done.stderr


def test_simulated_a_saved_job_is_requeued_at_most_so_often(desk: Desk) -> None:
    script = desk.script(preamble=["set -eu", "cd /"])
    codes = []
    for restarts in range(3):
        more = {"SLURM_RESTART_COUNT": str(restarts)} if desk.scheduler == "slurm" else {}
        if restarts and desk.known.script.variables is not None:
            more = {"SHOAL_FIRST_JOB": "41", "PBS_JOBID": f"5{restarts}.pbs01", "COBALT_JOBID": f"5{restarts}"}
        codes.append(desk.run(script, ENDS_WITH="85", **more).returncode)
    script_of = desk.known.script
    if script_of.requeue_code is not None:
        assert codes == [script_of.requeue_code, script_of.requeue_code, 85]
    else:
        assert codes == [0, 0, 85]
        assert len(desk.read("requeued").splitlines()) == 2
    if script_of.requeue_count == Script.requeue_count:  # the scheduler does not count
        assert len((desk.work / "ppo-41.log.requeues-41").read_text().splitlines()) == 2
    if script_of.variables is not None:  # a requeue is a new job
        assert desk.read("requeued").splitlines()[0].endswith(f"SHOAL_FIRST_JOB=41 {script}")
        assert "not requeued" in (desk.work / "ppo-41.log").read_text()
    if desk.scheduler == "slurm":
        assert desk.read("requeued").splitlines()[0] == "requeue 41"


RUNTIME = """#!/bin/bash
echo "$*" >>$DESK/contained
until [[ $1 = *.sif ]]; do shift; done
shift
exec "$@"
"""
EVERYWHERE = """#!/bin/bash
[ "$1" = --version ] && { echo "HYDRA build details:"; exit; }
echo "${0##*/} $*" >>$DESK/started
until [[ $1 = */apptainer ]]; do shift; done
exec "$@"
"""


def test_simulated_a_container_runs_on_every_node(desk: Desk) -> None:
    programs = {"apptainer": RUNTIME, **dict.fromkeys(("srun", "mpiexec", "aprun"), EVERYWHERE)}
    for name, body in programs.items():
        (desk.folder / "bin" / name).write_text(body)
        (desk.folder / "bin" / name).chmod(0o700)
    path = [f"PATH={desk.folder}/bin:$PATH"]  # a login shell may have another
    if not desk.known.script.every_node:
        with pytest.raises(ConfigError, match="use nodes: 1"):
            desk.script(container="/images/a.sif", nodes=3)
        return
    script = desk.script(container="/images/a.sif", nodes=3, command=["shoal", "train", "a b"], preamble=path)
    assert desk.run(script, ENDS_WITH="3").returncode == 3
    assert desk.read("launched").startswith(f"launch --job-dir {desk.folder}/nodes-41 ")
    assert desk.read("launched").endswith("-- shoal train a b\n")
    assert desk.read("contained").startswith(
        f"exec --pwd {desk.work} --bind {desk.work} --bind {desk.folder} /images/a.sif"
    )
    assert "--num-ranks 3" in desk.read("launched")
    assert re.match(r"srun --nodes=3 --ntasks=3 |mpiexec -n 3 --ppn 1 |aprun -n 3 -N 1 ", desk.read("started"))
    with desk.running(script) as (shell, _):
        shell.send_signal(signal.SIGTERM)
        assert shell.wait() == 7
    assert desk.read("heard") == "SIGTERM\n"


def test_simulated_without_requeue_the_code_is_the_commands(desk: Desk) -> None:
    assert desk.run(desk.script(requeue=False), ENDS_WITH="85").returncode == 85
    assert desk.read("requeued") == ""


def test_simulated_signals_reach_the_command_once_and_through_the_shell(desk: Desk) -> None:
    with desk.running(desk.script(requeue=False)) as (shell, launch):
        assert os.getpgid(launch) != os.getpgid(shell.pid)
        shell.send_signal(signal.SIGTERM)
    assert (shell.returncode, desk.read("heard")) == (7, "SIGTERM\n")

    (desk.folder / "up").unlink()
    with desk.running(desk.script(requeue=False)) as (shell, launch):
        # A scheduler may suspend a job: that is no end, and the shell still passes on what it hears.
        status = Path(f"/proc/{launch}/status")
        os.kill(launch, signal.SIGSTOP)
        until(lambda: "State:\tT" in status.read_text())
        shell.send_signal(signal.SIGUSR1)
        until(lambda: f"ShdPnd:\t{1 << (signal.SIGUSR1 - 1):016x}" in status.read_text() or shell.poll() is not None)
        os.kill(launch, signal.SIGCONT)
    assert (shell.returncode, desk.read("heard")) == (85, "SIGTERM\nSIGUSR1\n")


@pytest.mark.repeats(2)
def test_simulated_the_shell_warns_itself_where_the_scheduler_does_not(desk: Desk) -> None:
    # In bash, because Python may take longer to listen than this job has time.
    (desk.folder / "bin/shoal").write_text("#!/bin/bash\ntrap 'exit 85' USR1\nwhile :; do sleep 0.1; done\n")
    script = desk.script(walltime="4s", signal_before="2s", requeue=False)
    if desk.known.script.warns:
        assert f"{desk.known.script.word} --signal=B:USR1@2\n" in script.read_text()
        return
    assert desk.run(script).returncode == 85


def test_simulated_no_timer_outlives_the_script(desk: Desk) -> None:
    # A length of its own: the same test of another scheduler may sleep beside it.
    marker = 90_000 + 100 * sorted(PROGRAMS).index(desk.scheduler)
    desk.run(desk.script(walltime=f"{marker + 2}s", signal_before="2s"), ENDS_WITH="0")
    sleeping = [f"sleep\0{left}\0" for left in range(marker - 60, marker + 1)]
    deadline = time.monotonic() + 60
    while any(_text(path) in sleeping for path in Path("/proc").glob("[0-9]*/cmdline")):
        assert time.monotonic() < deadline, "the timer outlives its script"
        time.sleep(0.05)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
