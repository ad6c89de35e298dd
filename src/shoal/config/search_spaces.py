"""Search spaces as the user writes them: `{loguniform: [1e-5, 1e-2]}` in place of a value, found and checked."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.config.fields import MAX_DEPTH, number, whole
from shoal.config.problems import got, printable


@dataclass(frozen=True)
class Setting:
    """One place of the experiment's tree whose value the search chooses."""

    path: str
    """Where it stands, e.g. `config.lr` or `config.model.fcnet_hiddens`."""
    kind: str
    """How it is chosen: `grid_search`, `uniform`, `loguniform`, `choice`, ..."""
    args: tuple[Any, ...]
    """The values of a grid or choice; the bounds, and the step, of a range."""


class UncheckedSpace(NamedTuple):
    """A search space as it stands in a tree, unchecked."""

    path: str
    kind: str
    given: Any
    in_list: bool
    is_named: bool  # by keys that are text, without the dots and slashes that paths have


@dataclass(frozen=True)
class SpaceKind:
    """A way to choose a value: how it is written, and what it means."""

    form: str
    meaning: str
    is_whole: bool = False
    is_log: bool = False
    has_step: bool = False


KINDS: Mapping[str, SpaceKind] = {
    "grid_search": SpaceKind("[a, b, c]", "each of these values, combined with each value of every other grid"),
    "choice": SpaceKind("[a, b, c]", "one of these values, all equally likely"),
    "uniform": SpaceKind("[low, high]", "a number between these"),
    "loguniform": SpaceKind("[low, high]", "a number between these, all powers of ten equally likely", is_log=True),
    "quniform": SpaceKind("[low, high, step]", "a number between these, in steps", has_step=True),
    "qloguniform": SpaceKind("[low, high, step]", "as loguniform, in steps", is_log=True, has_step=True),
    "randint": SpaceKind("[low, high]", "a whole number from low to high - 1", is_whole=True),
    "lograndint": SpaceKind("[low, high]", "as randint, all powers of ten equally likely", is_whole=True, is_log=True),
    "qrandint": SpaceKind(
        "[low, high, step]", "a whole number from low to high, in steps", is_whole=True, has_step=True
    ),
    "normal": SpaceKind("[mean, sd]", "a number around the mean, with this standard deviation"),
}
"""Every way to choose a value; ranges of whole numbers end where Ray's do."""

LISTED = ("grid_search", "choice")
PLACES = ("run", "env", "config")
"""The keys of an experiment whose values, or the values in them, may be searched for."""
SIGMAS = 3
"""How far from its mean a normal distribution is checked."""

_UNSAFE = (
    "sample_from would run code from a file; write {uniform: [low, high]}, {choice: [a, b]} or another range, "
    "or compute the values in Python and give them as {choice: values}"
)


def space_kind(value: Any) -> str | None:
    """The way of choosing that a mapping with one key names; None for all that is no search space."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return None
    (key,) = value
    return key if isinstance(key, str) and (key in KINDS or key == "sample_from") else None


def find_settings(tree: Mapping[str, Any], places: Iterable[str] = PLACES) -> tuple[list[Setting], list[str]]:
    """Every search space of an experiment's tree, in its order, and what is wrong with them."""
    allowed = set(places)
    settings: list[Setting] = []
    problems: list[str] = []
    for name, kind, given, in_list, is_named in spaces_in(tree):
        if kind == "sample_from":
            problems.append(f"{name}: {_UNSAFE}")
        elif name.partition(".")[0] not in allowed:
            problems.append(f"{name}: is the same for all trials; give it one value {got({kind: given})}")
        elif in_list:
            problems.append(f"{name}: has a search in a list; let the whole list be chosen: {{choice: [[...], [...]]}}")
        elif name == "config.seed" and "run" in allowed:
            problems.append("config.seed: is not ranked but averaged over; set seeds: 3 beside stop, or --seeds 3")
        elif not is_named:
            problems.append(f"{name}: a searched key must be text, with no dot and no slash in it; rename it")
        else:
            try:
                settings.append(checked_setting(name, kind, given))
            except ValueError as error:
                problems.append(f"{name}: {error} {got({kind: given})}")
    return settings, problems


def spaces_in(
    value: Any, path: str = "", in_list: bool = False, depth: int = 0, is_named: bool = True
) -> Iterator[UncheckedSpace]:
    """Every mapping that names a way to choose; what is nested too deep for an experiment is not looked into."""
    kind = space_kind(value)
    # What `randomize` says is drawn by the environment, for every episode; only a grid over it is the search's.
    if kind is not None and (not path.startswith("config.randomize.") or kind in ("grid_search", "sample_from")):
        yield UncheckedSpace(path, kind, value[kind], in_list, is_named)
    elif depth <= MAX_DEPTH and isinstance(value, Mapping):
        for key, item in value.items():
            plain = is_named and isinstance(key, str) and not {".", "/"} & set(key)
            yield from spaces_in(item, f"{path}.{printable(str(key))}".lstrip("."), in_list, depth + 1, plain)
    elif depth <= MAX_DEPTH and isinstance(value, list | tuple):
        for item in value:
            yield from spaces_in(item, path, True, depth + 1, is_named)


