from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config.experiment import as_tree, experiment_from
from shoal.config.yaml_files import MAX_BYTES, dump_alike, dump_yaml, load_file, load_text, parse_value
from shoal.errors import ConfigError

SCALARS: list[tuple[str, Any]] = [
    ("1e-4", 0.0001),
    ("1E5", 100000.0),
    (".5e-3", 0.0005),
    ("1.", 1.0),
    ("no", "no"),
    ("on", "on"),
    ("yes", "yes"),
    ("12:30", "12:30"),
    ("12:30:45", "12:30:45"),
    ("017", 17),
    ("08", 8),
    ("0o17", 15),
    ("0x1F", 31),
    ("1_000_000", 1000000),
    ("1__0", "1__0"),
    ("2026-01-01", "2026-01-01"),
    ("true", True),
    ("False", False),
    ("null", None),
    ("~", None),
    ('"1e-4"', "1e-4"),
    ("'no'", "no"),
    (".inf", math.inf),
    ("=", "="),
    ("custom_env.CustomEnv", "custom_env.CustomEnv"),
    ("my_env.py:MyEnv", "my_env.py:MyEnv"),
    ("[1, 2.5, x]", [1, 2.5, "x"]),
    ("{a: {b: 1}}", {"a": {"b": 1}}),
]

REFUSED: list[tuple[str, str]] = [
    ("a: 1\nb: 2\na: 3", "f.yml:3:1: the key a is here twice"),
    ("a: {b: 1, b: 2}", "f.yml:1:11: the key b is here twice"),
    ("a: !!python/object/apply:os.system [ls]", "f.yml:1:4: the tag !!python/object/apply:os.system is not allowed"),
    ("a: !mine x", "the tag !mine is not allowed"),
    ("a: !!binary aGk=", "the tag !!binary is not allowed"),
    ("a:\n\tb: 1", "f.yml:2:1: there is a tab here; indent with spaces"),
    ("a: [1, 2", "f.yml:1:9: expected ',' or ']'"),
    ("a: b: c", "f.yml:1:5: mapping values are not allowed here"),
    ("a: 'x", "found unexpected end of stream"),
    ("a: *x", "f.yml:1:4: the alias *x has no anchor &x before it"),
    ("a: &a [*a]", "f.yml:1:8: the alias *a stands inside of its own anchor and has no end"),
    ("a: &a\n  b: {c: *a}", "f.yml:2:10: the alias *a stands inside of its own anchor and has no end"),
    ("a: [*a, &a 1]", "f.yml:1:5: the alias *a has no anchor &a before it"),
    ("[" * 60, "nested more than 50 levels deep"),
    ("? [1, 2]\n: 3", "a key must be text, not a list or a mapping"),
    ("a: " + "9" * 5000, "a number of more than 400 digits"),
    ("a: 1e400", "the number 1e400 is too large for a float"),
    ("a: 1\n---\nb: 2", "f.yml:2:1: a second document"),
    ("%YAML 1.1\n---\na: no", "only YAML 1.2 is read"),
    ("a: \x07", "f.yml:1:4: a character that YAML does not allow ('\\x07')"),
    ('a: "\\UFFFFFFFF"', "cannot be read as YAML"),
    ("<<: 3", "'<<' takes in a mapping"),
]


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_scalars_mean_what_people_mean(text: str, value: Any) -> None:
    found = load_text(f"a: {text}\n", "f.yml").tree["a"]
    assert found == value
    assert type(found) is type(value)
    assert parse_value(text) == value


def test_nan_is_read_and_left_to_the_types() -> None:
    assert math.isnan(load_text("a: .nan", "f.yml").tree["a"])


