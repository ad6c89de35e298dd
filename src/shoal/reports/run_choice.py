"""Which runs a person asks for, by a condition over their numbers and settings, and in which order."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from shoal.config.vocabulary import nearest
from shoal.envs.expressions import Expression
from shoal.errors import ConfigError
from shoal.reports.run_list import ListedRun

ONE_EQUALS_SIGN = re.compile(r"(?<![=<>!])=(?!=)")
LISTED = ("name", "state", "run", "env", "best", "last", "steps", "changed", "size")


class Condition:
    """A condition such as `best > 400 and lr < 1e-3`; a run that lacks a name in it does not meet it."""

    def __init__(self, text: str, names: Collection[str]) -> None:
        try:
            self._expression = Expression(text, set(names), takes_text=True)
        except ValueError as error:
            if "is no formula" in str(error) and ONE_EQUALS_SIGN.search(text):
                meant = ONE_EQUALS_SIGN.sub("==", text)
                raise ConfigError(f"--where: {text!r} has one equals sign; write {meant!r}") from None
            raise ConfigError(f"--where: {_shortened(str(error), text, names)}") from None
        if not self._expression.is_condition:
            raise ConfigError(f"--where: {text!r} is no condition; compare something: best > 400")
        self._nothing = dict.fromkeys(names, float("nan"))

    def holds_for(self, run: ListedRun) -> bool:
        """Whether a run meets it."""
        try:
            return self._expression({**self._nothing, **run.values}) == 1
        except TypeError:
            raise ConfigError(f"--where: {self._expression.text!r} holds text against a number") from None


def names_of(found: Iterable[ListedRun]) -> list[str]:
    """Everything that some run has a value for."""
    return sorted({name for run in found for name in run.values})


def matching(found: list[ListedRun], where: str | None) -> list[ListedRun]:
    """The runs for which a condition holds; all without one."""
    if where is None:
        return found
    condition = Condition(where, names_of(found))
    return [run for run in found if condition.holds_for(run)]


def in_order(chosen: list[ListedRun], found: list[ListedRun], sort: str) -> list[ListedRun]:
    """The runs by a value, highest first, or lowest first with a minus; those without it last."""
    name, is_rising = (sort[1:], True) if sort.startswith("-") else (sort, False)
    if found and all(value_of(run, name) is None for run in found):
        near = nearest(name, names_of(found))
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigError(f"--sort: no run has {name!r}{hint}")
    values = [(run, value_of(run, name)) for run in chosen]
    having = [(run, value) for run, value in values if value is not None]
    without = [run for run, value in values if value is None]
    key = _text_key if any(isinstance(value, str) for _, value in having) else _number_key
    having.sort(key=lambda pair: key(pair[1]), reverse=not is_rising)
    return [run for run, _ in having] + without


def is_listed(sort: str) -> bool:
    """Whether an order is by what the table shows, so that nobody's settings need be read."""
    return sort.removeprefix("-") in LISTED


def value_of(run: ListedRun, name: str) -> Any:
    """What a run has of a name, as in its `values`; its experiment is read for a setting alone."""
    for known in (run.shown, run.progress.last):
        if name in known:
            return known[name]
    return run.settings.get(name)


def _text_key(value: Any) -> Any:
    return str(value)


def _number_key(value: Any) -> Any:
    return float(value)


def _shortened(message: str, where: str, names: Collection[str]) -> str:
    """A message without the list of all names, of which there may be hundreds: the near ones are enough."""
    head, found, _ = message.partition("; there are ")
    if not found:
        return message
    unknown = head.rpartition(" ")[2]
    near = nearest(unknown, names)
    hint = f"did you mean {near}?" if near else "`shoal runs --json` shows the names of results"
    return f"{where!r} has the unknown name {unknown}; {hint}"
