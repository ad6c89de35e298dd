"""The episode of an incident once more, outside of the trainer: the same seeds, values, task and actions.

By default it runs in a process of its own under the run's own deadlines, so that a hang or a crash is seen and survived
as it was then. For a debugger or a window it runs in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.changing import unchecked
from shoal.config.sections import RandomizeConfig
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Incident
from shoal.data.streams import reset_seed
from shoal.envs.cases import Case
from shoal.envs.env_limits import Limits
from shoal.envs.env_process import EnvPlan
from shoal.envs.env_processes import env_processes
from shoal.envs.first_look import first_look
from shoal.envs.isolated import IsolatedVector
from shoal.envs.making import maker_of, strip
from shoal.envs.observations import ObsSpec
from shoal.envs.randomizing import EpisodeValues, Randomizer
from shoal.envs.recording import EpisodeRecorder, recorded
from shoal.envs.scratch import scratch_folder
from shoal.envs.spaces import ActionSpec
from shoal.envs.vector import PythonVector, Steps, Vector
from shoal.errors import CheckpointError, ConfigError, EnvError
from shoal.runs.evaluation import config_for_evaluation
from shoal.runs.resuming import experiment_to_run, stored_tree
from shoal.sampling.sampler import MOST_REPLAYED_STEPS

DEFAULT_TIMEOUT_S = 60.0  # of a step or reset, where the run had no deadline: a replay must end


@dataclass(frozen=True)
class Replayed:
    """What came of a replay."""

    steps: int  # since the seed, that were taken
    incident: Incident | None  # what failed in it

    def is_same(self, entry: Mapping[str, Any]) -> bool:
        """Whether it failed at the same place."""
        found = self.incident
        return found is not None and (found.steps_since_seed, found.step) == (entry["steps_since_seed"], entry["step"])


class EpisodeReplay:
    """The episode of one incident of a run, ready to run."""

    def __init__(self, folder: Path, entry: Mapping[str, Any], trust: bool = False) -> None:
        tree = stored_tree(folder)
        if tree is None:
            raise CheckpointError(f"{folder}: its experiment cannot be read, so its environment cannot be made")
        experiment, user_code = experiment_to_run(tree, folder, trust)
        self.entry = entry
        self.config: AlgorithmConfig = experiment.config
        evaluation = entry.get("evaluation")
        case = Case()
        if evaluation is not None:
            case = Case(**evaluation["case"] or {})
            self.config = config_for_evaluation(self.config, evaluation["seed"])
            if evaluation["case"]:
                self.config = unchecked(self.config, randomize=RandomizeConfig())
        if entry["actions"] is None and entry["steps_since_seed"]:
            reason = "they are more than 20,000"
            if entry["steps_since_seed"] <= MOST_REPLAYED_STEPS:
                reason = "as those of several agents, and of an episode that was resumed from the environment's state"
            raise ConfigError(
                f"{folder}: the actions that led to incident {entry['number']} were not kept ({reason}); it cannot be "
                "replayed"
            )
        if reset_seed(self.config.seed, entry["env_index"], entry["seeding"]) != entry["seed"]:
            raise ConfigError(f"{folder}: incident {entry['number']} is of another seed than the run has now")
        maker = maker_of(self.config, user_code)
        if case != Case():
            maker = recorded(maker, EpisodeRecorder(), case)
        self._plan = EnvPlan(
            maker,
            self.config.env_config,
            worker_index=entry["worker_index"],
            num_workers=self.config.worker_count,
            first_index=entry["env_index"],
            index_offset=0 if evaluation is None else experiment.config.num_envs,
            vector_offset=entry["env_index"] % self.config.envs_per_worker,
            horizon=self.config.horizon,
            randomizer=Randomizer.from_config(self.config, maker.user_code),
            scratch=scratch_folder(entry["env_index"]),
            env_ranks=self.config.env_ranks,
        )

    def run(self) -> Replayed:
        """Run it in a process of its own, under the run's deadlines."""
        config = self.config
        limits = replace(
            Limits.from_config(config),
            step_timeout_s=config.env_step_timeout_s or DEFAULT_TIMEOUT_S,
            reset_timeout_s=config.env_reset_timeout_s or DEFAULT_TIMEOUT_S,
            restart_delay_s=0.0,
        )
        with env_processes():
            found = first_look(self._plan, self._first_draw(), limits)
            plan = self._plan
            if found.legacy:
                plan = replace(plan, maker=replace(plan.maker, legacy=True))
            spaces = found.observation_space, found.action_space
            obs_spec, action_spec = self._specs(*spaces)
            vector = IsolatedVector(
                plan, 1, obs_spec, action_spec, spaces, seed=config.seed, limits=limits, max_failures=0
            )
            return self._follow(vector, obs_spec, action_spec)

    def run_here(self, shows: bool, on_failure: Callable[[BaseException], None] | None = None) -> Replayed:
        """Run it in this process, in a window if it `shows`; `on_failure` gets the environment's own error."""
        plan = self._plan
        if shows:
            plan = replace(plan, shown=plan.index_offset + self.entry["env_index"])

        def make(row: int, drawn: Mapping[str, Any] | None = None) -> tuple[Any, int | None]:
            env, limit = strip(plan.make(row, drawn))  # type: ignore[arg-type]
            limits = [n for n in (limit, plan.horizon) if n is not None]
            return env, min(limits, default=None)

        env = plan.make(0, self._first_draw().env_config)
        obs_spec, action_spec = self._specs(env.observation_space, env.action_space)
        env.close()
        vector = PythonVector(
            make,
            1,
            obs_spec,
            action_spec,
            seed=self.config.seed,
            first_index=plan.first_index,
            worker_index=plan.worker_index,
            max_failures=0,
            randomizer=plan.randomizer,
        )
        return self._follow(vector, obs_spec, action_spec, on_failure)

    def _first_draw(self) -> EpisodeValues:
        randomizer = self._plan.randomizer
        return (
            EpisodeValues()
            if randomizer is None
            else randomizer.draw(self.entry["env_index"], self.entry["seeding"], 0)
        )

    def _specs(self, observation_space: Any, action_space: Any) -> tuple[ObsSpec, ActionSpec]:
        config = self.config
        actions = ActionSpec(action_space, config.normalize_actions, config.clip_actions, config.squash_actions)
        return ObsSpec(observation_space, config.framework != "numpy", actions, config.model.sequence_max_len), actions

    def _follow(
        self,
        vector: Vector,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> Replayed:
        entry = self.entry
        actions = np.array(entry["actions"] or [], action_spec.dtype).reshape(-1, 1, action_spec.size)
        taken = 0
        try:
            vector.set_state(
                {"seedings": [entry["seeding"] - 1], "failures": 0, "task": entry["task"], "tasks": [None]}
            )
            vector.reset(obs_spec.allocate(1))
            for action in actions:
                terminated, truncated, valid = np.zeros((3, 1), bool)
                steps = Steps(obs_spec.allocate(1), np.zeros(1, np.float32), terminated, truncated, valid)
                taken += 1
                vector.step(action, None, steps)
        except EnvError as error:
            if not vector.incidents:
                raise
            if on_failure is not None and error.__cause__ is not None:
                on_failure(error.__cause__)
        finally:
            vector.close()
        return Replayed(taken, vector.incidents[0] if vector.incidents else None)