@pytest.mark.parametrize(("text", "fragment"), REFUSED, ids=[fragment[:30] for _, fragment in REFUSED])
def test_traps_are_refused_where_they_stand(text: str, fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(text, "f.yml")
    (problem,) = caught.value.problems
    assert fragment in problem
    assert "\n" not in problem


def test_alias_bomb_is_refused() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
    with pytest.raises(ConfigError, match="more than 100000 values"):
        load_text(bomb, "f.yml")


def test_an_alias_is_a_copy_and_a_merge_gives_way_to_own_keys() -> None:
    document = load_text("one: &d {lr: 1, gamma: 2}\ntwo: {<<: *d, lr: 3}\nthree: *d", "f.yml")
    assert document.tree == {
        "one": {"lr": 1, "gamma": 2},
        "two": {"gamma": 2, "lr": 3},
        "three": {"lr": 1, "gamma": 2},
    }
    assert document.tree["one"] is not document.tree["three"]


def test_lines_of_keys_are_known() -> None:
    assert load_text("x:\n  config:\n    lr: 1\n", "f.yml").lines == {"x": 1, "x.config": 2, "x.config.lr": 3}


def test_empty_text_is_nothing() -> None:
    assert load_text("# only a comment\n", "f.yml").tree is None


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yml"
    binary.write_bytes(b"a: \xff\xfe")
    large = tmp_path / "large.yml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    for path, fragment in [
        (tmp_path, "is a folder"),
        (tmp_path / "none.yml", "there is no such file"),
        (binary, r"is not UTF-8 text \(byte 3\)"),
        (large, "is larger than 1 MB"),
        (tmp_path / "nul\0.yml", "cannot be read"),
    ]:
        with pytest.raises(ConfigError, match=fragment):
            load_file(path)


def test_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.write_bytes("\ufeffa: 1\r\nb: 2\r\n".encode())
    assert load_file(path).tree == {"a": 1, "b": 2}


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(), plain_values, max_size=5))
def test_what_is_written_is_read_back(tree: dict[str, Any]) -> None:
    assert load_text(dump_yaml(tree), "f.yml").tree == tree


TRAPS = [
    "1e-4",
    ".5e3",
    "017",
    "1_0",
    "no",
    "~",
    "null",
    "true",
    ".nan",
    "12:30",
    "<<",
    "=",
    "- a",
    "#",
    "",
    " x ",
    "9" * 500,
]


@pytest.mark.parametrize("text", TRAPS)
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    assert load_text(dump_yaml({"a": text, text: [text]}), "f.yml").tree == {"a": text, text: [text]}


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_mangled_text_is_read_or_refused(data: st.DataObject) -> None:
    text = "x: &a\n  env: CartPole-v1\n  stop: {timesteps_total: 1e4}\n  list:\n  - 'a'\n  - \"b\\n\"\ny: *a\n"
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        piece = data.draw(
            st.sampled_from([*":-[]{}#&*!|>'\"%@`,?~\t\n \\", "!!int ", "%YAML 1.1\n", "---\n", "\\x", "é", "\x00"])
        )
        text = text[:at] + piece + text[at + data.draw(st.integers(0, 3)) :]
    problem = ""
    try:
        load_text(text, "f.yml")
    except ConfigError as error:
        problem = str(error)
    assert problem.isprintable()


def test_value_of_an_override_may_not_be_empty() -> None:
    with pytest.raises(ConfigError, match="write null to switch a key off"):
        parse_value("  ")


@pytest.mark.parametrize("run", ["PPO", "DQN", "SAC", "MARWIL"])
def test_what_is_written_by_keys_is_the_text_of_the_whole(run: str) -> None:
    env = "Pendulum-v1" if run == "SAC" else "CartPole-v1"
    config = {"env_config": {"note": "no", "long": "word " * 60, "mesh": {"n": [1, 2], "deep": {"x": [[1], {}]}}}}
    tree = as_tree(experiment_from({"name": "a: b", "env": env, "run": run, "config": {**config, "seed": 3}}))
    whole = {tree.pop("name"): tree}
    assert dump_alike(whole) == dump_yaml(whole)
    changed = {"12:30": {**tree, "config": {**tree["config"], "seed": 4}}}
    assert dump_alike(changed) == dump_yaml(changed)
