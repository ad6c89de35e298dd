"""Tries shoal's wheel with each Python and NumPy that is found: some tests, one training, and its chain of receipts.

    python packaging/try_versions.py [3.12 3.12/1.26 ...]

Interpreters are `python3.10` to `python3.14` of PATH, and pyenv's. Each pair of Python and NumPy has an environment of
its own in `.venvs/versions`, with the versions of constraints.txt where they suit that Python. Links of the chain are
the same where every number was: between two Pythons with one NumPy they must be, and between two NumPys they may be.
NumPy 2.2 is the newest that every one of these Pythons can have. What was found is in benchmarks/results/versions.json,
pair by pair, beside what was found there of other pairs with the same source.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".venvs" / "versions"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
NUMPYS = {"2.2": "numpy==2.2.*", "2": "numpy>=2,<3", "1.26": "numpy==1.26.*"}
LAST_FOR_OLD_NUMPY = (3, 12)  # NumPy 1.26 has no wheels for a newer Python
TESTS = (
    "tests/unit/data",
    "tests/unit/models/test_encoder.py",
    "tests/unit/envs/test_spaces.py",
    "tests/unit/config/test_experiment.py",
    "tests/unit/export",
    "tests/unit/bridges",
    "tests/cli/test_export.py",
)
"""Numbers, arrays, spaces, files, exports and imports, without an extra; what needs one is skipped."""
KEPT = ROOT / "benchmarks/results/versions.json"
TRAINING = ("CartPole-v1", "--seed", "1", "--stop", "timesteps_total=8000", "--quiet")


@dataclass
class Tried:
    """What became of one pair of Python and NumPy."""

    python: str
    numpy: str
    steps: dict[str, str] = field(default_factory=dict)
    link: str = ""
    blas: str = ""
    passed: int = 0  # tests
    pair: str = ""  # as it was asked for

    @property
    def has_failed(self) -> bool:
        """Whether it was tried and something is wrong."""
        return any(word == "FAILED" for word in self.steps.values())


def interpreter(version: str) -> Path | None:
    """A Python of that version, or none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = shutil.which(f"python{version}")
    places = [found] if found else []
    places += [str(path) for path in sorted(pyenv.glob(f"versions/{version}.*/bin/python"))]
    for place in places:
        ask = [place, "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"]
        told = subprocess.run(ask, capture_output=True, text=True, check=False)  # pyenv's shims are there without one
        if told.stdout.strip() == version:
            return Path(place)
    return None


def wheel() -> Path:
    """The wheel of this checkout, built anew."""
    shutil.rmtree(PLACE / "wheel", ignore_errors=True)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(PLACE / "wheel"), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    [built] = (PLACE / "wheel").glob("*.whl")
    return built


def attempt(version: str, numpy: str, built: Path) -> Tried:
    """Install, test and train with one pair."""
    tried = Tried(version, numpy)
    base = interpreter(version)
    if base is None:
        tried.steps["install"] = "no such Python here"
        return tried
    if numpy == "1.26" and tuple(map(int, version.split("."))) > LAST_FOR_OLD_NUMPY:
        tried.steps["install"] = "no such wheel of NumPy"
        return tried
    folder = PLACE / f"{version}-{numpy}"
    python = folder / "bin/python"
    subprocess.run([base, "-m", "venv", "--clear", folder], check=True)
    tried.steps["install"] = installed(python, numpy, built)
    if tried.has_failed:
        return tried
    ask = "import numpy, platform; print(platform.python_version(), numpy.__version__)"
    tried.python, tried.numpy = subprocess.check_output([python, "-c", ask], text=True).split()
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *TESTS]
    tried.steps["tests"], printed = outcome([python, *words], ROOT)
    counted = re.findall(r"(\d+) passed", printed)
    tried.passed = int(counted[-1]) if counted else 0
    results = folder / "results"
    train = [folder / "bin/shoal", "train", *TRAINING, "--results-dir", results]
    tried.steps["training"], _ = outcome(train, folder)
    if tried.steps["training"] == "ok":
        [chain] = results.glob("*/*/chain.jsonl")
        head, *_, last = map(json.loads, chain.read_text().splitlines())
        tried.blas, tried.link = head["blas"], last["link"]
    return tried


