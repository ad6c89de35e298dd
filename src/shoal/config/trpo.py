"""The keys of trust region policy optimisation."""

from __future__ import annotations

from shoal.config.fields import Damping, KLLimit, Repeats, Size
from shoal.config.on_policy import OnPolicyConfig

MAX_KL_PER_NUMBER = 0.01
"""What `max_kl: auto` allows for each number of an action."""
DAMPING_PER_NUMBER = 0.1
"""What `cg_damping: auto` is for each number of an action."""


class TRPOConfig(OnPolicyConfig):
    """Trust region policy optimisation; `lr`, `optimizer` and `grad_clip` are those of the value fit."""

    learner = "shoal.algorithms.trpo:TRPOLearner"
    results = {
        **OnPolicyConfig.results,
        "step_fraction": "share of the full step that the line search took; 0: the policy stayed as it was",
        "refused_steps": "1 where the policy's step was left out because it was not finite, else 0",
        "max_kl": "largest KL divergence that a step may have (TRPO)",
    }
    mutable = (*OnPolicyConfig.mutable, "num_sgd_iter", "max_kl", "cg_iters", "cg_damping", "line_search_steps")
    more_exploration = "a larger config.train_batch_size"
    clips_reported_norm = False  # that norm is the policy's, and only the value fit's gradients are clipped

    max_kl: KLLimit = "auto"
    """Largest mean KL divergence of a new policy from the one before it: the size of the trust region.

    The divergence adds up over the numbers of an action; auto: 0.01 for each number, choice and bit of it.
    sb3-contrib's target_kl is a mean over them: multiply it by their number (Spinning Up: 0.01 in total)."""
    cg_iters: Size = 10
    """Number of iterations of conjugate gradient, each with one Fisher-vector product."""
    cg_damping: Damping = "auto"
    """Multiple of the identity that is added to the Fisher matrix; it keeps steps from following its noise.

    The matrix grows with the numbers of an action, as the divergence does; auto: 0.1 for each of them."""
    line_search_steps: Size = 10
    """Number of lengths that the line search tries, each 0.8 of the last; if all fail, the policy stays as it is."""
    fisher_subsample: Size = 1
    """Fisher-vector products use every n-th step of each environment; 1: all, 5: a fifth, at a fifth of the cost.

    With a model that has memory, it is every n-th sequence."""
    num_sgd_iter: Repeats = 10
    """Number of passes of the value fit over each batch."""
