"""How much may be learned from what is there: the newest transitions beside those of them that are held out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from shoal.data.replay import Replay, Transitions, joined_transitions, transitions_at
from shoal.data.state import State
from shoal.models.network import Array

EVERY = 8  # of these new transitions one is held out
MOST = 256  # that are held out at a time
FEWEST = 32  # with which it can be told whether there is overfitting
CHANCE = 2  # standard errors
SMALLEST = 1e-12  # mean error that is divided by


class HeldOut:
    """One in eight of the newest transitions, which replay gets only when newer ones take their place.

    The learned ones of the same time are as old, and of the same policies. So where the values are more wrong on what
    was held out than on what was learned from, the cause is that these were learned from too often: **overfitting** is
    a mean error on the held-out transitions of more than `max_overfit_ratio` times that on the others, by more than the
    chance of which few were held out explains: by two standard errors of that ratio.
    """

    def __init__(self) -> None:
        self.transitions: Transitions | None = None
        self._seen = 0
        self.ratio: float | None = None  # when it was last asked for
        self.least = 0.0  # what the ratio is at least, but for chance

    def __len__(self) -> int:
        return 0 if self.transitions is None else len(self.transitions.actions)

    def split(self, new: Transitions) -> Transitions:
        """Hold out some of the new transitions; returns what replay shall have, those held out before among it."""
        places = self._seen + np.arange(len(new.actions))
        self._seen += len(places)
        is_held = places % EVERY == EVERY - 1
        if not is_held.any():
            return new
        held = transitions_at(new, np.flatnonzero(is_held))
        if self.transitions is not None:
            held = joined_transitions([self.transitions, held])
        surplus = max(len(held.actions) - MOST, 0)
        self.transitions = transitions_at(held, np.arange(surplus, len(held.actions)))
        given = [transitions_at(held, np.arange(surplus)), transitions_at(new, np.flatnonzero(~is_held))]
        return joined_transitions(given)

    @property
    def can_tell(self) -> bool:
        """Whether enough is held out."""
        return len(self) >= FEWEST

    def measure(self, replay: Replay, errors_of: Callable[[Transitions], Array]) -> float:
        """The mean error of the values on what was held out, over that on what was learned from at the same time."""
        assert self.transitions is not None
        on_held = errors_of(self.transitions)
        on_learned = errors_of(replay.newest((EVERY - 1) * len(self), MOST))
        self.ratio = float(on_held.mean()) / max(float(on_learned.mean()), SMALLEST)
        self.least = self.ratio / (1 + CHANCE * float(np.hypot(_relative_error(on_held), _relative_error(on_learned))))
        return self.ratio

    def get_state(self) -> State:
        """The transitions that are held out."""
        if self.transitions is None:
            return State({"seen": self._seen, "parts": 0})
        held = self.transitions
        arrays = {"actions": held.actions, "returns": held.returns, "discounts": held.discounts}
        arrays |= {f"obs{k}": part for k, part in enumerate(held.obs)}
        arrays |= {f"next_obs{k}": part for k, part in enumerate(held.next_obs)}
        return State({"seen": self._seen, "parts": len(held.obs)}, arrays)

    def set_state(self, state: State) -> None:
        """Take over what was held out."""
        self._seen = int(state.values["seen"])
        self.transitions = None
        parts, arrays = range(int(state.values["parts"])), state.arrays
        if parts:
            obs = tuple(arrays[f"obs{k}"] for k in parts)
            next_obs = tuple(arrays[f"next_obs{k}"] for k in parts)
            rest = arrays["actions"], arrays["returns"], next_obs, arrays["discounts"]
            self.transitions = Transitions(obs, *rest)


def _relative_error(errors: Array) -> float:
    """The standard error of a mean, as a share of it."""
    return float(errors.std()) / max(float(errors.mean()), SMALLEST) / math.sqrt(len(errors))
