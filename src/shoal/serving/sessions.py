"""What policies with memory remember of the episodes of their clients: one session for each episode."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from shoal.models.network import Array


@dataclass(eq=False)
class ServedEpisode:
    """One episode: the state after its last step, and the action of it."""

    id: str
    state: list[Array] | None = None  # None: the episode begins
    prev_action: Any = None
    is_open: bool = False  # it is kept until its client ends it, or does not use it for long
    is_busy: bool = False  # a request of it is being answered
    used_at: float = field(default_factory=monotonic)


class Sessions:
    """The open sessions of a policy; who was not used for long is forgotten, and there are never more than `most`."""

    def __init__(self, timeout_s: float, most: int, clock: Callable[[], float] = monotonic) -> None:
        self.timeout_s, self.most = timeout_s, most
        self._clock = clock
        self._open: dict[str, ServedEpisode] = {}  # the longest unused first

    def __len__(self) -> int:
        return len(self._open)

    def new(self) -> ServedEpisode:
        """An episode that begins, whose id nobody can guess; `keep` keeps it."""
        return ServedEpisode(secrets.token_urlsafe(16), used_at=self._clock())

    def keep(self, session: ServedEpisode) -> bool:
        """Remember a new session; False if there are too many."""
        self.forget_old()
        session.is_open = len(self._open) < self.most
        if session.is_open:
            self._open[session.id] = session
        return session.is_open

    def find(self, session_id: str) -> ServedEpisode | None:
        """The session of an id, which counts as used now; None if there is none, or no more."""
        self.forget_old()
        session = self._open.pop(session_id, None)
        if session is not None:
            session.used_at = self._clock()
            self._open[session_id] = session  # the last to be forgotten
        return session

    def end(self, session_id: str) -> bool:
        """Forget a session; False if there is none."""
        return self._open.pop(session_id, None) is not None

    def forget_old(self) -> None:
        """Forget who was not used for `timeout_s`."""
        oldest = self._clock() - self.timeout_s
        for session in list(self._open.values()):
            if session.used_at > oldest:
                return
            if not session.is_busy:
                del self._open[session.id]
