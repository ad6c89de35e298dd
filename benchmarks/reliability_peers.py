"""What becomes of Stable-Baselines3 and RLlib in the rows that mean something for them; `runners/survive.py` asks."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import stranger
from desks import MARK, WatchedDesk
from peers import HERE, ONE_THREAD, python_of
from record import console
from reliability_runs import CODES, GONE_S, LEFT, first_iteration, left_of_killed
from reliability_saves import WAYS, killed_in_saves, shim

ANSWER_S = 60.0  # for one checkpoint, beside the start
START_S = 120.0
MOST_TRIES = 3  # of what has not even begun
LATE_S = 60.0  # after which a run that has lost a worker is taken for one that hangs
MOST_MOMENT_S = 2.0  # after the first iteration
CALL_FAILURES = {"sb3": ("ENOSPC", "EIO", "EDQUOT", "short write"), "rllib": ("ENOSPC",)}
ENVIRONMENT = {**ONE_THREAD, "PYTHONWARNINGS": "ignore", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Told:
    """What came of a peer in a row."""

    count: int
    figure: str
    more: dict[str, Any] = field(default_factory=dict)


def _words(who: str, *words: str | Path) -> list[str]:
    return [str(python_of(who)), str(HERE / "runners" / f"survive_{who}.py"), *map(str, words)]


def _environment(home: Path, **more: str) -> dict[str, str]:
    """This process's variables, with a home in which the peer may write what it likes."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "PYTHONPATH"))}
    return {**kept, **ENVIRONMENT, "HOME": str(home), **more}


def _lines(
    who: str, home: Path, *words: str | Path, within_s: float | None = None, **more: str
) -> tuple[list[Any], str]:
    """The lines of JSON that a command prints, and how it ended where it did not end well."""
    told, complaints, ended = home / "told", home / "complaints", ""
    with told.open("w") as out, complaints.open("w") as err:
        child = subprocess.Popen(_words(who, *words), stdout=out, stderr=err, env=_environment(home, **more))
        try:
            code = child.wait(within_s)
            ended = "" if code == 0 else f"the process ended with {code}"
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            ended = "it hangs"
    return [json.loads(line) for line in told.read_text().splitlines() if line.startswith("{")], ended


def _asked(who: str, home: Path, *words: str | Path, **more: str) -> list[Any]:
    """The same of a command that must end well; Ray may not come up at once on a machine that has much else to do."""
    for _ in range(MOST_TRIES):
        lines, ended = _lines(who, home, *words, **more)
        if not ended:
            break
    assert not ended, f"{who} {words[0]}: {ended}: {(home / 'complaints').read_text()[-2000:]}"
    return lines


def _loaded(who: str, home: Path, places: Sequence[Path]) -> list[dict[str, Any]]:
    """What is in each of these checkpoints; one that ends the whole process, or hangs, does so alone."""
    found: list[dict[str, Any]] = []
    tries = 0
    while len(found) < len(places):
        open_ = places[len(found) :]
        lines, ended = _lines(who, home, "load", *open_, within_s=START_S + ANSWER_S * len(open_) ** 0.5)
        found += lines
        tries = 1 if lines else tries + 1
        if len(found) < len(places) and tries == MOST_TRIES:
            found.append({"error": ended or "nothing was said"})
            tries = 0
    return found


def killed_saves(who: str, count: int, folder: Path, command: str = "save-for-ever") -> Told:
    """kill -9 while one checkpoint is overwritten again and again, as the peer's documentation saves it."""
    choose = random.Random(17)
    place, copies, acknowledged = folder / "saved", [], []
    place.mkdir()
    for number in range(count):
        lines = killed_in_saves(_words(who, command, place), choose, _environment(folder))
        acknowledged.append(int([line for line in lines if line.endswith("\n")][-1]))
        copies.append(folder / f"after-{number:03}")
        shutil.copytree(place, copies[-1])
    outcomes: Counter[str] = Counter()
    for found, least in zip(_loaded(who, folder, copies), acknowledged, strict=True):
        is_whole = found.get("number") in (least, least + 1)
        outcomes["whole" if is_whole else found.get("error", "of another save")] += 1
    figure = f"{outcomes['whole']} of {count} loadable, {count - outcomes['whole']} acknowledged lost"
    return Told(count, f"{figure} (one place, overwritten)", {"outcomes": outcomes})


