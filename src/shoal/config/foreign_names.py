"""What programs import from other libraries, and what they write here instead."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.config.vocabulary import EXPERIMENT_KEYS, FOREIGN, nearest

_TRAINERS = "there are shoal.PPO, shoal.APPO, shoal.TRPO, shoal.DQN and shoal.SAC"
_CONFIG = "a configuration is a dictionary: shoal.PPO(env='CartPole-v1', config={'lr': 1e-3})"
_RAY = "shoal starts Ray by itself, or joins the one that your program has joined by ray.init"

_SHOAL: Mapping[str, str] = {
    "rllib": "RLlib's trainers are here themselves: shoal.PPO, shoal.TRPO, shoal.DQN, shoal.SAC",
    "agents": "RLlib's trainers are here themselves: shoal.PPO, shoal.TRPO, shoal.DQN, shoal.SAC",
    "DEFAULT_CONFIG": "type shoal.ppo.DEFAULT_CONFIG, or shoal.PPO.get_default_config()",
    "init": f"leave it out: {_RAY}",
    "shutdown": "type trainer.stop(), or with shoal.PPO(...) as trainer",
    "remote": f"{_RAY}; ray.remote is Ray's own",
    "train": "type shoal.run(...) for a run with its folder, or shoal.PPO(...).train() for one iteration",
    "evaluate": "type shoal.PPO(...).evaluate(checkpoint), or on the command line shoal evaluate RUN",
    "load": "type shoal.Policy.load(RUN)",
    "make": "type gymnasium.make; a trainer takes the id itself: shoal.PPO('CartPole-v1')",
    "make_vec_env": "leave it out: shoal.PPO('CartPole-v1', {'num_envs_per_worker': 8}) makes its environments",
    "register": "type shoal.register_env(name, function)",
    "register_trainable": "type shoal.tune.run(function, ...) with the function itself",
    "Experiment": "type shoal.run({'env': 'CartPole-v1', 'stop': {...}, 'config': {...}})",
    "ExperimentAnalysis": "type shoal.tune.Analysis",
    "TFModelV2": "TensorFlow is not supported; type shoal.TorchModelV2",
    "Callback": "type shoal.DefaultCallbacks",
    "BaseCallback": "type shoal.DefaultCallbacks",
    "MultiAgentEnv": "an environment has one agent; combine the observations and the actions of all agents",
}
_TUNE: Mapping[str, str] = {
    "Tuner": "type shoal.tune.run('PPO', config={...}, stop={...})",
    "TuneConfig": "its arguments go to shoal.tune.run itself: num_samples, metric, mode, scheduler, search_alg",
    "RunConfig": "its arguments go to shoal.tune.run itself: name, stop, results_dir",
    "CheckpointConfig": "its arguments go to shoal.tune.run itself: checkpoint_freq, keep_checkpoints_num",
    "ExperimentAnalysis": "type shoal.tune.Analysis",
    "ResultGrid": "type shoal.tune.Analysis",
    "registry": "type shoal.tune.register_env",
    "logger": "type shoal.pretty_print; results are in result.json, progress.csv and TensorBoard's events anyway",
    "pretty_print": "type shoal.pretty_print",
    "CLIReporter": "type shoal.tune.run(..., show=print)",
    "JupyterNotebookReporter": "type shoal.tune.run(..., show=print)",
    "progress_reporter": "type shoal.tune.run(..., show=print)",
    "stopper": "set stop={'timesteps_total': 100000}",
    "search": "type shoal.tune.suggest",
    "search_space": "type shoal.tune.uniform, loguniform, choice or grid_search in config",
    "create_scheduler": "set scheduler='asha', or shoal.tune.schedulers.ASHAScheduler()",
    "create_searcher": "set search_alg='optuna', or shoal.tune.suggest.OptunaSearch()",
    "with_resources": "pass resources_per_trial={'cpu': 2} to shoal.tune.run",
    "with_parameters": "let the function read what it needs itself, or use functools.partial",
    "register_trainable": "type shoal.tune.run(function, ...) with the function itself",
    "Trainable": "type shoal.tune.run(function, ...) with a function that calls shoal.tune.report",
    "Callback": "type shoal.tune.run(..., show=function), which is called with every event",
    "get_checkpoint": "a function starts from the beginning; an algorithm such as 'PPO' keeps checkpoints",
    "randn": "type shoal.tune.normal",
    "qrandn": "type shoal.tune.normal",
    "qlograndint": "type shoal.tune.lograndint",
    "run_experiments": "type shoal.tune.run for each, or shoal tune -f FILE for all",
}
_SCHEDULERS: Mapping[str, str] = {
    "create_scheduler": "set scheduler='asha', or shoal.tune.schedulers.ASHAScheduler()",
    "ResourceChangingScheduler": "the cores of a trial do not change while it runs; leave it out",
    "PopulationBasedTrainingReplay": "the page of a sweep, index.html, shows the history of a population; leave it out",
}
_SUGGEST: Mapping[str, str] = {
    "ConcurrencyLimiter": "pass max_concurrent_trials=4 to shoal.tune.run",
    "Repeater": "pass seeds=3 to shoal.tune.run",
    "create_searcher": "set search_alg='optuna', or shoal.tune.suggest.OptunaSearch()",
    "optuna": "type shoal.tune.suggest.OptunaSearch",
    "hyperopt": "type shoal.tune.suggest.HyperOptSearch",
    "bayesopt": "type shoal.tune.suggest.BayesOptSearch",
    "bohb": "type shoal.tune.suggest.TuneBOHB",
    "nevergrad": "type shoal.tune.suggest.NevergradSearch",
    "ax": "type shoal.tune.suggest.AxSearch",
    "basic_variant": "type shoal.tune.suggest.BasicVariantGenerator",
    "HEBOSearch": "HEBO needs a NumPy older than Ray's; type shoal.tune.suggest.OptunaSearch",
    "ZOOptSearch": "ZOOpt stops suggesting after a few trials; type shoal.tune.suggest.OptunaSearch",
    "SigOptSearch": "SigOpt no longer exists; type shoal.tune.suggest.OptunaSearch",
    "DragonflySearch": "Ray has dropped Dragonfly; type shoal.tune.suggest.OptunaSearch",
    "SkOptSearch": "Ray has dropped scikit-optimize; type shoal.tune.suggest.BayesOptSearch",
    "BlendSearch": "Ray has dropped FLAML; type shoal.tune.suggest.OptunaSearch",
    "CFO": "Ray has dropped FLAML; type shoal.tune.suggest.OptunaSearch",
}
_RUN = "shoal.run({'env': 'CartPole-v1', 'stop': {'timesteps_total': 100000}})"
_STOP = "type trainer.stop(), or with shoal.PPO(...) as trainer"
_LOAD = "type shoal.Policy.load(RUN) to act, or shoal.PPO(...) and its restore(CHECKPOINT) to continue training"
_EXPORT = "type trainer.save(FOLDER); shoal.Policy.load(FOLDER) reads it without the environment"
_WEIGHTS = "type trainer.get_policy().get_weights() or .set_weights(...)"
_TRAINER: Mapping[str, str] = {
    "learn": f"type for _ in range(n): trainer.train(), or for result in {_RUN}",
    "fit": f"type for _ in range(n): trainer.train(), or for result in {_RUN}",
    "load": _LOAD,
    "from_checkpoint": _LOAD,
    "load_checkpoint": "type trainer.restore(CHECKPOINT)",
    "restore_from_path": "type trainer.restore(CHECKPOINT)",
    "save_checkpoint": "type trainer.save(FOLDER)",
    "save_to_path": "type trainer.save(FOLDER)",
    "predict": "type trainer.compute_single_action(obs)",
    "compute_action": "type trainer.compute_single_action(obs)",
    "cleanup": _STOP,
    "close": _STOP,
    "build": "leave it out: shoal.PPO(...) is built already",
    "export_model": _EXPORT,
    "export_policy_model": _EXPORT,
    "export_policy_checkpoint": _EXPORT,
    "get_weights": _WEIGHTS,
    "set_weights": _WEIGHTS,
    "get_parameters": _WEIGHTS,
    "set_parameters": _WEIGHTS,
    "policy": "type trainer.get_policy()",
}
_POLICY: Mapping[str, str] = {
    "predict": "type policy.compute_single_action(obs), or compute_actions(observations) for several",
    "compute_action": "type policy.compute_single_action(obs)",
    "forward": "type policy.compute_single_action(obs), or compute_actions(observations) for several",
    "from_checkpoint": "type shoal.Policy.load(RUN)",
    "save": "type trainer.save(FOLDER)",
}
FOREIGN_METHODS: Mapping[str, Mapping[str, str]] = {"Trainer": _TRAINER, "Policy": _POLICY}
"""What people call on a trainer or a policy, and what they type here."""

FOREIGN_MODULES: Mapping[str, str] = {
    "shoal.agents": "type from shoal.ppo import PPOTrainer, DEFAULT_CONFIG, or import shoal and shoal.PPO",
    "shoal.rllib": "type from shoal.ppo import PPOTrainer, DEFAULT_CONFIG, or import shoal and shoal.PPO",
    "shoal.common": "what Stable-Baselines3 has there is not needed: shoal.PPO makes its environments itself",
}
"""Modules that other libraries have, and what to import here."""

_KEYWORDS: Mapping[str, str] = {
    "policy": "the network is chosen in the configuration: config={'model': {'fcnet_hiddens': [64, 64]}}",
    "logger_creator": "leave it out: results are in the folder of a run, which shoal.run makes",
}
POLICY_NAMES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy", "MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy")
"""How Stable-Baselines3 calls its networks, which its trainers take before the environment."""

FOREIGN_NAMES: Mapping[str, Mapping[str, str]] = {
    "shoal": _SHOAL,
    "shoal.tune": _TUNE,
    "shoal.tune.schedulers": _SCHEDULERS,
    "shoal.tune.suggest": _SUGGEST,
}


def missing(module: str, name: str, known: Iterable[str]) -> AttributeError | ImportError:
    """What to raise for a name that a module does not have, with what to type instead.

    `from shoal import NAME` would put Python's own sentence in the place of an AttributeError's, so it gets an
    ImportError as soon as Python looks for the name.
    """
    hint = FOREIGN_NAMES[module].get(name) or (_of_class(name) if module == "shoal" else None)
    if hint is None:
        close = nearest(name, [other for other in known if not other.startswith("_")], 0.75)
        hint = f"did you mean {module}.{close}?" if close else ""
    sentence = f"module {module!r} has no attribute {name!r}" + (f"; {hint}" if hint else "")
    caller = sys._getframe(2)
    if hint and caller.f_code.co_name == "_handle_fromlist":
        return ImportError(sentence, name=module)
    return AttributeError(sentence, name=name)


def missing_method(owner: str, kind: str, name: str) -> AttributeError | None:
    """What to raise for a method of another library's trainer or policy; None where the name is not one."""
    hint = FOREIGN_METHODS[owner].get(name)
    return AttributeError(f"{kind!r} has no attribute {name!r}; {hint}", name=name) if hint else None


