from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec, is_image, leaves_of, path_name
from shoal.errors import ConfigError

BOX = spaces.Box(-1, 1, (3,), np.float32)
INF = np.inf
OBSERVATIONS = [
    BOX,
    spaces.Box(-INF, INF, (), np.float32),
    spaces.Box(-INF, INF, (2, 3), np.float64),
    spaces.Box(0, 255, (128,), np.uint8),
    spaces.Box(-(2**20), 2**20, (2, 2, 2), np.int32),
    spaces.Box(0, 255, (12, 10, 3), np.uint8),
    spaces.Box(-1, 1, (2, 9, 9), np.float64),
    spaces.Discrete(5),
    spaces.Discrete(5, start=-2),
    spaces.Discrete(3, start=2**40),
    spaces.Discrete(2**24),
    spaces.MultiDiscrete([3, 1, 7]),
    spaces.MultiDiscrete([3, 4], start=[10, -10]),
    spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[1, 2], [3, 4]]),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 3)),
    spaces.Dict(b=BOX, a=spaces.Discrete(3, start=1), c=spaces.Tuple([spaces.MultiBinary(2), spaces.Dict(d=BOX)])),
    spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 255, (8, 8, 1), np.uint8), spaces.Box(0, 1, (20, 20), np.float32)]),
    spaces.Dict(nothing=spaces.Box(0, 1, (0,)), something=BOX),
    spaces.Dict(nothing=spaces.Box(0, 1, (0,)), picture=spaces.Box(0, 255, (8, 8, 3), np.uint8)),
    spaces.Dict(something=BOX, nothing=spaces.Box(0, 1, (0,))),
]


def boxes(dtypes=(np.float32, np.float64, np.int8, np.int64, np.uint8)):
    @st.composite
    def draw_box(draw):
        dtype = np.dtype(draw(st.sampled_from(dtypes)))
        shape = draw(st.sampled_from([(), (1,), (3,), (2, 2), (2, 1, 2)]))
        if dtype.kind == "f":
            low = draw(st.sampled_from([-INF, -3.5, 0.0, 1e-3]))
            high = draw(st.sampled_from([INF, 1.0, 1e6]))
        else:
            low = draw(st.integers(0 if dtype.kind == "u" else -100, 3))
            high = draw(st.integers(low, 120))
        return spaces.Box(low, high, shape, dtype)

    return draw_box()


leaf_spaces = st.one_of(
    boxes(),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)),
    st.builds(
        lambda nvec, s: spaces.MultiDiscrete(nvec, start=[s] * len(nvec)),
        st.lists(st.integers(1, 5), min_size=1, max_size=4),
        st.integers(-3, 3),
    ),
    st.builds(spaces.MultiBinary, st.sampled_from([1, 3, (2, 2)])),
)
any_space = st.recursive(
    leaf_spaces,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=5,
)


def same(space, mine, theirs) -> bool:
    if isinstance(space, spaces.Dict):
        return set(mine) == set(theirs) and all(same(space[k], mine[k], theirs[k]) for k in space.spaces)
    if isinstance(space, spaces.Tuple):
        return len(mine) == len(theirs) and all(
            same(s, a, b) for s, a, b in zip(space.spaces, mine, theirs, strict=True)
        )
    # Doubles are kept in single precision.
    wanted = np.asarray(theirs)
    wanted = wanted.astype(np.float32) if wanted.dtype == np.float64 else wanted
    return bool(np.array_equal(np.asarray(mine).astype(wanted.dtype), wanted))


