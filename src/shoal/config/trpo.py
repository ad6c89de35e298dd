"""The keys of trust region policy optimisation."""

from __future__ import annotations

from shoal.config.fields import NonNegative, Positive, Size
from shoal.config.settings import OnPolicyConfig


class TRPOConfig(OnPolicyConfig):
    """Trust region policy optimisation; `lr`, `optimizer` and `grad_clip` are those of the value fit."""

    max_kl: Positive = 0.01
    """Largest mean KL divergence of a new policy from the one before it: the size of the trust region."""
    cg_iters: Size = 10
    """Iterations of conjugate gradient, each with one Fisher-vector product."""
    cg_damping: NonNegative = 0.1
    """Multiple of the identity that is added to the Fisher matrix; it keeps steps from following its noise."""
    line_search_steps: Size = 10
    """Lengths that the line search tries, each 0.8 of the one before; if all fail, the policy stays as it is."""
    fisher_subsample: Size = 1
    """Fisher-vector products use every n-th step of each environment; 1: all, 5: a fifth, at a fifth of the cost.

    With a model that has memory, it is every n-th sequence."""
    num_sgd_iter: Size = 10
    """Passes of the value fit over each batch."""

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        fit = ["lr", "lr_schedule", "optimizer", "grad_clip", "num_sgd_iter", "sgd_minibatch_size"]
        if self.sgd_minibatch_size == self.train_batch_size:
            fit.pop()  # not what was said, but what a small batch makes of it
        for key in fit:
            found += self._unread(key, not self.use_critic, "there are no values to fit: use_critic is false")
        return found
