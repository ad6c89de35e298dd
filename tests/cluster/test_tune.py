"""Sweeps on a cluster that `shoal launch` brings up, unchanged."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from bed import Bed, wait_until
from launches import launch, seen, wait_until_clean

from shoal.reports.records import read_results, read_trials
from shoal.runs.checkpoints import read_checkpoint

SWEEPING = ("python", str(Path(__file__).with_name("sweeping.py")))


@pytest.mark.slow
def test_trials_spread_over_the_nodes(slurm: Bed, here: Path) -> None:
    words = launch(command=[*SWEEPING, str(here), "100"])
    done = slurm.login.run(["srun", "-N3", "-n3", *words], within_s=240)
    (places,) = seen(done.out)
    assert len(places) == 6, done.told()
    assert set(places) == {1.0, 2.0, 3.0}, "on every node"
    (folder,) = here.glob("spread/sweep_*")
    assert [record.status for record in read_trials(folder)] == ["finished"] * 6
    wait_until_clean(slurm)


@pytest.mark.slow
def test_trials_on_every_node_save_when_the_walltime_is_near(bed: Bed, here: Path) -> None:
    running = bed.nodes["n1"].popen(launch("--hosts", "n[1-3]", command=[*SWEEPING, str(here), "1000000"]))
    wait_until(lambda: running.out.count("starts") >= 6, 200, "all trials have started")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(120) == 85, running.told()
    (folder,) = here.glob("spread/sweep_*")
    begun = [record for record in read_trials(folder) if record.status == "interrupted"]
    assert len(begun) == 6
    for record in begun:
        for last in read_results(folder, record)[-1:]:
            assert read_checkpoint(folder / record.folder).summary["training_iteration"] == last["training_iteration"]
    wait_until_clean(bed)
