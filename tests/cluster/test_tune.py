"""Sweeps on a cluster that `shoal launch` brings up, unchanged."""

from __future__ import annotations

from pathlib import Path

from bed import Bed
from launches import launch, seen, wait_until_clean

from shoal.tune.records import read_trials

SWEEPING = ("python", str(Path(__file__).with_name("sweeping.py")))


def test_trials_spread_over_the_nodes(slurm: Bed, here: Path) -> None:
    words = launch(command=[*SWEEPING, str(here)])
    done = slurm.login.run(["srun", "-N3", "-n3", *words], within_s=240)
    (places,) = seen(done.out)
    assert len(places) == 6, done.told()
    assert set(places) == {1.0, 2.0, 3.0}, "on every node"
    (folder,) = here.glob("spread/sweep_*")
    assert [record.status for record in read_trials(folder)] == ["finished"] * 6
    wait_until_clean(slurm)
