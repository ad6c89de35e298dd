"""One experiment on its way from another library's words to ours: what it says so far, and what became of each line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.config.algorithms import ALGORITHMS
from shoal.config.dialects import ALGORITHMS_THERE, CHANGED, ENV_IDS, NEW_MEANING
from shoal.config.experiment import algorithm_name, known_keys
from shoal.config.problems import got, printable
from shoal.errors import ConfigError

Kind = Literal["same", "renamed", "changed", "gone", "idle"]

KINDS: Mapping[Kind, str] = {
    "same": "the same",
    "renamed": "renamed or moved",
    "changed": "changed",
    "gone": "gone",
    "idle": "without a meaning here",
}
"""What becomes of a setting."""

CLASS_TEXT = re.compile(r"<class '([\w.]+)\.(\w+)'>")  # how Tune writes a class to params.json


@dataclass
class MovedSetting:
    """What becomes of one setting of the old file."""

    there: str  # its path in the old experiment
    value: Any
    kind: Kind
    here: str = ""  # its path in the new one; empty: it has none
    now: Any = None
    why: str = ""
    line: int | None = None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        told = {"line": self.line, "what": self.kind, "there": self.there, "value": self.value}
        if self.here:
            told |= {"here": self.here, "now": self.now}
        return told | ({"why": self.why} if self.why else {})


@dataclass
class Draft:
    """One experiment on its way from there to here."""

    dialect: str
    name: str
    run: str
    line_of: Callable[[str], int | None]
    tree: dict[str, Any] = field(default_factory=dict)
    moved_settings: list[MovedSetting] = field(default_factory=list)
    defaults: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # that differ: theirs and ours, by our path

    @property
    def known(self) -> frozenset[str]:
        """The paths of all keys that the algorithm has here."""
        return frozenset(known_keys(ALGORITHMS[self.run]))

    def put(self, there: str, value: Any, here: str, now: Any = ..., why: str = "") -> None:
        """Set a key of ours for a setting of theirs; `now` is its value here, if it is another."""
        now = value if now is ... else now
        self.set(here, now)
        word = there.rpartition(".")[2].lower()
        is_equal = now == value and isinstance(now, bool) == isinstance(value, bool)
        if not why and now is not None and (not is_equal or word in NEW_MEANING):
            why = CHANGED[self.dialect].get(word, "")
        is_changed = not is_equal or (word in NEW_MEANING and bool(why))
        kind: Kind = "changed" if is_changed else "same" if _plain(there) == _plain(here) else "renamed"
        self.moved_settings.append(MovedSetting(there, value, kind, here, now, why, self.line_of(there)))

    def gone(self, there: str, value: Any, why: str) -> None:
        """A setting without a counterpart."""
        why = reason(why)
        self.moved_settings.append(MovedSetting(there, value, "gone", why=why, line=self.line_of(there)))

    def idle(self, there: str, value: Any) -> None:
        """A setting that says nothing: switched off, or machinery of the other library."""
        self.moved_settings.append(MovedSetting(there, value, "idle", line=self.line_of(there)))

    def set(self, path: str, value: Any) -> None:
        """Write a value into the tree."""
        inner = self.tree
        *parents, last = _parts(path)
        for parent in parents:
            if not isinstance(inner.get(parent), dict):
                inner[parent] = {}
            inner = inner[parent]
        inner[last] = value

    def get(self, path: str) -> Any:
        """What the tree has at a path; None if nothing."""
        found: Any = self.tree
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def take_out(self, path: str) -> None:
        """Remove a value, and the mappings that it leaves empty."""
        parts = _parts(path)
        while parts:
            inner: Any = self.tree
            for part in parts[:-1]:
                inner = inner.get(part) if isinstance(inner, dict) else None
            if isinstance(inner, dict):
                inner.pop(parts[-1], None)
            if inner:
                return
            parts = parts[:-1]


@dataclass(frozen=True)
class Wishes:
    """What the user adds to the file."""

    dialect: str | None = None
    run: str | None = None
    env: str | None = None
    only: tuple[str, ...] = ()
    keep_defaults: bool = False


def settle_run(draft: Draft, there: str, said: Any, source: str) -> None:
    """Choose the algorithm; one that is not ours is replaced by what comes closest."""
    if not isinstance(said, str):
        raise ConfigError(f"{source}: the algorithm must be one name {got(said)}; give it with --run")
    plain = said.rpartition("/")[2]  # contrib/X
    run = algorithm_name(plain)
    why = ""
    if run not in ALGORITHMS:
        found = ALGORITHMS_THERE.get(plain.upper().replace("-", "_"))
        if found is None:
            raise ConfigError(
                f"{source}: there is no algorithm like {printable(said)!r} here; choose one with --run, of "
                f"{', '.join(ALGORITHMS)}"
            )
        run, why = found
    draft.run = run
    draft.put(there, said, "run", run, why)


def settle_env(draft: Draft, there: str, env: Any) -> None:
    """Write the environment; ids of old Gym become those that Gymnasium makes."""
    if isinstance(env, str) and env in ENV_IDS:
        new, told = ENV_IDS[env]
        draft.put(there, env, "env", new, f"Gymnasium no longer makes {env}")
        for key, value in told.items():
            draft.set(f"config.env_config.{key}", value)
    elif isinstance(env, str) and (found := CLASS_TEXT.fullmatch(env)):
        why = "a class is named by its module; it must be importable where you train"
        if found[1] == "__main__":
            raise ConfigError(
                f"env: {found[2]} was a class of the script itself; give it with --env FILE.py:{found[2]}"
            )
        draft.put(there, env, "env", f"{found[1]}:{found[2]}", why)
    else:
        draft.put(there, env, "env")


def _plain(path: str) -> str:
    return path.removeprefix("config.")


def reason(sentence: str) -> str:
    """What a sentence of the table of words says, without that a word is to be left out."""
    plain = re.sub(r"; leave it out, or ", "; ", sentence)
    return re.sub(r"(;|, or) leave it out$", "", plain)


def _parts(path: str) -> list[str]:
    """The keys along a path; the names of results have slashes, and may have dots."""
    return ["stop", path.removeprefix("stop.")] if path.startswith("stop.") else path.split(".")
