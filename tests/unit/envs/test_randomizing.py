"""What is drawn for an episode depends on seed, environment and reset alone."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.config.sections import RandomizeConfig
from shoal.envs.importing import INSTALLED, UserCode
from shoal.envs.randomizing import EpisodeValues, Randomizer
from shoal.errors import ConfigError


def drawn(kind: str, given: list, count: int = 4000) -> np.ndarray:
    randomizer = Randomizer(RandomizeConfig(options={"x": {kind: given}}), 3, INSTALLED)
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
    randomizer = Randomizer(RandomizeConfig(options={"x": {"uniform": [0, 1]}, "y": {"choice": [[1]]}}), 0, INSTALLED)
    first = randomizer.draw(0, 1, 0).options
    assert type(first["x"]) is float
    first["y"].append(2)
    assert randomizer.draw(0, 1, 1).options["y"] == [1]


def test_draws_differ_by_environment_seed_and_reset_and_come_back() -> None:
    config = RandomizeConfig(options={"x": {"uniform": [0, 1]}})
    places = [(index, seeding, reset) for index in range(4) for seeding in range(4) for reset in range(4)]
    first = [Randomizer(config, 1, INSTALLED).draw(*place) for place in places]
    assert first == [Randomizer(config, 1, INSTALLED).draw(*place) for place in places]
    assert len({each.options["x"] for each in first}) == len(places)
    assert first[0] != Randomizer(config, 2, INSTALLED).draw(*places[0])


def test_cases_come_from_a_file(tmp_path) -> None:
    text = "\ufeffcase,options.wind,options.surface,env_config.mesh.dx\na,1e-3,ice,16\n\nb,2,,fine\n"
    (tmp_path / "cases.csv").write_text(text)
    randomizer = Randomizer(RandomizeConfig(cases="cases.csv"), 0, UserCode.at(tmp_path), {"mesh": {"dx": 1, "dy": 2}})
    drawn = [randomizer.draw(0, 1, reset) for reset in range(50)]
    one = EpisodeValues({"wind": 1e-3, "surface": "ice"}, {"mesh": {"dx": 16, "dy": 2}})
    two = EpisodeValues({"wind": 2}, {"mesh": {"dx": "fine", "dy": 2}})
    assert {str(each) for each in drawn} == {str(one), str(two)}
    drawn[0].env_config["mesh"].clear()
    assert randomizer.draw(0, 1, 0) in (one, two)


BAD_CASES = {
    "": "it has no rows",
    "options.wind\n": "it has no rows",
    "wind\n1\n": "column 'wind' has an unknown meaning",
    "options.wind,seed\n1,2\n": "training seeds its episodes itself; leave seed out",
}


@pytest.mark.parametrize("text", BAD_CASES)
def test_a_file_that_holds_no_cases_is_refused(tmp_path, text) -> None:
    (tmp_path / "cases.csv").write_text(text)
    with pytest.raises(ConfigError) as caught:
        Randomizer(RandomizeConfig(cases="cases.csv"), 0, UserCode.at(tmp_path))
    assert str(caught.value).startswith("config.randomize.cases: ")
    assert BAD_CASES[text] in str(caught.value)


def test_a_value_that_is_said_twice_is_refused(tmp_path) -> None:
    (tmp_path / "cases.csv").write_text("options.wind\n1\n")
    config = RandomizeConfig(options={"wind": {"uniform": [0, 1]}}, cases="cases.csv")
    with pytest.raises(ConfigError, match=r"config\.randomize\.options\.wind: cases has a column for it"):
        Randomizer(config, 0, UserCode.at(tmp_path))
