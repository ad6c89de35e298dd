"""examples/airfoil_env.py: the lattice beside theory, and the optimum that searches find beside two that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import shoal
from shoal.envs.importing import UserCode

airfoil = UserCode.at(Path(__file__).parents[2] / "examples").load_module("airfoil_env")
SEARCHES: dict[str, dict[str, Any]] = {
    "CMAES": {"num_rollouts": 16},
    "CEM": {"num_rollouts": 64},
    "ES": {"num_rollouts": 64, "model": {"fcnet_hiddens": []}},
}


def least_squares(lift: float) -> np.ndarray:
    """The best design on the lattice, by Gauss and Newton."""
    design, steps = airfoil.by_theory(lift), np.eye(4) * 1e-5
    for _ in range(8):
        slope = np.stack([(airfoil.load(design + e)[0] - airfoil.load(design - e)[0]) / 2e-5 for e in steps], axis=1)
        design = design - np.linalg.lstsq(slope, airfoil.load(design)[0] - lift, rcond=None)[0]
    return design


def test_the_lattice_computes_what_theory_says() -> None:
    for degrees in (-3.0, 0.0, 5.0):
        _, lift = airfoil.load(np.array([degrees, 0, 0, 0]))
        assert lift == pytest.approx(2 * np.pi * np.sin(np.radians(degrees)), abs=1e-9), "a flat plate"
    height = 0.02  # a parabola: 4 pi times its height, and an elliptic load
    load, lift = airfoil.load(np.array([0, 0.75 * height, height, 0.75 * height]))
    assert lift == pytest.approx(4 * np.pi * height, rel=1.1 / airfoil.PANELS)
    at = (np.arange(airfoil.PANELS) + 0.25) / airfoil.PANELS
    np.testing.assert_allclose(load[4:], (32 * height * np.sqrt(at * (1 - at)))[4:], rtol=0.07)
    check_env(airfoil.Airfoil({"lift": 0.4}), skip_render_check=True)


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_find_the_design_of_the_least_squares(name: str) -> None:
    if name == "CMAES":
        pytest.importorskip("cma")
    known = least_squares(0.6)
    config = {"num_envs_per_worker": 16, "seed": 1, **SEARCHES[name]}
    with getattr(shoal, name)(env=airfoil.Airfoil, config=config) as trainer:
        for _ in range(80):
            trainer.train()
        found = trainer.compute_single_action(np.float32([0.6]), explore=False)
        reached = trainer.evaluate(episodes=1)["episode_reward_mean"]
    best = airfoil.Airfoil().step(known)[1]
    assert best == pytest.approx(reached, rel=0.03)
    assert reached <= best + 1e-6
    np.testing.assert_allclose(found[0], known[0], atol=0.2)
    np.testing.assert_allclose(found[1:], known[1:], atol=0.002)
    theory = airfoil.by_theory(0.6)
    np.testing.assert_allclose(found[0], theory[0], atol=0.7)
    np.testing.assert_allclose(found[1:], theory[1:], atol=0.005)
