"""The keys of proximal policy optimisation."""

from __future__ import annotations

from shoal.config.fields import Clip, Coefficient, Flag, LearningRate, Repeats, Size
from shoal.config.on_policy import OnPolicyConfig
from shoal.config.schedules import Schedule


class PPOConfig(OnPolicyConfig):
    """Proximal policy optimisation."""

    learner = "shoal.algorithms.ppo:PPOLearner"
    results = {
        "total_loss": "loss that is minimised, last pass",
        **OnPolicyConfig.results,
        "clip_fraction": "share of steps whose probability ratio was clipped",
        "cur_kl_coeff": "coefficient of the KL penalty now",
        "entropy_coeff": "weight of the entropy bonus now",
        "clip_param": "how far the probability ratio may move from 1 now (PPO)",
        "num_passes": "passes over the batch; fewer than num_sgd_iter where target_kl ended them (PPO)",
    }
    mutable = (
        *OnPolicyConfig.mutable,
        "clip_param",
        "entropy_coeff",
        "vf_loss_coeff",
        "vf_clip_param",
        "kl_target",
        "target_kl",
        "num_sgd_iter",
    )
    more_exploration = "config.entropy_coeff=0.01"

    lr: LearningRate = 7e-4
    """Learning rate (classic RLlib: 5e-5; 7e-4 suits Adam on small networks and minibatches of 64)."""
    sgd_minibatch_size: Size = 64
    """Steps per gradient; if left out, at most train_batch_size (classic RLlib: 128).

    A model with memory takes whole sequences, as many as come closest to it."""
    kl_coeff: Coefficient = 0.0
    """First coefficient of the adaptive KL penalty; 0: no penalty (classic RLlib: 0.2; clipping alone is enough)."""
    kl_target: Clip = 0.01
    """KL divergence per iteration that the adaptive penalty aims at."""
    target_kl: Clip | None = None
    """Passes over a batch end once the mean KL divergence from the policy that sampled is over 1.5 times this.

    null: all num_sgd_iter are made (classic RLlib: no such key; kl_target is the penalty's)."""
    num_sgd_iter: Repeats = 10
    """Number of passes over each batch (classic RLlib: 30; fewer passes stay closer to the policy that sampled)."""
    shuffle_sequences: Flag = True
    """Whether the steps of a batch are shuffled between passes."""
    vf_loss_coeff: Coefficient = 0.5
    """Weight of the value function's loss (classic RLlib: 1.0)."""
    entropy_coeff: Coefficient = 0.0
    """Weight of the entropy bonus."""
    entropy_coeff_schedule: Schedule = None
    """Entropy weight over timesteps, as lr_schedule; it replaces entropy_coeff."""
    clip_param: Clip = 0.2
    """How far the probability ratio may move from 1 (classic RLlib: 0.3)."""
    clip_param_schedule: Schedule = None
    """How far the ratio may move over timesteps, as lr_schedule; it replaces clip_param."""
    vf_clip_param: Clip | None = None
    """Squared value errors above this are not learned from; null: no limit (classic RLlib: 10.0, often too low).

    With normalize_rewards, values are in units of the returns' standard deviation."""

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        for key in ("entropy_coeff", "clip_param"):
            schedule = getattr(self, f"{key}_schedule")
            if schedule is not None:
                found += self._scheduled(key, schedule)
        is_off = not self.kl_coeff and "kl_coeff" not in self.model_fields_set
        return found + self._unread("kl_target", is_off, "there is no KL penalty; set kl_coeff above 0")
