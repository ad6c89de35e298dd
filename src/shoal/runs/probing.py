"""A trained policy plays a few episodes in the environments of its training, and what happens is kept as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.config.changing import unchecked
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Batch
from shoal.data.findings import Finding
from shoal.data.played import Played
from shoal.data.streams import evaluation_seed
from shoal.envs.closing import close_quietly
from shoal.envs.env_errors import error_text, pass_on_interrupts
from shoal.envs.examination import COMPARED_STEPS, SEED, Examination, first_steps, seeding
from shoal.envs.making import EnvMaker, maker_of
from shoal.envs.randomizing import first_draw
from shoal.envs.spaces import ActionSpec, path_name
from shoal.errors import ConfigError
from shoal.models.policy import Policy
from shoal.parallel.ray_workers import without_gpu
from shoal.runs.checkpoints import Checkpoint
from shoal.runs.loaded_policy import policy_of
from shoal.runs.resuming import experiment_to_run
from shoal.sampling.worker import Worker

CHUNK = 10  # steps between two looks at the clock
MOST_ENVS = 8
TRIES = 3  # with other actions, before they are said to change nothing
TRIALS = 3 + 1 + TRIES  # episodes that are played to see what seeds and actions decide


def probe(checkpoint: Checkpoint, episodes: int, max_steps: int, budget_s: float, trust: bool = False) -> Played:
    """Play with chance, as in training, until so many episodes have ended, or steps were taken, or time is up.

    The environments are those with the first indices of training, at its task, with seeds of their own.
    """
    experiment, user_code = experiment_to_run(checkpoint.experiment_tree, checkpoint.path, trust)
    config = experiment.config
    if config.policy:
        raise ConfigError("what its play would show is known of shoal's own networks only; `shoal evaluate` plays it")
    maker = maker_of(config, user_code)
    policy = policy_of(checkpoint, maker)
    own = unchecked(
        without_gpu(config),
        num_workers=0,
        num_learners=1,
        num_envs_per_worker=min(config.envs_per_worker, MOST_ENVS),
        batch_mode="truncate_episodes",
        straggler_quorum=None,
        explore=True,
        env_task_fn=None,
        callbacks=None,
        render_env=False,
        seed=evaluation_seed(config.seed),
    )
    policy.learns_by_probability = True  # its outputs are looked at
    worker = Worker(own, maker, policy=policy, any_size=True)
    try:
        worker.task = (checkpoint.state.values.get("curriculum") or {}).get("task")
        began = monotonic()
        batches = _batches(worker, episodes, max_steps, budget_s)
        step_s = (monotonic() - began) / sum(batch.valid.size for batch in batches)
    finally:
        worker.stop()
    most = max(int(budget_s / TRIALS / step_s), 2)
    return _played(own, policy, batches, tuple(_trials(own, maker, most)))


def _batches(worker: Worker, episodes: int, max_steps: int, budget_s: float) -> list[Batch]:
    found: list[Batch] = []
    steps = ended = 0
    until = monotonic() + budget_s
    while steps < max_steps and ended < episodes:
        sample = worker.sample(CHUNK)
        found.append(_copied(sample.batch, worker.policy))
        steps += sample.num_steps
        ended += len(sample.episodes)
        if monotonic() > until:
            break
    return found


def _copied(batch: Batch, policy: Policy) -> Batch:
    """The batch without its images in arrays of its own: the sampler writes into the same ones again."""
    kept = {name: getattr(batch, name).copy() for name in ("actions", "rewards", "terminated", "truncated", "valid")}
    kinds = policy.obs_spec.kinds
    obs = tuple(part.copy() for part, kind in zip(batch.obs, kinds, strict=True) if kind in ("vector", "mask"))
    return Batch(
        obs=obs,
        **kept,
        log_probs=batch.log_probs,
        dist_inputs=batch.dist_inputs.copy(),
        final_obs=(),
        final_at=batch.final_at,
    )


def _played(config: AlgorithmConfig, policy: Policy, batches: list[Batch], findings: tuple[Finding, ...]) -> Played:
    spec = policy.obs_spec

    def joined(name: str) -> Any:
        return np.concatenate([getattr(batch, name) for batch in batches])

    actions, valid = joined("actions"), joined("valid")
    obs = np.zeros((*valid.shape, 0), np.float32)
    if spec.vector_size:
        obs = policy.encoder.measurements(np.concatenate([batch.obs[0] for batch in batches]))
    masks = None
    if spec.mask is not None:
        masks = np.concatenate([batch.obs[-1] for batch in batches])
    return Played(
        obs=obs,
        columns=_column_names(policy),
        measured=policy.encoder.measured,
        actions=actions,
        rewards=joined("rewards"),
        terminated=joined("terminated"),
        truncated=joined("truncated"),
        valid=valid,
        outputs=joined("dist_inputs"),
        masks=masks,
        choices=_choices(policy.action_spec),
        outside_share=_outside(config, policy.action_spec, actions[valid]),
        findings=findings,
    )


def _column_names(policy: Policy) -> tuple[str, ...]:
    """A name for each number of the observation's vector."""
    names: list[str] = []
    for leaf in policy.obs_spec.leaves:
        if leaf.kind == "vector" and leaf.columns is not None:
            start = path_name(leaf.path)
            size = leaf.columns.stop - leaf.columns.start
            names += [f"{start}[{k}]" if size > 1 else start or "obs" for k in range(size)]
    return tuple(name if not name.startswith("[") else f"obs{name}" for name in names)


