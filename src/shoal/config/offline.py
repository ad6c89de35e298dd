"""The keys of algorithms that learn from recorded steps: BC and MARWIL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, PlainValidator, WithJsonSchema, model_validator

from shoal.config.fields import STRICT, Coefficient, PositiveFraction, Size, Spread, text
from shoal.config.settings import AlgorithmConfig
from shoal.config.vocabulary import nearest

SCALERS = ("StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler")
"""Ray Data's preprocessors that a policy can take with it: each shifts and scales every number by itself."""

CHOICES = "a choice that is observed is an indicator for each of its values already; leave it out"
TEXT = "observations are numbers here; leave it out"
BENDS = "it does not shift and scale numbers, so it cannot become the policy's observation filter"
NEEDLESS: Mapping[str, str] = {
    "Normalizer": f"{BENDS}; divide by the norm in a wrapper around the environment",
    "PowerTransformer": f"{BENDS}; transform them in a wrapper around the environment",
    "UniformKBinsDiscretizer": f"{BENDS}; observe choices, a Discrete space, in their place",
    "CustomKBinsDiscretizer": f"{BENDS}; observe choices, a Discrete space, in their place",
    **dict.fromkeys(("OneHotEncoder", "OrdinalEncoder", "LabelEncoder", "MultiHotEncoder", "Categorizer"), CHOICES),
    "SimpleImputer": "no observation is missing, for one that is not finite is refused; leave it out",
    "Concatenator": "the parts of an observation are one row of numbers already; leave it out",
    "Chain": "a scaler of scaled numbers changes nothing; write one of them",
    **dict.fromkeys(("Tokenizer", "CountVectorizer", "HashingVectorizer", "FeatureHasher"), TEXT),
    "TorchVisionPreprocessor": "images are floats between 0 and 1 in the first layer already; leave it out",
}
"""Ray Data's other preprocessors, and why none of them has a place here."""


class PreprocessorConfig(BaseModel):
    """One preprocessor of Ray Data."""

    model_config = STRICT

    name: str
    """Its class."""
    columns: tuple[str, ...] = ("obs",)
    """The columns that it is fitted to."""
    quantile_range: tuple[float, float] = (0.25, 0.75)
    """The quantiles whose distance RobustScaler divides by."""


def input_source(value: Any) -> str | tuple[str, ...] | None:
    """Files, folders or patterns of files, or a Minari dataset."""
    if value is None:
        return None
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Sequence) and value and all(isinstance(each, str) for each in value):
        return tuple(text(each) for each in value)
    raise ValueError('must be "folder/*.parquet", a list of such, or minari:DATASET')


def preprocessors(value: Any) -> tuple[PreprocessorConfig, ...]:
    """Preprocessors as `[StandardScaler]` or `[{StandardScaler: {columns: [obs]}}]`."""
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError("must be a list such as [StandardScaler]")
    return tuple(_preprocessor(each) for each in value)


def _preprocessor(value: Any) -> PreprocessorConfig:
    if isinstance(value, PreprocessorConfig):
        return value
    if isinstance(value, Mapping) and set(value) <= set(PreprocessorConfig.model_fields) and "name" in value:
        value = _as_typed(value)
    name: Any = value
    options: Any = {}
    if isinstance(value, Mapping) and len(value) == 1:
        name, options = next(iter(value.items()))
    if not isinstance(name, str) or not isinstance(options, Mapping | None):
        raise ValueError("an entry must be a name, or a name with its arguments: {StandardScaler: {columns: [obs]}}")
    if name in NEEDLESS:
        raise ValueError(f"{name}: {NEEDLESS[name]}, or use {', '.join(SCALERS)}")
    if name not in SCALERS:
        close = nearest(name, [*SCALERS, *NEEDLESS])
        hint = f"; did you mean {close}?" if close else ""
        raise ValueError(f"Ray Data has no preprocessor {name}{hint}; use {', '.join(SCALERS)}")
    options = dict(options or {})
    columns = options.pop("columns", ["obs"])
    own = {"quantile_range": _quantile_range(options.pop("quantile_range", None))} if name == "RobustScaler" else {}
    if options:
        takes = " and ".join(["columns", *own])
        raise ValueError(f"{name} takes {takes} and nothing else (got {next(iter(options))})")
    if isinstance(columns, str) or list(columns) != ["obs"]:
        raise ValueError(f"{name}: columns must be [obs], all numbers that are observed (got {columns})")
    return PreprocessorConfig(name=name, **own)


def _as_typed(value: Mapping[str, Any]) -> dict[Any, Any]:
    """What a person types for an entry that is written as a run's config.yaml has it."""
    unread = {"name"} if value["name"] == "RobustScaler" else {"name", "quantile_range"}
    return {value["name"]: {key: given for key, given in value.items() if key not in unread}}


def _quantile_range(value: Any) -> tuple[float, float]:
    """Two quantiles, the lower one first."""
    if value is None:
        return PreprocessorConfig.model_fields["quantile_range"].default  # type: ignore[no-any-return]
    is_pair = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2
    if not is_pair or not all(isinstance(each, int | float) for each in value) or not 0 <= value[0] < value[1] <= 1:
        raise ValueError(f"RobustScaler: quantile_range must be two numbers from 0 to 1, as [0.25, 0.75] (got {value})")
    return float(value[0]), float(value[1])