def killed_replay(who: str, count: int, folder: Path) -> Told:
    """The same of a replay buffer."""
    return killed_saves(who, count, folder, "save-replay-for-ever")


def failed_calls(who: str, _: int, folder: Path) -> Told:
    """Every call to the file system that a save makes fails once: is the old checkpoint there, or the new one?"""
    preload = str(shim(folder))
    lines = _asked(who, folder, "fail-calls", folder / "saved", *CALL_FAILURES[who], LD_PRELOAD=preload)
    good = sum(line["found"] in (1, 2) for line in lines)
    figure = f"one can be loaded after {good} of {len(lines)} points ({', '.join(CALL_FAILURES[who])})"
    return Told(len(lines), figure, {"calls": Counter(line["call"] for line in lines)})


def corruptions(who: str, count: int, folder: Path) -> Told:
    """Damage one file of a checkpoint, as in shoal's row; and what is it that is loaded then?"""
    choose = random.Random(17)
    origin, other = folder / "origin", folder / "other"
    for seed, place in enumerate((origin, other)):
        _asked(who, folder, "save", place, str(seed))
    copies, swaps = [], []
    for number in range(count):
        copies.append(folder / f"copy-{number:03}")
        shutil.copytree(origin, copies[-1])
        way = list(WAYS)[number % len(WAYS)]
        if way == "swap" and who == "sb3":  # whose one file has parts
            swaps += [copies[-1], other]
            continue
        files = [file.relative_to(origin) for file in sorted(origin.rglob("*")) if file.is_file()]
        if way == "swap":
            files = [file for file in files if (origin / file).read_bytes() != (other / file).read_bytes()]
        file = choose.choice(files)
        whole = (origin / file).read_bytes()
        (copies[-1] / file).write_bytes(WAYS[way](whole, choose, (other / file).read_bytes()))
    if swaps:
        _asked(who, folder, "swap", *swaps)
    (first,) = _loaded(who, folder, [origin])
    outcomes: Counter[str] = Counter()
    for number, found in enumerate(_loaded(who, folder, copies)):
        what = "raised" if "digest" not in found else "same" if found["digest"] == first["digest"] else "other"
        outcomes[f"{list(WAYS)[number % len(WAYS)]}: {what}"] += 1
    return Told(count, told_of_corruptions(outcomes), {"outcomes": outcomes})


def told_of_corruptions(outcomes: Mapping[str, int]) -> str:
    """What was loaded, apart from what was refused; "same" may be another in what is neither weights nor optimiser."""
    total = {what: sum(n for key, n in outcomes.items() if key.endswith(what)) for what in ("other", "same", "raised")}
    return (
        f"{total['other'] + total['same']} of {sum(total.values())} loaded silently ({total['other']} of them with "
        f"other weights or optimiser), {total['raised']} tracebacks"
    )


def hostile(who: str, _: int, folder: Path) -> Told:
    """A stranger's object in each part of a checkpoint that can carry one."""
    origin, place = folder / "origin", folder / "bombs"
    place.mkdir()
    _asked(who, folder, "save", origin, "1")
    made = _asked(who, folder, "bombs", origin, place)
    _loaded(who, folder, [Path(each["copy"]) for each in made])
    executed = [each["part"] for each in made if Path(each["canary"]).exists()]
    return Told(len(made), f"{len(executed)} of {len(made)} executed", {"executed": executed})


def resumed(who: str, _: int, folder: Path) -> Told:
    """A run that was saved and loaded half-way, beside one that was not; and that one beside itself."""
    lines = _asked(who, folder, "resume", folder)
    tried = {line["name"]: line["digests"] for line in lines}
    equal = [name for name, (cut, straight, _) in tried.items() if cut == straight]
    certain = [name for name, (_, straight, again) in tried.items() if straight == again]
    figure = f"{len(equal)} of {len(tried)} byte-equal ({len(certain)} are when they are not interrupted)"
    return Told(len(tried), figure, {"equal": equal, "equal_to_itself": certain, "tried": list(tried)})