def assert_round_trip(space, images=True) -> None:
    space.seed(0)
    spec = ObsSpec(space, images)
    observations = [space.sample() for _ in range(4)]
    one_by_one, at_once = spec.allocate(4), spec.allocate(4)
    for index, obs in enumerate(observations):
        spec.put(obs, one_by_one, index)
    spec.put_all(observations, at_once)
    for mine, theirs in zip(one_by_one, at_once, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for index, obs in enumerate(observations):
        back = spec.get(one_by_one, index)
        assert same(space, back, obs), (back, obs)
        assert space.contains(back), back


@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("space", OBSERVATIONS, ids=str)
def test_what_is_put_is_what_one_gets(space, images) -> None:
    assert_round_trip(space, images)


@settings(max_examples=150, deadline=None)
@given(any_space)
def test_every_observation_space_makes_the_round_trip(space) -> None:
    assert_round_trip(space)


def test_numbers_lie_in_one_vector_and_images_apart() -> None:
    image = spaces.Box(0, 255, (10, 12, 3), np.uint8)
    field = spaces.Box(0, 1, (16, 16), np.float64)
    spec = ObsSpec(spaces.Dict(a=BOX, b=image, c=spaces.Discrete(4), d=field))
    assert spec.shapes == ((4,), (10, 12, 3), (16, 16))
    assert spec.dtypes == (np.float32, np.uint8, np.float32)
    assert spec.image_shapes == ((10, 12, 3), (16, 16))
    assert ObsSpec(image).shapes == ((10, 12, 3),)
    assert ObsSpec(image).image_shapes == ((10, 12, 3),)
    assert ObsSpec(image, images=False).shapes == ((360,),)
    assert [part.shape for part in spec.allocate(5, 2)] == [(5, 2, 4), (5, 2, 10, 12, 3), (5, 2, 16, 16)]


def test_discrete_values_are_stored_from_zero() -> None:
    spec = ObsSpec(spaces.MultiDiscrete([3, 4], start=[10, -10]))
    rows = spec.allocate(2)
    spec.put_all([np.array([10, -10]), np.array([12, -7])], rows)
    assert rows[0].tolist() == [[0, 0], [2, 3]]


@pytest.mark.parametrize(
    ("shape", "image"),
    [
        ((84, 84, 3), True),
        ((3, 84, 84), True),
        ((84, 84), True),
        ((16, 16), True),
        ((15, 40), False),
        ((8, 8, 1), True),
        ((7, 9, 1), False),
        ((1, 8, 8), True),
        ((8, 4, 200), False),
        ((84,), False),
        ((8, 8, 8, 8), False),
        ((), False),
    ],
)
def test_which_boxes_are_images(shape, image) -> None:
    assert is_image(spaces.Box(0, 255, shape, np.uint8)) is image
    assert is_image(spaces.Box(-1, 1, shape, np.float32)) is image


def test_only_boxes_are_images() -> None:
    assert not is_image(spaces.MultiBinary((84, 84)))


def test_leaves_have_their_path() -> None:
    space = spaces.Dict(a=spaces.Tuple([BOX, spaces.Dict(b=BOX)]))
    assert [path for path, _ in leaves_of(space)] == [("a", 0), ("a", 1, "b")]
    assert path_name(("a", 1, "b")) == "a/1/b"


NESTED = spaces.Dict(pos=BOX, inner=spaces.Tuple([spaces.Discrete(3)]))


@pytest.mark.parametrize(
    ("space", "obs", "sentence"),
    [
        (BOX, np.zeros(4), "observation has shape (4,), its space says (3,)"),
        (BOX, np.zeros((1, 3)), "observation has shape (1, 3), its space says (3,)"),
        (BOX, 1.0, "observation has shape (), its space says (3,)"),
        (BOX, None, "observation has shape (), its space says (3,)"),
        (BOX, [0, np.nan, 0], "observation is not finite: [ 0. nan 0.]"),
        (BOX, [0, np.inf, 0], "not finite"),
        (NESTED, {"pos": np.zeros(3)}, "observation lacks 'inner/0'"),
        (NESTED, {"pos": np.zeros(3), "inner": ()}, "observation lacks 'inner/0'"),
        (NESTED, np.zeros(3), "observation lacks 'pos'"),
        (NESTED, {"pos": np.zeros(2), "inner": (1,)}, "observation 'pos' has shape (2,), its space says (3,)"),
        (NESTED, {"pos": np.full(3, np.nan), "inner": (1,)}, "not finite"),
        (spaces.Box(0, 1, (16, 16)), np.full((16, 16), np.nan), "not finite"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(space, obs, sentence) -> None:
    spec = ObsSpec(space)
    with pytest.raises(ValueError) as caught:
        spec.put(obs, spec.allocate(1), 0)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [[np.zeros(2), np.zeros(4)], [np.zeros(4), np.zeros(3)], [np.zeros(3), None]], ids=str
)
def test_wrong_sizes_are_refused_at_once_even_if_they_make_up_for_each_other(wrong) -> None:
    spec = ObsSpec(BOX)
    with pytest.raises((ValueError, TypeError)):
        spec.put_all(wrong, spec.allocate(2))


def test_enormous_but_finite_numbers_are_no_problem() -> None:
    spec = ObsSpec(BOX)
    rows = (np.full((5, 3), 3e38, np.float32),)
    with np.errstate(over="ignore"):
        assert spec.problem(rows) is None


def test_the_first_bad_row_is_named() -> None:
    rows = (np.zeros((5, 3), np.float32),)
    rows[0][3, 1], rows[0][2, 0] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        row, sentence = ObsSpec(BOX).problem(rows)
    assert row == 2
    assert "-inf" in sentence


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(BOX), spaces.Graph(BOX, None)], ids=str)
def test_spaces_without_fixed_numbers_are_refused(space) -> None:
    for spec in (ObsSpec, ActionSpec):
        with pytest.raises(ConfigError, match=type(space).__name__):
            spec(space)
        with pytest.raises(ConfigError, match="'odd'"):
            spec(spaces.Dict(odd=space, even=BOX))


def test_spaces_of_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="no number"):
        ObsSpec(spaces.Box(0, 1, (0,)))
    with pytest.raises(ConfigError, match="has no actions"):
        ActionSpec(spaces.Dict())


