"""Ids that other packages register: found without importing them, and imported when one of them is meant."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import gymnasium
import pytest

from shoal.envs import written_ids
from shoal.envs.context import EnvContext
from shoal.envs.env_errors import notice_once
from shoal.envs.making import env_maker
from shoal.errors import ConfigError, EnvError

Install = Callable[..., None]

REGISTERS = """
    from gymnasium import register

    register(id="{0}", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=7)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs small packages, as pip would lay them out, for one test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules, ids = set(sys.modules), set(gymnasium.registry)

    def forget() -> None:
        written_ids.written_ids.cache_clear()
        written_ids.packages.cache_clear()
        notice_once.cache_clear()

    def lay_out(package: str, files: dict[str, str], requires: str = "gymnasium>=1.0") -> None:
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: {requires}\n"
        )
        for name, text in files.items():
            (tmp_path / package / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / package / name).write_text(textwrap.dedent(text))
        (info / "RECORD").write_text("".join(f"{package}/{name},,\n" for name in files))
        forget()

    forget()
    yield lay_out
    forget()
    for name in set(sys.modules) - modules:
        if name.startswith("tmp_"):
            del sys.modules[name]
    for env_id in set(gymnasium.registry) - ids:
        if "tmp" in env_id or "Tiny" in env_id:
            del gymnasium.registry[env_id]


def test_an_id_of_one_installed_package_simply_works(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("tmp_roads", {"__init__.py": REGISTERS.format("tmp-road-v0")})
    maker = env_maker("tmp-road-v0")
    assert maker.name == "tmp-road-v0"
    assert caplog.messages == ["env tmp-road-v0 is registered by the package tmp_roads, which is imported for it"]
    assert maker.make(EnvContext())._max_episode_steps == 7  # type: ignore[union-attr]


def test_the_package_may_register_in_a_module_of_its_own(install: Install) -> None:
    install("tmp_tetris", {"__init__.py": "", "envs/__init__.py": REGISTERS.format("tmp_tetris/Blocks")})
    assert "tmp_tetris" not in written_ids.packages(), "its __init__.py registers nothing"
    install(
        "tmp_blocks",
        {
            "__init__.py": "from gymnasium import register\ndef begin(): register('tmp_blocks/A')",
            "b.py": REGISTERS.format("tmp_blocks/B-v2"),
        },
    )
    for source in ("tmp_blocks/B-v2", "tmp_blocks:tmp_blocks/B-v2"):
        assert env_maker(source).name == "tmp_blocks_B-v2"


def test_ids_that_are_put_together_are_found_by_their_namespace(install: Install) -> None:
    made = REGISTERS.replace('"{0}"', 'f"tmp-nets/{name}-v0"').replace(
        "\n    register", "\n    for name in 'AB': register"
    )
    install("tmp_nets", {"__init__.py": made})
    assert env_maker("tmp-nets/B-v0").name == "tmp-nets_B-v0"


def test_nothing_is_imported_for_a_wrong_word(install: Install) -> None:
    install("tmp_boom", {"__init__.py": REGISTERS.format("tmp-boomerang-v3") + "\n    raise OSError('no screen')\n"})
    for text, sentence in (
        ("tmp-boomerangg-v3", r"no such Gymnasium id.*did you mean tmp_boom:tmp-boomerang-v3\?"),
        ("tmp-boomerang-v4", r"there is no such version; type tmp_boom:tmp-boomerang-v3$"),
        ("tmp-boomerang", r"which version\? type tmp_boom:tmp-boomerang-v3$"),
        ("qqqqqqq", r"type a Gymnasium id.*typed package:qqqqqqq \(installed: "),
    ):
        with pytest.raises(ConfigError, match=sentence):
            env_maker(text)
    assert "tmp_boom" not in sys.modules
    with pytest.raises(EnvError, match="importing 'tmp_boom' failed: OSError: no screen"):
        env_maker("tmp-boomerang-v3")


def test_two_packages_with_one_id_are_for_the_user_to_choose(install: Install) -> None:
    for package in ("tmp_a", "tmp_b"):
        install(package, {"__init__.py": REGISTERS.format("tmp-both-v0")})
    with pytest.raises(ConfigError, match="type tmp_a:tmp-both-v0 or tmp_b:tmp-both-v0"):
        env_maker("tmp-both-v0")
    assert env_maker("tmp_b:tmp-both-v0").name == "tmp-both-v0"


@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        ("tmp_net/TinyPO-v0", r"registers no id of that name; did you mean tmp_net:TinyPO-v0\?"),
        ("TinyPO-v7", r"did you mean tmp_net:TinyPO-v0\?"),
        ("TinyPO", r"did you mean tmp_net:TinyPO-v0\?"),
        ("zzz-v0", "it registers TinyPO-v0$"),
        ("Zzz", r"__init__\.py has no 'Zzz'"),
    ],
)
def test_near_ids_are_those_that_the_import_has_registered(install: Install, env_id: str, sentence: str) -> None:
    install("tmp_net", {"__init__.py": REGISTERS.format("TinyPO-v0")})
    with pytest.raises(ConfigError, match=sentence):
        env_maker(f"tmp_net:{env_id}")


def test_a_package_without_environments(install: Install) -> None:
    install("tmp_plain", {"__init__.py": ""})
    with pytest.raises(ConfigError, match="registers no environments; type my_module:MyEnv"):
        env_maker("tmp_plain:some-v0")
