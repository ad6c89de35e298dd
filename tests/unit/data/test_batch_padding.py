from __future__ import annotations

import numpy as np

from shoal.data.batch import Batch, concatenate, padded


def fragment(steps: int) -> Batch:
    shape = (steps, 2)
    return Batch(
        obs=(np.ones((*shape, 3), np.float32), np.ones((*shape, 8, 8, 1), np.uint8)),
        actions=np.ones((*shape, 1), np.int64),
        rewards=np.ones(shape, np.float32),
        terminated=np.zeros(shape, bool),
        truncated=np.zeros(shape, bool),
        valid=np.ones(shape, bool),
        log_probs=np.ones(shape, np.float32),
        dist_inputs=np.ones((*shape, 4), np.float32),
        final_obs=(np.ones((2, 3), np.float32), np.ones((2, 8, 8, 1), np.uint8)),
        final_at=np.array([[steps - 1, 0], [steps - 1, 1]]),
    )


def test_added_rows_are_no_transitions() -> None:
    batch = padded(fragment(3), 5)
    assert batch.valid.tolist() == [[True, True]] * 3 + [[False, False]] * 2
    assert batch.terminated[3:].all()
    assert not batch.truncated.any()
    assert not batch.rewards[3:].any()
    assert batch.num_steps == 6
    assert batch.final_at.tolist() == [[2, 0], [2, 1]]
    assert [part.dtype for part in batch.obs] == [np.float32, np.uint8]


def test_a_long_enough_fragment_is_left_alone() -> None:
    batch = fragment(3)
    assert padded(batch, 3) is batch


def test_fragments_of_unequal_length_are_joined() -> None:
    together = concatenate([fragment(steps) for steps in (2, 4, 3)])
    assert together.rewards.shape == (4, 6)
    assert together.num_steps == 2 * (2 + 4 + 3)
    assert together.final_at.tolist() == [[1, 0], [1, 1], [2, 4], [2, 5], [3, 2], [3, 3]]
