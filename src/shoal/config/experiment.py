"""From what the user says, as a file or a tree, to checked experiments and back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    InstanceOf,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler

from shoal.config.algorithm import Algorithm
from shoal.config.algorithms import ALGORITHMS, RLLIB, algorithm_names, name_of
from shoal.config.changing import changed
from shoal.config.dialects import ALGORITHMS_THERE
from shoal.config.fields import MAX_DEPTH, STRICT, Count, Flag, Size, Text
from shoal.config.logger_names import known_loggers
from shoal.config.model import ModelConfig
from shoal.config.overrides import Override, set_in
from shoal.config.presets import PresetName, fold_preset
from shoal.config.problems import got, printable, sentences
from shoal.config.search_spaces import space_kind, spaces_in
from shoal.config.settings import AlgorithmConfig, key_paths
from shoal.config.stop_criteria import ScoreAttr, stop_criteria
from shoal.config.vocabulary import ELSEWHERE, EXPERIMENT_KEYS, SWEEP_KEYS, nearest
from shoal.errors import ConfigError

T = TypeVar("T")


def folder_name(value: str) -> str:
    """Refuse a name that cannot be a folder's."""
    if "/" in value or "\\" in value or value.startswith((".", "-", "~")) or len(value.encode()) > 200:
        raise ValueError("becomes the name of a folder: use no slash, no leading dot, dash or ~, and at most 200 bytes")
    return value


class Experiment(BaseModel):
    """One training run as the user describes it."""

    model_config = STRICT

    name: Annotated[Text, AfterValidator(folder_name)] = "default"
    """The experiment's name, and the folder of its runs; in a file it is the top-level key."""
    run: Text = "PPO"
    """The algorithm."""
    stop: Annotated[dict[str, float], PlainValidator(stop_criteria), WithJsonSchema({"type": "object"})] = {}
    """When to stop: as soon as a result reaches its limit, e.g. {timesteps_total: 100000, time_total_s: "90m"}."""
    checkpoint_freq: Count = 10
    """Number of iterations between checkpoints; 0: none during the run (classic RLlib: 0, so a killed run is lost)."""
    checkpoint_at_end: Flag = True
    """Whether to save a checkpoint when the run ends (classic RLlib: false)."""
    keep_checkpoints_num: Size | None = None
    """Number of newest checkpoints to keep; null: all."""
    checkpoint_score_attr: ScoreAttr = None
    """The result whose largest value makes a checkpoint the best, which is kept; min- before its name: the smallest.

    `shoal evaluate RUN --best` finds it; null: no best checkpoint is kept."""
    preset: PresetName = None
    """Tuned settings for a known environment, below those that are set here: a name, or true for the environment's own.

    `shoal presets` lists them. In config.yaml it is the name, and the settings are in config; null: none."""
    results_dir: Text = "~/shoal_results"
    """Folder of all runs, which are written to results_dir/name/run; ~ and $VAR are expanded."""
    restore: Text | None = None
    """A run, a checkpoint or the name of a run whose policy a new run starts with; null: none.

    Weights, observation filter and reward scale are taken; optimiser, counters and episodes are not. Other settings
    may differ."""
    report: Flag = True
    """Whether a run leaves report.html at its end: curves, times, incidents and configuration on one page."""
    loggers: Annotated[tuple[Text, ...], AfterValidator(known_loggers)] = ()
    """Services that are told every result, beside the files of the run: wandb, mlflow, trackio, or a package's own.

    Each needs its package, e.g. pip install 'shoal-rl[wandb]'; TensorBoard's files are always written."""
    config: InstanceOf[AlgorithmConfig]
    """The algorithm's own keys."""

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, data: Any, handler: ModelWrapValidatorHandler[Experiment]) -> Experiment:
        """Report every problem at once, in our words."""
        try:
            experiment = handler(data)
        except ValidationError as error:
            config = data.get("config") if isinstance(data, Mapping) else None
            kind = type(config) if isinstance(config, AlgorithmConfig) else AlgorithmConfig
            raise ConfigError(sentences(error, [], known_keys(kind))) from None
        problems = experiment.conflicts()
        if problems:
            raise ConfigError(problems)
        return experiment

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        interval, found = self.config.evaluation_interval, []
        score = (self.checkpoint_score_attr or "").removeprefix("min-")
        is_evaluated = score.startswith("evaluation/")
        asking = [f"stop.{name}" for name in self.stop if name.startswith("evaluation/")]
        asking += ["checkpoint_score_attr"] * is_evaluated
        if asking and interval is None:
            found.append(f"{asking[0]}: there is no evaluation; set config.evaluation_interval too")
        if score and not self.checkpoint_freq:
            found.append("checkpoint_score_attr: there is nothing to choose from; set checkpoint_freq above 0")
        elif is_evaluated and interval is not None and self.checkpoint_freq % interval:
            found.append(
                f"checkpoint_score_attr: there is a checkpoint every {self.checkpoint_freq} iterations and an "
                f"evaluation every {interval}, so that not every checkpoint has one; "
                f"set checkpoint_freq: {interval}, or a multiple"
            )
        if is_evaluated and self.config.evaluation_parallel_to_training:
            found.append(
                "checkpoint_score_attr: with evaluation_parallel_to_training an evaluation is of the iteration before "
                "the checkpoint; leave one of them out"
            )
        if not self.config.curriculum.stages:
            nobody_sets = {"stages_passed"} if self.config.env_task_fn is not None else {"stages_passed", "task"}
            asking = [f"stop.{name}" for name in self.stop if name in nobody_sets]
            asking += ["checkpoint_score_attr"] * (score in nobody_sets)
            if asking:
                found.append(f"{asking[0]}: there is no curriculum; set config.curriculum too")
        return found


