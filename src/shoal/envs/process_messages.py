"""What goes to an environment's process: pickled commands, with what only this program defines."""

from __future__ import annotations

import pickle
import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

from shoal.envs.env_errors import error_text
from shoal.envs.env_process import LENGTH, EnvPlan
from shoal.errors import EnvStartError


def packed(value: Any, *owners: Any) -> bytes:
    """Anything as bytes that another Python can read, also what the modules of `owners` define.

    A function or class goes by its name where the other one can import that, else whole.
    """
    import cloudpickle

    names = {getattr(owner, "__module__", None) for owner in owners}
    strangers = [module for name in names if (module := sys.modules.get(str(name))) and not _is_importable(module)]
    for module in strangers:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:  # of whatever the user's objects raise
        raise EnvStartError(
            f"env: it cannot be sent to another process ({error_text(error)}): it, or the function that makes it, "
            "holds a lock, an open file, a connection or the like; make these where the environment itself is made"
        ) from error
    finally:
        for module in strangers:
            cloudpickle.unregister_pickle_by_value(module)


def _is_importable(module: ModuleType) -> bool:
    """Whether another Python with the same path finds the module by its name."""
    top, _, inner = module.__name__.partition(".")
    if top == "__main__" or top in sys.builtin_module_names:
        return True
    spec = PathFinder.find_spec(top, sys.path)
    file = getattr(module, "__file__", None)
    return spec is not None and (bool(inner) or file is None or spec.origin == file)


def message(name: str, arguments: tuple[Any, ...], *owners: Any) -> bytes:
    """A command with its arguments, as an environment's process reads it."""
    data = packed((name, arguments), *owners) if owners else pickle.dumps((name, arguments))
    return b"c" + LENGTH.pack(len(data)) + data


def owners_of(plan: EnvPlan) -> list[Any]:
    """What makes a plan's environments and observes them, whose modules another process may not find."""
    target = getattr(plan.maker.create, "target", plan.maker.create)
    return [getattr(target, "func", target), getattr(plan.observer, "callbacks", None)]
