"""Finding a user's class by a text: `my_module:MyEnv`, `my_module.MyEnv`, `path/to/my_env.py:MyEnv`.

Naming a module runs its code: only a text that the user wrote (a command, a config file, a program) may come here.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.envs.env_errors import logger, notice_once, own_words, start_error
from shoal.errors import ConfigError

_imported_here: set[str] = set()


class ModuleMissing(ConfigError):
    """No module of that name can be found."""


class AttributeMissing(ConfigError):
    """The module is there, but has nothing of that name."""


@contextmanager
def importable(search_path: Sequence[str]) -> Iterator[None]:
    """Let imports find modules in these folders: before installed packages, after the standard library."""
    at = _after_standard_library()
    added = [folder for folder in dict.fromkeys(search_path) if folder not in sys.path[:at]]
    sys.path[at:at] = added
    importlib.invalidate_caches()
    try:
        yield
    finally:
        # What the user's own code did to sys.path stays.
        for folder in added:
            if folder in sys.path:
                sys.path.remove(folder)


def load_module(name: str, search_path: Sequence[str]) -> ModuleType:
    """Import a module by its dotted name."""
    top = name.partition(".")[0]
    wanted = _file_in(top, search_path)
    if top in _imported_here and wanted and not _same_file(sys.modules.get(top), wanted):
        # An earlier experiment of this process had another module of this name, next to another config file.
        for stale in [key for key in sys.modules if key == top or key.startswith(top + ".")]:
            del sys.modules[stale]
    was_there = top in sys.modules
    try:
        with importable(search_path):
            module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ModuleMissing(f"no module {name!r} in {_folders(search_path)} or the installed packages") from error
        raise start_error(f"importing {name!r} failed: {own_words(error)}") from error
    if wanted and not _same_file(sys.modules[top], wanted):
        found = getattr(sys.modules[top], "__file__", None) or "Python itself"
        raise ConfigError(
            f"module {top!r} is {found}, which hides {wanted}; type the file instead, {wanted}:MyEnv, or rename it"
        )
    if not was_there:
        _imported_here.add(top)
        _tell_origin(module)
    return module


def load_file(text: str, search_path: Sequence[str]) -> ModuleType:
    """Run a Python file as a module whose name depends on its path alone, once per process."""
    path = find_file(text, search_path)
    name = f"shoal_env_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with importable([str(path.parent), *search_path]):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise start_error(f"importing {path} failed: {own_words(error)}") from error
    _tell_origin(module)
    return module


def attribute(module: ModuleType, name: str, of_env: bool = True) -> Any:
    """What a module calls by that name, which may be dotted; an environment, or `of_env` is False."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            where = getattr(module, "__file__", None) or module.__name__
            raise AttributeMissing(f"{where} has no {name!r}{_offers(module, name, of_env)}")
        found = getattr(found, part)
    return found


def load_dotted(text: str, search_path: Sequence[str], of_env: bool = True) -> Any:
    """The object behind `package.module.Class`, where the module is the longest part that can be imported."""
    parts = text.split(".")
    missing: ConfigError | None = None
    for cut in range(len(parts) - 1, 0, -1):
        try:
            module = load_module(".".join(parts[:cut]), search_path)
        except ModuleMissing as error:
            missing = error
            continue
        return attribute(module, ".".join(parts[cut:]), of_env)
    assert missing is not None
    raise missing


def load_named(key: str, text: str, search_path: Sequence[str]) -> Any:
    """The object behind `my_module.name`, `my_module:name` or `my_file.py:name`; `key` is where the text stands."""
    try:
        return _named(text, search_path)
    except ConfigError as error:
        raise ConfigError(f"{key} {text!r}: {error}") from error


def _named(text: str, search_path: Sequence[str]) -> Any:
    place, colon, name = text.rpartition(":")
    if "<" in text:
        raise ConfigError("it is inside a function of a program; start from that program")
    if not colon and "." in text and not text.endswith(".py"):
        return load_dotted(text, search_path, of_env=False)
    if not place or not name:
        raise ConfigError("type my_module.name or my_file.py:name")
    module = load_file(place, search_path) if place.endswith(".py") else load_module(place, search_path)
    return attribute(module, name, of_env=False)


def _after_standard_library() -> int:
    stdlib = os.path.dirname(os.__file__)
    own = (stdlib, os.path.join(stdlib, "lib-dynload"))
    return max((place + 1 for place, entry in enumerate(sys.path) if entry in own), default=0)


def _file_in(top: str, search_path: Sequence[str]) -> str | None:
    """The file that a top-level module would have in these folders (a plain folder makes no claim)."""
    importlib.invalidate_caches()
    spec = PathFinder.find_spec(top, list(search_path)) if search_path else None
    return spec.origin if spec is not None and spec.has_location else None


def _same_file(module: ModuleType | None, file: str) -> bool:
    found = getattr(module, "__file__", None)
    return found is not None and os.path.realpath(found) == os.path.realpath(file)


def find_file(text: str, search_path: Sequence[str]) -> Path:
    """The file that a path means, looked for in these folders, else in the working folder."""
    path = Path(text).expanduser()
    folders = list(search_path) or [os.getcwd()]
    # An absolute path swallows the folder before it.
    for folder in folders:
        if (Path(folder) / path).is_file():
            return (Path(folder) / path).resolve()
    where = "" if path.is_absolute() else f" in {_folders(folders)}"
    raise ConfigError(f"no file {text!r}{where}")


def _folders(search_path: Sequence[str]) -> str:
    return ", ".join(search_path) or "sys.path"


def _offers(module: ModuleType, name: str, of_env: bool) -> str:
    if module.__name__ == "__main__":
        return "; it was defined in the program that started the run: start from that program"
    public = [key for key in vars(module) if not key.startswith("_")]
    near = difflib.get_close_matches(name, public, n=3)
    if near:
        return f"; did you mean {', '.join(near)}?"
    own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    if of_env:
        own = {key: value for key, value in own.items() if inspect.isclass(value) and hasattr(value, "step")}
    return f"; its {'environments' if of_env else 'names'} are: {', '.join(own)}" if own else ""


def _tell_origin(module: ModuleType) -> None:
    file = getattr(module, "__file__", None)
    if file is None:
        return
    logger.info("environment code comes from %s", file)
    for path in (Path(file), Path(file).parent):
        mode = path.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            notice_once(f"{path} can be written by every user of this machine, and shoal runs the code in it")
