"""What is drawn for an episode depends on seed, environment and reset alone."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.config.settings import RandomizeConfig
from shoal.envs.randomizing import Randomizer, read_cases
from shoal.errors import ConfigError


def drawn(kind: str, given: list, count: int = 4000) -> np.ndarray:
    randomizer = Randomizer(RandomizeConfig(options={"x": {kind: given}}), 3, ())
    return np.array([randomizer.draw(k % 7, k // 7, 0).options["x"] for k in range(count)])


def test_samplers_have_their_distributions() -> None:
    uniform = drawn("uniform", [-2, 4])
    assert -2 <= uniform.min() < -1.9
    assert 3.9 < uniform.max() <= 4
    assert abs(uniform.mean() - 1) < 0.1
    logs = np.log10(drawn("loguniform", [0.01, 100]))
    assert abs(logs.mean()) < 0.1
    assert abs(np.quantile(logs, 0.75) - 1) < 0.1
    normal = drawn("normal", [5, 2])
    assert abs(normal.mean() - 5) < 0.2
    assert abs(normal.std() - 2) < 0.1
    chosen = drawn("choice", [1, 2, 4])
    assert all(abs((chosen == value).mean() - 1 / 3) < 0.05 for value in (1, 2, 4))


def test_values_are_plain_and_nobody_can_change_the_choices() -> None:
    randomizer = Randomizer(RandomizeConfig(options={"x": {"uniform": [0, 1]}, "y": {"choice": [[1]]}}), 0, ())
    first = randomizer.draw(0, 1, 0).options
    assert type(first["x"]) is float
    first["y"].append(2)
    assert randomizer.draw(0, 1, 1).options["y"] == [1]


def test_draws_differ_by_environment_seed_and_reset_and_come_back() -> None:
    config = RandomizeConfig(options={"x": {"uniform": [0, 1]}})
    places = [(index, seeding, reset) for index in range(4) for seeding in range(4) for reset in range(4)]
    first = [Randomizer(config, 1, ()).draw(*place) for place in places]
    assert first == [Randomizer(config, 1, ()).draw(*place) for place in places]
    assert len({each.options["x"] for each in first}) == len(places)
    assert first[0] != Randomizer(config, 2, ()).draw(*places[0])


def test_cases_go_where_their_columns_say(tmp_path) -> None:
    (tmp_path / "cases.csv").write_text("\ufeffwind,surface,env_config.mesh\n1e-3,ice,16\n2,true,fine\n")
    one, two = read_cases("cases.csv", [str(tmp_path)])
    assert (one.options, one.env_config) == ({"wind": 1e-3, "surface": "ice"}, {"mesh": 16})
    assert (two.options, two.env_config) == ({"wind": 2, "surface": True}, {"mesh": "fine"})


BAD_CASES = {
    "": "has no case",
    "wind\n": "has no case",
    "wind,wind\n1,2\n": "every column needs a name of its own (got 'wind')",
    "wind,\n1,2\n": "every column needs a name of its own (got '')",
    "wind,env_config.\n1,2\n": "every column needs a name of its own (got 'env_config.')",
    "wind,mass\n1\n": "case 1 has 1 values, the header 2 names",
    "wind\n1,2\n": "case 1 has 2 values, the header 1 names",
}


@pytest.mark.parametrize("text", BAD_CASES)
def test_a_file_that_holds_no_cases_is_refused(tmp_path, text) -> None:
    (tmp_path / "cases.csv").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_cases("cases.csv", [str(tmp_path)])
    assert str(caught.value).startswith("config.randomize.cases: ")
    assert BAD_CASES[text] in str(caught.value)


def test_a_value_that_is_said_twice_is_refused(tmp_path) -> None:
    (tmp_path / "cases.csv").write_text("wind\n1\n")
    config = RandomizeConfig(options={"wind": {"uniform": [0, 1]}}, cases="cases.csv")
    with pytest.raises(ConfigError, match=r"config\.randomize\.options\.wind: cases has a column of it"):
        Randomizer(config, 0, [str(tmp_path)])
