"""The kinds of values that a key may have: what is accepted, and the sentence when it is not.

Python and samplers of searches give NumPy numbers, YAML gives `4e3` for 4000: whole numbers are taken by their value.
Text is never taken for a number, and a number never for true or false.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from shoal.config.durations import EXAMPLES, seconds

# Docstrings are read by `reference` when somebody asks, and schemas are built when used: both would slow every start.
STRICT = ConfigDict(frozen=True, extra="forbid", defer_build=True, protected_namespaces=())

MAX_SIZE = 2**31 - 1
MOST_LR = 1000.0  # beyond any step that has ever been of use, and far below what single precision holds
MOST_COEFF = 1e6  # of a part of a loss: it drowns all others long before, and single precision holds what it makes
MOST_EXPONENT = 10.0
MOST_CLIP = 1e10  # beyond any limit that could bind, and its square still has a place in single precision
MOST_REPEATS = 10_000  # of one batch, and of steps that one return looks ahead
MOST_PROCESSES = 1_000_000
MOST_SECONDS = 1e7  # of waiting, sixteen weeks: more than any job lasts, and all clocks can count it
LEAST_RATE = 1e-6  # per second
MOST_EVALUATED = 10_000_000  # episodes or steps of one evaluation
LEAST_CPU, MOST_CPUS = 1e-4, 1e6  # Ray keeps four decimals of a resource, and would take less for none
MAX_DEPTH = 50
MEANT_TRUE, MEANT_FALSE = ("true", "yes", "on", "y"), ("false", "no", "off", "n", "none", "null")


def whole(value: Any) -> int:
    """`value` as an int, if it is a whole number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError("must be a whole number")
    if isinstance(value, Integral):
        return int(value)
    exact = float(value)
    if not exact.is_integer():
        raise ValueError("must be a whole number")
    return int(exact)


def number(value: Any) -> float:
    """`value` as a finite float, if it is a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError("must be a number")
    try:
        result = float(value)
    except OverflowError:
        raise ValueError("is too large") from None
    if not math.isfinite(result):
        raise ValueError("must be a finite number")
    return result


def flag(value: Any) -> bool:
    """`value` if it is true or false itself."""
    if isinstance(value, bool):
        return value
    raise ValueError("must be true or false")


def text(value: Any) -> str:
    """`value` if it is text with something in it."""
    if not isinstance(value, str):
        raise ValueError("must be text")
    if not value.strip():
        raise ValueError("must not be empty")
    if not value.isprintable():
        raise ValueError("must be one line of printable text")
    return value


def fragment_length(value: Any) -> int | Literal["auto"]:
    """A whole number of steps, or "auto"."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    if isinstance(value, str) or not isinstance(value, Real) or not 1 <= whole(value) <= MAX_SIZE:
        raise ValueError("must be a whole number of steps, at least 1, or auto")
    return whole(value)


def worker_count(value: Any) -> int | Literal["auto"]:
    """A whole number of processes, or "auto"."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    if isinstance(value, bool | str) or not isinstance(value, Real) or whole(value) < 0:
        raise ValueError("must be a whole number of processes, 0 or more, or auto")
    if whole(value) > MOST_PROCESSES:
        raise ValueError(f"must be at most {MOST_PROCESSES}")
    return whole(value)


def env_count(value: Any) -> int | Literal["auto"]:
    """A whole number of environments, or "auto"."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    if isinstance(value, bool | str) or not isinstance(value, Real) or not 1 <= whole(value) <= MAX_SIZE:
        raise ValueError("must be a whole number of environments, at least 1, or auto")
    return whole(value)


def reward_clipping(value: Any) -> float | bool | None:
    """None and false: off; true: the sign; a number: the largest magnitude."""
    if value is None or value is False:
        return None
    if value is True:
        return True
    if isinstance(value, str) or not isinstance(value, Real) or not 0 < number(value) <= MOST_CLIP:
        raise ValueError("must be null (off), true (the reward's sign) or a number above 0 (the largest magnitude)")
    return number(value)


