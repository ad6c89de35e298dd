"""YAML 1.2 in and out, without the traps of YAML 1.1 and without any way to run code.

The tree is built from the parser's events, so that tags, duplicate keys, deep nesting and alias bombs are refused where
they stand, and every key's line is known. Plain scalars follow the YAML 1.2 core schema: `1e-4` is a number, `no`,
`12:30` and `2026-01-01` are text, `017` is 17; as in Python, `1_000_000` is a whole number too.
"""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter

from shoal.config.fields import MAX_DEPTH
from shoal.config.problems import printable
from shoal.errors import ConfigError

SCHEMA = Path(__file__).with_name("experiments.schema.json")
"""What editors know of experiment files; `schema.py` writes it."""

MAX_BYTES = 1_000_000
MAX_NODES = 100_000
MAX_DIGITS = 400

# Text that needs no quotes anywhere; ruamel itself writes some plain texts that cannot be read back between braces.
_UNQUOTED = re.compile(r"[\w./~$][\w./~$:@+ -]*")
_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + word: float(sign + "inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
}


@dataclass(frozen=True)
class Document:
    """A YAML document: its value, and the line of each key by its dotted path."""

    tree: Any
    lines: dict[str, int] = field(default_factory=dict)


def load_file(path: str | Path) -> Document:
    """Read the one document of a YAML file, or raise a ConfigError that names file, line and column."""
    path = Path(path)
    try:
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder; write the name of the YAML file in it")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; check the path and the working folder") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: is larger than {MAX_BYTES // 1_000_000} MB; that is not a configuration")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    return load_text(text, str(path))


def load_text(text: str, source: str) -> Document:
    """Read one YAML document; `source` is how messages name it."""
    try:
        return _Builder(source, text).document()
    except ReaderError as error:
        raise ConfigError(
            f"{_place(source, text, int(error.position))}: a character that YAML does not allow ({_character(error)})"
        ) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = source if mark is None else f"{source}:{mark.line + 1}:{mark.column + 1}"
        problem = printable(str(error.problem or error.context or "cannot be read as YAML"))
        if "'\\t'" in problem:
            problem = "there is a tab here; indent with spaces"
        raise ConfigError(f"{where}: {problem}") from None
    except (YAMLError, ValueError, OverflowError, IndexError, AttributeError, TypeError) as error:
        # The scanner lets a few of these through on malformed escapes and directives.
        raise ConfigError(f"{source}: cannot be read as YAML: {printable(str(error))}") from None


def parse_value(text: str) -> Any:
    """The value of `VALUE` in `--set KEY=VALUE`: a YAML scalar, or `[a, b]`, or `{a: b}`."""
    if not text.strip():
        raise ConfigError("a value is missing after '='; write null to switch a key off, or '\"\"' for empty text")
    return load_text(text, f"value {text[:60]!r}").tree


def plain_scalar(text: str) -> Any:
    """What an unquoted scalar means in YAML 1.2; text that means nothing else is itself."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > MAX_DIGITS and (_INT.fullmatch(text) or _HEX.fullmatch(text) or _FLOAT.fullmatch(text)):
        raise ValueError(f"a number of more than {MAX_DIGITS} digits")
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text, 8)
    if _HEX.fullmatch(text):
        return int(text, 16)
    if _FLOAT.fullmatch(text):
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError(f"the number {text} is too large for a float")
        return value
    return text


def schema_line(schema: str | None = None) -> str:
    """The first line of a YAML file by which editors find its schema: that of this installation, or another file.

    An address of a file needs no network. A file that goes to other machines names one that lies beside it instead.
    """
    return f"# yaml-language-server: $schema={SCHEMA.as_uri() if schema is None else schema}\n"


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """YAML text which `load_text` reads back as the same plain tree; keys keep their order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.allow_unicode = True
    yaml.width = 120
    stream = io.StringIO()
    yaml.dump(dict(tree), stream)
    return stream.getvalue()


def dump_alike(tree: Mapping[str, Any]) -> str:
    """The text of `dump_yaml`, for one of many trees that have most of their values in common; up to two levels deep.

    What stands under a key is written once, and remembered with its place, on which the breaks of long lines depend.
    """
    return "".join(_level(tree, 0))


def _level(tree: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, int | float | None):
            yield f"{_key_text(depth, key)} {_REPRESENTER.represent_data(value).value}\n"
        elif depth < 2 and isinstance(value, Mapping) and any(isinstance(each, Mapping) for each in value.values()):
            yield f"{_key_text(depth, key)}\n"
            yield from _level(value, depth + 1)
        else:
            yield _item_text(depth, key, json.dumps(value))


def _key_text(depth: int, key: str) -> str:
    """A key with its indentation and colon."""
    if _PLAIN_KEY.fullmatch(key) and _is_text(key):
        return f"{'  ' * depth}{key}:"
    return _item_text(depth, key, "{}").removesuffix(" {}\n")


@lru_cache(maxsize=20_000)
def _item_text(depth: int, key: str, value: str) -> str:
    """One key of a mapping at a depth, as it is written where something beside it has more than a line."""
    tree: dict[str, Any] = {key: json.loads(value), _BESIDE: [[]]}
    for _ in range(depth):
        tree = {_BESIDE: tree}
    lines = dump_yaml(tree).splitlines(keepends=True)
    return "".join(lines[depth : lines.index(f"{'  ' * depth}{_BESIDE}:\n", depth)])


_BESIDE = "beside this"
_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,80}")