def policy_problem(name: str, trainer: str, env: object) -> str:
    """What to type instead of `PPO("MlpPolicy", env)`."""
    shown = repr(env) if isinstance(env, str) else "env"
    return (
        f"{name} is a policy of Stable-Baselines3; here config['model'] chooses the network, so leave it out: "
        f"shoal.{trainer}({shown}, {{'model': {{'fcnet_hiddens': [64, 64]}}}})"
    )


def keyword_problems(given: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """What to write instead of keywords that a trainer does not take; `known` are the paths of its configuration."""
    places = list(known)
    return [f"{name}: there is no such argument; {_keyword(name, value, places)}" for name, value in given.items()]


def run_keyword_problem(name: str, value: Any) -> str:
    """What to write instead of a keyword that `shoal.run` does not take."""
    meant = name if name in (*EXPERIMENT_KEYS, "env", "name") else FOREIGN.get(name.lower())
    if meant is None:
        hint = "everything belongs in the experiment: shoal.run({'env': ..., 'stop': {...}, 'config': {...}})"
    elif " " in meant:
        hint = meant
    else:
        hint = f"it belongs in the experiment: shoal.run({{'env': ..., {_nested(meant, value)[1:]})"
    return f"{name}: there is no such argument; {hint}"


def _keyword(name: str, value: Any, places: list[str]) -> str:
    """What to write instead of one keyword of a trainer."""
    if name in _KEYWORDS:
        return _KEYWORDS[name]
    plain = name.lower()
    meant = f"config.{plain}" if f"config.{plain}" in places else FOREIGN.get(plain)
    if meant is None:
        close = nearest(name, [place.removeprefix("config.") for place in places], 0.8)
        meant = f"config.{close}" if close else "settings belong in config={...}: type `shoal config show`"
    if " " in meant:
        return meant
    if meant.startswith("config."):
        return f"write config={_nested(meant.removeprefix('config.'), value)}"
    return f"it belongs beside config: shoal.run({{'env': ..., 'config': {{...}}, {_nested(meant, value)[1:]})"


def _nested(path: str, value: Any) -> str:
    """The mapping that has the value at a dotted path, as Python writes it."""
    tree = value
    for key in reversed(path.split(".")):
        tree = {key: tree}
    return repr(tree)


def _of_class(name: str) -> str | None:
    """About the trainers and configurations of algorithms that other libraries have."""
    if name.endswith("Trainer") or name.upper() in _ALGORITHMS:
        return _TRAINERS
    return _CONFIG if name.endswith("Config") else None


_ALGORITHMS = ("A2C", "A3C", "ARS", "BC", "CQL", "DDPG", "ES", "IMPALA", "MARWIL", "PG", "TD3")
