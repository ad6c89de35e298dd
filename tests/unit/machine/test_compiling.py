"""Libraries are compiled once for a CPU, and loaded only from where nobody else can write."""

from __future__ import annotations

import os
import shutil

import pytest

from shoal.machine import compiling
from shoal.machine.compiling import compiled, private_cache

pytestmark = pytest.mark.skipif(not any(map(shutil.which, compiling.COMPILERS)), reason="there is no C compiler")
SEVEN = "int seven(void) { return 7; }\n"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "shoal" / "kernels"


def without_compiler(monkeypatch) -> None:
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)


def test_a_library_is_compiled_once_and_serves_who_has_no_compiler(cache, monkeypatch) -> None:
    library, digest = compiled(SEVEN, "test")
    assert library.seven() == 7
    (path,) = cache.glob("*.so")
    assert digest in path.name
    without_compiler(monkeypatch)
    again, same = compiled(SEVEN, "test")
    assert (again.seven(), same) == (7, digest)
    assert cache.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    assert {file.suffix for file in cache.iterdir()} == {".so", ".lock"}, "nothing else is left behind"


def test_another_cpu_and_another_source_need_libraries_of_their_own(cache, monkeypatch) -> None:
    compiled(SEVEN, "test")
    compiled(SEVEN + "\n", "test")
    monkeypatch.setattr(compiling, "cpu_kind", lambda: "a CPU without AVX")
    compiled(SEVEN, "test")
    assert len(list(cache.glob("*.so"))) == 3


@pytest.mark.parametrize("harm", ["other content", "others may write", "a link"])
def test_what_others_may_have_planted_is_not_loaded(cache, monkeypatch, harm, tmp_path) -> None:
    compiled(SEVEN, "test")
    (path,) = cache.glob("*.so")
    if harm == "other content":
        content = path.read_bytes()
        path.unlink()  # what is loaded stays what it was
        path.write_bytes(content + b"\0")
        path.chmod(0o600)
    elif harm == "others may write":
        path.chmod(0o622)
    else:
        path.rename(tmp_path / "elsewhere.so")
        path.symlink_to(tmp_path / "elsewhere.so")
    with monkeypatch.context() as patch:
        without_compiler(patch)
        with pytest.raises(OSError, match="no C compiler"):
            compiled(SEVEN, "test")
    library, _ = compiled(SEVEN, "test")
    assert library.seven() == 7
    assert not path.is_symlink()


def test_a_folder_of_others_is_refused(cache, tmp_path, monkeypatch) -> None:
    private_cache().chmod(0o770)
    with pytest.raises(OSError, match=r"others may write to .*kernels; type: chmod 700 "):
        compiled(SEVEN, "test")
    cache.rmdir()
    cache.symlink_to(tmp_path)
    with pytest.raises(OSError, match="is not a folder of this user"):
        compiled(SEVEN, "test")
    cache.unlink()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match="is not a folder of this user"):
        compiled(SEVEN, "test")


def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"file/shoal cannot be made \(Not a directory\); set XDG_CACHE_HOME"):
        compiled(SEVEN, "test")


def test_what_a_compiler_refuses_is_told_in_a_sentence(cache, monkeypatch) -> None:
    with pytest.raises(OSError, match=r"cannot compile it: .*kernel.c:1.*error"):
        compiled("int seven(void) { return }", "test")
    assert not list(cache.glob("*.so"))
    monkeypatch.setenv("CC", "true")
    with pytest.raises(OSError, match=r"^true ended without an error and wrote nothing; set the variable CC to a C"):
        compiled(SEVEN, "test")
    monkeypatch.setenv("CC", "'gcc")
    with pytest.raises(OSError, match=r"^the variable CC is no command .*no closing quotation.*; set the variable CC"):
        compiled(SEVEN, "test")
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    with pytest.raises(OSError, match="there is no C compiler no-such-compiler, which the variable CC names"):
        compiled(SEVEN, "test")


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (
            '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho text > "$2"\n',
            "what the C compiler wrote cannot be loaded",
        ),
        ("\0\0\0\0 no program of this machine", "it cannot be run"),
    ],
)
def test_a_compiler_for_other_machines_leaves_nothing_behind(cache, monkeypatch, tmp_path, program, problem) -> None:
    other = tmp_path / "other-cc"
    other.write_text(program)
    other.chmod(0o700)
    monkeypatch.setenv("CC", str(other))
    with pytest.raises(OSError, match=f"{problem}.*; set the variable CC to a C compiler for this machine$"):
        compiled(SEVEN, "test")
    monkeypatch.delenv("CC")
    assert compiled(SEVEN, "test")[0].seven() == 7