class _Representer(SafeRepresenter):
    """Writes text so that `plain_scalar` cannot take it for something else, and repeats instead of aliasing."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True

    def represent_str(self, data: str) -> ScalarNode:
        style = None if _UNQUOTED.fullmatch(data) and _is_text(data) else '"'
        node: ScalarNode = self.represent_scalar("tag:yaml.org,2002:str", data, style=style)
        return node


_Representer.add_representer(str, _Representer.represent_str)
_REPRESENTER = _Representer()


class _Builder:
    """Builds one tree from the parser's events."""

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self.events: Iterator[Any] = iter(YAML(typ="safe", pure=True).parse(io.StringIO(text)))
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.unfinished: set[str] = set()  # anchors of what is being read
        self.lines: dict[str, int] = {}
        self.nodes = 0

    def document(self) -> Document:
        tree: Any = None
        documents = 0
        for event in self.events:
            if isinstance(event, (StreamStartEvent, StreamEndEvent, DocumentEndEvent)):
                continue
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self.refusal(event, "a second document ('---'); put all experiments into one")
                if event.version not in (None, (1, 2)):
                    raise self.refusal(event, "only YAML 1.2 is read; leave the %YAML line out")
                continue
            tree = self.value(event, (), 0)
        return Document(tree, self.lines)

    def value(self, event: Any, path: tuple[str, ...], depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise self.refusal(event, f"nested more than {MAX_DEPTH} levels deep")
        before = self.nodes
        self.count(event, 1)
        if isinstance(event, AliasEvent):
            if event.anchor not in self.anchors and event.anchor in self.unfinished:
                raise self.refusal(event, f"the alias *{event.anchor} stands inside of its own anchor and has no end")
            if event.anchor not in self.anchors:
                raise self.refusal(event, f"the alias *{event.anchor} has no anchor &{event.anchor} before it")
            value, size = self.anchors[event.anchor]
            self.count(event, size)
            return copy.deepcopy(value)
        if event.tag is not None:
            tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")
            raise self.refusal(event, f"the tag {tag} is not allowed; write plain text, numbers, lists and mappings")
        if event.anchor is not None:
            self.unfinished.add(event.anchor)
        if isinstance(event, MappingStartEvent):
            value = self.mapping(path, depth)
        elif isinstance(event, SequenceStartEvent):
            value = [self.value(item, path, depth + 1) for item in self.until(SequenceEndEvent)]
        else:
            value = self.scalar(event)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, self.nodes - before)
            self.unfinished.discard(event.anchor)
        return value

    def mapping(self, path: tuple[str, ...], depth: int) -> dict[Any, Any]:
        own: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        for event in self.until(MappingEndEvent):
            key = self.value(event, path, depth + 1)
            if isinstance(key, (dict, list)):
                raise self.refusal(event, "a key must be text, not a list or a mapping")
            if key in own:
                raise self.refusal(event, f"the key {printable(str(key))} is here twice; remove one")
            here = (*path, str(key))
            value = self.value(next(self.events), here, depth + 1)
            if key == "<<" and event.implicit[0]:
                for source in value if isinstance(value, list) else [value]:
                    if not isinstance(source, dict):
                        raise self.refusal(event, "'<<' takes in a mapping or a list of mappings")
                    merged = {**source, **merged}
                continue
            own[key] = value
            self.lines[".".join(here)] = event.start_mark.line + 1
        return {**{key: value for key, value in merged.items() if key not in own}, **own}

    def scalar(self, event: ScalarEvent) -> Any:
        if not event.implicit[0]:
            return event.value
        try:
            return plain_scalar(event.value)
        except ValueError as error:
            raise self.refusal(event, str(error)) from None

    def until(self, end: type) -> Iterator[Any]:
        for event in self.events:
            if isinstance(event, end):
                return
            yield event

    def count(self, event: Any, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise self.refusal(event, f"more than {MAX_NODES} values (aliases count each time)")

    def refusal(self, event: Any, problem: str) -> ConfigError:
        return ConfigError(f"{self.source}:{event.start_mark.line + 1}:{event.start_mark.column + 1}: {problem}")


def _is_text(text: str) -> bool:
    try:
        return isinstance(plain_scalar(text), str)
    except ValueError:
        return False


def _character(error: ReaderError) -> str:
    """The refused character, printable."""
    character = error.character
    return repr(chr(character) if isinstance(character, int) else character)


def _place(source: str, text: str, position: int) -> str:
    """`source:line:column` of a character."""
    line = text.count("\n", 0, position) + 1
    return f"{source}:{line}:{position - text.rfind(chr(10), 0, position)}"
