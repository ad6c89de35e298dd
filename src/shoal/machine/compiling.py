"""Compiling C for the CPU at hand, once: libraries are kept in a folder that only this user can write.

A library is known by what it was made of: its source, the flags, and the CPU's kind and features, so that hosts of
different kinds may share a home. The compiler is not a part of that: a node that has none uses what a login node with
the same CPU has compiled. The SHA-256 of a library is in its name, and is checked before it is loaded.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
NATIVE = ("-march=native", "-mcpu=native")  # x86, and what some compilers for ARM want
COMPILERS = ("cc", "gcc", "clang")
LONGEST_S = 120
OTHER_COMPILER = "set the variable CC to a C compiler for this machine"
CPU_LINES = ("vendor_id", "cpu family", "model", "model name", "flags", "CPU implementer", "CPU part", "Features")


def compiled(source: str, name: str) -> tuple[ctypes.CDLL, str]:
    """The library of some C, compiled now or kept from before, and the beginning of its SHA-256.

    An OSError says in a sentence why there is none.
    """
    folder = private_cache()
    made_of = "\0".join([source, *FLAGS, *NATIVE, platform.machine(), platform.libc_ver()[0], cpu_kind()])
    key = f"{name}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
    with _locked(folder / f"{key}.lock"):  # of many processes that start together, one compiles
        path = _kept(folder, key) or _compile(source, folder, key)
        try:
            return ctypes.CDLL(str(path)), path.stem.rsplit("-", 1)[1][:12]
        except OSError as error:
            path.unlink(missing_ok=True)  # of a compiler for other machines, which must not stay
            raise OSError(f"what the C compiler wrote cannot be loaded here ({error}); {OTHER_COMPILER}") from None


def private_cache() -> Path:
    """The folder for libraries, which `XDG_CACHE_HOME` may move; an OSError tells if others could write there."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = Path(cache) if os.path.isabs(cache) else Path("~/.cache").expanduser()
    except RuntimeError as error:
        raise OSError("there is no home folder to keep a library in; set XDG_CACHE_HOME") from error
    folder = root / "shoal"
    for place in (folder, folder / "kernels"):
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                f"{place} cannot be made ({error.strerror}); set XDG_CACHE_HOME to a folder of yours"
            ) from None
        found = place.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(f"{place} is not a folder of this user; remove it, or set XDG_CACHE_HOME")
        if found.st_mode & 0o022:
            raise OSError(f"others may write to {place}; type: chmod 700 {shlex.quote(str(place))}")
    return folder / "kernels"


def cpu_kind() -> str:
    """What tells this CPU from those that need other instructions: its kind, and what it can do."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in CPU_LINES:
                found.setdefault(name.strip(), value.strip())  # of the first core
    return repr(found or platform.processor())


def _compiler() -> list[str]:
    named = os.environ.get("CC", "")
    try:
        said = shlex.split(named)
    except ValueError as error:
        raise OSError(f"the variable CC is no command ({named!r}: {str(error).lower()}); {OTHER_COMPILER}") from None
    if said:
        if shutil.which(said[0]) is None:
            raise OSError(f"there is no C compiler {said[0]}, which the variable CC names")
        return said
    for name in COMPILERS:
        if shutil.which(name) is not None:
            return [name]
    raise OSError(
        f"there is no C compiler here ({', '.join(COMPILERS)}), and no library that was compiled for this CPU"
    )


def _kept(folder: Path, key: str) -> Path | None:
    """The library that was compiled before, if it is whole and nobody else can have written it."""
    for path in sorted(folder.glob(f"{key}-*.so")):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
                if is_own and path.stem == f"{key}-{hashlib.sha256(file.read()).hexdigest()}":
                    return path
    return None


def _compile(source: str, folder: Path, key: str) -> Path:
    """Compile into a folder of its own, and move the library to its place when it is whole."""
    compiler = _compiler()
    with tempfile.TemporaryDirectory(prefix=f"{key}-", dir=folder) as room:
        (Path(room) / "kernel.c").write_text(source)
        library = Path(room) / "kernel.so"
        problem = ""
        for native in NATIVE:
            command = [*compiler, *FLAGS, native, "-o", str(library), str(Path(room) / "kernel.c"), "-lm"]
            problem = _run(command)
            if not problem:
                break
        if problem:
            raise OSError(f"{compiler[0]} cannot compile it: {problem}")
        if not library.is_file():
            raise OSError(f"{compiler[0]} ended without an error and wrote nothing; {OTHER_COMPILER}")
        library.chmod(0o600)
        content = library.read_bytes()
        with library.open("rb") as file:
            os.fsync(file.fileno())
        path = folder / f"{key}-{hashlib.sha256(content).hexdigest()}.so"
        library.replace(path)
    return path


def _run(command: list[str]) -> str:
    """Run a compiler; returns what was wrong, in one line."""
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST_S,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {LONGEST_S} s"
    except OSError as error:
        return f"it cannot be run ({error.strerror}); {OTHER_COMPILER}"
    lines = ended.stderr.strip().splitlines()
    errors = [line for line in lines if "error" in line] or lines
    if not ended.returncode:
        return ""
    return errors[0] if errors else f"it ended with exit code {ended.returncode}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        with suppress(OSError):  # where nobody can lock, each compiles its own, and one of them stays
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
