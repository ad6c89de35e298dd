"""What experiment files and params.json of RLlib say, in our words: both of the classic names and of the new ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from shoal.config.algorithms import ALGORITHMS
from shoal.config.dialects import ACTIVATIONS, ALGORITHMS_THERE, CHANGED, here
from shoal.config.experiment import sweep_words
from shoal.config.migration_draft import CLASS_TEXT, Draft, Wishes, settle_env, settle_run
from shoal.config.result_names import is_result_name
from shoal.config.search_spaces import space_kind
from shoal.config.vocabulary import EXPERIMENT_KEYS, FOREIGN_RESULTS, SWEEP_KEYS
from shoal.errors import ConfigError

SECTIONS = (
    *("environment", "env_runners", "rollouts", "learners", "training", "evaluation", "resources", "debugging"),
    *("fault_tolerance", "reporting", "rl_module", "offline_data", "checkpointing", "api_stack", "exploration"),
    *("framework", "callbacks", "multi_agent", "tune_config", "run_config", "checkpoint_config", "param_space"),
)
"""The methods of RLlib's configuration objects, by which its settings may be grouped."""

FREE = ("env_config", "custom_model_config", "stages", "policies", "options")
"""Mappings whose keys are the user's own."""

MACHINERY = re.compile(
    r"^_|^(enable|validate|merge|broadcast|add_default|create|max_requests|custom_resources|extra_python|torch_|tf_"
    r"|callbacks_on|offline_|prelearner|materialize|dataset_|ope_|off_policy|input|output|map_batches|iter_batches"
    r"|policy_(map|states)|keep_per|export_native|learner_config|export|postprocess|shuffle_(b|buffer)|episode"
    r"|action_mask|action_space|observation_(space|fn)|is_|in_evaluation|disable|sample_(timeout|collector)|use_(env|worker))"
    r"|timeout_s$|_cls$|_class$|_kwargs$|connector|state_server|_restarts_s$|tolerance$|_lookback_|restart_failed_sub|requests_in_flight"
    r"|stats_|fake_sampler|local_gpu|auto_duration|consecutive|force_reset|algorithm_config_overrides|actions_in_input"
)
"""Keys of RLlib's own machinery, of which a file that it writes itself is full."""

SIGNS = {
    "SAC": ("initial_alpha", "twin_q", "target_entropy", "actor_lr"),
    "DQN": ("double_q", "dueling", "epsilon", "num_atoms"),
    "APPO": ("vtrace", "vtrace_clip_rho_threshold"),
    "PPO": ("kl_coeff", "clip_param", "sgd_minibatch_size", "num_sgd_iter", "minibatch_size", "num_epochs"),
}
"""Keys by which the algorithm of a params.json is known, which does not name it."""


def translate(draft: Draft, title: str, body: Mapping[str, Any], source: str, wishes: Wishes) -> None:
    """Fill the draft with what an experiment, or a configuration alone, says."""
    is_experiment = any(key in body for key in ("config", "run", "stop", "param_space"))
    config = body.get("config", body.get("param_space")) if is_experiment else body
    prefix = ("config." if "config" in body else "param_space.") if is_experiment else ""
    if config is None:
        config = {}
    if not isinstance(config, Mapping):
        raise ConfigError(f"{source}: {title}: config must be a mapping of settings (got {config!r})")
    items = dict(_flat(config, prefix))
    outer = dict(_flat({key: value for key, value in body.items() if value is not config}, "")) if is_experiment else {}
    _choose_run(draft, outer, items, source, wishes)
    _choose_env(draft, outer, items, wishes)
    is_searched = bool(sweep_words({"config": config, "env": body.get("env")}))
    for there, value in outer.items():
        if there.rpartition(".")[2] == "num_samples" and value != 1 and not is_searched:
            draft.gone(there, value, "nothing is searched; for other seeds, type shoal train --seed 1, and so on")
        else:
            _outer(draft, there, value)
    _learners(draft, items)
    if newer := _find(items, "_model_config", "model_config"):
        for there in [path for path in items if path.rpartition(".")[2] == "model" and items[newer]]:
            draft.idle(there, items.pop(there))  # the older API's, beside that of the newer
    for there, value in items.items():
        _setting(draft, there, value)