def installed(python: Path, numpy: str, built: Path) -> str:
    """Install the wheel, by as much of constraints.txt as suits this Python, or else with what is newest."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    others = [pin for pin in pins if not pin.startswith("numpy==")]
    kinds = {"pinned": pins, "pinned but NumPy": others, "newest": []}
    if numpy != "2":
        del kinds["pinned"]
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    if (uv := shutil.which("uv")) is not None:  # which takes a tenth of the time
        command = [uv, "pip", "install", "--quiet", "--python", python]
    wanted = [str(built), NUMPYS[numpy], "pytest", "pytest-timeout", "hypothesis"]
    constraints = python.parents[1] / "constraints.txt"
    for kind, lines in kinds.items():
        constraints.write_text("\n".join(lines) + "\n")
        done = subprocess.run(
            [*command, "--constraint", constraints, *wanted], check=False, capture_output=True, text=True
        )
        if done.returncode == 0:
            return kind
    print(done.stderr[-2000:])
    return "FAILED"


def outcome(command: list[str | Path], folder: Path) -> tuple[str, str]:
    """How a command ended, and what it printed, which is shown if it failed."""
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode == 0:
        return "ok", done.stdout
    print(done.stdout[-4000:] + done.stderr[-4000:], flush=True)
    return "FAILED", done.stdout


def line(row: Tried) -> str:
    """One row of the table."""
    steps = [row.steps.get(step, "-") for step in ("install", "tests", "training")]
    return f"{row.python:10}{row.numpy:10}{steps[0]:24}{steps[1]:10}{steps[2]:10}{row.link[:16] or '-'}"


HEAD = f"{'Python':10}{'NumPy':10}{'install':24}{'tests':10}{'training':10}last link of the chain"


def opened() -> Any:
    """What keeps the figures in benchmarks/results/versions.json, with the machine and the source as they are now."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from record import Record

    training = " ".join(("shoal train", *TRAINING[:-1]))
    return Record("versions", ["shoal"], {"training": training, "tests": TESTS})


def known(tree: str) -> dict[str, Tried]:
    """What was found before of this source, by pair."""
    if not KEPT.is_file():
        return {}
    kept = json.loads(KEPT.read_text())
    rows = [Tried(**row) for row in kept["results"]["tried"]] if kept.get("tree") == tree else []
    return {row.pair: row for row in rows}


def bars_of(rows: list[Tried]) -> list[Any]:
    """What the figures are held against."""
    from record import Bar

    wrong = sum(row.has_failed for row in rows)
    return [
        Bar("NumPys with which the chain depends on the Python", len(disagreeing(rows)), 0, at_least=False),
        Bar("pairs of Python and NumPy whose tests or training fail", wrong, 0, at_least=False),
    ]


def disagreeing(rows: list[Tried]) -> list[str]:
    """The NumPys with which two Pythons did not compute the same."""
    by_numpy: dict[str, set[str]] = {}
    for row in rows:
        if row.link:
            by_numpy.setdefault(row.numpy, set()).add(row.link)
    return [numpy for numpy, links in by_numpy.items() if len(links) > 1]


def main() -> int:
    """Try what was asked for, or all; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [f"{python}/{numpy}" for numpy in NUMPYS for python in PYTHONS]
    parser.add_argument("pairs", nargs="*", metavar="PYTHON[/NUMPY]", help=f"default: {' '.join(every)}")
    pairs = parser.parse_args().pairs or every
    for pair in pairs:
        python, _, numpy = pair.partition("/")
        if python not in PYTHONS or (numpy or "2") not in NUMPYS:
            parser.error(f"{pair}: give a Python of {', '.join(PYTHONS)}, alone or with /{', /'.join(NUMPYS)}")
    kept = opened()
    found = known(kept.head["tree"])
    built = wheel()
    print(HEAD, flush=True)
    rows = []
    for pair in pairs:
        python, _, numpy = pair.partition("/")
        rows.append(attempt(python, numpy or "2", built))
        print(line(rows[-1]), flush=True)
        rows[-1].pair = f"{python}/{numpy or '2'}"
        found[rows[-1].pair] = rows[-1]
        every_row = [found[each] for each in every if each in found]
        kept.keep({"tried": [*map(asdict, every_row)]}, bars_of(every_row))
    links = {row.link for row in rows if row.link}
    for numpy in (apart := disagreeing(rows)):
        print(f"FAILED: with NumPy {numpy}, the chain depends on the Python")
    if len(links) == 1:
        print("The chain is the same in all of them.")
    elif links and not apart:
        print("The chain is the same for all Pythons with one NumPy, and differs between NumPys.")
    return int(bool(apart) or any(row.has_failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
