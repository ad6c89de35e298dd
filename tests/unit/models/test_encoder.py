from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from shoal.data.filters import MeanStdFilter
from shoal.envs.observations import ObsSpec
from shoal.models.encoder import Encoder


def encoded(space, *observations, **options):
    spec = ObsSpec(space)
    rows = spec.allocate(len(observations))
    for index, obs in enumerate(observations):
        spec.put(obs, rows, index)
    encoder = Encoder(spec, **options)
    out = encoder(rows)
    if spec.vector_size:
        assert out[0].shape == (len(observations), encoder.size)
        assert out[0].dtype == np.float32
    return out


def features(space, *observations):
    return encoded(space, *observations)[0].tolist()


def test_floats_pass_as_they_are_and_uncopied() -> None:
    spec = ObsSpec(spaces.Box(-1, 1, (3,)))
    rows = spec.allocate(2)
    assert Encoder(spec)(rows)[0] is rows[0]


def test_choices_become_indicators() -> None:
    assert features(spaces.Discrete(3), 0, 2) == [[1, 0, 0], [0, 0, 1]]
    assert features(spaces.Discrete(3, start=-1), -1, 1) == [[1, 0, 0], [0, 0, 1]]
    assert features(spaces.MultiDiscrete([2, 3], start=[5, 0]), [6, 1]) == [[0, 1, 0, 1, 0]]
    assert features(spaces.MultiDiscrete([[2, 2], [1, 2]]), [[0, 1], [0, 1]]) == [[1, 0, 0, 1, 1, 0, 1]]


def test_bits_stay_bits() -> None:
    assert features(spaces.MultiBinary((2, 2)), [[0, 1], [1, 1]]) == [[0, 1, 1, 1]]


def test_a_ram_dump_is_scaled_to_one() -> None:
    assert features(spaces.Box(0, 255, (2,), np.uint8), [0, 255]) == [[0, 1]]
    np.testing.assert_allclose(features(spaces.Box(-10, 10, (3,), np.int32), [-10, 0, 10]), [[0, 0.5, 1]], atol=1e-6)


def test_floats_between_bounds_are_not_scaled() -> None:
    assert features(spaces.Box(0, 255, (2,)), [0, 255]) == [[0, 255]]


@pytest.mark.parametrize("count", [1025, 2**20, 2**30])
def test_very_many_choices_become_binary_digits(count) -> None:
    values = [0, 1, 2, 1000, count - 1]
    rows = np.array(features(spaces.Discrete(count), *values))
    digits = (count - 1).bit_length()
    assert rows.shape == (5, digits)
    # A number is stored in single precision: of the largest ones the lowest digits are rounded.
    wanted = [min(int(np.float32(value)), count - 1) for value in values]
    assert (rows @ 2.0 ** np.arange(digits)).tolist() == wanted


def test_up_to_1024_choices_are_indicators() -> None:
    assert np.array(features(spaces.Discrete(1024), 1023)).shape == (1, 1024)


def test_a_value_outside_its_space_is_taken_for_the_nearest() -> None:
    assert features(spaces.Discrete(3), 7, -4) == [[0, 0, 1], [1, 0, 0]]
    spec = ObsSpec(spaces.Discrete(5000))
    high, low = Encoder(spec).encode(np.array([[90000], [-1]], np.float32))
    assert high @ 2.0 ** np.arange(13) == 4999
    assert not low.any()


def test_composites_put_numbers_first_and_indicators_behind() -> None:
    space = spaces.Dict(
        a=spaces.Discrete(2),
        b=spaces.Box(-9, 9, (2,)),
        c=spaces.MultiBinary(1),
        d=spaces.Box(0, 255, (8, 8, 3), np.uint8),
    )
    image = np.full((8, 8, 3), 200, np.uint8)
    vector, picture = encoded(space, {"a": 1, "b": [3, 4], "c": [1], "d": image})
    assert vector.tolist() == [[3, 4, 1, 0, 1]]
    assert picture.dtype == np.uint8
    assert (picture == 200).all()


def test_images_alone_pass_untouched() -> None:
    (picture,) = encoded(spaces.Box(0, 255, (8, 8, 3), np.uint8), np.full((8, 8, 3), 7, np.uint8))
    assert (picture == 7).all()


def test_the_filter_sees_measurements_alone() -> None:
    spec = ObsSpec(spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-99, 99, (2,)), c=spaces.MultiBinary(1)))
    encoder = Encoder(spec)
    assert encoder.measured.tolist() == [False, True, True, False]
    encoder.filter = MeanStdFilter(encoder.measured)
    raw = np.array([[2, 10, 50, 1], [0, 20, 70, 0], [1, 30, 90, 1]], np.float32)
    encoder.filter.update(encoder.measurements(raw))
    out = encoder.encode(raw)
    np.testing.assert_allclose(out[:, :2], [[-1, -1], [0, 0], [1, 1]], atol=1e-6)
    assert out[:, 2].tolist() == [1, 0, 1]
    assert out[:, 3:].tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]


def test_the_filter_sees_scaled_integers() -> None:
    encoder = Encoder(ObsSpec(spaces.Box(0, 255, (1,), np.uint8)))
    assert encoder.measurements(np.array([[255]], np.float32)).tolist() == [[1]]


def test_the_stored_observations_are_left_alone() -> None:
    raw = np.array([[255, 0]], np.float32)
    Encoder(ObsSpec(spaces.Box(0, 255, (2,), np.uint8))).encode(raw)
    assert raw.tolist() == [[255, 0]]
