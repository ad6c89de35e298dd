"""The user's own code, and what a text means in it: `my_module:MyEnv`, `my_module.MyEnv`, `path/to/my_env.py:MyEnv`.

Naming a module runs its code: only a text that the user wrote (a command, a config file, a program), or that a run of
the user's own has written down, may be loaded; `UserCode.is_trusted` is False where it is a stranger's.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.envs.env_errors import error_text, logger, notice_once, pass_on_interrupts
from shoal.errors import AttributeMissing, ConfigError, EnvStartError, ModuleMissing, NotTrusted

SDL_WITHOUT_SIGNALS = "SDL_NO_SIGNAL_HANDLERS", "1"
"""Pygame draws with SDL, which would take SIGTERM and make an event of it that nobody in an environment looks at."""

_imported_here: set[str] = set()


@dataclass(frozen=True)
class UserCode:
    """The user's own code: the folders that hold it, in the order of the search, and how a name in it is loaded.

    Installed packages are found without it. It goes to other processes, which find the same code there. Code that is
    not `is_trusted` is named by a stranger's run: none of it is loaded.
    """

    folders: tuple[str, ...] = ()
    is_trusted: bool = True

    @classmethod
    def at(cls, *folders: str | Path) -> UserCode:
        """The code in these folders, whatever the working folder will be."""
        return cls(tuple(dict.fromkeys(os.path.abspath(os.path.expanduser(folder)) for folder in folders)))

    def with_working_folder(self) -> UserCode:
        """The same code, and after it what the working folder holds."""
        return UserCode.at(*self.folders, ".") if self.is_trusted else self

    def check_trusted(self, what: str) -> None:
        """Refuse what would run a stranger's code: every way to it begins here."""
        if not self.is_trusted:
            raise NotTrusted(f"{what} is named by a run that is not yours; read it, and add --trust to let it run here")

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Let imports find its modules: before installed packages, after the standard library."""
        os.environ.setdefault(*SDL_WITHOUT_SIGNALS)
        at = _after_standard_library()
        added = [folder for folder in self.folders if folder not in sys.path[:at]]
        sys.path[at:at] = added
        importlib.invalidate_caches()
        try:
            yield
        finally:
            # What the user's own code did to sys.path stays.
            for folder in added:
                if folder in sys.path:
                    sys.path.remove(folder)

    def load_module(self, name: str) -> ModuleType:
        """Import a module by its dotted name."""
        self.check_trusted(f"the module {name}")
        top = name.partition(".")[0]
        wanted = self._file_of(top)
        if top in _imported_here and wanted and not _same_file(sys.modules.get(top), wanted):
            # An earlier experiment of this process had another module of this name, next to another config file.
            for stale in [key for key in sys.modules if key == top or key.startswith(top + ".")]:
                del sys.modules[stale]
        was_there = top in sys.modules
        try:
            with self.importable():
                module = importlib.import_module(name)
        except BaseException as error:
            pass_on_interrupts(error)
            if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
                raise ModuleMissing(f"no module {name!r} in {self} or the installed packages") from error
            raise EnvStartError(f"importing {name!r} failed: {error_text(error)}") from error
        if wanted and not _same_file(sys.modules[top], wanted):
            found = getattr(sys.modules[top], "__file__", None) or "Python itself"
            raise ConfigError(
                f"module {top!r} is {found}, which hides {wanted}; type the file instead, {wanted}:MyEnv, or rename it"
            )
        if not was_there:
            _imported_here.add(top)
            _tell_origin(module)
        return module

    def load_file(self, text: str) -> ModuleType:
        """Run a Python file as a module whose name depends on its path alone, once per process."""
        path = self.find_file(text)
        name = f"shoal_env_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            with UserCode.at(path.parent, *self.folders).importable():
                spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            pass_on_interrupts(error)
            raise EnvStartError(f"importing {path} failed: {error_text(error)}") from error
        _tell_origin(module)
        return module

    def load_dotted(self, text: str, of_env: bool = True) -> Any:
        """The object behind `package.module.Class`, where the module is the longest part that can be imported."""
        parts = text.split(".")
        missing: ConfigError | None = None
        for cut in range(len(parts) - 1, 0, -1):
            try:
                module = self.load_module(".".join(parts[:cut]))
            except ModuleMissing as error:
                missing = error
                continue
            return attribute(module, ".".join(parts[cut:]), of_env)
        assert missing is not None
        raise missing

    def load_named(self, key: str, text: str) -> Any:
        """The object behind `my_module.name`, `my_module:name`, `my_file.py:name`; `key` is where the text stands."""
        self.check_trusted(f"{key} {text!r}")
        try:
            return self._named(text)
        except ConfigError as error:
            raise ConfigError(f"{key} {text!r}: {error}") from error

    def find_file(self, text: str) -> Path:
        """The file that a path means, looked for in the folders; where there are none, in the working folder."""
        self.check_trusted(f"the file {text}")
        path = Path(text).expanduser()
        searched = self if self.folders else self.with_working_folder()
        # An absolute path swallows the folder before it.
        for folder in searched.folders:
            if os.path.isfile(Path(folder) / path):
                return (Path(folder) / path).resolve()
        where = "" if path.is_absolute() else f" in {searched}"
        raise ConfigError(f"no file {text!r}{where}")

    def has_file(self, name: str) -> bool:
        """Whether one of the folders has a file of that name."""
        # Which is false, and no error, for a name that is longer than a file's may be.
        return any(os.path.isfile(Path(folder, name)) for folder in self.folders)

    def __str__(self) -> str:
        """The folders as a message names them."""
        return ", ".join(self.folders) or "sys.path"

    def _named(self, text: str) -> Any:
        place, colon, name = text.rpartition(":")
        if "<" in text:
            raise ConfigError("it is inside a function of a program; start from that program")
        if not colon and "." in text and not text.endswith(".py"):
            return self.load_dotted(text, of_env=False)
        if not place or not name:
            raise ConfigError("type my_module.name or my_file.py:name")
        module = self.load_file(place) if place.endswith(".py") else self.load_module(place)
        return attribute(module, name, of_env=False)

    def _file_of(self, top: str) -> str | None:
        """The file that a top-level module would have in the folders (a plain folder makes no claim)."""
        importlib.invalidate_caches()
        spec = PathFinder.find_spec(top, list(self.folders)) if self.folders else None
        return spec.origin if spec is not None and spec.has_location else None


INSTALLED = UserCode()
"""No code but that of installed packages."""


def attribute(module: ModuleType, name: str, of_env: bool = True) -> Any:
    """What a module calls by that name, which may be dotted; an environment, or `of_env` is False."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            where = getattr(module, "__file__", None) or module.__name__
            raise AttributeMissing(f"{where} has no {name!r}{_offers(module, name, of_env)}")
        found = getattr(found, part)
    return found


def _after_standard_library() -> int:
    stdlib = os.path.dirname(os.__file__)
    own = (stdlib, os.path.join(stdlib, "lib-dynload"))
    return max((place + 1 for place, entry in enumerate(sys.path) if entry in own), default=0)


def _same_file(module: ModuleType | None, file: str) -> bool:
    found = getattr(module, "__file__", None)
    return found is not None and os.path.realpath(found) == os.path.realpath(file)


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
    if not own:
        return ""
    what = "environments" if of_env else "names"
    return f"; its {what} are: {', '.join(own)}"


def _tell_origin(module: ModuleType) -> None:
    file = getattr(module, "__file__", None)
    if file is None:
        return
    logger.info("environment code comes from %s", file)
    for path in (Path(file), Path(file).parent):
        mode = path.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            notice_once(f"{path} can be written by every user of this machine, and shoal runs the code in it")
