"""What the schema of a policy allows is taken, and nothing else."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from exported_policies import EVERYTHING, MASKED, PICTURE, box
from gymnasium import spaces

from shoal.envs.observations import ObsSpec
from shoal.envs.repeated import Repeated
from shoal.envs.spaces import ActionSpec
from shoal.serving.space_json import ObservationForm, action_json, action_schema

UNITS = spaces.Dict(place=box(2), kind=spaces.Discrete(3, start=-1))
SPACES: dict[str, Any] = {
    "vector": box(3),
    "scalar": spaces.Box(-1, 1, ()),
    "choice": spaces.Discrete(4, start=2),
    "large choices": spaces.Discrete(3, start=2**60),
    "choices": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "equal choices": spaces.MultiDiscrete([3, 3]),
    "bits": spaces.MultiBinary((2, 2)),
    "bytes": spaces.Box(0, 255, (2, 2), np.uint8),
    "whole": spaces.Box(0, 10, (2,), np.int64),
    "everything": EVERYTHING,
    "masked": MASKED,
    "masked once": MASKED,
    "masked by parts": spaces.Dict(
        action_mask=spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(3)]), seen=box(1)
    ),
    "picture": PICTURE,
    "nested": spaces.Tuple([spaces.Dict(a=spaces.Tuple([box(1), spaces.Discrete(2)])), box(2)]),
    "repeated": spaces.Dict(units=Repeated(UNITS, 3), own=box(1)),
    "stacked": spaces.Dict(units=spaces.Sequence(box(2), stack=True), own=box(1)),
}
STRANGE = [
    None,
    True,
    False,
    0,
    1,
    2,
    -1,
    256,
    0.5,
    1.0,
    1e18,
    1.1e18,
    -(10**30),
    1e400,
    "1",
    "",
    [],
    [1],
    {},
    {"a": 1},
]


def form_of(name: str) -> ObservationForm:
    masked = {"masked once": spaces.Discrete(5)}.get(name, spaces.MultiDiscrete([2, 3]))
    actions = ActionSpec(masked) if name.startswith("masked") else None
    return ObservationForm(ObsSpec(SPACES[name], actions=actions, max_len=4))


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every list or object of a tree, with each key or index of it."""
    found: list[tuple[Any, Any]] = []
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        found += [(tree, key), *places(child)]
    return found


def changed(tree: Any, rng: np.random.Generator) -> Any:
    """A tree with one thing that is not as it was."""
    tree = copy.deepcopy(tree)
    strange = STRANGE[rng.integers(len(STRANGE))]
    at = places(tree)
    if not at:
        return strange
    holder, key = at[rng.integers(len(at))]
    what = rng.integers(3)
    if what == 0:
        holder[key] = strange
    elif what == 1:
        del holder[key]
    elif isinstance(holder, list):
        holder.append(strange)
    else:
        holder["more"] = strange
    return tree


def valid(name: str, rng: np.random.Generator) -> Any:
    """An observation as JSON."""
    space = SPACES[name]
    space.seed(int(rng.integers(1 << 30)))
    drawn = space.sample()
    if name == "stacked":
        drawn["units"] = list(drawn["units"][:4])
    elif name in ("masked", "masked once"):
        drawn["action_mask"] = rng.integers(0, 2, 5)
    return json.loads(json.dumps(action_json(drawn)))


def refused(form: ObservationForm, tree: Any) -> str | None:
    """Why an observation is not taken."""
    try:
        form.parsed(tree, "observation")
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", SPACES)
def test_what_the_schema_says_is_what_is_taken(name: str) -> None:
    form, rng = form_of(name), np.random.default_rng(5)
    schema = form.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    outcomes = set()
    for number in range(60 if name in ("picture", "everything") else 160):
        tree = valid(name, rng)
        if number % 4:
            tree = changed(tree, rng)
        is_valid = validator.is_valid(tree)
        refusal = refused(form, tree)
        assert (refusal is None) == is_valid, (tree, refusal)
        assert refusal is None or (refusal.startswith("observation") and "\n" not in refusal)
        outcomes.add(is_valid)
    assert outcomes == {True, False}


@pytest.mark.parametrize(
    ("name", "tree", "sentence"),
    [
        ("vector", [1, "a", 2], "observation[1] must be a number (got 'a')"),
        ("vector", [1, 2], "observation must be lists of shape [3] with numbers (got a list of 2)"),
        ("scalar", [1], "observation must be a number (got a list of 1)"),
        ("bits", [[1, 0], [True, None]], "observation[1][1] must be a number (got null)"),
        ("bytes", [[1, 2], [3]], "observation[1] must be lists of shape [2] with numbers (got a list of 1)"),
        ("bytes", [[1, 2], 3], "observation[1] must be lists of shape [2] with numbers (got 3)"),
    ],
)
def test_what_does_not_fit_is_named_by_its_place(name: str, tree: Any, sentence: str) -> None:
    assert refused(form_of(name), tree) == sentence


def test_a_float_of_a_box_may_lie_outside_of_it() -> None:
    """As it may in training."""
    tree = [50.0, 0.0, -1e9]
    assert form_of("vector").parsed(tree, "observation").tolist() == tree


@pytest.mark.parametrize("name", SPACES)
def test_what_is_taken_are_the_numbers_of_the_environment(name: str) -> None:
    form, rng = form_of(name), np.random.default_rng(6)
    for _ in range(20):
        tree = valid(name, rng)
        rows, again = form.spec.allocate(1), form.spec.allocate(1)
        if name.startswith("masked"):
            tree["action_mask"] = [[0, 1], [0, 1, 1]] if name == "masked by parts" else [1, 0, 0, 1, 1]
        form.spec.put(form.parsed(tree, "observation"), rows, 0)
        form.spec.put(form.parsed(action_json(form.spec.get(rows, 0)), "observation"), again, 0)
        for part, other in zip(rows, again, strict=True):
            np.testing.assert_allclose(part, other, rtol=1e-6)
        form.parsed(form.example(), "observation")
    if name == "large choices":
        assert form.parsed(2**60 + 2, "observation") == 2**60 + 2, "which no double can tell from its neighbour"
        with pytest.raises(ValueError, match="must be whole"):
            form.parsed(2**60 + 3, "observation")


@pytest.mark.parametrize("space", [EVERYTHING, box(2), spaces.Discrete(3, start=-1), spaces.Tuple([box(1)])])
def test_actions_are_of_their_schema(space: Any) -> None:
    schema = action_schema(space)
    for _ in range(20):
        jsonschema.validate(json.loads(json.dumps(action_json(space.sample()))), schema)