def rows_for(spec: ActionSpec, rng, count: int, wild: float):
    """Rows as a policy may give them: any index or bit, and floats far beyond the bounds."""
    rows = np.zeros((count, spec.size), spec.dtype)
    for leaf in spec.leaves:
        if leaf.kind == "categorical":
            rows[:, leaf.columns] = rng.integers(0, leaf.choices, (count, leaf.size))
        elif leaf.kind == "bernoulli":
            rows[:, leaf.columns] = rng.integers(0, 2, (count, leaf.size))
        else:
            rows[:, leaf.columns] = wild * rng.standard_normal((count, leaf.size))
    return rows


@settings(max_examples=200, deadline=None)
@given(any_space, st.booleans(), st.sampled_from([0.1, 1.0, 1e4]))
def test_every_decoded_action_is_in_its_space(space, normalize, wild) -> None:
    spec = ActionSpec(space, normalize=normalize)
    decoded = spec.decode(rows_for(spec, np.random.default_rng(0), 6, wild))
    assert len(decoded) == 6
    for action in decoded:
        assert space.contains(action), (space, action)


ACTIONS = [
    (spaces.Discrete(3), [[0], [2]], [0, 2]),
    (spaces.Discrete(3, start=-1), [[0], [2]], [-1, 1]),
    (spaces.MultiDiscrete([2, 3], start=[5, 7]), [[1, 2]], [[6, 9]]),
    (spaces.MultiDiscrete([[2, 3], [4, 5]]), [[1, 2, 3, 4]], [[[1, 2], [3, 4]]]),
    (spaces.MultiBinary((2, 2)), [[0, 1, 1, 0]], [[[0, 1], [1, 0]]]),
    (spaces.Box(0, 10, (2,)), [[-1, 1], [0, 5]], [[0, 10], [5, 10]]),
    (spaces.Box(0, 10, ()), [[0.5]], [7.5]),
    (spaces.Box(np.array([0, -2], np.float32), np.array([INF, INF], np.float32)), [[-1, -1]], [[0, -1]]),
    (spaces.Box(-INF, INF, (2,)), [[-1e5, 3]], [[-1e5, 3]]),
    (spaces.Box(-2, 3, (2,), np.int32), [[0, 5]], [[-2, 3]]),
    (spaces.Box(0, 1000, (1,), np.int64), [[-1], [0.0011], [9]], [[0], [501], [1000]]),
    (spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 2, (1,))]), [[1, -1]], [(1, [0])]),
]


@pytest.mark.parametrize(("space", "rows", "wanted"), ACTIONS, ids=str)
def test_rows_become_actions(space, rows, wanted) -> None:
    spec = ActionSpec(space)
    for action, expected in zip(spec.decode(np.array(rows, spec.dtype)), wanted, strict=True):
        assert space.contains(action)
        if isinstance(space, spaces.Tuple):
            assert action[0] == expected[0]
            np.testing.assert_allclose(action[1], expected[1])
        else:
            np.testing.assert_allclose(action, expected)


def test_small_integer_boxes_are_choices_and_large_ones_are_rounded() -> None:
    assert ActionSpec(spaces.Box(-2, 3, (2,), np.int8)).leaves[0].kind == "categorical"
    assert ActionSpec(spaces.Box(-2, 3, (2,), np.int8)).leaves[0].choices == (6, 6)
    assert ActionSpec(spaces.Box(0, 255, (1,), np.uint8)).leaves[0].choices == (256,)
    assert ActionSpec(spaces.Box(0, 256, (1,), np.int64)).leaves[0].kind == "gaussian"


def test_without_normalising_a_number_means_itself() -> None:
    spec = ActionSpec(spaces.Box(0, 10, (2,)), normalize=False)
    assert spec.decode(np.array([[3, 12]], np.float32))[0].tolist() == [3, 10]
    unclipped = ActionSpec(spaces.Box(0, 10, (2,)), normalize=False, clip=False)
    assert unclipped.decode(np.array([[3, 12]], np.float32))[0].tolist() == [3, 12]


def test_the_widest_bounds_do_not_overflow() -> None:
    space = spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (1,))
    spec = ActionSpec(space)
    for action in spec.decode(np.array([[-5], [0], [0.5], [5]], np.float32)):
        assert space.contains(action), action
    wide = spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (1,), np.int64)
    for action in ActionSpec(wide).decode(np.array([[-5], [0], [0.5], [5]], np.float32)):
        assert wide.contains(action), action


def test_discrete_actions_are_plain_ints() -> None:
    (action,) = ActionSpec(spaces.Discrete(3)).decode(np.array([[1]]))
    assert type(action) is int


def test_an_action_space_with_more_choices_than_a_network_can_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="1,000,000,000 choices"):
        ActionSpec(spaces.Discrete(10**9))