def algorithm_class(run: Any) -> type[AlgorithmConfig]:
    """The configuration of the algorithm that `run` names."""
    if isinstance(run, str) and run in ALGORITHMS:
        found = ALGORITHMS[run]
        assert issubclass(found, AlgorithmConfig), f"{found} lacks the keys that all algorithms have"
        return found
    names = algorithm_names()
    close = nearest(run, [*names, *RLLIB]) if isinstance(run, str) else None
    hint = f"; did you mean {close}?" if close else ""
    if isinstance(run, str) and run.lower().startswith("rllib:"):
        *others, last = RLLIB
        raise ConfigError(f"run: RLlib's algorithms are {', '.join(others)} and {last} {got(run)}{hint}")
    nearby = ALGORITHMS_THERE.get(run.upper().replace("-", "").replace("_", "")) if isinstance(run, str) else None
    if nearby is not None:
        hint = f"; the nearest is {nearby[0]}: {nearby[1]}"
    *others, last = names
    raise ConfigError(f"run: must be {', '.join(others)} or {last} {got(run)}{hint}")


def algorithm_name(run: Any) -> Any:
    """The algorithm that a word means in whatever case it is typed; other values are themselves."""
    if not isinstance(run, str) or run in ALGORITHMS:
        return run
    return next((name for name in (*algorithm_names(), *RLLIB) if name.upper() == run.upper()), run)


def algorithm_config(run: str, tree: Mapping[str, Any]) -> AlgorithmConfig:
    """The checked configuration of an algorithm, from its keys."""
    if not isinstance(tree, Mapping):
        raise ConfigError(f"config: must be a mapping of keys {got(tree)}")
    kind = algorithm_class(run)
    try:
        return kind.model_validate(dict(tree))
    except ConfigError as error:
        raise ConfigError([_of_whom(problem, kind) for problem in error.problems]) from None


def default_config(run: str) -> Defaults:
    """Every key of an algorithm with its default, as classic RLlib's `DEFAULT_CONFIG`."""
    return Defaults(config_tree(algorithm_class(run)()))


def default_model() -> Defaults:
    """Every key of `model` with its default, as classic RLlib's `MODEL_DEFAULTS`."""
    return Defaults(json_value(ModelConfig().model_dump(), "model"))