def kl_limit(value: Any) -> float | Literal["auto"]:
    """A divergence above 0, or "auto"."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    if isinstance(value, bool | str) or not isinstance(value, Real) or number(value) <= 0:
        raise ValueError("must be a number above 0, or auto")
    return _at_most(MOST_CLIP, number(value))


def damping(value: Any) -> float | Literal["auto"]:
    """A number of at least 0, or "auto"."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    if isinstance(value, bool | str) or not isinstance(value, Real) or number(value) < 0:
        raise ValueError("must be a number of at least 0, or auto")
    return _at_most(MOST_CLIP, number(value))


def _at_most(most: float, value: float) -> float:
    if value > most:
        raise ValueError(f"must be at most {most:g}")
    return value


ConvLayer = tuple[int, int, int] | tuple[int, int, int, str]


def conv_layers(value: Any) -> tuple[ConvLayer, ...] | None:
    """`[[filters, kernel, stride], ...]`; a square kernel may also be written `[k, k]`, and a padding may follow."""
    if value is None:
        return None
    problem = "must be a list of [filters, kernel, stride], e.g. [[32, 8, 4], [64, 4, 2]]; same or valid may follow"
    try:
        layers = tuple(_conv_layer(*layer) for layer in value)
    except (TypeError, ValueError):
        raise ValueError(problem) from None
    if not layers or any(not 1 <= size <= 65536 for layer in layers for size in layer[:3]):
        raise ValueError(problem)
    return layers


def _conv_layer(filters: Any, kernel: Any, stride: Any, padding: str | None = None) -> ConvLayer:
    sizes = whole(filters), _square(kernel), _square(stride)
    if padding is None:
        return sizes
    if padding not in ("same", "valid"):
        raise ValueError
    return (*sizes, padding)


def free_mapping(value: Any) -> dict[str, Any]:
    """A mapping that belongs to the user's own code: names are text, numbers finite, and all else is up to them."""
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of names to values")
    _check_writable(value, "", 0)
    return dict(value)


def restore_episodes(value: Any) -> bool | str:
    """True, false, or how long replays may take: a length of time such as "60s"."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        seconds(value)
        return value.strip()
    raise ValueError(f"must be true, false, or a length of time such as {EXAMPLES}")


def cpu_share(value: Any) -> float:
    """A number of CPUs that Ray does not round to none."""
    result = number(value)
    if 0 < result < LEAST_CPU:
        raise ValueError(f"must be 0, or at least {LEAST_CPU:g}, Ray's smallest share")
    return result


def record_env(value: Any) -> bool | str:
    """True, false, or a folder; text that means yes or no is neither."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip()
        if word.lower() in (*MEANT_TRUE, *MEANT_FALSE):
            meant = "true" if word.lower() in MEANT_TRUE else "false"
            raise ValueError(
                f"must be true, false, or a folder for the videos; write {meant}, or ./{word} for a folder of that name"
            )
        return text(value)
    raise ValueError("must be true, false, or a folder for the videos")


def model_source(value: Any) -> str | type | None:
    """A registered name, `module:Class`, or a class."""
    if value is None or isinstance(value, type):
        return value
    if isinstance(value, str):
        return text(value)
    raise ValueError("must be the name of a registered model, module:Class, or a class")


