"""Soft actor-critic (Haarnoja et al. 2018) with twin critics and an automatic temperature.

A policy pi is learned that earns reward and stays random: a unit of entropy is worth alpha. With s, a, r, s' from
replay, a' and the actions below drawn from the policy, and Q' the critics' slowly following targets:

    critics      minimise  (Q_i(s, a) - y)^2 / 2,   y = r + gamma (min Q'_j(s', a') - alpha log pi(a'|s'))
    policy       minimises  alpha log pi(a|s) - min Q_j(s, a)
    temperature  log alpha falls where the entropy -log pi(a|s) is above its target, and rises below it
    targets      Q'_i <- Q'_i + tau (Q_i - Q'_i)

Discrete choices are averaged over and not sampled, see `models/soft_actions.py`. Each gradient is written in output
space, and networks pull it back: critics to their parameters, and by their inputs to the policy's actions.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np

from shoal.algorithms.off_policy import OffPolicyLearner, UpdateStatistics
from shoal.algorithms.optimizer import Adam, Optimizer, guarded
from shoal.config.algorithms import name_of
from shoal.config.sac import SACConfig
from shoal.data.replay import DrawnTransitions, Transitions
from shoal.data.state import State
from shoal.data.streams import Stream, generator, number
from shoal.errors import ConfigError
from shoal.models.critics import build_critic, critic_inputs
from shoal.models.masked import allowed_of
from shoal.models.network import Array, Inputs
from shoal.models.policy import Policy
from shoal.models.soft_actions import Columns, SoftActions, SoftSample
from shoal.parallel.group import Group

CHOICE_ENTROPY = 0.5  # share of the largest entropy that choices aim at where target_entropy is auto


class SACLearner(OffPolicyLearner):
    """The learner: owns replay, critics, their targets, the temperature and the optimisers."""

    config: SACConfig

    def __init__(self, config: SACConfig, policy: Policy, group: Group | None = None) -> None:
        super().__init__(config, policy, group)
        self.masked = policy.obs_spec.mask is not None
        self.actions = SoftActions(policy.distribution, policy.action_spec, name_of(type(config)))
        if len(self.actions.kinds) > 1 and config.target_entropy != "auto":
            raise ConfigError(
                f"config.target_entropy: this action_space has continuous and discrete actions, and each kind has an "
                f"entropy of its own (got {config.target_entropy:g}); set it to auto"
            )
        seed = number(config.seed, Stream.CRITICS, np.uint32)
        numbers = range(2 if config.twin_q else 1)
        self.critics = [build_critic(config, policy, self.actions, seed + k) for k in numbers]
        self.targets = [build_critic(config, policy, self.actions, seed + k) for k in numbers]
        self.optimizer = Optimizer(policy.network, config, clips_apart=False)
        self.critic_optimizers = [Optimizer(critic, config, clips_apart=False) for critic in self.critics]
        self.log_alphas = np.full(len(self.actions.kinds), np.log(config.initial_alpha), np.float32)
        self.alpha_adam = Adam(len(self.log_alphas), config.optimizer.betas, config.optimizer.eps)
        self.rng = generator(config.seed, Stream.LEARNED_ACTIONS)

    def guarded(self) -> AbstractContextManager[None]:
        """See `OffPolicyLearner`."""
        optimizers = [self.optimizer, *self.critic_optimizers]
        return guarded(optimizers, self._is_sound, *(target.params for target in self.targets), self.log_alphas)

    def statistics(self) -> dict[str, float]:
        """See `OffPolicyLearner`."""
        refused = self.optimizer.refused + sum(optimizer.refused for optimizer in self.critic_optimizers)
        stats = {"refused_minibatches": float(refused), "cur_alpha": float(np.exp(self.log_alphas[0]))}
        if len(self.log_alphas) > 1:
            stats["cur_alpha_choices"] = float(np.exp(self.log_alphas[1]))
        return stats

    def update(self, drawn: DrawnTransitions, lr: float, totals: UpdateStatistics) -> Array:
        """One step of every optimiser for each `train_batch_size` of the transitions; returns the values' errors."""
        size, old = self.config.train_batch_size, drawn.transitions
        returns = old.returns / np.float32(self.rewards.divisor)
        inputs, next_inputs = self.policy.encoder(old.obs), self.policy.encoder(old.next_obs)
        numbers, combinations = self.actions.taken(old.actions)
        noise, next_noise = self.actions.noise(self.rng, 2 * len(returns)).reshape(2, len(returns), -1)
        weights = np.full(len(returns), 1 / size, np.float32)
        if drawn.weights is not None:
            weights *= drawn.weights
        errors: Array = np.empty_like(returns)
        for begin in range(0, len(returns), size):
            part = slice(begin, begin + size)
            obs = tuple(x[part] for x in inputs)
            next_obs = tuple(x[part] for x in next_inputs)
            alphas = np.exp(self.log_alphas)
            targets = returns[part] + old.discounts[part] * self._next_values(next_obs, next_noise[part], alphas)
            taken = critic_inputs(self.policy, obs, numbers[part])
            errors[part] = self._step_critics(taken, combinations[part], targets, weights[part], lr, totals)
            now = self._step_policy(obs, noise[part], alphas, lr, totals)
            self._step_temperature(now, lr)
            self._move_targets()
        return errors

    def errors_of(self, transitions: Transitions) -> Array:
        """See `OffPolicyLearner`; without the chance of the next actions."""
        inputs, next_inputs = self.policy.encoder(transitions.obs), self.policy.encoder(transitions.next_obs)
        numbers, combinations = self.actions.taken(transitions.actions)
        following = self._next_values(next_inputs, np.zeros_like(numbers), np.exp(self.log_alphas))
        returns = transitions.returns / np.float32(self.rewards.divisor)
        targets = returns + transitions.discounts * following
        taken = critic_inputs(self.policy, inputs, numbers)
        magnitudes: Array = np.zeros_like(targets)
        for critic in self.critics:
            magnitudes += np.abs(critic.act(taken)[np.arange(len(targets)), combinations] - targets)
        return magnitudes / np.float32(len(self.critics))

    def get_state(self) -> State:
        """Critics, targets, temperature, optimisers, chance and replay; of replay, views."""
        own = State.of(
            log_alphas=self.log_alphas.copy(),
            alpha_adam=self.alpha_adam.get_state(),
            optimizer=self.optimizer.get_state(),
            rng=self.rng.bit_generator.state,
        )
        for k, (critic, target) in enumerate(zip(self.critics, self.targets, strict=True)):
            own.arrays[f"critic{k}"], own.arrays[f"target{k}"] = critic.params.copy(), target.params.copy()
        moments = State.of(**{f"critic_optimizer{k}": o.get_state() for k, o in enumerate(self.critic_optimizers)})
        return own.joined(moments, super().get_state())

    def set_state(self, state: State) -> None:
        """Take over a saved learner."""
        super().set_state(state)
        self.log_alphas[:] = state.arrays["log_alphas"]
        self.alpha_adam.set_state(state.part("alpha_adam"))
        self.optimizer.set_state(state.part("optimizer"))
        self.rng.bit_generator.state = state.values["rng"]
        for k, (critic, target) in enumerate(zip(self.critics, self.targets, strict=True)):
            critic.params[:], target.params[:] = state.arrays[f"critic{k}"], state.arrays[f"target{k}"]
            critic.sync()
            target.sync()
            self.critic_optimizers[k].set_state(state.part(f"critic_optimizer{k}"))

    def _next_values(self, inputs: Inputs, noise: Array, alphas: Array) -> Array:
        """The soft value `[B]` of what follows, by the target networks."""
        outputs = self.policy.network.act(inputs)
        after = self.actions.sample(outputs, noise)
        seen = critic_inputs(self.policy, inputs, after.numbers)
        lowest = np.minimum.reduce([target.act(seen) for target in self.targets])
        values = after.value(lowest, alphas)
        if self.masked:
            values[~allowed_of(outputs).any(axis=1)] = 0  # an episode cut where nothing could be done
        return values

    def _step_critics(
        self, taken: Inputs, combinations: Columns, targets: Array, weights: Array, lr: float, totals: UpdateStatistics
    ) -> Array:
        """Step each critic towards the targets; returns the mean magnitude of its errors, 0 where one was refused."""
        rows = np.arange(len(targets)), combinations
        magnitudes: Array = np.zeros_like(targets)
        loss = mean_q = norms = 0.0
        for critic, optimizer in zip(self.critics, self.critic_optimizers, strict=True):
            q, tape = critic.forward_policy(taken)
            d_q = np.zeros_like(q)
            error = q[rows] - targets
            d_q[rows] = error * weights
            mean_q += float(q[rows].mean())
            loss += float(np.dot(error, d_q[rows])) / 2
            norm = optimizer.step(critic.vjp(tape, d_q, None), lr)
            if norm is not None:
                norms += norm
                magnitudes += np.abs(error)
        magnitudes /= len(self.critics)
        totals.add(
            1,
            critic_loss=loss / len(self.critics),
            critic_gnorm=norms / len(self.critics),
            mean_q=mean_q / len(self.critics),
            mean_td_error=magnitudes.mean(),
        )
        return magnitudes

    def _step_policy(self, obs: Inputs, noise: Array, alphas: Array, lr: float, totals: UpdateStatistics) -> SoftSample:
        """Step the policy towards actions of a higher soft value; returns what it would do, before the step."""
        network, size = self.policy.network, np.float32(1 / len(noise))
        outputs, tape = network.forward_policy(obs)
        now = self.actions.sample(outputs, noise)
        seen = critic_inputs(self.policy, obs, now.numbers)
        asked = [critic.forward_inputs(seen) for critic in self.critics]
        lowest = np.minimum.reduce([q for q, _ in asked])
        d_numbers = np.zeros_like(now.numbers)
        if self.actions.num_numbers:
            open_ = np.ones(lowest.shape, bool)  # whose slope is not taken yet: of equals, the first counts
            for critic, (q, critic_tape) in zip(self.critics, asked, strict=True):
                chosen = open_ & (q == lowest)
                open_ &= ~chosen
                d_numbers -= critic.vjp_inputs(critic_tape, now.joint * chosen)[:, -self.actions.num_numbers :]
        gradient = self.actions.gradient(now, lowest, d_numbers, alphas) * size
        norm = self.optimizer.step(network.vjp(tape, gradient, None), lr)
        loss = -float(now.value(lowest, alphas).mean())
        totals.add(0, policy_loss=loss, entropy=now.entropies.sum(axis=1).mean(), grad_gnorm=norm or 0.0)
        return now

    def _step_temperature(self, now: SoftSample, lr: float) -> None:
        """Make entropy dearer where there is too little of it, and cheaper where there is too much."""
        surplus = now.entropies.mean(axis=0) - self._target_entropies(now)
        if np.isfinite(surplus).all():
            self.alpha_adam.step(self.log_alphas, surplus.astype(np.float32), lr)

    def _target_entropies(self, now: SoftSample) -> Array:
        """The entropy that each kind of actions aims at, `[G]`."""
        if self.config.target_entropy != "auto":
            return np.array([self.config.target_entropy], np.float32)
        found = []
        if "numbers" in self.actions.kinds:
            found.append(-float(self.actions.num_numbers))
        if "choices" in self.actions.kinds:
            found.append(CHOICE_ENTROPY * self.actions.largest_entropy(now))
        return np.array(found, np.float32)

    def _move_targets(self) -> None:
        """Let the target networks follow the critics."""
        tau = np.float32(self.config.tau)
        for critic, target in zip(self.critics, self.targets, strict=True):
            way = critic.params - target.params
            way *= tau
            target.params += way
            target.sync()

    def _is_sound(self) -> bool:
        """Whether policy and critics still give finite numbers for what was seen."""
        old = self.replay.draw(1, self.config.train_batch_size).transitions
        inputs = self.policy.encoder(old.obs)
        outputs = self.policy.network.act(inputs)
        numbers, _ = self.actions.taken(old.actions)
        values = [critic.act(critic_inputs(self.policy, inputs, numbers)) for critic in self.critics]
        return all(bool(np.isfinite(found).all()) for found in (outputs, self.log_alphas, *values))
