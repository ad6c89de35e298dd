"""What a learner's own numbers tell of why a run does not learn: tests that read results, configuration and weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shoal.config.schedules import levels
from shoal.data.findings import Finding
from shoal.data.number_text import counted, number_text
from shoal.reports.run_facts import RunFacts
from shoal.reports.symptoms_of_episodes import are_rewards_scaled, scaling_remedy
from shoal.runs.hints import minibatches

PERSISTENT = 10  # iterations after which what is so in most of them is no matter of chance
REFUSED = 0.01  # of all minibatches
COEFFICIENTS = ("vf_loss_coeff", "entropy_coeff", "kl_coeff", "vf_coeff", "beta", "initial_alpha")
FAR_ABOVE = 100.0  # times a coefficient's default, or 100 where it is off by default
HIGH_KL = 0.1
LEAP_KL = 1.0
FAR_OFF = 5.0  # times the KL that the penalty aims at
NO_KL = 1e-5
OFTEN_CLIPPED = 0.5
CUT_OFF = 200.0  # times grad_clip
LEAST_EXPLAINED = 0.02
ENTROPY_GONE = 0.02  # of the most that it was
ENTROPY_FULL = 0.98
SMALL_STD, LARGE_STD = 0.02, 3.0  # in the policy's own unit, whose bounds are -1 and 1
LARGE_WEIGHT = 1e3
SMALL_BATCH, SMALL_MINIBATCH = 256, 16
LR_GONE = 1e-3  # of the largest that it was
DIVERGED = 20.0  # times the largest return
BEYOND = 3.0  # times what rewards for ever add up to, where episodes are cut off long before the discount's end


def not_finite(facts: RunFacts) -> Iterator[Finding]:
    """Losses or weights are no numbers any more."""
    broken = [name for name, value in facts.weights.items() if not np.isfinite(value).all()]
    if not facts.lost_losses and not broken:
        return
    text = f"the loss was not finite in {facts.lost_losses} of {counted(facts.iterations, 'iteration')}"
    if broken:
        text = f"the weights {broken[0]} are not finite"
    remedy = f"{_calmer(facts)}; and look for huge values: `shoal check`"
    yield Finding("not finite", "problem", text, remedy)


def refused(facts: RunFacts) -> Iterator[Finding]:
    """Updates were left out because their gradients were not finite."""
    count = facts.series("learner/refused_minibatches").sum() + facts.series("learner/refused_steps").sum()
    share = count / (facts.iterations * _minibatches(facts))
    if not count or share < REFUSED:
        return
    share = min(share, 1.0)  # SAC steps several networks in one update
    text = f"{count:,.0f} updates, {share:.0%} of all, were left out because their gradient was not finite"
    remedy = f"{_calmer(facts)}; and look for huge values: `shoal check`"
    yield Finding("refused updates", "problem", text, remedy)


def _calmer(facts: RunFacts) -> str:
    """What keeps gradients finite: a coefficient that is no longer far above its default, or else smaller steps."""
    config, fields = facts.config, type(facts.config).model_fields
    for key in COEFFICIENTS:
        if key not in fields:
            continue
        default = fields[key].default
        schedule = getattr(config, f"{key}_schedule", None)
        value = getattr(config, key) if schedule is None else max(levels(schedule))
        if value > FAR_ABOVE * (default or 1.0):
            name, better = (key, f"{default:g}") if schedule is None else (f"{key}_schedule", "null")
            return f"config.{name} is {number_text(value)}, far above its default: --set config.{name}={better}"
    return f"smaller steps: --set config.lr={facts.smaller_lr(10)}"


def large_weights(facts: RunFacts) -> Iterator[Finding]:
    """Weights have grown without bound."""
    for name, value in facts.weights.items():
        largest = float(np.abs(value).max()) if value.size and np.isfinite(value).all() else 0.0
        if largest > LARGE_WEIGHT:
            text = f"the largest weight of {name} is {number_text(largest)}: the network has diverged"
            yield Finding("large weights", "problem", text, f"smaller steps: --set config.lr={facts.smaller_lr(10)}")
            return


def values_diverge(facts: RunFacts) -> Iterator[Finding]:
    """The values of actions are far from any return that there was."""
    q = facts.last("learner/mean_q")
    returns = np.concatenate([facts.series("episode_reward_max"), facts.series("episode_reward_min")])
    if not q or not len(returns) or are_rewards_scaled(facts.config):
        return
    largest = max(float(np.abs(returns).max()), 1.0)
    means = np.abs(facts.series("episode_reward_mean"))
    for_ever = float(means.max()) / max(facts.last("episode_len_mean"), 1.0) * facts.discount_steps
    if abs(q) <= max(DIVERGED * largest, BEYOND * for_ever):
        return
    text = f"the mean value is {number_text(q)}, and no return was larger than {number_text(largest)}: values diverge"
    slower = f"target_network_update_freq={4 * getattr(facts.config, 'target_network_update_freq', 500)}"
    if "tau" in type(facts.config).model_fields:
        slower = f"tau={getattr(facts.config, 'tau', 0.005) / 4:.2g}"
    remedy = f"--set config.lr={facts.smaller_lr(5)} --set config.{slower}"
    yield Finding("values diverge", "problem", text, remedy)


def no_exploration(facts: RunFacts) -> Iterator[Finding]:
    """Training never tries anything but what it holds for best."""
    if not facts.config.explore:
        text = "config.explore is false: training takes the best known action always"
        yield Finding("no exploration", "problem", text, "--set config.explore=true")


def kl_high(facts: RunFacts) -> Iterator[Finding]:
    """Each iteration moves the policy too far, or one has moved it so far that there was no way back."""
    kl, config = facts.late("learner/kl"), facts.config
    if len(kl) < 2 or "clip_param" not in type(config).model_fields:
        return
    remedy = f"--set config.lr={facts.smaller_lr(3)}, or --set config.num_sgd_iter={_half_the_passes(facts)}"
    has_penalty = getattr(config, "kl_coeff", 0.0) > 0
    aim = getattr(config, "kl_target", 0.01)
    middle = float(np.median(kl))
    if middle > (FAR_OFF * aim if has_penalty else HIGH_KL):
        target = f", and its target is {number_text(aim)}" if has_penalty else ""
        text = f"the KL divergence of an iteration is {number_text(middle)}{target}: the policy moves too far"
        yield Finding("KL high", "warning", text, remedy)
    elif _has_leapt(facts):
        every = facts.series("learner/kl")
        text = (
            f"the KL divergence was {number_text(float(every.max()))} in iteration {every.argmax() + 1}: the policy "
            "moved so far on one batch that it has not recovered"
        )
        yield Finding("KL high", "warning", text, f"--set config.lr={facts.smaller_lr(10)}")


def _has_leapt(facts: RunFacts) -> bool:
    """Whether one iteration has changed the policy beyond recognition, and the return does not rise."""
    kl = facts.series("learner/kl")
    return not facts.is_learning and len(kl) > 0 and bool(kl.max() > LEAP_KL)


def _half_the_passes(facts: RunFacts) -> int:
    return max(int(getattr(facts.config, "num_sgd_iter", 10)) // 2, 1)


def stands_still(facts: RunFacts) -> Iterator[Finding]:
    """The policy does not change, and never did much."""
    kl = facts.late("learner/kl")
    if facts.is_learning or facts.iterations < PERSISTENT or not len(kl) or np.median(kl) >= NO_KL:
        return
    if _has_leapt(facts) or len(_gone(facts)):
        return  # it stands still because it has come to an end, and larger steps would not help
    text = f"the KL divergence of an iteration is {number_text(float(np.median(kl)))}: the policy hardly changes"
    remedy = "--set config.max_kl=0.02"
    if "clip_param" in type(facts.config).model_fields:
        remedy = f"--set config.lr={max(10 * facts.config.lr, 1e-4):.2g}"
    yield Finding("stands still", "warning", text, remedy)


def clip_binds(facts: RunFacts) -> Iterator[Finding]:
    """Most of each batch teaches nothing, because its ratio is clipped."""
    clipped = facts.late("learner/clip_fraction")
    if len(clipped) < 2 or np.median(clipped) <= OFTEN_CLIPPED:
        return
    limit = facts.last("learner/clip_param", 0.2)
    text = f"{np.median(clipped):.0%} of the steps of a batch are clipped at clip_param {limit:g}"
    remedy = f"--set config.lr={facts.smaller_lr(3)}, or --set config.num_sgd_iter={_half_the_passes(facts)}"
    yield Finding("clip binds", "warning", text, remedy)


def gradients_cut(facts: RunFacts) -> Iterator[Finding]:
    """Next to nothing of each gradient passes `grad_clip`."""
    limit, norms = facts.config.grad_clip, facts.late("learner/grad_gnorm")
    if facts.is_learning or limit is None or len(norms) < PERSISTENT or np.median(norms) <= CUT_OFF * limit:
        return
    text = (
        f"gradients have a norm of {number_text(float(np.median(norms)))}, and config.grad_clip cuts them to {limit:g}"
    )
    remedy = "--set config.grad_clip=null, or larger"
    if not are_rewards_scaled(facts.config):
        remedy = scaling_remedy(facts.config)
    yield Finding("gradients cut", "warning", text, remedy)


def unexplained(facts: RunFacts) -> Iterator[Finding]:
    """The value function tells nothing of the returns, if there is one; 0 is said also where they do not differ."""
    explained = facts.late("learner/vf_explained_var")
    if not getattr(facts.config, "use_critic", True):
        return
    if facts.is_learning or len(explained) < PERSISTENT or np.median(explained) >= LEAST_EXPLAINED:
        return
    text = f"the value function explains nothing of the returns (vf_explained_var {np.median(explained):.2g})"
    remedy = "see that observations tell what rewards depend on"
    if facts.config.observation_filter == "NoFilter":
        remedy = f"scale observations: --set config.observation_filter=MeanStdFilter; else {remedy}"
    yield Finding("values", "warning", text, remedy)


def values_clipped(facts: RunFacts) -> Iterator[Finding]:
    """The errors of values are so large that `vf_clip_param` leaves most of them out."""
    limit, loss = getattr(facts.config, "vf_clip_param", None), facts.late("learner/vf_loss")
    if limit is None or len(loss) < 2 or np.median(loss) <= limit / 2:
        return
    square = number_text(float(np.median(loss)))
    text = f"vf_clip_param leaves out squared errors of values above {limit:g}, and their mean is {square}"
    yield Finding("values clipped", "warning", text, "--set config.vf_clip_param=null")


def entropy_gone(facts: RunFacts) -> Iterator[Finding]:
    """A policy over choices has made up its mind before it had learned."""
    gone = _gone(facts)
    if facts.is_learning or facts.iterations < PERSISTENT or not len(gone):
        return
    entropy = facts.series("learner/entropy")
    text = (
        f"the policy's entropy had fallen to {number_text(float(entropy[gone[0]]))} by iteration {gone[0] + 1} of "
        f"{len(entropy)}: it tries nothing else any more"
    )
    remedy = "--set config.entropy_coeff=0.01"
    if "entropy_coeff" not in type(facts.config).model_fields:
        remedy = f"--set config.train_batch_size={2 * facts.config.train_batch_size}"
    yield Finding("entropy gone", "warning", text, f"{remedy}, or a smaller config.lr")


def _gone(facts: RunFacts) -> NDArray[np.intp]:
    """The iterations in which a policy over choices had no entropy left, if that was early and stayed so."""
    entropy = facts.series("learner/entropy")
    none = np.zeros(0, np.intp)
    if not len(entropy) or "log_std" in facts.weights or entropy.min() < 0:  # that of continuous actions has no end
        return none
    least = ENTROPY_GONE * max(entropy.max(), np.log(2))
    gone = np.flatnonzero(entropy < least)
    if not len(gone) or gone[0] > len(entropy) // 2 or entropy[-1] >= least:
        return none
    return gone


def entropy_full(facts: RunFacts) -> Iterator[Finding]:
    """The entropy bonus keeps the policy random."""
    entropy, weight = facts.series("learner/entropy"), facts.last("learner/entropy_coeff")
    if (
        facts.is_learning
        or weight <= 0
        or len(entropy) < 2 * PERSISTENT
        or entropy[-1] < ENTROPY_FULL * abs(entropy[0])
    ):
        return
    now = number_text(float(entropy[-1]))
    text = f"the policy is as random as at first (entropy {now}), with an entropy bonus of {weight:g}"
    yield Finding("entropy full", "warning", text, f"--set config.entropy_coeff={weight / 10:.2g}")


def spread_of_actions(facts: RunFacts) -> Iterator[Finding]:
    """The standard deviation of continuous actions has collapsed or exploded."""
    if "log_std" not in facts.weights or not np.isfinite(facts.weights["log_std"]).all():
        return
    std = np.exp(np.asarray(facts.weights["log_std"], np.float64).reshape(-1))
    small, large = float(std.min()), float(std.max())
    if large > LARGE_STD:
        text = f"the standard deviation of actions has grown to {number_text(large)}, where bounds are at 1"
        remedy = "--set config.entropy_coeff=0 --set config.squash_actions=true"
        yield Finding("action spread", "warning", text, remedy)
    elif small < SMALL_STD and not facts.is_learning:
        text = f"the standard deviation of actions has shrunk to {number_text(small)}: nothing new is tried"
        remedy = "--set config.entropy_coeff=0.01"
        if "entropy_coeff" not in type(facts.config).model_fields:
            remedy = f"--set config.train_batch_size={2 * facts.config.train_batch_size}"
        yield Finding("action spread", "warning", text, remedy)


def no_step(facts: RunFacts) -> Iterator[Finding]:
    """TRPO's line search finds no step."""
    fractions = facts.late("learner/step_fraction")
    if len(fractions) < 2 or np.mean(fractions == 0) <= 0.5:
        return
    text = f"the line search took no step in {np.mean(fractions == 0):.0%} of the later iterations"
    size = 2 * facts.config.train_batch_size
    yield Finding("no step", "warning", text, f"--set config.train_batch_size={size}, or a larger config.cg_damping")


