"""Another configuration out of one that is there: checked as if the user had written it, or for our own use alone.

These are the only two ways: pydantic's own `model_copy(update=...)` neither checks values nor refuses unknown keys.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)


def changed(model: Model, /, **values: Any) -> Model:
    """The configuration with other values of some keys, checked as a whole again, as the user's file is."""
    # Not by `model_dump`, which would turn the user's own objects, such as a dataclass in env_config, into mappings.
    said = {name: getattr(model, name) for name in model.model_fields_set}
    return type(model).model_validate({**said, **values})


def unchecked(model: Model, /, **values: Any) -> Model:
    """The configuration with other values of some keys, as a part of a run gets it: not checked.

    A part would be refused as a whole: evaluation has no workers for its learners, a worker no GPU for its framework.
    """
    assert values.keys() <= type(model).model_fields.keys()
    return model.model_copy(update=values)
