"""Whether presets reach more than the defaults do after as many steps, with seeds that no sweep has used.

A preset begins as a sweep that has ended; `add` takes its best settings, measures them beside the defaults, and writes
the preset's file. A preset that does not beat the defaults in three of four pairs of seeds is not written.

    shoal tune -f swimmer_ppo.yml
    python benchmarks/presets.py add swimmer_ppo.yml ~/shoal_results/swimmer_ppo/sweep_... --steps 200000 --seeds 3
    python benchmarks/presets.py measure                 # all presets again: about an hour
    python benchmarks/presets.py measure cartpole_ppo
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from peers import ask
from record import RESULTS, Bar, Record, console, show_bars, spread

from shoal.config.experiment import config_tree, experiments_from_file
from shoal.config.presets import FILES, Preset, all_presets
from shoal.config.yaml_files import dump_yaml, load_file
from shoal.version import __version__

EPISODES = 20
LEAST_SHARE = 0.75  # of all pairs of seeds, in which a preset has to reach more than the defaults; 0.5 is chance
LEARNING = [
    "num_envs_per_worker",
    "train_batch_size",
    "sgd_minibatch_size",
    "num_sgd_iter",
    "lr",
    "gamma",
    "lambda_",
    "clip_param",
    "entropy_coeff",
    "vf_loss_coeff",
    "kl_coeff",
    "target_kl",
    "grad_clip",
    "normalize_rewards",
    "observation_filter",
    "normalize_actions",
    "clip_actions",
    "squash_actions",
    "optimizer",
]
"""Keys on which a result of PPO or TRPO depends: a preset has them all, so that it outlives a change of a default."""
NETWORK = ("fcnet_hiddens", "fcnet_activation", "vf_share_layers")


def measured(preset: Preset, seeds: list[int], steps: int, jobs: int) -> dict[str, Any]:
    """What the preset and the defaults reach, as its file has it; `jobs` runs are trained at once."""
    usual = {key: preset.config[key] for key in ("env_config",) if key in preset.config}  # which is another environment

    def reached(who: str, config: Mapping[str, Any], seed: int) -> float:
        case = {"run": preset.run, "env": preset.env, "config": dict(config), "seed": seed, "steps": steps}
        answer = ask("shoal", "evaluated", episodes=EPISODES, **case).answer
        text = f"  {preset.name}, {who}, seed {seed}: {answer['final']:.1f} in {answer['cpu_s']:.0f} s of CPU"
        console.print(text, style="dim")
        return round(answer["final"], 2) + 0.0  # not -0.0

    with ThreadPoolExecutor(jobs) as pool:
        cases = [
            (who, pool.submit(reached, who, config, seed))
            for who, config in (("preset", preset.config), ("defaults", usual))
            for seed in seeds
        ]
        finals = [(who, case.result()) for who, case in cases]
    return {
        "timesteps_total": steps,
        "episodes": EPISODES,
        "seeds": seeds,
        "returns": [final for who, final in finals if who == "preset"],
        "default_returns": [final for who, final in finals if who == "defaults"],
        "date": datetime.now(timezone.utc).date().isoformat(),
        "shoal": __version__,
    }


def share_of_pairs(row: Mapping[str, Any]) -> float:
    """Of all pairs of a seed with the preset and one with the defaults, those in which the preset reaches more."""
    pairs = [(own, usual) for own in row["returns"] for usual in row["default_returns"]]
    return statistics.fmean((own > usual) + (own == usual) / 2 for own, usual in pairs)


def candidate(file: Path, folder: Path) -> Preset:
    """The preset that a sweep has found, with figures that are still to be measured."""
    ((name, sweep),) = load_file(file).tree.items()
    (best,) = experiments_from_file(folder / "best.yml")
    config = config_tree(best.config)
    chosen = {key: config[key] for key in dict.fromkeys((*LEARNING, *sweep["config"])) if key in config}
    model = {key: config["model"][key] for key in (*NETWORK, *sweep["config"].get("model", {}))}
    noise = {key: config["exploration_config"][key] for key in sweep["config"].get("exploration_config", {})}
    chosen |= {"model": model, **({"exploration_config": noise} if noise else {})}
    chosen.pop("seed", None)
    unknown = {"timesteps_total": 1, "episodes": EPISODES, "seeds": [], "returns": [], "default_returns": []}
    figures = {**unknown, "date": "-", "shoal": "-"}
    return Preset(name=name, env=config["env"], run=best.run, config=chosen, sweep=sweep, measured=figures)


def write(preset: Preset, figures: dict[str, Any]) -> None:
    """The preset's file, with these figures."""
    tree = {**preset.model_dump(exclude={"name"}), "measured": figures}
    head = (
        f"# {preset.run} on {preset.env}. The sweep that found it: shoal presets {preset.name} --sweep\n"
        f"# Measured by: python benchmarks/presets.py measure {preset.name}\n"
    )
    (FILES / f"{preset.name}.yml").write_text(head + dump_yaml(tree))


def keep(figures: Mapping[str, dict[str, Any]], record: Record) -> None:
    """Figures of these presets, beside those of the others that were measured before."""
    path = RESULTS / "presets.json"
    before = json.loads(path.read_text())["results"] if path.exists() else {}
    results = {**before, **figures}
    for row in results.values():
        row |= {"preset": spread(row["returns"]), "defaults": spread(row["default_returns"])}
        row["share_of_pairs"] = share_of_pairs(row)
    bars = [Bar(f"{name}, share of pairs", row["share_of_pairs"], LEAST_SHARE, True) for name, row in results.items()]
    show_bars(bars)
    record.keep(dict(sorted(results.items())), bars)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    again = commands.add_parser("measure", help="measure presets again")
    again.add_argument("names", nargs="*", help="presets; all if there are none")
    add = commands.add_parser("add", help="make a preset of a sweep that has ended")
    add.add_argument("file", type=Path, help="the sweep's file")
    add.add_argument("folder", type=Path, help="the sweep's folder")
    add.add_argument("--steps", type=int, required=True, help="steps to measure after")
    add.add_argument("--seeds", type=int, default=5, help="seeds to measure with: 0, 1, ...")
    for command in (again, add):
        command.add_argument("--jobs", type=int, default=1, help="runs to train at once; only returns count")
    options = parser.parse_args()
    record = Record("presets", ["shoal"], {"episodes": EPISODES})
    if options.command == "measure":
        chosen = [all_presets()[name] for name in options.names or all_presets()]
        rows = {
            each.name: measured(each, list(each.measured.seeds), each.measured.timesteps_total, options.jobs)
            for each in chosen
        }
    else:
        chosen = [candidate(options.file, options.folder)]
        rows = {each.name: measured(each, list(range(options.seeds)), options.steps, options.jobs) for each in chosen}
        for name, row in rows.items():
            if (share := share_of_pairs(row)) < LEAST_SHARE:
                raise SystemExit(f"{name} is not clearly better than the defaults ({share:.0%} of pairs): {row}")
    for preset in chosen:
        write(preset, dict(rows[preset.name]))
    keep(rows, record)


if __name__ == "__main__":
    main()
