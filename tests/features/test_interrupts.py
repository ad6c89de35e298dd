"""Signals while Ray waits: they cut the wait short, and come out as what they are."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.config.experiment import experiment_from
from shoal.errors import Interrupted
from shoal.runs.interrupts import SIGNALS, Interrupts
from shoal.runs.run import Run

pytestmark = pytest.mark.usefixtures("ray_session")
NUM_CPUS = 3


def soon(action: Callable[[], Any]) -> None:
    """Act when the caller is likely to wait already; it is no less right before."""
    threading.Timer(0.3, action).start()


@pytest.mark.repeats(3)
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("way", ["get", "wait"])
def test_a_signal_cuts_a_wait_short(number: signal.Signals, way: str) -> None:
    import ray

    hung = ray.remote(num_cpus=0)(_hang).remote()
    wait = {"get": lambda: ray.get(hung), "wait": lambda: ray.wait([hung])}[way]
    with Interrupts(hold=True) as interrupts:
        soon(lambda: os.kill(os.getpid(), number))
        with pytest.raises(Interrupted), interrupts.cutting():
            wait()
        assert interrupts.signal == number
    ray.cancel(hung, force=True)


def _hang() -> None:
    threading.Event().wait()


def test_steps_are_counted_as_fragments_come() -> None:
    config = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1, "num_envs_per_worker": 2}
    with shoal.PPO(env="CartPole-v1", config={**config, "num_workers": 2}) as trainer:
        trainer.train()
        assert trainer.workers.steps_sampled == trainer.timesteps_total == 64


HANGING = """
import threading
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

class Hanging(CartPoleEnv):
    def __init__(self, hangs):
        super().__init__()
        self.hangs = hangs

    def step(self, action):
        if self.hangs and Path(__file__).with_name("now").exists():
            Path(__file__).with_name("hung").touch()
            threading.Event().wait()
        return super().step(action)
"""


@pytest.mark.repeats(1)
@pytest.mark.parametrize("where", ["sampling", "evaluation"])
def test_a_run_whose_worker_hangs_is_saved_at_the_first_signal(tmp_path: Path, where: str) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    config: dict[str, Any] = {"train_batch_size": 32, "sgd_minibatch_size": 32, "num_sgd_iter": 1}
    if where == "sampling":
        config |= {"num_workers": 2, "num_envs_per_worker": 1, "env_config": {"hangs": True}}
    else:
        config |= {"evaluation_interval": 3, "evaluation_num_workers": 1, "env_config": {"hangs": False}}
        config |= {"evaluation_config": {"env_config": {"hangs": True}}}
    tree = {"env": f"{tmp_path}/hanging.py:Hanging", "results_dir": str(tmp_path / "results"), "config": config}
    tree["stop"] = {"timesteps_total": 10**9}
    run = Run.open(experiment_from(tree))
    done = threading.Event()

    def send() -> None:
        while not (tmp_path / "hung").exists():
            if done.wait(0.05):
                return
        os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for result in run.results(hold_signals=True):
            if result["training_iteration"] == 2:
                (tmp_path / "now").touch()
    finally:
        done.set()
        sender.join()
    assert run.outcome is not None
    assert run.outcome.signal == signal.SIGUSR1
    assert run.last_checkpoint is not None
    assert run.last_checkpoint.name == f"checkpoint_00000{2 if where == 'sampling' else 3}"
