"""Ray's class for a scheduler or a searcher, imported when it is made."""

from __future__ import annotations

import importlib
from typing import Any

from shoal.config.sweep_options import TuneMethod


def ray_class(method: TuneMethod) -> Any:
    """The class itself."""
    module, _, name = method.ray_class.partition(":")
    return getattr(importlib.import_module(module), name)