class Defaults(dict[str, Any]):
    """A dictionary whose copies share nothing with it, so that `copy["model"]["use_lstm"] = True` leaves it alone."""

    def copy(self) -> dict[str, Any]:
        """A plain dictionary, to be changed and given to a trainer."""
        return {key: copied(value) for key, value in self.items()}


def as_said(run: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a program has set: in a copy of all defaults, those that it has changed.

    What is left as it was nobody has said: a small `train_batch_size` may make the minibatches smaller too.
    """
    if not isinstance(tree, Mapping):
        raise ConfigError(f"config: must be a mapping of keys {got(tree)}")
    if run not in ALGORITHMS or not ALGORITHMS[run].model_fields.keys() <= tree.keys():
        return dict(tree)
    return _changed(tree, default_config(run))


def _changed(tree: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """What of a tree is not as in another."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        usual = default.get(key)
        if usual and isinstance(usual, Mapping) and isinstance(value, Mapping) and usual.keys() <= value.keys():
            found |= {key: inner} if (inner := _changed(value, usual)) else {}
        elif key not in default or type(value) is not type(usual) or value != usual:
            found[key] = value
    return found


def _of_whom(problem: str, kind: type[AlgorithmConfig]) -> str:
    """The problem itself, or, with a key that only other algorithms have, whose it is."""
    key, _, what = problem.removeprefix("config.").partition(": ")
    if not what.startswith("unknown key") or key in ELSEWHERE:
        return problem
    owners = [name for name, other in ALGORITHMS.items() if f"config.{key}" in key_paths(other)]
    if not owners or f"config.{key}" in key_paths(kind):
        return problem
    whose = f"is a key of {', '.join(owners[:-1])}{' and ' * (len(owners) > 1)}{owners[-1]}, not of {name_of(kind)}"
    return f"config.{key}: {whose}; leave it out, or set run: {owners[0]}"


def experiment_from(tree: Mapping[str, Any], overrides: Iterable[Override] = ()) -> Experiment:
    """A checked experiment from its tree `{name, run, env, stop, ..., config: {...}}`; `overrides` are applied last."""
    if not isinstance(tree, Mapping):
        raise ConfigError(f"the experiment must be a mapping with env, run, stop and config {got(tree)}")
    if searched := sweep_words(tree, overrides := list(overrides)):
        others = f", like {', '.join(searched[1:])}" if searched[1:] else ""
        what = f"asks for many runs{others}; type `shoal tune -f FILE` (in Python shoal.tune.run)"
        raise ConfigError(f"{searched[0]}: {what}, or give every key one value")
    body, problems = with_env_in_config(tree)
    problems += apply_overrides(body, overrides)
    problems += fold_preset(body)
    keys = body.pop("config")
    if isinstance(keys, dict) and keys.get("env") is None and not _learns_offline(body.get("run")):
        problems.append("env: is missing; write env: with an id such as CartPole-v1, module:Class or file.py:Class")
    try:
        config = algorithm_config(body.get("run", "PPO"), keys)
    except ConfigError as error:
        problems += error.problems
        # A stand-in, so that the other keys are checked too; it has all that a stop name may be refused for.
        run = str(body.get("run", "PPO"))
        is_plain = run in ALGORITHMS and not _learns_offline(run) and run not in RLLIB  # RLlib has no curriculum
        kind = algorithm_class(run) if is_plain else AlgorithmConfig
        config = kind.model_validate({"evaluation_interval": 1, "curriculum": {"stages": [{"task": 1}]}})
    problems += [f"{key}: keys must be text; put it in quotes" for key in body if not isinstance(key, str)]
    try:
        experiment = Experiment.model_validate({**{str(key): value for key, value in body.items()}, "config": config})
    except ConfigError as error:
        raise ConfigError(unique(problems + error.problems)) from None
    if problems:
        raise ConfigError(unique(problems))
    return experiment


def _learns_offline(run: Any) -> bool:
    """Whether an algorithm needs no environment, for all that it learns from is recorded."""
    return isinstance(run, str) and run in ALGORITHMS and ALGORITHMS[run].learns_offline


_JOB_KEYS = ("walltime", "nodes", "partition", "account")  # on top of a file for `shoal submit`


def sweep_words(tree: Mapping[str, Any], overrides: Iterable[Override] = ()) -> list[str]:
    """Where an experiment says what makes many runs of it; nowhere if it is one run."""
    asked = {path: value for path, value in overrides if path in SWEEP_KEYS or space_kind(value) is not None}
    return [*(path for path, *_ in spaces_in(tree)), *asked, *(key for key in tree if key in SWEEP_KEYS)]


def experiments_from_file(path: str | Path, overrides: Iterable[Override] = ()) -> list[Experiment]:
    """The experiments of a YAML file: each has its name on top and its keys under it."""
    return from_file(path, overrides, experiment_from)


def from_file(
    path: str | Path, overrides: Iterable[Override], make: Callable[[dict[str, Any], list[Override]], T]
) -> list[T]:
    """What `make` makes of each named tree of a YAML file; every problem is told with its file and line."""
    from shoal.config.yaml_files import load_file  # here, so that showing keys does not import a YAML parser

    document = load_file(path)
    tree = document.tree
    form = "write a name and under it, indented, the experiment: my_experiment: {env: CartPole-v1, run: PPO}"
    if tree is None:
        raise ConfigError(f"{path}: is empty; {form}")
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: has no experiment in it {got(tree)}; {form}")
    flat = [key for key in ("env", "run") if key in tree and not isinstance(tree[key], dict)]
    if flat:
        raise ConfigError(f"{path}:{document.lines.get(flat[0], 1)}: the experiment has no name; {form}")

    if any(isinstance(tree.get(key), int | str) for key in _JOB_KEYS):
        raise ConfigError(f"{path}: describes a job, not an experiment; use it with shoal submit -f {path}")
    changes = list(overrides)
    found: list[T] = []
    problems: list[str] = []
    for name, body in tree.items():
        where = ProblemLocator(str(path), printable(str(name)), document.lines, {changed for changed, _ in changes})
        if not isinstance(body, dict):
            problems.append(where.at("", f"must be an experiment with env, run, stop and config {got(body)}"))
        elif not isinstance(name, str):
            problems.append(where.at("", "an experiment's name must be text; put it in quotes"))
        elif "name" in body:
            problems.append(where.at("name", "unknown key; the experiment's name is the top-level key"))
        else:
            try:
                found.append(make({"name": name, **body}, changes))
            except ConfigError as error:
                problems += [where.locate(problem) for problem in error.problems]
    if problems:
        raise ConfigError(unique(problems))
    return found


def with_settings(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """The experiment with other values of keys of its config, checked as a whole again."""
    return changed(experiment, config=changed(experiment.config, **changes))


def as_tree(experiment: Experiment) -> dict[str, Any]:
    """The resolved experiment as a plain tree of text, numbers, lists and mappings; `experiment_from` reads it back."""
    fields = experiment.model_dump(exclude={"config"})
    return {**fields, "loggers": list(experiment.loggers), "config": config_tree(experiment.config)}


def config_tree(config: AlgorithmConfig) -> dict[str, Any]:
    """The resolved configuration as a plain tree; classes become `module:Qualname`."""
    tree: dict[str, Any] = json_value(config.model_dump(), "config")
    # What is not set in evaluation is as in training, and stays out of the file.
    evaluation = tree["evaluation_config"]
    tree["evaluation_config"] = {key: value for key, value in evaluation.items() if value is not None}
    return tree


def experiment_yaml(experiment: Experiment) -> str:
    """The resolved experiment as the text of a file that `experiments_from_file` reads back."""
    from shoal.config.yaml_files import dump_yaml

    tree = as_tree(experiment)
    return dump_yaml({tree.pop("name"): tree})


def experiments_yaml(experiments: Sequence[Experiment]) -> Iterator[str]:
    """The text of each of many experiments, which have most of their values in common."""
    from shoal.config.yaml_files import dump_alike

    for experiment in experiments:
        tree = as_tree(experiment)
        yield dump_alike({tree.pop("name"): tree})


class ProblemLocator:
    """Puts file, line and experiment in front of a problem."""

    def __init__(self, file: str, name: str, lines: Mapping[str, int], changed: set[str]) -> None:
        self.file, self.name, self.lines, self.changed = file, name, lines, changed

    def locate(self, problem: str) -> str:
        """A problem that begins with its path."""
        path, colon, rest = problem.partition(": ")
        return self.at(path, rest) if colon and " " not in path else f"{self.file}: {self.name}: {problem}"

    def at(self, path: str, problem: str) -> str:
        """A problem of what stands at a path."""
        if any(_is_at(path, changed) for changed in self.changed):
            return f"{path}: {problem}"
        place = full = f"{self.name}.{path}".rstrip(".")
        while place and place not in self.lines:
            # `env` may stand beside `config` or in it; the problem speaks of config.env.
            place = f"{self.name}.env" if place == f"{self.name}.config.env" else place.rpartition(".")[0]
        return f"{self.file}:{self.lines.get(place, 1)}: {full}: {problem}"


def _is_at(path: str, changed: str) -> bool:
    """Whether an override, which may leave out what stands before the key's own name, has set what is at a path."""
    inside = f"{path}.".startswith((f"{changed}.", f"config.{changed}."))
    return inside or path.endswith(f".{changed}")


def with_env_in_config(tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A copy of the tree whose `env` stands in `config`, and what is wrong with that."""
    body = {key: copied(value) for key, value in tree.items()}
    config = body.get("config")
    if config is None:
        config = {}
    if not isinstance(config, Mapping):
        body["config"] = {}
        return body, [f"config: must be a mapping of keys {got(config)}"]
    body["config"] = config = dict(config)
    if "env" not in body:
        return body, []
    env, other = body.pop("env"), config.get("env")
    same = other is env or (isinstance(other, str) and isinstance(env, str) and other == env)
    if other is not None and not same:
        return body, [f"env: is set both in the experiment and in config, and they differ {got(env)}; leave one out"]
    config["env"] = env
    return body, []


def apply_overrides(body: dict[str, Any], overrides: Iterable[Override], more: Sequence[str] = ()) -> list[str]:
    """Change the tree in place, and tell what cannot be; `more` are keys besides those of an experiment."""
    problems: list[str] = []
    for path, value in overrides:
        known = ["name", *more, *known_keys(ALGORITHMS.get(str(body.get("run", "PPO")), AlgorithmConfig))]
        value = algorithm_name(value) if path == "run" else copied(value)
        try:
            # `env` may be a mapping with keys of its own.
            set_in(body, f"config.{path}" if path.partition(".")[0] == "env" else path, value, known)
        except ConfigError as error:
            problems += error.problems
    return problems


def known_keys(kind: type[Algorithm]) -> list[str]:
    """The dotted paths of all keys of an experiment."""
    return [*EXPERIMENT_KEYS, "env", *key_paths(kind)]


def copied(value: Any, depth: int = 0) -> Any:
    """Containers are copied, so that no override reaches the caller's tree; the user's own objects are not."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"the experiment is nested more than {MAX_DEPTH} levels deep")
    if type(value) is dict:
        return {key: copied(item, depth + 1) for key, item in value.items()}
    return [copied(item, depth + 1) for item in value] if type(value) is list else value


def json_value(value: Any, path: str) -> Any:
    """A value in JSON's types; classes and functions become `module:Qualname`."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)  # NumPy's float64 is a float, but no YAML
    if isinstance(value, Mapping):
        return {str(json_value(key, path)): json_value(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item, path) for item in value]
    if isinstance(value, functools.partial):
        return json_value(value.func, path)
    if callable(value):
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}:{named.__qualname__}"
    if hasattr(value, "tolist"):
        return json_value(value.tolist(), path)
    raise ConfigError(
        f"{printable(path)}: a {type(value).__name__} cannot be written to a file; use text, numbers and lists"
    )


def unique(problems: Iterable[str]) -> list[str]:
    """Each problem once, in their order."""
    return list(dict.fromkeys(problems))
