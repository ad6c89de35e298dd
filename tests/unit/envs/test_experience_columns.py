"""Steps of every kind of space through a table and back, and what is refused of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from shoal.envs.experience_columns import ExperienceColumns, check_spaces, told_spaces
from shoal.envs.experience_files import find_steps
from shoal.envs.observations import ObsSpec
from shoal.envs.repeated import Repeated
from shoal.envs.spaces import ActionSpec
from shoal.errors import ConfigError

BOX = spaces.Box(-2, 2, (3,), np.float32)
OBSERVATIONS = {
    "numbers": BOX,
    "a choice": spaces.Discrete(4, start=-1),
    "choices": spaces.MultiDiscrete([3, 2]),
    "bits": spaces.MultiBinary(3),
    "an image": spaces.Box(0, 255, (16, 16, 3), np.uint8),
    "a tree": spaces.Dict({"place": BOX, "kind": spaces.Discrete(3), "two": spaces.Tuple((BOX, spaces.Discrete(2)))}),
    "a sequence": Repeated(BOX, 4),
    "a mask": spaces.Dict({"seen": BOX, "action_mask": spaces.Box(0, 1, (5,), np.int8)}),
}
ACTIONS = {
    "a choice": spaces.Discrete(5),
    "choices": spaces.MultiDiscrete([3, 2]),
    "bits": spaces.MultiBinary(2),
    "numbers": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32)),
    "both": spaces.Dict({"turn": spaces.Discrete(3, start=2), "push": spaces.Box(-1, 1, (2,), np.float32)}),
}


def columns_of(observations: Any, actions: Any, squash: bool = False) -> ExperienceColumns:
    spec = ActionSpec(actions, squash=squash)
    return ExperienceColumns(ObsSpec(observations, actions=spec), spec)


def table_of(columns: ExperienceColumns, parts: Any, rows: np.ndarray, finals: np.ndarray) -> Any:
    count = len(rows)
    return pa.table(
        {
            **columns.observations(parts),
            **columns.actions(rows),
            "reward": pa.array(np.arange(count, dtype=np.float32)),
            "terminated": pa.array(np.zeros(count, bool)),
            **columns.observations(parts, finals),
        }
    )


# The mask is one of five choices.
PAIRS = [(seen, done) for seen in OBSERVATIONS for done in ACTIONS if seen != "a mask" or done == "a choice"]


@pytest.mark.parametrize(("seen", "done"), PAIRS)
def test_steps_come_back_as_they_were(seen: str, done: str, tmp_path: Any) -> None:
    observations, actions = OBSERVATIONS[seen], ACTIONS[done]
    columns = columns_of(observations, actions)
    observations.seed(1), actions.seed(2)
    parts = columns.obs_spec.allocate(6)
    for row in range(6):
        obs = observations.sample()
        if isinstance(obs, dict) and "action_mask" in obs:
            obs["action_mask"][:] = 1
        columns.obs_spec.put(obs, parts, row)
    rows = columns.action_spec.encode([actions.sample() for _ in range(6)])
    last = np.array([False, False, True, False, False, True])
    table = table_of(columns, parts, rows, last)
    pq.write_table(table, tmp_path / "steps.parquet")
    read = columns.experience(pq.read_table(tmp_path / "steps.parquet"), np.array([0, 3]), "here")
    for part, found, final in zip(parts, read.obs, read.final_obs, strict=True):
        np.testing.assert_array_equal(found, part)
        np.testing.assert_array_equal(final, part[last])
    np.testing.assert_allclose(read.actions, rows, atol=1e-6)
    assert read.final_of.tolist() == [0, 1]


def test_a_squashed_action_is_the_number_before_the_tanh() -> None:
    spec = ActionSpec(ACTIONS["numbers"], squash=True)
    rows = np.array([[0.3, -1.2], [0.0, 2.0]], np.float32)
    np.testing.assert_allclose(spec.encoded(spec.decoded(rows)), rows, atol=1e-4)
    assert np.isfinite(spec.encoded([np.array([[2.0, 0.0]])])).all()  # on the bounds


def test_metadata_binds_a_table_to_its_spaces() -> None:
    columns = columns_of(BOX, spaces.Discrete(5))
    metadata = columns.metadata("Some-v0")
    told = told_spaces(metadata, "here")
    assert told == (BOX, spaces.Discrete(5))
    check_spaces(metadata, (spaces.Box(-9, 9, (3,), np.float32), spaces.Discrete(5)), "here")  # bounds may differ
    check_spaces(None, (BOX, BOX), "here")  # a table that tells nothing
    with pytest.raises(ConfigError, match=r"here has other actions: Discrete\(5\) there, Discrete\(4\) here"):
        check_spaces(metadata, (BOX, spaces.Discrete(4)), "here")
    with pytest.raises(ConfigError, match=r"here has other observations: Box\(3\) there, Box\(4\) here"):
        check_spaces(metadata, (spaces.Box(-2, 2, (4,), np.float32), spaces.Discrete(5)), "here")


def numbers(**changes: Any) -> Any:
    """Three steps of a vector and five choices, with some column in another form."""
    columns = {
        "obs": pa.array([[0.0, 1.0, 2.0]] * 3),
        "action": pa.array([0, 1, 2]),
        "reward": pa.array([1.0, 1.0, 1.0]),
        "terminated": pa.array([False, False, True]),
    }
    return pa.table({**columns, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"obs": pa.array([[0.0, 1.0]] * 3)}, "the column 'obs' has 2 numbers a row, not 3"),
        ({"obs": pa.array([[0.0, float("nan"), 2.0]] * 3)}, "row 0: observation is not finite"),
        ({"obs": pa.array([["a", "b", "c"]] * 3)}, "the column 'obs' holds string, not numbers"),
        ({"obs": pa.array([[0.0, 1.0, 2.0], None, None])}, "row 1 of the column 'obs' is empty"),
        ({"action": pa.array([0, 7, 0])}, r"row 1: the action \[7\] is none of Discrete\(5\)"),
        ({"action": pa.array([0.0, 0.5, 0.0])}, r"row 1: the action \[0.5\] is none of"),
        ({"reward": pa.array([1.0, float("inf"), 1.0])}, r"row 1: the reward is not finite \(inf\)"),
    ],
)
def test_what_cannot_be_learned_from_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        columns_of(BOX, spaces.Discrete(5)).experience(numbers(**changes), np.array([0]), "here")


def test_an_action_that_its_mask_rules_out_is_refused() -> None:
    columns = columns_of(OBSERVATIONS["a mask"], spaces.Discrete(5))
    table = pa.table(
        {
            "obs.seen": pa.array([[0.0, 1.0, 2.0]] * 2),
            "obs.action_mask": pa.array([[1, 1, 0, 0, 0]] * 2),
            "action": pa.array([1, 2]),
        }
    )
    with pytest.raises(ConfigError, match="row 1: the action is ruled out by its action_mask"):
        columns.experience(table, np.array([0]), "here")


def test_episodes_begin_where_ids_files_or_ends_say(tmp_path: Any) -> None:
    pq.write_table(numbers(terminated=pa.array([True, False, False])), tmp_path / "a.parquet")
    pq.write_table(numbers(episode_id=pa.array([4, 4, 5])), tmp_path / "b.parquet")
    assert find_steps(f"{tmp_path}/a.parquet").starts.tolist() == [0, 1]
    assert find_steps(f"{tmp_path}/b.parquet").starts.tolist() == [0, 2]
    both = find_steps(str(tmp_path))
    assert both.starts.tolist() == [0, 1, 3]  # ids that only one of them has say nothing
    assert both.num_rows == 6


def test_input_that_is_not_there_or_not_whole(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"config\.input: is missing"):
        find_steps(None)
    with pytest.raises(ConfigError, match="there is no such file"):
        find_steps(f"{tmp_path}/*.parquet")
    with pytest.raises(ConfigError, match=r"the folder has no \*.parquet in it"):
        find_steps(str(tmp_path))
    whole = tmp_path / "whole.parquet"
    pq.write_table(numbers(), whole)
    half = tmp_path / "half.parquet"
    half.write_bytes(whole.read_bytes()[:200])
    with pytest.raises(ConfigError, match=r"half.parquet is not a whole Parquet file \(.*\); remove it"):
        find_steps(str(tmp_path)).check((BOX, spaces.Discrete(5)), ["obs"])
    with pytest.raises(ConfigError, match=r"lacks the column 'obs.place' \(it has obs, action, reward, terminated\)"):
        find_steps(str(whole)).check((BOX, spaces.Discrete(5)), ["obs.place"])
