"""What a run's own results say is wrong with it, each said once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.config.algorithms import ALGORITHMS, BUILT_IN
from shoal.config.settings import AlgorithmConfig
from shoal.data.number_text import counted, number_text
from shoal.data.results import flat

ENDLESS_STEPS = 2000  # of each environment, without the end of an episode
STUCK_STEPS = 50_000  # over all environments, in which every episode has the same return
STUCK_EPISODES = 20
LARGE_RETURN = 1000  # that values learn slowly, in their own unit
PERSISTENT_ITERATIONS = 20  # after which what has been so in every iteration is no matter of chance
CUT_OFF = 20  # times grad_clip: of such a gradient, next to nothing is left
LEAST_EXPLAINED = 0.02
NEARLY_ALL = 0.9  # of an iteration's minibatches


class Hints:
    """Follows the results of one run from its first, and tells what a person would want to know early."""

    def __init__(self, algorithm: str, num_envs: int, config: AlgorithmConfig) -> None:
        self._algorithm, self._num_envs = algorithm, num_envs
        self._config = config
        self._is_endless_told = self._is_stuck_told = self._are_large_told = self._is_refusal_told = False
        self._cut_iterations = self._unexplained_iterations = 0
        self._return: float | None = None
        self._steps_before = 0
        self._has_varied = False

    def add(self, result: Mapping[str, Any]) -> list[str]:
        """What is to be said after this result."""
        learner = result.get("learner", {})
        hints = (
            self._endless(result),
            self._stuck(result),
            self._large(result),
            self._refused(result),
            self._cut_off(learner),
            self._unexplained(learner),
        )
        return [hint for hint in hints if hint]

    def _endless(self, result: Mapping[str, Any]) -> str | None:
        steps = int(result.get("timesteps_total", 0))
        if self._config.learns_offline:  # nothing is played
            return None
        if self._is_endless_told or result.get("episodes_total", 1) or steps < ENDLESS_STEPS * self._num_envs:
            return None
        self._is_endless_told = True
        return (
            f"no episode has ended in {steps:,} steps ({steps // self._num_envs:,} of each environment), so there "
            "is no return to report; if episodes have no end of their own, limit them: --set config.horizon=1000"
        )

    def _stuck(self, result: Mapping[str, Any]) -> str | None:
        """Every episode since the first has had the same return: the agent has never seen that anything matters."""
        low, high = result.get("episode_reward_min"), result.get("episode_reward_max")
        if self._is_stuck_told or self._has_varied or low is None:
            return None
        if self._return is None:
            if result.get("training_iteration") != 1 and result.get("episodes_total") != result.get(
                "episodes_this_iter"
            ):
                self._has_varied = True  # what was before is not known
            self._return = low
            self._steps_before = int(result.get("timesteps_total", 0)) - int(result.get("timesteps_this_iter", 0))
        # Where one agent wins what another loses, the sum of their returns tells nothing.
        of_agents = result.get("policy_reward_min"), result.get("policy_reward_max")
        if low != high or low != self._return or of_agents[0] != of_agents[1]:
            self._has_varied = True
        steps = int(result.get("timesteps_total", 0)) - self._steps_before
        episodes = int(result.get("episodes_total", 0))
        if self._has_varied or steps < STUCK_STEPS or episodes < STUCK_EPISODES:
            return None
        self._is_stuck_told = True
        playing = [name for name in BUILT_IN if not ALGORITHMS[name].learns_offline]
        others = ", ".join(f"--run {name}" for name in playing if name != self._algorithm)
        return (
            f"all {episodes:,} episodes so far have had the same return, {number_text(low)}: unless that is the best "
            f"there is, the agent has seen nothing yet to learn from; explore more ({self._config.more_exploration}), "
            f"reward steps towards the goal, start with easier tasks (config.env_task_fn), or try another "
            f"algorithm ({others})"
        )

    def _large(self, result: Mapping[str, Any]) -> str | None:
        """Returns are large, and learned as they are."""
        c, mean = self._config, result.get("episode_reward_mean")
        if self._are_large_told or c.normalize_rewards or c.clip_rewards or mean is None or abs(mean) < LARGE_RETURN:
            return None
        self._are_large_told = True
        return (
            f"returns are large (their mean is {number_text(mean)}) and rewards are learned from as they are, so the "
            "values take long to reach their size; divide rewards by their scale: --set config.normalize_rewards=true"
        )

    def _refused(self, result: Mapping[str, Any]) -> str | None:
        """Nearly every gradient of an iteration was left out: such a run comes to its end and has learned nothing."""
        counts = flat(result)
        refused = _of_learners(counts, "refused_minibatches")
        updates = _of_learners(counts, "num_updates") if self._config.learns_from_replay else None
        if self._is_refusal_told or not refused or refused < NEARLY_ALL * minibatches(self._config, updates):
            return None
        self._is_refusal_told = True
        return (
            f"{counted(int(refused), 'gradient')} of iteration {result.get('training_iteration')} were not finite and "
            "were left out, about as many as it had minibatches, so that little or nothing was learned; type shoal "
            "diagnose with this run, and look for a coefficient far above its default, for huge rewards or "
            "observations (shoal check), and for too large a config.lr"
        )

    def _cut_off(self, learner: Mapping[str, Any]) -> str | None:
        """Next to nothing of each gradient passes `grad_clip`: of the policy's, of the values', or of both.

        The norm that is known is of both together, while each is clipped by itself.
        """
        limit, norm = self._config.grad_clip, learner.get("grad_gnorm")
        if limit is None or norm is None or not self._config.clips_reported_norm:
            return None
        self._cut_iterations = _in_a_row(self._cut_iterations, norm > CUT_OFF * limit)
        if self._cut_iterations != PERSISTENT_ITERATIONS:
            return None
        way = "set config.grad_clip=null, or larger"
        if not self._config.normalize_rewards:
            way = "divide rewards by their scale: --set config.normalize_rewards=true"
        return (
            f"gradients have been more than {CUT_OFF} times config.grad_clip ({number_text(limit)}) for "
            f"{PERSISTENT_ITERATIONS} iterations, those of the policy and of the values together, so nearly all of one "
            f"of them or of both is cut off; {way}"
        )

    def _unexplained(self, learner: Mapping[str, Any]) -> str | None:
        """The value function tells nothing of the returns, if there is one; 0 is said also where they do not differ."""
        explained = learner.get("vf_explained_var")
        if explained is None or not getattr(self._config, "use_critic", True):
            return None
        self._unexplained_iterations = _in_a_row(self._unexplained_iterations, explained < LEAST_EXPLAINED)
        if self._unexplained_iterations != PERSISTENT_ITERATIONS:
            return None
        return (
            f"the value function has explained nothing of the returns for {PERSISTENT_ITERATIONS} iterations "
            f"(vf_explained_var is {explained:.2g}): if observations are large or of different sizes, scale them "
            "(--set config.observation_filter=MeanStdFilter); else see that they tell what the rewards depend on"
        )


def minibatches(config: AlgorithmConfig, num_updates: float | None) -> int:
    """Minibatches of one iteration: the updates that were counted, or roughly what the configuration asks for."""
    if num_updates is not None:
        return max(int(num_updates), 1)
    size = getattr(config, "sgd_minibatch_size", config.train_batch_size)
    return int(getattr(config, "num_sgd_iter", 1) * max(config.train_batch_size // size, 1))


def _of_learners(counts: Mapping[str, Any], name: str) -> float:
    """A count of the learner, over all policies."""
    found = [value for key, value in counts.items() if key.startswith("learner/") and key.endswith(f"/{name}")]
    return float(sum(found))


def _in_a_row(count: int, is_so: bool) -> int:
    """The iterations in a row in which something was so; once they are many, they stay counted: it is told once."""
    if count >= PERSISTENT_ITERATIONS:
        return PERSISTENT_ITERATIONS + 1
    return count + 1 if is_so else 0
