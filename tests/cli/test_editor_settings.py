"""`shoal config schema --vscode`: settings that are there stay, and what cannot be merged is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.cli.main import main


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".vscode" / "settings.json"


def vscode(*more: str) -> Result:
    return CliRunner().invoke(main, ["config", "schema", "--vscode", *more], prog_name="shoal")


def test_settings_are_made_and_found_again(settings: Path) -> None:
    assert vscode().exit_code == 0
    ((schema, files),) = json.loads(settings.read_text())["yaml.schemas"].items()
    assert json.loads((settings.parents[1] / schema).read_text())["definitions"]["config_PPO"]
    assert files == ["experiment*.yml", "sweep*.yml", "best.yml"]
    before = settings.read_text()
    assert "uses it already" in vscode().output
    assert settings.read_text() == before


def test_what_is_there_stays(settings: Path) -> None:
    settings.parent.mkdir()
    own = {"editor.tabSize": 3, "yaml.schemas": {"./other.json": "*.yaml"}, "größe": 1}
    settings.write_text(json.dumps(own, indent="\t", ensure_ascii=False))
    assert vscode("--files", "runs/*.yml").exit_code == 0
    found = json.loads(settings.read_text())
    assert found.pop("yaml.schemas") == {
        "./other.json": "*.yaml",
        "./.vscode/shoal-experiments.schema.json": ["runs/*.yml"],
    }
    assert found == {"editor.tabSize": 3, "größe": 1}
    assert '\n\t"editor.tabSize"' in settings.read_text()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1} // mine\n', "has comments or is no plain JSON"),
        ('{"a": 1,}\n', "has comments or is no plain JSON"),
        ("[]", "is no mapping of settings"),
        ('{"yaml.schemas": "x"}', "yaml.schemas is no mapping"),
    ],
)
def test_what_cannot_be_merged_is_left_alone(settings: Path, text: str, problem: str) -> None:
    settings.parent.mkdir()
    settings.write_text(text)
    done = vscode()
    assert done.exit_code == 2
    assert problem in done.output
    assert "by hand" in done.output
    assert settings.read_text() == text
    assert list(settings.parent.iterdir()) == [settings]


def test_a_linked_file_is_written_where_it_is(settings: Path, tmp_path: Path) -> None:
    own = tmp_path / "dotfiles" / "settings.json"
    own.parent.mkdir()
    own.write_text('{"a": 1}')
    settings.parent.mkdir()
    settings.symlink_to(own)
    assert vscode().exit_code == 0
    assert settings.is_symlink()
    assert sorted(json.loads(own.read_text())) == ["a", "yaml.schemas"]
    settings.unlink()
    settings.symlink_to(settings)
    done = vscode()
    assert (done.exit_code, "cannot be read" in done.output) == (2, True)


def test_a_schema_replaces_no_file_but_a_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def written(name: str) -> Result:
        return CliRunner().invoke(main, ["config", "schema", "-o", name], prog_name="shoal")

    Path("my_env.py").write_text("class MyEnv: ...\n")
    done = written("my_env.py")
    assert done.exit_code == 2
    assert "Error: -o my_env.py: is there already, and is no schema of shoal's; give another name" in done.output
    assert Path("my_env.py").read_text() == "class MyEnv: ...\n"
    Path("mine.json").touch()
    for _ in range(2):
        assert written("mine.json").exit_code == 0
    first = Path("mine.json").read_text()
    Path("mine.json").write_text(first[:600])  # of another version
    assert written("mine.json").exit_code == 0
    assert Path("mine.json").read_text() == first


def test_no_folders_are_made_but_the_editor_s_own(settings: Path, tmp_path: Path) -> None:
    words = ["config", "schema", "-o", "new/folder/schema.json"]
    done = CliRunner().invoke(main, words, prog_name="shoal")
    assert done.exit_code == 2
    assert f"there is no folder {tmp_path}/new/folder; make it, or give another place" in done.output
    assert list(tmp_path.iterdir()) == []
    settings.parent.write_text("a file")
    done = vscode()
    assert done.exit_code == 2
    assert "settings.json cannot be read: Not a directory" in done.output