def checked_setting(path: str, kind: str, given: Any) -> Setting:
    """A setting whose arguments are right, in plain types."""
    form = f"must be {{{kind}: {KINDS[kind].form}}}"
    if hasattr(given, "tolist"):
        given = given.tolist()
    if not isinstance(given, list | tuple):
        raise ValueError(form)
    if kind in LISTED:
        if not given:
            raise ValueError("has no values to try; give some, or one value in place of the search")
        unique = [value for k, value in enumerate(given) if value not in given[:k]]
        if len(unique) < len(given):
            raise ValueError("has a value twice; leave one out")
        return Setting(path, kind, tuple(given))
    if len(given) != KINDS[kind].form.count(",") + 1:
        raise ValueError(form)
    try:
        numbers = tuple((whole if KINDS[kind].is_whole else number)(item) for item in given)
    except ValueError:
        what = "whole numbers" if KINDS[kind].is_whole else "finite numbers"
        raise ValueError(f"{form} with {what}") from None
    _check_range(kind, numbers)
    return Setting(path, kind, numbers)


def _check_range(kind: str, numbers: Sequence[float]) -> None:
    low, high = numbers[:2]
    if kind == "normal":
        if high <= 0:
            raise ValueError("its standard deviation must be more than 0")
        return
    if low >= high:
        raise ValueError("its first number must be lower than its second")
    if KINDS[kind].is_log and low <= 0:
        raise ValueError(
            "its numbers must be more than 0, because it is logarithmic; use uniform, or raise the lower one"
        )
    if not math.isfinite(high - low):
        raise ValueError("is too wide")
    if KINDS[kind].has_step:
        step = numbers[2]
        if step <= 0 or step > high - low:
            raise ValueError("its step must be more than 0 and at most the width of the range")
        if any(not math.isclose(end / step, round(end / step), abs_tol=1e-9) for end in (low, high)):
            raise ValueError("its ends must be multiples of its step")


def extremes(setting: Setting) -> list[Any]:
    """The values that must all be right for every choice to be: those of a list, the ends of a range."""
    if setting.kind in LISTED:
        return list(setting.args)
    low, high = setting.args[:2]
    if setting.kind == "normal":
        return [low - SIGMAS * high, low + SIGMAS * high]
    return [low, high - 1] if setting.kind in ("randint", "lograndint") else [low, high]


def fitted(setting: Setting, value: Any) -> Any:
    """A number as near to `value` as the range of the setting has one; what is chosen from a list stays as it is."""
    kind = KINDS[setting.kind]
    if setting.kind in LISTED:
        return value
    result = float(value)
    if setting.kind != "normal":
        low, high = extremes(setting)
        if kind.has_step:
            result = round(result / setting.args[2]) * setting.args[2]
        result = min(max(result, low), high)
    return round(result) if kind.is_whole else result


def drawn(setting: Setting, chance: random.Random) -> Any:
    """An example of what the search may choose."""
    if setting.kind in LISTED:
        return chance.choice(setting.args)
    low, high = setting.args[:2]
    if setting.kind == "normal":
        return chance.gauss(low, high)
    if KINDS[setting.kind].is_log:
        return fitted(setting, math.exp(chance.uniform(math.log(low), math.log(high))))
    return fitted(setting, chance.uniform(low, high))


def combinations(settings: Sequence[Setting], most: int) -> Iterator[dict[str, Any]]:
    """Paths to values that between them have every extreme: all combinations, or if they are too many one at a time."""
    ends = {setting.path: extremes(setting) for setting in settings}
    if math.prod(len(values) for values in ends.values()) <= most:
        for combination in itertools.product(*ends.values()):
            yield dict(zip(ends, combination, strict=True))
        return
    first = {path: values[0] for path, values in ends.items()}
    yield first
    for path, values in ends.items():
        for value in values[1:]:
            yield {**first, path: value}


def setting_text(setting: Setting) -> str:
    """`loguniform 1e-05 to 0.01`, `grid_search 1, 2, 3`: a setting as a line of a table."""
    if setting.kind in LISTED:
        return f"{setting.kind} {', '.join(printable(str(value)) for value in setting.args)}"
    first, second = (f"{value:g}" for value in setting.args[:2])
    step = f" by {setting.args[2]:g}" if KINDS[setting.kind].has_step else ""
    return f"{setting.kind} {first}{' +- ' if setting.kind == 'normal' else ' to '}{second}{step}"
