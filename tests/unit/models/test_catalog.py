"""Custom models are found by class, by registered name and by path, and torch is not needed for looking."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal.envs.importing import UserCode
from shoal.errors import ConfigError, ShoalError
from shoal.models.catalog import ModelCatalog, custom_model_class, register_custom_model

SOURCE = "class MyModel:\n    pass\n\n\nnot_a_class = 3\n"


class First:
    pass


class Second:
    pass


def test_registered_names():
    register_custom_model("a_first_model", First)
    assert custom_model_class("a_first_model") is First
    ModelCatalog.register_custom_model("a_first_model", Second)
    assert custom_model_class("a_first_model") is Second
    assert custom_model_class(First) is First
    with pytest.raises(ConfigError, match="no model 'a_frist_model' is registered; did you mean a_first_model"):
        custom_model_class("a_frist_model")


@pytest.mark.parametrize("text", ["found_models.MyModel", "found_models:MyModel", "found_models.py:MyModel"])
def test_paths(tmp_path, text):
    (tmp_path / "found_models.py").write_text(SOURCE)
    assert custom_model_class(text, UserCode.at(tmp_path)).__name__ == "MyModel"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_module.MyModel", "^config.model.custom_model 'no_such_module.MyModel': no module 'no_such_module'"),
        ("lost_models:Missing", "no 'Missing'"),
        ("__main__.Missing", "it was defined in the program that started the run: start from that program"),
        ("lost_models:MyModl", "did you mean MyModel"),
        ("lost_models:not_a_class", "is not a class"),
        ("absent.py:MyModel", "no file 'absent.py'"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, text, message):
    (tmp_path / "lost_models.py").write_text(SOURCE)
    with pytest.raises(ShoalError, match=message):
        custom_model_class(text, UserCode.at(tmp_path))


@pytest.mark.parametrize(("name", "model"), [("", First), (3, First), ("x", First())])
def test_wrong_registrations(name, model):
    with pytest.raises(ConfigError, match="register_custom_model"):
        register_custom_model(name, model)


def test_the_catalog_does_not_import_torch():
    code = "import sys, shoal.models.catalog; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