def _square(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        first, second = value
        if first != second:
            raise ValueError
        value = first
    return whole(value)


def _check_writable(value: Any, path: str, depth: int) -> None:
    """Refuse what no file format keeps: names that are not text, numbers that are not finite, endless nesting."""
    if depth > MAX_DEPTH:
        raise ValueError(f"is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"its keys must be text; put {key!r} in quotes")
            _check_writable(item, f"{path}.{key}".lstrip("."), depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_writable(item, path, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path!r} must be a finite number")


Flag = Annotated[bool, BeforeValidator(flag)]
Text = Annotated[str, BeforeValidator(text)]
Count = Annotated[int, Field(ge=0, le=MAX_SIZE), BeforeValidator(whole)]
Size = Annotated[int, Field(ge=1, le=MAX_SIZE), BeforeValidator(whole)]
Repeats = Annotated[int, Field(ge=1, le=MOST_REPEATS), BeforeValidator(whole)]
Evaluated = Annotated[int, Field(ge=1, le=MOST_EVALUATED), BeforeValidator(whole)]
Processes = Annotated[int, Field(ge=0, le=MOST_PROCESSES), BeforeValidator(whole)]
Learners = Annotated[int, Field(ge=1, le=MOST_PROCESSES), BeforeValidator(whole)]
NoneOrOne = Annotated[int, Field(ge=0, le=1), BeforeValidator(whole)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1), BeforeValidator(whole)]
Number = Annotated[float, Field(ge=-MOST_CLIP, le=MOST_CLIP), BeforeValidator(number)]
NonNegative = Annotated[float, Field(ge=0), BeforeValidator(number)]
Positive = Annotated[float, Field(gt=0), BeforeValidator(number)]
Seconds = Annotated[float, Field(gt=0, le=MOST_SECONDS), BeforeValidator(number)]
Delay = Annotated[float, Field(ge=0, le=MOST_SECONDS), BeforeValidator(number)]
Rate = Annotated[float, Field(ge=LEAST_RATE), BeforeValidator(number)]
LearningRate = Annotated[float, Field(gt=0, le=MOST_LR), BeforeValidator(number)]
Clip = Annotated[float, Field(gt=0, le=MOST_CLIP), BeforeValidator(number)]
Coefficient = Annotated[float, Field(ge=0, le=MOST_COEFF), BeforeValidator(number)]
PositiveCoefficient = Annotated[float, Field(gt=0, le=MOST_COEFF), BeforeValidator(number)]
Exponent = Annotated[float, Field(ge=0, le=MOST_EXPONENT), BeforeValidator(number)]
Spread = Annotated[float, Field(gt=0, le=MOST_CLIP), BeforeValidator(number)]
NoneOrSpread = Annotated[float, Field(ge=0, le=MOST_CLIP), BeforeValidator(number)]
Cpus = Annotated[float, Field(ge=0, le=MOST_CPUS), BeforeValidator(cpu_share)]
Fraction = Annotated[float, Field(ge=0, le=1), BeforeValidator(number)]
PositiveFraction = Annotated[float, Field(gt=0, le=1), BeforeValidator(number)]
BelowOne = Annotated[float, Field(ge=0, lt=1), BeforeValidator(number)]

Sizes = Annotated[tuple[Size, ...], Field(max_length=100)]
FragmentLength = Annotated[
    int | Literal["auto"],
    PlainValidator(fragment_length),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]}),
]
WorkerCount = Annotated[
    int | Literal["auto"],
    PlainValidator(worker_count),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": "auto"}]}),
]
EnvCount = Annotated[
    int | Literal["auto"],
    PlainValidator(env_count),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]}),
]
RewardClipping = Annotated[
    float | bool | None,
    PlainValidator(reward_clipping),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": ["boolean", "null"]}]}),
]
Damping = Annotated[
    float | Literal["auto"],
    PlainValidator(damping),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"const": "auto"}]}),
]
KLLimit = Annotated[
    float | Literal["auto"],
    PlainValidator(kl_limit),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "auto"}]}),
]
ConvLayers = Annotated[
    tuple[ConvLayer, ...] | None,
    PlainValidator(conv_layers),
    WithJsonSchema({"type": ["array", "null"], "items": {"type": "array", "minItems": 3, "maxItems": 4}}),
]
FreeMapping = Annotated[dict[str, Any], PlainValidator(free_mapping), WithJsonSchema({"type": "object"})]
RestoreEpisodes = Annotated[
    bool | str, PlainValidator(restore_episodes), WithJsonSchema({"type": ["boolean", "string"]})
]
RecordEnv = Annotated[bool | str, PlainValidator(record_env), WithJsonSchema({"type": ["boolean", "string"]})]
ModelSource = Annotated[str | type | None, PlainValidator(model_source), WithJsonSchema({"type": ["string", "null"]})]


def refuse_tensorflow(value: Any) -> Any:
    """Say what to do about the frameworks that classic RLlib had."""
    if isinstance(value, str) and value.lower() in ("tf", "tf1", "tf2", "tfe", "tensorflow"):
        raise ValueError("TensorFlow is not supported; leave framework out, or use torch")
    return value


Framework = Annotated[Literal["auto", "numpy", "torch"], BeforeValidator(refuse_tensorflow)]


def refused_exploration(*reasons: tuple[tuple[str, ...], str]) -> BeforeValidator:
    """Say why the explorations of other algorithms do not apply."""

    def refuse(value: Any) -> Any:
        for names, reason in reasons:
            if value in names:
                raise ValueError(reason)
        return value

    return BeforeValidator(refuse)
