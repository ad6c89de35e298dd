"""Rewrites experiment files of other libraries: what each line becomes here, or why it has no counterpart.

`migrate` reads a file, lets the dialect's own module translate each experiment into a `Draft`, and has our loader check
the result. What the loader refuses is taken out again, with the loader's own sentence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from shoal.config import migration_rllib, migration_sb3
from shoal.config.algorithms import ALGORITHMS
from shoal.config.dialects import CHANGED, DEFAULTS_THERE, DIALECTS, WORDS
from shoal.config.experiment import copied, experiment_from, sweep_words
from shoal.config.migration_draft import KINDS, Draft, Kind, Wishes
from shoal.config.problems import got, printable
from shoal.config.settings import AlgorithmConfig
from shoal.config.vocabulary import EXPERIMENT_KEYS, nearest
from shoal.config.yaml_files import Document, dump_yaml, load_text
from shoal.errors import ConfigError

NUMBER_TAGS = re.compile(r"!!(?:float|int) ")  # how people make PyYAML read 1e-4 as a number; here it is one
MANY_ENVS = ("atari", "default")  # sections of a zoo's file that are for whatever has no section of its own
MOST_CHECKS = 100  # each of which takes out at least one setting


@dataclass(frozen=True)
class Migration:
    """A whole file, rewritten."""

    source: str
    dialect: str
    drafts: tuple[Draft, ...]
    left_out: tuple[str, ...] = ()  # sections that stand for many environments, and why they are no experiments

    @property
    def is_sweep(self) -> bool:
        """Whether any of its experiments asks for many runs."""
        return any(sweep_words(draft.tree) for draft in self.drafts)

    def text(self) -> str:
        """The new file."""
        lines = [f"# From {printable(PurePath(self.source).name)} ({DIALECTS[self.dialect]}), by shoal migrate."]
        for draft in self.drafts:
            for found in draft.moved_settings:
                if found.kind == "gone":
                    shown = f"{found.there}: {short(found.value)}"
                    lines.append(f"# gone from {printable(draft.name)}: {shown}; {printable(found.why)}")
        return "\n".join(lines) + "\n" + dump_yaml({draft.name: draft.tree for draft in self.drafts})

    def counts(self) -> dict[Kind, int]:
        """How many settings there are of each kind."""
        kinds = [found.kind for draft in self.drafts for found in draft.moved_settings]
        return {kind: kinds.count(kind) for kind in KINDS}


def migrate(text: str, source: str, wishes: Wishes = Wishes()) -> Migration:  # noqa: B008
    """The file in our words; ConfigError where it cannot be read, or names no environment or algorithm."""
    document = load_text(NUMBER_TAGS.sub(lambda tag: " " * len(tag[0]), text), source)
    tree = document.tree
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(f"{source}: is no experiment file: it must be a mapping of settings {got(tree)}")
    dialect = wishes.dialect or dialect_of(tree, source)
    bodies = _chosen(_experiments(tree, source), source, wishes.only)
    left_out = [name for name in bodies if name in MANY_ENVS and dialect == "sb3" and len(bodies) > 1]
    drafts: list[Draft] = []
    for title, body in bodies.items():
        if title not in left_out:
            draft = Draft(dialect, "", "PPO", _lines(document, title))
            _fill(draft, title, body, source, wishes)
            draft.name = _name(title or _title(draft, source), {other.name for other in drafts})
            _compare_defaults(draft, wishes.keep_defaults)
            _check(draft, source)
            drafts.append(draft)
    return Migration(source, dialect, tuple(drafts), tuple(left_out))


def _chosen(bodies: dict[str, dict[str, Any]], source: str, only: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The experiments that the user asks for; all if nothing is said."""
    if unknown := [name for name in only if name not in bodies]:
        close = nearest(unknown[0], bodies)
        hint = f"; did you mean {close}?" if close else f"; it has {', '.join(list(bodies)[:8])}"
        raise ConfigError(f"{source}: there is no experiment {unknown[0]!r}{hint}")
    return {name: bodies[name] for name in only} if only else bodies


def _fill(draft: Draft, title: str, body: dict[str, Any], source: str, wishes: Wishes) -> None:
    """Translate one experiment, which must have an environment."""
    translate = migration_sb3.translate if draft.dialect == "sb3" else migration_rllib.translate
    translate(draft, title or PurePath(source).stem, body, source, wishes)
    if not draft.tree.get("env"):
        of = f"the experiment {title}" if title else "the file"
        raise ConfigError(f"{source}: {of} does not say which environment it is for; give it with --env")


def dialect_of(tree: Mapping[Any, Any], source: str) -> str:
    """Whose words a file has."""
    words = {str(word).lower() for word in _words_in(tree)}
    own = {name: words & {word for word in WORDS[name] if not _is_shared(name, word)} for name in WORDS}
    if own["sb3"] and len(own["sb3"]) >= len(own["rllib2"]):
        return "sb3"
    if own["rllib2"] or "enable_rl_module_and_learner" in words:
        return "rllib2"
    classic = {*EXPERIMENT_KEYS, "env", *AlgorithmConfig.model_fields, "sgd_minibatch_size", "num_sgd_iter"}
    if own["rllib1"] or len(words & classic) >= 2:
        return "rllib1"
    raise ConfigError(
        f"{source}: neither RLlib's words nor Stable-Baselines3's are in it; say whose file it is with --from "
        f"{'|'.join(DIALECTS)}"
    )