def _flat(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Every setting by its path, with the groups of RLlib's methods opened."""
    for word, value in config.items():
        if word in SECTIONS and isinstance(value, Mapping) and space_kind(value) is None:
            yield from _flat(value, f"{prefix}{word}.")
        else:
            yield f"{prefix}{word}", value


def _find(items: Mapping[str, Any], *words: str) -> str | None:
    """Where one of some words is set."""
    return next((there for there in items if there.rpartition(".")[2] in words and items[there] is not None), None)


def _choose_run(draft: Draft, outer: dict[str, Any], items: dict[str, Any], source: str, wishes: Wishes) -> None:
    there = _find(outer, "run", "algo", "algorithm") or ""
    said = wishes.run or (outer.pop(there) if there else None)
    if said is None:
        folder = re.match(r"(?:.*_)?([A-Za-z0-9]+)_", PurePath(source).parent.name)
        named = folder[1].upper() if folder else ""
        words = {path.rpartition(".")[2] for path in items}
        guesses = [run for run, signs in SIGNS.items() if words & set(signs)]
        if named in ALGORITHMS or named in ALGORITHMS_THERE:
            said = named
        elif guesses:
            said = guesses[0]
        else:
            raise ConfigError(f"{source}: it does not say which algorithm it is for; give it with --run, such as PPO")
    outer.pop(there, None)
    settle_run(draft, there or "run", said, source)


def _choose_env(draft: Draft, outer: dict[str, Any], items: dict[str, Any], wishes: Wishes) -> None:
    places = [
        (table, there)
        for table in (outer, items)
        for there in [*table]
        if there.rpartition(".")[2] in ("env", "env_name", "env_id") and table[there] is not None
    ]
    found = [(there, table.pop(there)) for table, there in places]
    if wishes.env is not None:
        draft.put(found[0][0] if found else "env", found[0][1] if found else wishes.env, "env", wishes.env)
    elif found:
        settle_env(draft, *found[0])


def _outer(draft: Draft, there: str, value: Any) -> None:
    """A key that stands beside config."""
    word = there.rpartition(".")[2]
    if word == "stop":
        _stop(draft, there, value)
    elif value is None or (word == "num_samples" and value == 1) or word in ("name", "pass_criteria"):
        draft.idle(there, value)
    elif word in EXPERIMENT_KEYS or word in SWEEP_KEYS:
        draft.put(there, value, word)
    else:
        _by_table(draft, there, word, value)


def _stop(draft: Draft, there: str, value: Any) -> None:
    """When to stop, in our names of results."""
    if not isinstance(value, Mapping):
        draft.gone(there, value, "a stop criterion is a mapping such as {timesteps_total: 100000}")
        return
    for name, limit in value.items():
        plain = str(name).removeprefix("sampler_results/")
        result = plain if is_result_name(plain) else FOREIGN_RESULTS.get(plain)
        if result is None and plain.startswith(("evaluation/", "evaluation_results/")):
            inner = plain.partition("/")[2].removeprefix("sampler_results/")
            result = f"evaluation/{FOREIGN_RESULTS.get(inner, inner)}"
        if result is None or not is_result_name(result):
            draft.gone(
                f"{there}.{name}", limit, "no result has this name; `shoal config show stop` lists those there are"
            )
        else:
            draft.put(f"{there}.{name}", limit, f"stop.{result}")


def _learners(draft: Draft, items: dict[str, Any]) -> None:
    """What is told for each learner is told for all of them here."""
    where = {
        "num_learners": _find(items, "num_learners", "num_learner_workers"),
        "num_gpus_per_learner": _find(items, "num_gpus_per_learner", "num_gpus_per_learner_worker"),
        "train_batch_size_per_learner": _find(items, "train_batch_size_per_learner"),
    }
    there = where["num_learners"]
    learners = items.pop(there) if there else 1
    learners = learners if isinstance(learners, int) and not isinstance(learners, bool) else 1
    if there:
        draft.put(there, learners, "config.num_learners", max(learners, 1)) if learners else draft.idle(there, 0)
    learners = max(learners, 1)
    for word, ours in (("num_gpus_per_learner", "num_gpus"), ("train_batch_size_per_learner", "train_batch_size")):
        place = where[word]
        if place is None:
            continue
        value = items.pop(place)
        for old in [path for path in items if path.rpartition(".")[2] == ours]:
            draft.idle(old, items.pop(old))  # the word of the older API, beside that of the newer
        now = value * learners if isinstance(value, int | float) and learners > 1 else value
        draft.idle(place, value) if word == "num_gpus_per_learner" and not value else draft.put(
            place, value, f"config.{ours}", now
        )


def _setting(draft: Draft, there: str, value: Any) -> None:
    """A key of config."""
    word = there.rpartition(".")[2]
    convert = CONVERT.get(word)
    if convert is not None and space_kind(value) is None:
        convert(draft, there, value)
    elif isinstance(value, str) and re.match(r"<(class|function|bound method|ray\.|.* object)", value):
        _object(draft, there, word, value)
    elif f"config.{word}" in draft.known and word not in ("exploration",):
        _ours(draft, there, f"config.{word}", value)
    else:
        _by_table(draft, there, word, value)


def _ours(draft: Draft, there: str, path: str, value: Any) -> None:
    """A key that we have too; mappings are taken apart."""
    word = path.rpartition(".")[2]
    inner = any(known.startswith(f"{path}.") for known in draft.known)
    if isinstance(value, Mapping) and inner and word not in FREE and space_kind(value) is None:
        for key, item in value.items():
            _inner(draft, f"{there}.{key}", path, str(key), item)
    elif value is None and path in draft.known:
        _null(draft, there, path)
    else:
        draft.put(there, value, path, _finite(value))


def _inner(draft: Draft, there: str, parent: str, key: str, value: Any) -> None:
    """A key inside model, exploration_config and others."""
    path = f"{parent}.{key}"
    if key.endswith("activation") and isinstance(value, str):
        plain = value.lower()
        draft.put(there, value, path, ACTIVATIONS.get(plain, plain)) if path in draft.known else draft.idle(
            there, value
        )
    elif key == "lstm_use_prev_action_reward":
        for one in ("lstm_use_prev_action", "lstm_use_prev_reward"):
            draft.put(there, value, f"{parent}.{one}") if value else draft.idle(there, value)
    elif parent == "config.replay_buffer_config" and key == "type":
        is_prioritized = "Prioritized" in str(value)
        draft.put(there, value, f"{parent}.prioritized_replay", is_prioritized, "the kind of buffer is a switch here")
    elif parent == "config.replay_buffer_config" and key in ("alpha", "beta"):
        draft.put(there, value, f"{parent}.prioritized_replay_{key}")
    elif path in draft.known:
        _ours(draft, there, path, value)
    elif parent == "config.evaluation_config":
        draft.gone(there, value, "evaluation may differ in explore, env_config, seed, horizon, task and randomize only")
    else:
        _by_table(draft, there, key, value)


def _by_table(draft: Draft, there: str, word: str, value: Any) -> None:
    """A word that is not ours: by the table of words, or of no use."""
    meant = here(word, draft.known)
    if meant is not None and " " not in meant:
        draft.idle(there, value) if value is None or value == {} else _ours(draft, there, meant, value)
    elif value is None or value is False or value == {} or value == [] or value == -1 or MACHINERY.search(word):
        draft.idle(there, value)
    elif draft.run.startswith("rllib:"):
        draft.put(there, value, f"config.rllib_config.{word}", why="RLlib's own key")
    else:
        draft.gone(there, value, meant or "nothing here has this name; `shoal config show` lists all keys")


def _object(draft: Draft, there: str, word: str, value: str) -> None:
    """A class or function, of which params.json has only a description."""
    found = CLASS_TEXT.fullmatch(value)
    if found is None or found[1].startswith("ray."):
        own = found is None and word in ("policy_mapping_fn", "env_task_fn", "custom_eval_function")
        why = "a function is no part of the file; write it as file.py:function" if own else ""
        draft.gone(there, value, why) if own and "AlgorithmConfig" not in value else draft.idle(there, value)
    elif word in ("callbacks", "callbacks_class"):
        draft.put(there, value, "config.callbacks", f"{found[1]}.{found[2]}", "derive it from shoal.DefaultCallbacks")
    else:
        draft.gone(there, value, "a class is named as module:Class, and must fit shoal's own interface")


def _null(draft: Draft, there: str, path: str) -> None:
    """Null switches a key off where that is possible, and says nothing elsewhere."""
    kind: Any = ALGORITHMS[draft.run]
    *parents, last = path.removeprefix("config.").split(".")
    for parent in parents:
        kind = kind.model_fields[parent].annotation
    default = kind.model_fields[last].default
    draft.put(there, None, path) if default is not None and last in NULLABLE else draft.idle(there, None)


NULLABLE = ("grad_clip", "vf_clip_param", "preprocessor_pref", "max_env_failures")


def _finite(value: Any) -> Any:
    """Infinity, which JSON of Python's has and no file of ours, means no limit."""
    if value in ("Infinity", "inf", ".inf") or (isinstance(value, float) and math.isinf(value)):
        return None
    return value


def _framework(draft: Draft, there: str, value: Any) -> None:
    if not value:
        draft.idle(there, value)
        return
    draft.gone(there, value, CHANGED[draft.dialect]["framework"])
    if value == "torch":
        draft.moved_settings[-1].kind = "changed"


def _num_gpus(draft: Draft, there: str, value: Any) -> None:
    if isinstance(value, int | float) and value > 1 and draft.get("config.num_learners") is None:
        draft.put(there, value, "config.num_gpus", 1, "one learner uses one GPU; for more, set num_learners too")
    else:
        _ours(draft, there, "config.num_gpus", value)


def _scheduled(draft: Draft, there: str, value: Any) -> None:
    """A number, or points over time, which have a key of their own here."""
    path = f"config.{there.rpartition('.')[2]}"
    if isinstance(value, list) and value and all(isinstance(point, list) for point in value):
        draft.put(there, value, f"{path}_schedule")
    else:
        _ours(draft, there, path, value)


def _epsilon(draft: Draft, there: str, value: Any) -> None:
    points = value if isinstance(value, list) else [[0, value]]
    draft.put(there, value, "config.exploration_config.epsilon_schedule", points)


def _kl_loss(draft: Draft, there: str, value: Any) -> None:
    if value is False:
        draft.put(there, value, "config.kl_coeff", 0.0)
    else:
        draft.idle(there, value)


def _observation_filter(draft: Draft, there: str, value: Any) -> None:
    is_filter = isinstance(value, str) and value.endswith("MeanStdFilter")
    draft.put(there, value, "config.observation_filter", "MeanStdFilter" if is_filter else value)


def _hiddens(draft: Draft, there: str, value: Any) -> None:
    if not isinstance(value, list) or not value or draft.dialect != "rllib1" or draft.run != "DQN":
        draft.idle(there, value)
    elif re.match(r"ALE/|\w+(NoFrameskip|Deterministic)-v", str(draft.get("env"))):
        draft.put(there, value, "config.model.post_fcnet_hiddens", why="these layers follow the convolutions")
    else:
        own = draft.get("config.model.fcnet_hiddens") or [256, 256]
        draft.put(there, value, "config.model.fcnet_hiddens", [*own, *value])


def _optimization(draft: Draft, there: str, value: Any) -> None:
    rate = value.get("actor_learning_rate") if isinstance(value, Mapping) else None
    if rate is None:
        draft.idle(there, value)
    else:
        draft.put(there, value, "config.lr", rate, "policy, critics and temperature have one lr: the policy's")


def _model(draft: Draft, there: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _inner(draft, f"{there}.{key}", "config.model", str(key), item)
    else:
        draft.idle(there, value)


def _multiagent(draft: Draft, there: str, value: Any) -> None:
    policies = value.get("policies") if isinstance(value, Mapping) else value
    names = list(policies) if isinstance(policies, Mapping | list) else []
    if names in ([], ["default_policy"]):
        draft.idle(there, value)
    else:
        why = "the policies are kept by name; write multiagent.policy_mapping, which is a mapping and no function"
        draft.put(there, value, "config.multiagent.policies", {str(name): {} for name in names}, why)


def _source(draft: Draft, there: str, value: Any) -> None:
    if value in (None, "sampler"):
        draft.idle(there, value)
    elif draft.run.startswith("rllib:"):
        draft.put(there, value, "config.rllib_config.input_", why="RLlib's own key; it reads episodes in Parquet now")
    else:
        _by_table(draft, there, "input", value) if "config.input" not in draft.known else _ours(
            draft, there, "config.input", value
        )


def _evaluation_duration(draft: Draft, there: str, value: Any) -> None:
    draft.idle(there, value) if value == "auto" else _ours(draft, there, "config.evaluation_duration", value)


def _cpus_per_learner(draft: Draft, there: str, value: Any) -> None:
    draft.idle(there, value) if value == "auto" else _ours(draft, there, "config.num_cpus_per_learner", value)


def _pairs(draft: Draft, there: str, value: Any) -> None:
    """ARS counts directions there, each of which is tried on both sides, and rollouts here."""
    path = f"config.{there.rpartition('.')[2]}"
    now = value * 2 if draft.run == "ARS" and isinstance(value, int) else value
    _ours(draft, there, path, value) if now == value else draft.put(there, value, path, now)


def _if_same(same: Any) -> Callable[[Draft, str, Any], None]:
    """A switch that stands as it always does here; other values are gone."""

    def convert(draft: Draft, there: str, value: Any) -> None:
        draft.idle(there, value) if value == same else _by_table(draft, there, there.rpartition(".")[2], value)

    return convert


CONVERT: dict[str, Callable[[Draft, str, Any], None]] = {
    "grad_clip_by": _if_same("global_norm"),
    "vtrace": _if_same(True),
    "num_rollouts": _pairs,
    "rollouts_used": _pairs,
    "framework": _framework,
    "framework_str": _framework,
    "num_gpus": _num_gpus,
    "lr": _scheduled,
    "entropy_coeff": _scheduled,
    "clip_param": _scheduled,
    "epsilon": _epsilon,
    "use_kl_loss": _kl_loss,
    "observation_filter": _observation_filter,
    "hiddens": _hiddens,
    "optimization": _optimization,
    "model": _model,
    "model_config": _model,
    "_model_config": _model,
    "policy_model_config": _model,
    "policy_model": _model,
    "multiagent": _multiagent,
    "policies": _multiagent,
    "input": _source,
    "input_": _source,
    "evaluation_duration": _evaluation_duration,
    "num_cpus_per_learner": _cpus_per_learner,
    "num_atoms": _if_same(1),
}
"""What to do with keys whose value or place changes."""
