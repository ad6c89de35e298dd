"""A replay that grows between saves, saved by shoal as a run does it, and by torch.save."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import task
from save_times import measured

from shoal.config.experiment import experiment_from
from shoal.data.replay import Replay, Transitions
from shoal.data.state import State
from shoal.envs.importing import UserCode
from shoal.runs.run_folder import RunFolder


def replay_of(transitions: int, obs: int, actions: int, new: int) -> Replay:
    """A replay that is full, as after a long training."""
    shapes, kinds = [(obs,)], [np.dtype(np.float32)]
    replay = Replay(shapes, kinds, transitions, new, None, np.random.default_rng(0), actions)
    rng = np.random.default_rng(1)
    for _ in range(0, transitions + new, new):
        replay.add(drawn(rng, obs, actions, new))
    return replay


def drawn(rng: np.random.Generator, obs: int, actions: int, new: int) -> Transitions:
    """Transitions that no compression could make small."""
    rows = [rng.random((new, size), np.float32) for size in (obs, actions, 1, obs, 1)]
    return Transitions((rows[0],), rows[1], rows[2][:, 0], (rows[3],), rows[4][:, 0])


def state_of(replay: Replay, params: np.ndarray, iteration: int) -> State:
    """What a trainer's state has: weights, moments, and replay as views."""
    learner = State.of(replay=replay.get_state(), m=params.copy(), v=params.copy())
    policy = State.of(params=params.copy())
    return State.of("/", training_iteration=iteration, learner=learner, policy=policy)


def save(transitions: int, obs: int, actions: int, new: int, params: int, saves: int) -> task.Answer:
    """The first save of a run, and those after it."""
    replay, rng = replay_of(transitions, obs, actions, new), np.random.default_rng(2)
    weights = rng.random(params, np.float32)
    found = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("SHOAL_BENCH_DISK")) as folder:
        tree = {"name": "one", "env": "CartPole-v1", "checkpoint_freq": 1, "keep_checkpoints_num": 2}
        kept = RunFolder(Path(folder), experiment_from(tree), UserCode.at(folder))
        with kept.held():
            for iteration in range(1, saves + 2):
                replay.add(drawn(rng, obs, actions, new))
                state = state_of(replay, weights, iteration)

                def begin(state: State = state, iteration: int = iteration) -> None:
                    kept.note({"training_iteration": iteration}, state)
                    kept.save_if_due()

                found.append(measured(Path(folder), begin, kept.settle))
    return {"first": found[0], "next": found[1:]}


def torch_save(transitions: int, obs: int, actions: int, new: int, params: int, saves: int) -> task.Answer:
    """The same state by torch.save, to a temporary file that is synced and renamed."""
    import torch

    replay, rng = replay_of(transitions, obs, actions, new), np.random.default_rng(2)
    weights = rng.random(params, np.float32)
    found = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("SHOAL_BENCH_DISK")) as folder:
        for iteration in range(1, saves + 2):
            replay.add(drawn(rng, obs, actions, new))
            arrays = state_of(replay, weights, iteration).arrays

            def begin(arrays: dict[str, np.ndarray] = arrays) -> None:
                with open(Path(folder) / "temporary", "wb") as file:
                    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, file)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(Path(folder) / "temporary", Path(folder) / "checkpoint.pt")

            found.append(measured(Path(folder), begin, lambda: None))
    return {"first": found[0], "next": found[1:]}


if __name__ == "__main__":
    task.main({"save": save, "torch_save": torch_save})