def _is_shared(name: str, word: str) -> bool:
    """Whether a word tells nothing about whose it is."""
    return any(word in WORDS[other] for other in WORDS if other != name) or word in ("device", "verbose")


def _words_in(tree: Any, depth: int = 0) -> Iterator[Any]:
    """The keys of a tree, down to those of config and model."""
    if isinstance(tree, dict) and depth < 4:
        for key, value in tree.items():
            yield key
            yield from _words_in(value, depth + 1)


def _experiments(tree: dict[Any, Any], source: str) -> dict[str, dict[str, Any]]:
    """The experiments of a file by their names; the empty name is that of a file that is one experiment itself."""
    is_one = any(not isinstance(value, dict) for value in tree.values()) or "config" in tree or "env_runners" in tree
    bodies = {"": tree} if is_one else tree
    for name, body in bodies.items():
        if not isinstance(name, str) or not isinstance(body, dict):
            raise ConfigError(
                f"{source}: {printable(str(name))} must be an experiment, a mapping of settings {got(body)}"
            )
        if strange := [key for key in body if not isinstance(key, str)]:
            raise ConfigError(f"{source}: {printable(str(name))}: a setting's name must be text {got(strange[0])}")
    return bodies


def _lines(document: Document, title: str) -> Callable[[str], int | None]:
    def line_of(path: str) -> int | None:
        full = f"{title}.{path}" if title else path
        while full and full not in document.lines:
            full = full.rpartition(".")[0]
        return document.lines.get(full)

    return line_of


def _title(draft: Draft, source: str) -> str:
    """A name for a file that is one experiment without a name: its own, or what a trial's params.json is about."""
    stem = PurePath(source).stem
    return stem if stem not in ("params", "standard input", "config") else f"{draft.get('env')}-{draft.run}"


def _name(title: str, taken: set[str]) -> str:
    """A name that can be a folder's, and is not another's."""
    plain = re.sub(r"[^\w.+=-]+", "-", title).strip("-.~") or "experiment"
    number, name = 1, plain
    while name in taken:
        number += 1
        name = f"{plain}-{number}"
    return name


def _compare_defaults(draft: Draft, keep: bool) -> None:
    """Note where both sides have another default for what the file leaves out; write theirs if that is wished."""
    for key, theirs in DEFAULTS_THERE.get((draft.dialect, draft.run), {}).items():
        path = f"config.{key}"
        if draft.get(path) is not None or any(found.here == path for found in draft.moved_settings):
            continue
        if draft.get(f"{path}_schedule") is not None:
            continue
        ours = _default(ALGORITHMS[draft.run], key)
        if ours == theirs:
            continue
        draft.defaults[path] = (theirs, ours)
        if keep:
            draft.set(path, theirs)


def _default(kind: type[BaseModel], key: str) -> Any:
    """Our default at a dotted path."""
    first, *inner = key.split(".")
    found: Any = kind.model_fields[first].default
    for part in inner:
        found = getattr(found, part)
    return list(found) if isinstance(found, tuple) else found


def _check(draft: Draft, source: str) -> None:
    """Have our loader check the experiment; what it refuses is taken out, with its sentence."""
    for _ in range(MOST_CHECKS):
        try:
            _load(draft)
            return
        except ConfigError as error:
            before = copied(draft.tree)
            for problem in error.problems:
                _blame(draft, problem)
            if draft.tree == before:
                place = f"{source}: {draft.name}: " if draft.name else f"{source}: "
                raise ConfigError([place + problem for problem in error.problems]) from None
    raise AssertionError("every round takes something out")


def _load(draft: Draft) -> None:
    tree = {"name": draft.name, **draft.tree}
    if not sweep_words(tree):
        experiment_from(tree)
        return
    from shoal.config.sweep import sweep_from

    sweep_from(tree)


def _blame(draft: Draft, problem: str) -> None:
    """Take out what a problem is about, if it is ours to take out."""
    path, _, why = problem.partition(": ")
    path = re.sub(r"\[\d+\]", "", path)
    path = "env" if path == "config.env" else path
    if path in draft.defaults and draft.get(path) is not None:
        draft.take_out(path)
        return
    for found in draft.moved_settings:
        if found.here and (
            path == found.here or path.startswith(f"{found.here}.") or found.here.startswith(f"{path}.")
        ):
            if found.here in ("env", "run"):
                return
            draft.take_out(found.here)
            if "no effect" in why:
                found.kind = "idle"
            elif "unknown key" in why or "is a key of" in why:
                found.kind = "gone"
            elif found.here == "config.rollout_fragment_length":
                draft.set(found.here, "auto")
                found.kind, found.now, found.why = "changed", "auto", CHANGED["rllib1"]["rollout_fragment_length"]
                return
            else:
                found.kind = "gone"
                why = f"it stays at its default, because {_of_theirs(why, found.value)}"
            found.here, found.now, found.why = "", None, why.removesuffix("; leave it out")
            return
    if path in ("config.normalize_rewards", "config.n_step") or path.startswith("config.env_config"):
        draft.take_out(path)


def _of_theirs(why: str, value: Any) -> str:
    """What our loader says of a value, said of the value that their file has; infinity was read as no limit."""
    if isinstance(value, float) and math.isinf(value):
        why = why.replace("must be a number (got null)", f"must be a finite number (got {short(value)})")
    return f"it {why}" if why.startswith("must ") else why


def short(value: Any) -> str:
    """A value on one line, in YAML's words."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = printable(value if isinstance(value, str) else str(value))
    return text if len(text) <= 60 else text[:57] + "..."
