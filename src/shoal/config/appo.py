"""The keys of asynchronous proximal policy optimisation."""

from __future__ import annotations

from shoal.config.fields import Clip, Flag, FragmentLength, Size
from shoal.config.ppo import PPOConfig


class APPOConfig(PPOConfig):
    """PPO whose workers sample without waiting: old weights are corrected for (V-trace), and their age is bounded."""

    learner = "shoal.algorithms.appo:APPOLearner"
    shares_batches = False
    takes_agents = False
    results = {
        **PPOConfig.results,
        "kl": "KL divergence of the new policy from the one before the update",
        "staleness_mean": "updates between the weights that sampled a step and those that learn from it, mean (APPO)",
        "mean_rho": "mean weight of a step: the clipped ratio of its probability now and when it was sampled (APPO)",
    }
    mutable = (*PPOConfig.mutable, "vtrace_clip_rho_threshold", "vtrace_clip_pg_rho_threshold", "max_staleness")

    sample_async: Flag = True
    """Whether workers sample while the learner learns; APPO's always do."""
    rollout_fragment_length: FragmentLength = "auto"
    """Steps of each environment in one fragment; auto: those with which all workers make up train_batch_size.

    A batch is whichever fragments are finished first. Shorter ones are sampled with newer weights (classic RLlib: 50).
    """
    max_staleness: Size = 16
    """Most updates between the weights that sampled a fragment and those that learn from it.

    A fragment that would become older is waited for before the next update; nothing is thrown away. Lower it where
    learning is unstable, raise it where workers differ more than tenfold in speed (classic RLlib: no bound)."""
    vtrace_clip_rho_threshold: Clip = 1.0
    """Largest weight of a step's error in the targets of the value function (V-trace's rho)."""
    vtrace_clip_pg_rho_threshold: Clip = 1.0
    """Largest weight of a step in the policy's objective."""

    def timing_notes(self) -> list[str]:
        """See `AlgorithmConfig`."""
        if not self.worker_count:
            return []
        return [
            "APPO with workers learns from whatever is finished first, so a run can be neither repeated nor resumed "
            "exactly; with num_workers: 0 it can"
        ]

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        if not self.sample_async:
            found.append("config.sample_async: APPO's workers never wait; leave it out, or set run: PPO")
        return found
