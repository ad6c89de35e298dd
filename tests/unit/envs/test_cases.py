"""Files of cases: what they may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.envs.cases import Case, read_cases
from shoal.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    file = folder / "cases.csv"
    file.write_text(text)
    return file


def test_columns_go_where_they_say(tmp_path: Path) -> None:
    text = "case, env_config.mass,env_config.mesh.dx,options.x0,seed\nlight,1,0.5,-1e-3,7\nheavy,2.5,,,\n"
    base = {"mass": 9, "mesh": {"dx": 1.0, "dy": 2.0}, "kind": "a"}
    cases = read_cases(written(tmp_path, text), base)
    assert cases.columns == ("case", "env_config.mass", "env_config.mesh.dx", "options.x0", "seed")
    assert cases.cases == [
        Case({"mass": 1, "mesh": {"dx": 0.5, "dy": 2.0}}, {"x0": -0.001}, 7),
        Case({"mass": 2.5}, None, None),
    ]
    assert base["mesh"] == {"dx": 1.0, "dy": 2.0}


def test_cells_are_yaml(tmp_path: Path) -> None:
    text = 'options.a,options.b,options.c,options.d\n"[1, 2]",true,text,"{k: 1.5}"\n'
    (case,) = read_cases(written(tmp_path, text), {}).cases
    assert case == Case(None, {"a": [1, 2], "b": True, "c": "text", "d": {"k": 1.5}}, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mass\n1\n", "column 'mass' has an unknown meaning; write env_config.mass, options.mass, seed or case"),
        ("options.\n1\n", "column 'options.' has an unknown meaning"),
        ("options..x\n1\n", "has an unknown meaning"),
        ("options.x,\n1,2\n", "a column has no name"),
        ("options.x,options.x\n1,2\n", "column 'options.x' occurs twice"),
        ("options.x,options.y\n1\n", "line 2 has a different number of cells than the header has columns"),
        ("options.x\n1\n1,2\n", "line 3 has a different number of cells"),
        ("seed\n-1\n", "line 2: seed must be at least 0 (got -1)"),
        ("seed\nx\n", "line 2: seed must be a whole number (got x)"),
        ("options.x,seed\n1,-1\n1,1.5\n", "line 3: seed must be a whole number (got 1.5)"),
        ("options.x;options.y\n1;2\n", "columns are separated by commas, not by ';'"),
        ("options.x\toptions.y\n1\t2\n", "columns are separated by commas, not by '\\t'"),
        ('options.x\n"[1"\n', "line 2"),
        ("env_config.a.b\n1\n", "env_config.a.b leads into a, which is not a mapping"),
        ("options.x\n", "it has no rows"),
        ("", "it has no rows"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_cases(written(tmp_path, text), {"a": 1})
    assert any(words in problem for problem in caught.value.problems)
    assert all(problem.startswith(f"{tmp_path}") for problem in caught.value.problems)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_cases(tmp_path / "nowhere.csv", {})
    (tmp_path / "cases.csv").write_bytes(b"options.x\n\xff\xfe\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_cases(tmp_path / "cases.csv", {})
