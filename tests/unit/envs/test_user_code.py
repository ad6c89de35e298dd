"""Where the user's code is looked for."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from shoal.config.experiment import experiment_from
from shoal.envs.importing import INSTALLED, UserCode
from shoal.errors import ConfigError
from shoal.runs.resuming import experiment_of, tree_of


def test_folders_are_absolute_and_each_stands_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    code = UserCode.at("models", tmp_path / "models" / ".." / "models", "~/envs")
    assert code.folders == (str(tmp_path / "models"), "/home/somebody/envs")
    assert code.with_working_folder().folders == (*code.folders, str(tmp_path))
    assert UserCode.at(".", "models").with_working_folder() == UserCode.at(".", "models")


def test_it_is_the_same_in_another_process_and_from_a_file(tmp_path: Path) -> None:
    code = UserCode.at(tmp_path, ".")
    assert pickle.loads(pickle.dumps(code)) == code
    tree = tree_of(experiment_from({"name": "one", "env": "CartPole-v1"}), code)
    assert tree["search_path"] == [str(tmp_path), os.getcwd()]
    assert experiment_of(tree)[1] == code
    del tree["search_path"]
    assert experiment_of(tree, trust=True)[1] == INSTALLED
    assert experiment_of(tree)[1] == UserCode((), is_trusted=False)  # as nobody has written it down


def test_a_file_is_found_in_the_first_folder_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second", "working"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "working")
    code = UserCode.at(tmp_path / "first", tmp_path / "second")
    (tmp_path / "second" / "cases.csv").touch()
    (tmp_path / "working" / "cases.csv").touch()
    assert code.has_file("cases.csv")
    assert code.find_file("cases.csv") == tmp_path / "second" / "cases.csv"
    assert INSTALLED.find_file("cases.csv") == tmp_path / "working" / "cases.csv"
    with pytest.raises(ConfigError, match=f"no file 'other.csv' in {tmp_path}/first, {tmp_path}/second"):
        code.find_file("other.csv")


def test_a_name_that_is_too_long_for_a_file_is_that_of_no_file(tmp_path: Path) -> None:
    code, name = UserCode.at(tmp_path), "x" * 5000
    assert not code.has_file(f"{name}.py")
    with pytest.raises(ConfigError, match="no file 'xxx"):
        code.find_file(f"{name}.py")
