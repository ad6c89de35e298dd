"""Self-play against a pool of past selves: tic-tac-toe until not one game is lost against random moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.envs.importing import UserCode

POOL: dict[str, Any] = {
    "policies": ["main", "past"],
    "policy_mapping": {"player_1": "main", "player_2": "past"},
    "policies_to_train": ["main"],
    "rotate_agents": True,
    "self_play": {
        "learner": "main",
        "opponent": "past",
        "snapshot_interval": 1,
        "pool_size": 10,
        "latest_probability": 0.5,
    },
}
LOOKS_EVERY = 2  # iterations
MOST = 200_000  # steps


@pytest.mark.long
@pytest.mark.slow
def test_a_policy_that_plays_its_past_never_loses_against_random_moves() -> None:
    pytest.importorskip("pettingzoo")
    game = UserCode.at(Path(__file__).parents[2] / "examples").load_module("tic_tac_toe")
    config = {**game.CONFIG, "multiagent": POOL, "timesteps_per_iteration": 5000, "seed": 1}
    config["lr_schedule"] = [[0, 1e-3], [40000, 1e-3], [160000, 1e-4]]  # half of the moves are the opponent's
    lost = []
    with shoal.DQN(env=game.game, config=config) as trainer:
        opponents = set()
        while trainer.timesteps_total < MOST:
            result = trainer.train()
            opponents.add(trainer.get_policy("past").network.params.tobytes())
            if result["training_iteration"] % LOOKS_EVERY == 0:
                policy = trainer.get_policy("main")
                lost.append(sum(game.play(policy, side, 500)[0] for side in ("player_1", "player_2")))
                if lost[-1] == 0:
                    break
    assert lost[0] > 0, "an untrained policy does lose"
    assert lost[-1] == 0, lost
    assert len(opponents) > 2
    assert {name for name in result["learner"] if name.startswith("past/")} == {"past/pool_size"}  # it does not learn