def _started(who: str, desk: WatchedDesk, *words: str | Path, **more: str) -> subprocess.Popen[str]:
    """A command of a peer's whose processes can be found again."""
    variables = _environment(desk.home, **{MARK: str(desk.home)}, **more)
    with open(desk.home / "stderr", "w") as stderr:
        return subprocess.Popen(
            [*desk.before, *_words(who, *words)],
            cwd=desk.home,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )


def _ended(desk: WatchedDesk, child: subprocess.Popen[str], within_s: float) -> tuple[int | None, list[psutil.Process]]:
    """The code with which it ended, or None, and which of its processes are left after a while; they are ended."""
    code = None
    with suppress(subprocess.TimeoutExpired):
        child.communicate(timeout=within_s)
        code = child.returncode
    _, alive = psutil.wait_procs(desk.processes(), timeout=GONE_S)
    for process in [*alive, *desk.processes()]:
        with suppress(psutil.Error):
            process.kill()
    child.communicate()
    return code, alive


def signals(who: str, count: int, folder: Path) -> Told:
    """A signal while it trains, half of the times with two workers: what its documentation begins with, no callback."""
    choose = random.Random(17)
    outcomes: Counter[str] = Counter()
    for number in range(count):
        home = folder / f"{number:03}"
        home.mkdir()
        desk = WatchedDesk(home, ("env", "--default-signal"))
        which = list(CODES)[number % len(CODES)]
        child = _started(who, desk, "train", home / "saved", str(number // len(CODES) % 2 * 2), TMPDIR=str(home))
        first_iteration(child)
        with suppress(subprocess.TimeoutExpired):
            child.wait(choose.uniform(0, MOST_MOMENT_S))
        child.send_signal(which)
        code, alive = _ended(desk, child, LATE_S)
        outcomes["saved"] += any((home / "saved").glob("*")) if (home / "saved").is_dir() else 0
        outcomes["processes left"] += bool(alive)
        outcomes["traceback"] += "Traceback" in desk.complaints()
        outcomes["had not ended"] += code is None
        console.print(f"  {number + 1} of {count}: {which.name}, {code}, {len(alive)} left", style="dim")
        shutil.rmtree(home)
    figure = f"{outcomes['saved']} of {count} saved, {outcomes['processes left']} left processes"
    return Told(count, f"{figure}, {outcomes['traceback']} tracebacks", {"outcomes": outcomes})


def killed_worker(who: str, count: int, folder: Path) -> Told:
    """kill -9 of one of four workers: does `learn` go on?"""
    choose = random.Random(17)
    errors: Counter[str] = Counter()
    for number in range(count):
        home = folder / f"{number:03}"
        home.mkdir()
        desk = WatchedDesk(home)
        child = _started(who, desk, "train", home / "saved", "4")
        first_iteration(child)
        choose.choice(_leaves(child.pid)).kill()
        code, _ = _ended(desk, child, LATE_S)
        last = (desk.complaints().splitlines() or [""])[-1].partition(":")[0]
        errors["it went on for a minute" if code is None else last or f"code {code}"] += 1
    went_on = errors["it went on for a minute"]
    return Told(count, f"the run ends ({count - went_on} of {count} kills)", {"ends": errors})


def _leaves(pid: int) -> list[psutil.Process]:
    """The workers of SubprocVecEnv: grandchildren without children, below the server that forks them."""
    children = psutil.Process(pid).children()
    return [each for child in children for each in child.children() if not each.children()]


def killed_driver(who: str, count: int, folder: Path) -> Told:
    """kill -9 of a run with two workers, and what is left of it ten seconds later."""

    def start(desk: WatchedDesk, place: Path) -> subprocess.Popen[str]:
        return _started(who, desk, "train", desk.home / "saved", "2", TMPDIR=str(place))

    left, _, told = left_of_killed(count, folder, start)
    figure = ", ".join(f"{left[what]} {what}" for what in LEFT)
    return Told(count, f"{figure} after 10 s", {"left": told[:100]})


def strangers(who: str, _: int, folder: Path) -> Told:
    """What another user of the machine is answered by a Ray as the peer's documentation starts it."""
    folder.chmod(0o755)
    desk = WatchedDesk(folder)
    place = folder / "t"
    place.mkdir()
    child = _started(who, desk, "serve", TMPDIR=str(place))
    try:
        assert child.stdout is not None
        session = next(json.loads(line)["folder"] for line in child.stdout if line.startswith("{"))
        listening = set()
        for process in desk.processes():
            with suppress(psutil.Error):
                listening |= {each.laddr.port for each in process.net_connections("tcp") if each.status == "LISTEN"}
        files = [session, f"{session}/logs", f"{folder}/.ray/auth_token"]
        answers = stranger.tries({"folder": session, "ports": sorted(listening), "files": files})
    finally:
        _ended(desk, child, LATE_S)
    succeeded = stranger.successes(answers)
    kinds = {kind: sum(each in tried for each in succeeded) for kind, tried in answers.items()}
    figure = f"{kinds['grpc']} gRPC calls, {kinds['jobs']} job requests and {kinds['files']} reads succeed"
    figure += " (its folder, its logs, and its token where others may enter the home folder)" if kinds["files"] else ""
    return Told(sum(map(len, answers.values())), figure, {"succeeded": succeeded, "answers": answers})


Hook = Callable[[str, int, Path], Told]

HOOKS: Mapping[str, tuple[Hook, Mapping[str, int]]] = {
    "saves": (killed_saves, {"sb3": 40, "rllib": 20}),
    "replay": (killed_replay, {"sb3": 20}),
    "calls": (failed_calls, {"sb3": 1, "rllib": 1}),
    "corruptions": (corruptions, {"sb3": 200, "rllib": 50}),
    "hostile": (hostile, {"sb3": 1, "rllib": 1}),
    "resume": (resumed, {"sb3": 1, "rllib": 1}),
    "signals": (signals, {"sb3": 24, "rllib": 16}),
    "workers": (killed_worker, {"sb3": 5}),
    "driver": (killed_driver, {"sb3": 10, "rllib": 5}),
    "strangers": (strangers, {"rllib": 1}),
}
"""What is measured of whom, and how often."""

NO_SETTINGS = "its settings are arguments of Python functions: it has no file and no command line to mutate"
NO_FOLDER = "its runs have no folder of their own that two processes could take"
NO_SCHEDULER = "it knows nothing of batch schedulers and their walltimes"
ONE_MACHINE = "it trains on one machine"
OURS = "a test of shoal's own parts"
NOT_APPLICABLE: Mapping[str, Mapping[str, str]] = {
    "sb3": {
        "configurations": NO_SETTINGS,
        "two-runs": NO_FOLDER,
        "node": ONE_MACHINE,
        "strangers": "it opens no port",
        "walltime": NO_SCHEDULER,
        "cancels": NO_SCHEDULER,
        "unable": ONE_MACHINE,
        "launchers": ONE_MACHINE,
        "driver-nodes": ONE_MACHINE,
        "versions": "it keeps no chain of hashes of what a run computed",
        "launcher": OURS,
        "mutants": OURS,
    },
    "rllib": {
        "configurations": NO_SETTINGS,
        "two-runs": NO_FOLDER,
        "walltime": NO_SCHEDULER,
        "cancels": NO_SCHEDULER,
        "unable": "it starts no hosts",
        "launchers": "it starts no hosts",
        "versions": "it keeps no chain of hashes of what a run computed",
        "launcher": OURS,
        "mutants": OURS,
    },
}
"""Where a peer has no counterpart, and why."""


def rows_of(who: str, rows: Iterable[str]) -> list[str]:
    """Those of the rows in which this peer can be measured."""
    return [row for row in rows if row in HOOKS and who in HOOKS[row][1]]
