"""What two examples reach, five seeds each: `examples/theta` its optimum, `examples/learning-ray` its station.

And what one run of the second does in the hundred cases of its README. Steps are counted, not seconds, so a busy
machine does not matter.

    python benchmarks/seed_examples.py reached      # into seed_examples.json
    python benchmarks/seed_examples.py cases        # into seed_examples-cases.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers import ROOT
from record import Bar, Record, console, show_bars, spread

import shoal
from shoal.config.experiment import config_tree, experiments_from_file

RATIO, RENDEZVOUS = ROOT / "examples" / "theta" / "ratio.yml", ROOT / "examples" / "learning-ray" / "rendezvous.yml"
SQUARE_STEPS = 200_000
SEED_OF_CASES = 1
FARTHEST = 9  # the task of the last stage: 100 m


def train(file: Path, seed: int, stop: dict[str, float], **changed: Any) -> dict[str, Any]:
    """The last result of the file's experiment with other settings, when a limit of `stop` is reached."""
    (experiment,) = experiments_from_file(file)
    config = {**config_tree(experiment.config), **changed, "seed": seed}
    with shoal.PPO(config=config, search_path=[file.parent]) as trainer:
        while True:
            result = trainer.train()
            if any((_value(result, name) or 0) >= limit for name, limit in stop.items()):
                return result


def _value(result: dict[str, Any], name: str) -> Any:
    for part in name.split("/"):
        result = result.get(part, {})
    return result if result != {} else None


def ratio(seeds: range) -> dict[str, Any]:
    """Steps until an episode has the optimum; and what the script's own reward leads to."""
    (experiment,) = experiments_from_file(RATIO)
    found, squares = [], []
    for seed in seeds:
        last = train(RATIO, seed, experiment.stop)
        found.append({"steps": last["timesteps_total"], "digits": last["custom_metrics"]["digits_max"]})
        square = train(RATIO, seed, {"timesteps_total": SQUARE_STEPS}, env_config={}, entropy_coeff=0.0)
        squares.append(square["episode_reward_mean"])
        console.print(f"  ratio, seed {seed}: {found[-1]}, mean square {squares[-1]:.2g}", style="dim")
    steps = spread([run["steps"] for run in found])
    return {"found": found, "steps": steps, "square_reward_mean": squares, "square_steps": SQUARE_STEPS}


def rendezvous(seeds: range) -> dict[str, Any]:
    """Steps until nine of ten episodes from 100 m dock, through the stages and from there alone."""
    (experiment,) = experiments_from_file(RENDEZVOUS)
    arms: dict[str, Any] = {}
    goal = {"task": FARTHEST, "until": {"custom_metrics/docked_mean": 0.9}}
    for arm, stages in (("curriculum", experiment.config.curriculum.stages), ("100 m alone", [goal])):
        stop = {**experiment.stop, "stages_passed": len(stages)}
        runs = []
        for seed in seeds:
            last = train(RENDEZVOUS, seed, stop, curriculum={"stages": list(stages)})
            runs.append({key: last[key] for key in ("timesteps_total", "stages_passed")})
            runs[-1]["docked_mean"] = last["custom_metrics"]["docked_mean"]
            console.print(f"  rendezvous, {arm}, seed {seed}: {runs[-1]}", style="dim")
        arms[arm] = {"runs": runs, "steps": spread([run["timesteps_total"] for run in runs])}
    return arms


def cases() -> dict[str, Any]:
    """The measures of an evaluation, by the commands of the README and nothing else."""
    with tempfile.TemporaryDirectory(prefix="cases-") as results:
        for words in (
            ("train", "-f", RENDEZVOUS.name, "--seed", str(SEED_OF_CASES), "--quiet"),
            ("evaluate", "rendezvous", "--cases", "cases.csv"),
        ):
            command = [sys.executable, "-m", "shoal", *words, "--results-dir", results]
            subprocess.run(command, cwd=RENDEZVOUS.parent, check=True)
        (report,) = Path(results).glob("rendezvous/*/evaluation_*.json")
        found = json.loads(report.read_text())
    return {"failed": len(found["failed"]), "count": found["episodes_this_iter"], "measures": found["cases"]}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("reached", "cases"))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if options.what == "cases":
        record = Record("seed_examples-cases", ("shoal",), {"seed": SEED_OF_CASES})
        record.keep(cases(), [])
        return
    seeds = range(options.seeds)
    record = Record("seed_examples", ("shoal",), {"seeds": len(seeds)})
    found = {"ratio": ratio(seeds), "rendezvous": rendezvous(seeds)}
    docked = min(run["docked_mean"] for run in found["rendezvous"]["curriculum"]["runs"])
    bars = [
        Bar(
            "fewest digits of five seeds", min(run["digits"] for run in found["ratio"]["found"]), 11.568, at_least=True
        ),
        Bar("smallest share that docks, with the curriculum", docked, 0.9, at_least=True),
    ]
    show_bars(bars)
    record.keep(found, bars)


if __name__ == "__main__":
    main()
