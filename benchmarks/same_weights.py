"""Whether a change left every weight as it was: hashes of short trainings, before and after, byte for byte.

Each case trains for a few iterations from a fixed seed, with no workers and with two, and saves a checkpoint. Its hash
is the SHA-256 of the checkpoint's arrays: names, types, shapes and bytes. Both sides must be of one machine, because
another processor or another BLAS rounds differently.

    python benchmarks/same_weights.py --save /tmp/before.json        # before the change
    python benchmarks/same_weights.py --compare /tmp/before.json     # after it; exit code 1 if any weight differs
"""

from __future__ import annotations

import os

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
os.environ.update(dict.fromkeys(THREADS, "1"))  # sums of several threads may come in any order

import argparse  # noqa: E402
import hashlib  # noqa: E402
import json  # noqa: E402
import platform  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

import shoal  # noqa: E402
from shoal.runs.checkpoints import read_checkpoint  # noqa: E402

NUM_ENVS = 8  # in all, whatever the number of workers
ITERATIONS = 3
SHORT: dict[str, Any] = {"train_batch_size": 512, "sgd_minibatch_size": 128, "num_sgd_iter": 3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("PPO", {"env": "CartPole-v1", **SHORT}),
    "PPO, every term": (
        "PPO",
        {
            "env": "Pendulum-v1",
            "observation_filter": "MeanStdFilter",
            "kl_coeff": 0.2,
            "entropy_coeff": 0.01,
            "vf_clip_param": 1000.0,
            "lr_schedule": [[0, 1e-3], [2000, 1e-4]],
            **SHORT,
        },
    ),
    "PPO, LSTM": ("PPO", {"env": "CartPole-v1", "model": {"use_lstm": True, "max_seq_len": 8}, **SHORT}),
    "TRPO": ("TRPO", {"env": "CartPole-v1", "fisher_subsample": 2, **SHORT}),
    "TRPO, LSTM": ("TRPO", {"env": "CartPole-v1", "model": {"use_lstm": True, "max_seq_len": 8}, **SHORT}),
    "TRPO, torch": ("TRPO", {"env": "Pendulum-v1", "framework": "torch", **SHORT}),
    "DQN": (
        "DQN",
        {
            "env": "CartPole-v1",
            "learning_starts": 200,
            "timesteps_per_iteration": 400,
            "replay_buffer_config": {"capacity": 2000, "prioritized_replay": True},
        },
    ),
    "SAC": (
        "SAC",
        {
            "env": "Pendulum-v1",
            "learning_starts": 100,
            "timesteps_per_iteration": 200,
            "train_batch_size": 32,
            "training_intensity": 8.0,
            "n_step": 2,
            "model": {"fcnet_hiddens": [32, 32]},
            "replay_buffer_config": {"capacity": 2000, "prioritized_replay": True},
        },
    ),
}


def arrays_hash(arrays: dict[str, np.ndarray[Any, Any]]) -> str:
    """The SHA-256 of named arrays, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode())
        total.update(array.tobytes())
    return total.hexdigest()


def trained_hash(algorithm: str, config: dict[str, Any], num_workers: int) -> str:
    """The hash of a checkpoint after a few iterations."""
    layout = {"num_workers": num_workers, "num_envs_per_worker": NUM_ENVS // max(num_workers, 1), "seed": 7}
    with tempfile.TemporaryDirectory(prefix="same-weights-") as folder:
        trainer = getattr(shoal, algorithm)(config={**config, **layout})
        try:
            for _ in range(ITERATIONS):
                trainer.train()
            checkpoint = trainer.save(folder)
        finally:
            trainer.stop()
        return arrays_hash(read_checkpoint(checkpoint).state.arrays)


def main() -> None:
    """Train, print, and save or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the hashes to this file")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare them with those of this file")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="numbers of workers, by default 0 and 2")
    options = parser.parse_args()
    before = json.loads(options.compare.read_text()) if options.compare else None
    if before is not None and before["machine"] != machine():
        raise SystemExit(f"{options.compare} is of another machine or NumPy: {before['machine']}, here {machine()}")
    hashes: dict[str, str] = {}
    changed: list[str] = []
    for name, (algorithm, config) in CASES.items():
        for num_workers in options.workers:
            case = f"{name}, {num_workers} workers"
            hashes[case] = trained_hash(algorithm, config, num_workers)
            verdict = ""
            if before is not None and case not in before["hashes"]:
                verdict = "new"
            elif before is not None:
                verdict = "same" if before["hashes"][case] == hashes[case] else "CHANGED"
                changed += [case] * (verdict == "CHANGED")
            print(f"{case:<28} {hashes[case][:16]} {verdict}", flush=True)
    if options.save:
        options.save.write_text(json.dumps({"machine": machine(), "hashes": hashes}, indent=2) + "\n")
    if changed:
        raise SystemExit(f"{len(changed)} of {len(hashes)} cases changed: {'; '.join(changed)}")


def machine() -> dict[str, str]:
    """What a hash may depend on beside the code."""
    return {"host": platform.node(), "numpy": np.__version__, "python": platform.python_version()}


if __name__ == "__main__":
    main()