def _choices(spec: ActionSpec) -> tuple[tuple[int, int], ...]:
    """Column and number of values of every discrete choice."""
    found: list[tuple[int, int]] = []
    for leaf in spec.leaves:
        found += [(leaf.columns.start + k, count) for k, count in enumerate(leaf.choices)]
    return tuple(found)


def _outside(config: AlgorithmConfig, spec: ActionSpec, actions: NDArray[Any]) -> float | None:
    """The share of bounded continuous numbers that lie beyond their bounds and are clipped to them."""
    outside: list[NDArray[np.bool_]] = []
    for leaf in spec.leaves:
        if leaf.kind != "gaussian" or not config.clip_actions:
            continue
        assert isinstance(leaf.space, spaces.Box)
        low, high = leaf.space.low.reshape(-1), leaf.space.high.reshape(-1)
        is_clipped = np.isfinite(low) & np.isfinite(high) & ~leaf.squashed
        if config.normalize_actions:  # then the bounds are -1 and 1 to the policy
            low, high = -np.ones_like(low), np.ones_like(high)
        values = actions[:, leaf.columns]
        beyond = (values < low) | (values > high)
        outside += [beyond[:, column] for column in np.flatnonzero(is_clipped)]
    return float(np.mean(outside)) if outside else None


def _trials(config: AlgorithmConfig, maker: EnvMaker, max_steps: int) -> Iterator[Finding]:
    """What trials with random actions show; an environment that fails in them has played well, so that is told, too."""
    try:
        yield from _of_seeds(config, maker, max_steps)
    except BaseException as error:
        pass_on_interrupts(error)
        text = f"the environment failed when it was played with random actions: {error_text(error)}"
        yield Finding("random actions", "warning", text, "`shoal check` tries more of them")


def _of_seeds(config: AlgorithmConfig, maker: EnvMaker, max_steps: int) -> Iterator[Finding]:
    """What shows only if the same seed is given twice: whether it decides all, and whether actions decide anything."""
    drawn = first_draw(config, maker.user_code)
    exam = Examination(maker, {**config.env_config, **drawn.env_config}, max_steps=min(max_steps, COMPARED_STEPS))
    for _ in first_steps(exam):
        pass
    if exam.is_batch:
        return
    for finding in seeding(exam):
        if finding.verdict == "warning":
            yield finding
    if exam.is_repeatable and not _do_actions_matter(exam):
        text = f"with the same seed, other actions give the same observations and rewards ({TRIES} times)"
        yield Finding("no effect", "problem", text, "see that step() uses its action")


def _do_actions_matter(exam: Examination) -> bool:
    env = exam.make()
    try:
        expected = exam.play(env, exam.random_actions(SEED), exam.max_steps, SEED, keep=True)
        for other in range(1, TRIES + 1):
            seen = exam.play(env, exam.random_actions(SEED + other), exam.max_steps, SEED, keep=True)
            if expected.first_difference(seen) is not None:
                return True
    finally:
        close_quietly(env)
    return False
