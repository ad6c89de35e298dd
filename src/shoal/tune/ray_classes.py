"""Ray's class for a scheduler or a searcher, imported when it is made."""

from __future__ import annotations

import importlib
from typing import Any

from shoal.config.sweep_options import Choosable


def ray_class(choosable: Choosable) -> Any:
    """The class itself."""
    module, _, name = choosable.ray_class.partition(":")
    return getattr(importlib.import_module(module), name)
