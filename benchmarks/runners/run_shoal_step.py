"""What shoal's TRPO makes of batches that sb3-contrib's has sampled, from the peer's weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import task
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.algorithms.network_inputs import batch_inputs
from shoal.algorithms.on_policy import values_and_advantages
from shoal.algorithms.trpo import TRPOLearner, TrustRegion
from shoal.config.trpo import TRPOConfig
from shoal.data.batch import Batch
from shoal.models.build import build_policy

Arrays = dict[str, NDArray[Any]]

NAMES = {
    "policy.hidden0": "mlp_extractor.policy_net.0",
    "policy.hidden1": "mlp_extractor.policy_net.2",
    "value.hidden0": "mlp_extractor.value_net.0",
    "value.hidden1": "mlp_extractor.value_net.2",
    "policy": "action_net",
    "value": "value_net",
    "log_std": "log_std",
}
"""sb3-contrib's name of each layer."""


def steps(iterations: int, file: str, settings: dict[str, Any]) -> task.Answer:
    """Learn from each batch as the peer did, and compare."""
    with np.load(file) as saved:
        whole = dict(saved.items())
    batches = []
    for count in range(iterations):
        mark = f"{count}/"
        batches.append({name.removeprefix(mark): each for name, each in whole.items() if name.startswith(mark)})
    num_obs, num_actions = batches[0]["observations"].shape[-1], batches[0]["actions"].shape[-1]
    per_number = {key: settings.pop(key) * num_actions for key in ("max_kl", "cg_damping")}
    config = TRPOConfig(num_envs_per_worker=1, **settings, **per_number)
    seen = spaces.Box(-np.inf, np.inf, (num_obs,), np.float32)
    policy = build_policy(seen, spaces.Box(-1, 1, (num_actions,), np.float32), config)
    learner = TRPOLearner(config, policy)
    return {"steps": [compared(learner, each) for each in batches]}


def compared(learner: TRPOLearner, arrays: Arrays) -> dict[str, float]:
    """One step of the policy and one fit of the values, beside the peer's."""
    policy, network = learner.policy, learner.policy.network
    set_weights(network, arrays, "after")
    theirs = network.params.copy()
    set_weights(network, arrays, "before")
    before = network.params.copy()
    batch = batch_of(arrays)
    inputs = batch_inputs(policy, batch)
    values, advantages = values_and_advantages(policy, batch, batch.rewards, inputs, learner.config)
    region = TrustRegion(policy, learner.group, batch, inputs, advantages, 1)
    found = learner._step_policy(region)
    targets = (advantages + values).reshape(-1)
    learner._fit_values(batch, inputs, targets, learner.config.lr)
    ours = network.params.copy()
    moved = ~network.value_params
    mine, peers = (ours - before)[moved], (theirs - before)[moved]
    error = squared_error(network, batch, targets)
    network.params[:] = theirs
    return {
        "advantages_differ": float(np.abs(advantages - arrays["advantages"]).max() / advantages.std()),
        "cosine": float(mine @ peers / np.linalg.norm(mine) / np.linalg.norm(peers)),
        "length": float(np.linalg.norm(mine) / np.linalg.norm(peers)),
        "kl": found["kl"],
        "sb3_kl": region.measured().kl,
        "max_kl": found["max_kl"],
        "value_error": error,
        "sb3_value_error": squared_error(network, batch, targets),
        "variance": float(targets.var()),
    }


def set_weights(network: Any, arrays: Arrays, when: str) -> None:
    """Give the network the peer's weights."""
    for name, own in network.named_params().items():
        layer, dot, kind = name.rpartition(".")
        theirs = arrays[f"{when}/{NAMES[layer]}.{kind}" if dot else f"{when}/{NAMES[name]}"]
        own[...] = theirs.T if theirs.ndim == 2 else theirs
    network.sync()


def batch_of(arrays: Arrays) -> Batch:
    """The peer's batch; it has put the values at time limits into the rewards, so that all episodes terminate."""
    steps, num_envs = arrays["rewards"].shape
    ended = np.concatenate([arrays["episode_starts"][1:], arrays["ended"][None]]).astype(bool)
    return Batch(
        obs=(arrays["observations"].astype(np.float32),),
        actions=arrays["actions"].astype(np.float32),
        rewards=arrays["rewards"].astype(np.float32),
        terminated=ended,
        truncated=np.zeros_like(ended),
        valid=np.ones_like(ended),
        log_probs=arrays["log_probs"].astype(np.float32),
        dist_inputs=np.zeros((steps, num_envs, 0), np.float32),
        final_obs=(arrays["final_obs"].astype(np.float32)[~ended[-1]],),
        final_at=np.array([(steps - 1, n) for n in range(num_envs) if not ended[-1, n]], np.int64).reshape(-1, 2),
    )


def squared_error(network: Any, batch: Batch, targets: NDArray[Any]) -> float:
    """The mean squared error of the values."""
    rows = batch.obs[0].reshape(len(targets), -1)
    return float(np.mean((network.values((rows,)) - targets) ** 2))


if __name__ == "__main__":
    task.main({"steps": steps})