InputSource = Annotated[
    str | tuple[str, ...] | None,
    PlainValidator(input_source),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}),
]
Preprocessors = Annotated[
    tuple[PreprocessorConfig, ...], BeforeValidator(preprocessors), WithJsonSchema({"type": "array"})
]


class OfflineConfig(AlgorithmConfig):
    """The keys of algorithms that learn from recorded steps, and never sample."""

    learns_offline = True
    columns: ClassVar[tuple[str, ...]] = ()  # that the algorithm needs of the recorded steps, beside obs and action
    results = {
        "policy_loss": "policy's part of the loss",
        "entropy": "entropy of the policy",
        **{name: AlgorithmConfig.results[name] for name in ("grad_gnorm", "refused_minibatches", "cur_lr")},
        "num_epochs": "number of passes over the recorded steps since the run began (BC, MARWIL)",
        "dataset_steps": "number of recorded steps (BC, MARWIL)",
        "dataset_episodes": "number of recorded episodes (BC, MARWIL)",
    }
    mutable: ClassVar[tuple[str, ...]] = ("lr", "grad_clip")

    input: InputSource = None
    """The recorded steps: "folder/*.parquet", a folder, a list of these, or minari:DATASET.

    Parquet files are those of output, or your own with the same columns; docs/offline.md has them."""
    preprocessors: Preprocessors = ()
    """Ray Data's preprocessors of the observations: [StandardScaler], or MinMaxScaler, MaxAbsScaler or RobustScaler.

    What is fitted becomes the policy's observation filter, so that it acts as it has learned."""
    train_batch_size: Size = 10_000
    """Number of recorded steps that one training iteration learns from, in minibatches of sgd_minibatch_size."""
    sgd_minibatch_size: Size = 256
    """Steps per gradient; if left out, at most train_batch_size."""

    @property
    def steps_per_iteration(self) -> int:
        """No environment is stepped."""
        return 0

    @property
    def scaler(self) -> PreprocessorConfig:
        """The preprocessor by which an observation filter is fitted."""
        return self.preprocessors[0] if self.preprocessors else PreprocessorConfig(name="StandardScaler")

    @model_validator(mode="before")
    @classmethod
    def _what_follows(cls, data: Any) -> Any:
        """A batch smaller than the default minibatch is one minibatch; a preprocessor is an observation filter."""
        if not isinstance(data, Mapping):
            return data
        found = dict(data)
        size = found.get("train_batch_size")
        if "sgd_minibatch_size" not in found and isinstance(size, int | float):
            found["sgd_minibatch_size"] = max(1, min(size, cls.model_fields["sgd_minibatch_size"].default))
        if found.get("preprocessors") and "observation_filter" not in found:
            found["observation_filter"] = "MeanStdFilter"
        return found

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        if self.num_workers == "auto":
            found.append("config.num_workers: auto measures how fast environments are sampled; give a number, or 0")
        if self.num_gpus and self.worker_count:
            found.append("config.num_gpus: on a GPU this process learns alone; set num_workers: 0, or leave it out")
        if self.sgd_minibatch_size > self.train_batch_size:
            found.append(
                f"config.sgd_minibatch_size: {self.sgd_minibatch_size} is more than train_batch_size "
                f"{self.train_batch_size}; make it at most that, or the batch larger"
            )
        if len(self.preprocessors) > 1:
            found.append("config.preprocessors: a scaler of scaled numbers changes nothing; leave all but one out")
        if self.preprocessors and self.observation_filter == "NoFilter":
            found.append(
                "config.observation_filter: a preprocessor becomes the policy's observation filter; leave it out"
            )
        if self.env is None and self.evaluation_interval is not None:
            found.append("config.evaluation_interval: there is no environment to evaluate on; set env too")
        why = "nothing is sampled: the recorded steps are all there is"
        for key in (
            "output",
            "env_task_fn",
            "sample_async",
            "rollout_fragment_length",
            "batch_mode",
            "exploration_config",
        ):
            found += self._unread(key, True, why)
        if self.curriculum.stages:
            found.append(f"config.curriculum: it has no effect, because {why}; leave it out")
        return found


class BCConfig(OfflineConfig):
    """Behaviour cloning: the likeliest policy behind recorded actions."""

    learner = "shoal.algorithms.bc:BCLearner"


class MARWILConfig(OfflineConfig):
    """Monotonic advantage re-weighted imitation learning."""

    learner = "shoal.algorithms.marwil:MARWILLearner"
    columns = ("reward", "terminated")
    results = {
        **OfflineConfig.results,
        "vf_loss": "value function's part of the loss",
        "vf_explained_var": "share of the returns' variance that the values explain",
        "mean_weight": "mean weight of a recorded action; 1 where all count alike (MARWIL)",
        "advantage_norm": "running root mean square of the advantages, which they are divided by (MARWIL)",
        "reward_scale": AlgorithmConfig.results["reward_scale"],
    }
    mutable = (*OfflineConfig.mutable, "vf_coeff")

    beta: Coefficient = 1.0
    """How much more an action counts that led to more than its state promised; 0: all alike, which is BC."""
    vf_coeff: Coefficient = 1.0
    """Weight of the value function's loss."""
    moving_average_sqd_adv_norm_start: Spread = 1.0
    """First value of the running mean of squared advantages (classic RLlib: 100; here returns are normalised)."""
    moving_average_sqd_adv_norm_update_rate: PositiveFraction = 0.01
    """How far each minibatch moves that mean (classic RLlib: 1e-8)."""
