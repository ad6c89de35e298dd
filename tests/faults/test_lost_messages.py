"""Ray's own fault injection against our workers: messages are lost, workers are replaced, and training goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from desks import WatchedDesk

pytest.importorskip("ray")

# Of a lost answer to a call of an actor, Ray says that the actor is unavailable; the others it asks again itself.
LOST = {
    "CoreWorkerService.grpc_client.PushTask": {"num_failures": 1, "resp_failure_prob": 20},
    "NodeManagerService.grpc_client.RequestWorkerLease": {"num_failures": 2, "req_failure_prob": 50},
    "ActorInfoGcsService.grpc_client.GetActorInfo": {"num_failures": 2, "req_failure_prob": 50},
}


@pytest.mark.slow
def test_training_goes_on_where_ray_loses_messages(tmp_path: Path) -> None:
    desk = WatchedDesk(tmp_path)
    words = ["train", "CartPole-v1", "--seed", "3", "--num-workers", "2", "--stop", "training_iteration=12"]
    words += ["--set", "config.train_batch_size=512", "--set", "config.num_envs_per_worker=2"]
    _, code = desk.end(desk.start(*words, RAY_testing_rpc_failure=json.dumps(LOST)))
    told = desk.complaints()
    assert code == 0, told
    assert "RpcFailureManager" in told  # Ray has lost what it was told to lose
    results = [json.loads(line) for line in (desk.run_folder() / "result.json").read_text().splitlines()]
    assert [result["training_iteration"] for result in results] == list(range(1, 13))
    assert all(result["timesteps_this_iter"] >= 256 for result in results)