def lr_gone(facts: RunFacts) -> Iterator[Finding]:
    """A schedule has ended the learning long before the run."""
    lr = facts.series("learner/cur_lr")
    if len(lr) < PERSISTENT or lr.max() <= 0:
        return
    gone = float(np.mean(lr < LR_GONE * lr.max()))
    if gone < 0.25:
        return
    text = f"the learning rate was next to 0 in {gone:.0%} of the iterations (cur_lr {number_text(float(lr[-1]))})"
    yield Finding("lr gone", "warning", text, f"let config.lr_schedule end later than {facts.steps:,} steps")


def small_batch(facts: RunFacts) -> Iterator[Finding]:
    """Too few steps for a direction to be seen."""
    config = facts.config
    if facts.is_learning or config.learns_from_replay:
        return
    minibatch = getattr(config, "sgd_minibatch_size", SMALL_MINIBATCH)
    if config.train_batch_size < SMALL_BATCH:
        text = f"an iteration learns from {config.train_batch_size} steps, whose advantages are mostly noise"
        yield Finding("small batch", "warning", text, "--set config.train_batch_size=2048")
    elif minibatch < SMALL_MINIBATCH:
        text = f"a gradient is taken from {minibatch} steps, which is mostly noise"
        yield Finding("small batch", "warning", text, "--set config.sgd_minibatch_size=64")


