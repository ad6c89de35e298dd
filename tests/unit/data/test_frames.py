"""Frames that are kept once: a store beside a dictionary of bytes, and a replay with ids beside one of whole images."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data import frames
from shoal.data.batch import Batch
from shoal.data.frames import FrameLayout, FrameStore
from shoal.data.replay import Priorities, Replay, Transitions, bytes_per_transition, drawn_bytes, transitions_of
from shoal.data.state import State
from shoal.errors import ConfigError
from shoal.runs import row_segments
from shoal.runs.checkpoints import read_checkpoint, write_checkpoint

U1, F4 = np.dtype(np.uint8), np.dtype(np.float32)
PRIORITIES = Priorities(0.6, 0.4, 1e-6)


def store_of(shape: tuple[int, ...], dtype: np.dtype, rows: int = 3) -> FrameStore:
    """A store that needs a new chunk every few frames."""
    store = FrameStore(shape, dtype)
    store._chunk_rows = rows
    return store


@given(
    st.sampled_from([((3, 3), U1), ((2, 4), U1), ((5,), F4), ((1, 1), np.dtype(np.float64)), ((17,), np.dtype(bool))]),
    st.lists(st.one_of(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 8)), max_size=40),
    st.booleans(),
)
def test_a_store_is_a_dictionary_of_bytes(kind, deeds, hashes_are_equal: bool) -> None:
    shape, dtype = kind
    store, held = store_of(shape, dtype), []
    if hashes_are_equal:
        store._factors[:] = 0
    looks = np.random.default_rng(0).integers(0, 2, (10, *shape)).astype(dtype)
    looks[0], looks[1] = 0, 1
    for deed in deeds:
        if isinstance(deed, list):
            ids = store.put(looks[np.array(deed, np.intp)])
            held += zip(ids.tolist(), deed, strict=True)
        else:
            store.drop(np.array([found for found, _ in held[:deed]], np.int32))
            held = held[deed:]
        ids = np.array([found for found, _ in held], np.int32)
        there = store.take(ids)
        assert there.dtype == dtype
        np.testing.assert_array_equal(there, looks[[look for _, look in held]].reshape(-1, *shape))
        distinct = {looks[look].tobytes() for _, look in held}
        assert len(store) == len(distinct) if not hashes_are_equal else len(store) >= len(distinct)
        assert store._counts.sum() == len(held)
    store.drop(np.array([found for found, _ in held], np.int32))
    assert len(store) == 0


def test_frames_are_compared_by_bytes() -> None:
    store = store_of((1,), F4)
    numbers = np.array([0x7FC00000, 0x7FC00001, 0x80000000, 0x0, 0x7FC00001], np.uint32)
    ids = store.put(numbers.view(np.float32)[:, None])
    assert ids.tolist() == [0, 1, 2, 3, 1]
    assert store.take(ids).view(np.uint32)[:, 0].tolist() == numbers.tolist()


def test_a_dot_that_moves_has_a_hash_of_its_own_everywhere() -> None:
    store = FrameStore((48, 48), U1)
    dots = np.zeros((48 * 48, 48, 48), U1)
    dots.reshape(len(dots), -1)[np.arange(len(dots)), np.arange(len(dots))] = 128
    hashes = store._hashes_of(store._as_words(dots))
    assert len(np.unique(hashes)) == len(dots)


@pytest.mark.parametrize(
    ("shape", "dtype", "axis"),
    [
        ((4, 84, 84), U1, 0),
        ((84, 84, 4), U1, -1),
        ((4, 84, 84, 3), U1, 0),
        ((12, 64, 64), U1, 0),
        ((16, 64, 4), U1, -1),
        ((84, 84, 3), U1, None),
        ((3, 84, 84), U1, None),
        ((84, 84, 1), U1, None),
        ((64, 64), F4, None),
        ((16, 512), U1, None),
        ((16, 16, 4), F4, -1),
    ],
)
def test_where_the_frames_of_an_image_are(shape, dtype, axis) -> None:
    layout = FrameLayout.of(shape, dtype)
    assert layout is not None
    assert layout.axis == axis
    obs = np.random.default_rng(1).integers(0, 255, (3, *shape)).astype(dtype)
    apart = layout.split(obs)
    assert apart.shape == (3 * layout.count, *layout.frame_shape)
    again = layout.joined(apart)
    np.testing.assert_array_equal(again, obs)
    assert again.flags.c_contiguous
    if axis == -1:
        np.testing.assert_array_equal(apart[1], obs[0, ..., 1])


@pytest.mark.parametrize(
    ("shape", "dtype"), [((4, 16, 16), U1), ((2000,), F4), ((), F4), ((30, 34, 4), np.dtype(bool))]
)
def test_vectors_and_small_images_are_kept_as_they_are(shape, dtype) -> None:
    assert FrameLayout.of(shape, dtype) is None


@pytest.mark.parametrize(("count", "dtype"), [(2, U1), (4, np.dtype(np.int8)), (8, np.dtype(bool)), (5, U1), (4, F4)])
def test_frames_along_the_last_axis_come_back(count: int, dtype: np.dtype) -> None:
    layout = FrameLayout.of((64, 64, count), dtype)
    assert layout is not None
    obs = np.random.default_rng(1).integers(-100, 100, (3, 64, 64, count)).astype(dtype)
    again = layout.joined(layout.split(obs))
    assert again.dtype == dtype
    np.testing.assert_array_equal(again, obs)


class Games:
    """Fragments `[T, N]` of games that are seen through stacked frames, with every kind of end."""

    def __init__(self, envs: int, shape: tuple[int, ...], axis: int, seed: int, length: int = 30) -> None:
        self.rng, self.envs, self.axis, self.length = np.random.default_rng(seed), envs, axis, length
        self.shape, self.steps = shape, 0
        self.seen = [self._begun() for _ in range(envs)]

    def fragment(self, steps: int) -> Batch:
        shape = (steps, self.envs)
        obs = np.empty((*shape, *self.seen[0].shape), np.uint8)
        numbers = np.arange(self.steps, self.steps + steps * self.envs, dtype=np.float32).reshape(shape)
        self.steps += steps * self.envs
        terminated, truncated, valid = np.zeros(shape, bool), np.zeros(shape, bool), self.rng.random(shape) < 0.97
        final_obs, final_at = [], []
        for t in range(steps):
            for n in range(self.envs):
                obs[t, n] = self.seen[n]
                after = np.roll(self.seen[n], -1, self.axis)
                np.moveaxis(after, self.axis, 0)[-1] = self._frame()
                ends = self.rng.random() < 1 / self.length
                terminated[t, n] = (ends and self.rng.random() < 0.5) or not valid[t, n]
                truncated[t, n] = ends and not terminated[t, n]
                if truncated[t, n] or (t == steps - 1 and not terminated[t, n]):
                    final_obs.append(after)
                    final_at.append((t, n))
                self.seen[n] = self._begun() if ends or not valid[t, n] else after
        none = np.empty((0, *self.seen[0].shape), np.uint8)
        return Batch(
            obs=(numbers[..., None], obs),
            actions=self.rng.integers(0, 4, (*shape, 1)),
            rewards=numbers,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            log_probs=np.zeros(shape, np.float32),
            dist_inputs=np.zeros((*shape, 0), np.float32),
            final_obs=(
                np.full((len(final_at), 1), -1, np.float32),
                np.stack(final_obs) if final_obs else none,
            ),
            final_at=np.array(final_at, np.int64).reshape(-1, 2),
        )

    def _frame(self) -> np.ndarray:
        return self.rng.integers(0, 255, self.shape, np.uint8)

    def _begun(self) -> np.ndarray:
        return np.stack([self._frame()] * 4, axis=self.axis)


def replay_of(axis: int, capacity: int, slack: int, priorities: Priorities | None = None, seed: int = 0) -> Replay:
    shape = (4, 32, 33) if axis == 0 else (32, 33, 4)
    return Replay([(1,), shape], [F4, U1], capacity, slack, priorities, np.random.default_rng(seed))


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch):
    """Makes replays that hold images whole."""

    def make(*args, **kwargs) -> Replay:
        with monkeypatch.context() as patch:
            patch.setattr(FrameLayout, "of", lambda *_: None)
            return replay_of(*args, **kwargs)

    return make


def arrays_of(t: Transitions) -> list[np.ndarray]:
    return [*t.obs, t.actions, t.returns, *t.next_obs, t.discounts]


def assert_same(one: Transitions, two: Transitions) -> None:
    for mine, theirs in zip(arrays_of(one), arrays_of(two), strict=True):
        assert (mine.dtype, mine.flags.c_contiguous) == (theirs.dtype, theirs.flags.c_contiguous)
        np.testing.assert_array_equal(mine, theirs)


def assert_nothing_is_kept_in_vain(replay: Replay) -> None:
    (store,) = (image.store for image in replay._images if image is not None)
    ids = np.concatenate([replay._obs[1].reshape(-1), replay._next_obs[1].reshape(-1)])
    held = Counter(ids[ids >= 0].tolist())
    assert len(store) == len(held)
    assert store._counts.sum() == held.total()
    assert all(store._counts[found] == count for found, count in held.items())
    looks = store.take(np.array(sorted(held), np.int32)).reshape(len(held), -1)
    assert len(np.unique(looks, axis=0)) == len(held)


def saved(replay: Replay, folder: Path) -> State:
    """What a checkpoint of a replay says when it is read."""
    path = write_checkpoint(folder, State.of(replay=replay.get_state()), {}, {"training_iteration": 1})
    return read_checkpoint(path).state.part("replay")


@pytest.mark.parametrize("priorities", [None, PRIORITIES], ids=["alike", "priorities"])
@pytest.mark.parametrize("axis", [0, -1])
def test_ids_change_nothing_that_is_drawn(axis: int, priorities, whole, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(frames, "CHUNK_BYTES", 40 * 32 * 33)
    monkeypatch.setattr(row_segments, "SEGMENT_BYTES", 1 << 15)
    mine, plain = (make(axis, 150, 60, priorities) for make in (replay_of, whole))
    games = Games(3, (32, 33), axis, seed=5)
    choose = np.random.default_rng(3)
    for number in range(36):
        batch = games.fragment(int(choose.integers(1, 20)))
        new = transitions_of(batch, batch.rewards, 0.9, 1 + 2 * (number % 2))
        for replay in (mine, plain):
            replay.add(new)
        one, two = mine.draw(2, 16), plain.draw(2, 16)
        np.testing.assert_array_equal(one.places, two.places)
        assert_same(one.transitions, two.transitions)
        assert_same(mine.newest(40, 9), plain.newest(40, 9))
        errors = choose.random(32, np.float32)
        for replay in (mine, plain):
            replay.learned(one.places, errors)
        if number % 12 == 11:
            assert_nothing_is_kept_in_vain(mine)
            capacity = (150, 90, 200)[number // 12]
            again = replay_of(axis, capacity, 60, priorities, seed=7)
            again.add(new)  # which is forgotten
            again.set_state(saved(mine, tmp_path / f"mine{number}"))
            other = whole(axis, capacity, 60, priorities, seed=8)
            other.set_state(saved(plain, tmp_path / f"plain{number}"))
            mine, plain = again, other
            assert_nothing_is_kept_in_vain(mine)


def test_checkpoints_of_whole_images_are_taken_over(whole, tmp_path) -> None:
    plain, mine = whole(0, 100, 40), replay_of(0, 100, 40, seed=3)
    games = Games(2, (32, 33), 0, seed=2)
    for _ in range(12):
        batch = games.fragment(10)
        plain.add(transitions_of(batch, batch.rewards, 0.9, 3))
    mine.set_state(saved(plain, tmp_path))
    assert_same(mine.draw(3, 40).transitions, plain.draw(3, 40).transitions)
    assert_nothing_is_kept_in_vain(mine)
    assert mine.get_state().rings[""].follows is None, "its files have images in another form"


def test_a_state_stays_what_it_was_while_slack_more_is_added() -> None:
    replay, games = replay_of(-1, 50, 20), Games(2, (32, 33), -1, seed=4)
    for _ in range(11):
        batch = games.fragment(7)
        replay.add(transitions_of(batch, batch.rewards, 0.9, 1))
    state = replay.get_state()
    (each,) = state.rings[""].frames.values()

    def images() -> list[np.ndarray]:
        ids = [array for name, array in state.arrays.items() if name.rpartition(".")[0] in each.columns]
        return [each.store.take(part.reshape(-1)) for part in ids]

    then = images()
    batch = games.fragment(10)
    replay.add(transitions_of(batch, batch.rewards, 0.9, 1))
    assert len(then) == 4, "the circle has begun anew"
    for now, before in zip(images(), then, strict=True):
        np.testing.assert_array_equal(now, before)


def test_two_go_on_from_one_state(tmp_path) -> None:
    first, games = replay_of(0, 60, 20), Games(2, (32, 33), 0, seed=6)
    for _ in range(10):
        batch = games.fragment(10)
        first.add(transitions_of(batch, batch.rewards, 0.9, 1))
    for state in (first.get_state(), saved(first, tmp_path)):
        two, three = replay_of(0, 60, 20), replay_of(0, 60, 20)
        two.set_state(state)
        for _ in range(10):
            batch = games.fragment(10)
            two.add(transitions_of(batch, batch.rewards, 0.9, 1))
        three.set_state(state)
        assert_same(three.newest(60, 60), first.newest(60, 60))
    own = first.newest(60, 60)
    first.set_state(first.get_state())
    assert_same(first.newest(60, 60), own)


def test_what_was_read_is_let_go_with_its_state(tmp_path) -> None:
    replay, games = replay_of(0, 60, 20), Games(2, (32, 33), 0, seed=6)
    for _ in range(10):
        batch = games.fragment(10)
        replay.add(transitions_of(batch, batch.rewards, 0.9, 1))
    state = saved(replay, tmp_path)
    small = replay_of(0, 10, 20)
    small.set_state(state)
    store = small._images[1].store
    assert len(store) > 60
    del state
    assert_nothing_is_kept_in_vain(small)
    assert len(store) < 30


def test_a_replay_of_games_takes_less_than_a_sixth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "CHUNK_BYTES", 1 << 20)
    shape, capacity, slack = (84, 84, 4), 1500, 160
    replay = Replay([(1,), shape], [F4, U1], capacity, slack, None, np.random.default_rng(0))
    games = Games(8, (84, 84), -1, seed=1, length=200)
    for _ in range(15):
        batch = games.fragment(20)
        replay.add(transitions_of(batch, batch.rewards, 0.99, 3))
    assert len(replay) == capacity
    (store,) = (image.store for image in replay._images if image is not None)
    taken = store.nbytes + sum(array.nbytes for array in replay._named().values())
    before = (capacity + slack) * drawn_bytes([(1,), shape], [F4, U1])
    assert taken < before / 6
    about = (capacity + slack) * bytes_per_transition([(1,), shape], [F4, U1], prioritized=False)
    assert taken == pytest.approx(about, rel=0.2)


def test_frames_that_memory_cannot_hold_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "CHUNK_BYTES", 40 * 32 * 33)
    replay, games = replay_of(0, 1000, 100), Games(2, (32, 33), 0, seed=6)
    batch = games.fragment(40)
    replay.add(transitions_of(batch, batch.rewards, 0.9, 1))
    before = replay.newest(40, 40)
    monkeypatch.setattr(frames, "available_memory", lambda: frames.LEAST_LEFT)
    batch = games.fragment(40)
    with pytest.raises(
        ConfigError, match=r"replay_buffer_config.capacity: the images of \d+ transitions take .* or use at most"
    ):
        replay.add(transitions_of(batch, batch.rewards, 0.9, 1))
    assert_same(replay.newest(40, 40), before)
