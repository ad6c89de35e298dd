from __future__ import annotations

import numpy as np

from shoal.data.batch import Batch, concatenate, padded


def fragment(first_env: int, num_envs: int, steps: int = 3) -> Batch:
    """Every number says which environment and step it belongs to."""
    label = (np.arange(steps)[:, None] * 100 + first_env + np.arange(num_envs)).astype(np.float32)
    final_at = np.array([(1, 0)] + [(steps - 1, n) for n in range(num_envs)], np.int64)
    finals = (final_at[:, 0] * 100 + final_at[:, 1] + first_env).astype(np.float32)
    return Batch(
        obs=(label[:, :, None].repeat(2, axis=2), label.astype(np.uint8)[:, :, None, None, None]),
        actions=label[:, :, None],
        rewards=label,
        terminated=label % 2 == 1,
        truncated=label % 3 == 1,
        valid=label % 5 != 0,
        log_probs=-label,
        dist_inputs=label[:, :, None].repeat(3, axis=2),
        final_obs=(finals[:, None].repeat(2, axis=1), finals.astype(np.uint8)[:, None, None, None]),
        final_at=final_at,
        values=label / 2,
    )


def test_fragments_side_by_side_are_one_fragment() -> None:
    together, whole = concatenate([fragment(0, 2), fragment(2, 3), fragment(5, 1)]), fragment(0, 6)
    for name in ("actions", "rewards", "terminated", "truncated", "valid", "log_probs", "dist_inputs", "values"):
        np.testing.assert_array_equal(getattr(together, name), getattr(whole, name), err_msg=name)
    for mine, theirs in zip(together.obs, whole.obs, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype
    assert together.num_steps == whole.num_steps


def test_finals_keep_pointing_at_their_own_environment() -> None:
    together = concatenate([fragment(0, 2), fragment(2, 3), fragment(5, 1)])
    labels = together.final_at[:, 0] * 100 + together.final_at[:, 1]
    np.testing.assert_array_equal(together.final_obs[0][:, 0], labels)
    assert together.final_at.dtype == np.int64
    assert len(together.final_at) == 3 + 4 + 2


def test_a_longer_fragment_has_values_without_meaning() -> None:
    longer = padded(fragment(0, 2), 5)
    assert longer.values is not None
    np.testing.assert_array_equal(longer.values[:3], fragment(0, 2).values)
    assert not longer.values[3:].any()


def test_one_fragment_is_not_copied() -> None:
    only = fragment(0, 2)
    assert concatenate([only]) is only


def test_only_valid_rows_are_steps() -> None:
    batch = fragment(0, 6)
    assert batch.num_steps == sum(label % 5 != 0 for step in range(3) for label in range(step * 100, step * 100 + 6))