def epsilon_gone(facts: RunFacts) -> Iterator[Finding]:
    """DQN stopped to try things out before there was anything to learn from."""
    epsilon, ended = facts.series("learner/cur_epsilon"), facts.series("episodes_total")
    said = facts.config.exploration_config
    final = getattr(said, "final_epsilon", None)
    if facts.is_learning or final is None or not len(epsilon) or len(epsilon) != len(ended):
        return
    reached = np.flatnonzero(epsilon <= final + 1e-9)
    if not len(reached) or reached[0] > len(epsilon) // 4:
        return
    steps = facts.series("timesteps_total")
    text = (
        f"random actions had fallen to their last share, {number_text(float(epsilon[reached[0]]))}, after "
        f"{ended[reached[0]]:.0f} episodes and {steps[reached[0]]:,.0f} of {facts.steps:,} steps"
    )
    remedy = f"--set config.exploration_config.epsilon_timesteps={max(facts.steps // 2, 10_000)}"
    yield Finding("epsilon gone", "warning", text, remedy)


def small_replay(facts: RunFacts) -> Iterator[Finding]:
    """Replay forgets an episode before it has ended."""
    replay = getattr(facts.config, "replay_buffer_config", None)
    length = facts.last("episode_len_mean")
    if replay is None or length * facts.config.num_envs <= replay.capacity:
        return
    envs = facts.config.num_envs
    text = f"replay holds {replay.capacity:,} transitions, fewer than one episode of each of {envs} environments"
    size = int(np.ceil(20 * length * envs / 1000)) * 1000
    yield Finding("small replay", "warning", text, f"--set config.replay_buffer_config.capacity={size}")


def not_begun(facts: RunFacts) -> Iterator[Finding]:
    """An algorithm with replay has not learned from anything yet."""
    if not facts.config.learns_from_replay or facts.series("learner/num_updates").sum():
        return
    starts = getattr(facts.config, "learning_starts", 0)
    text = f"nothing was learned yet: {facts.steps:,} steps, and learning begins after {starts:,}"
    yield Finding("not begun", "problem", text, "train for longer, or --set config.learning_starts=1000")


def _minibatches(facts: RunFacts) -> int:
    """Updates of one iteration, roughly."""
    updates = facts.series("learner/num_updates")
    return minibatches(facts.config, float(updates.mean()) if len(updates) else None)


SYMPTOMS = (
    not_finite,
    refused,
    large_weights,
    values_diverge,
    not_begun,
    no_exploration,
    kl_high,
    clip_binds,
    stands_still,
    lr_gone,
    entropy_gone,
    entropy_full,
    spread_of_actions,
    epsilon_gone,
    small_replay,
    no_step,
    gradients_cut,
    values_clipped,
    unexplained,
    small_batch,
)
"""The most important first."""
