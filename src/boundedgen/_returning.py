"""When those who were refused come back: not all at once, and no owner's crowd before somebody else's single caller.

A refusal's `retry_after_s` that is computed from the queue alone is the same for everybody, however many have been
told so; the crowd that comes back costs the lane more than it can serve. So each is told an instant of its own: the
owners take turns, and in any stretch of time about twice as many are told to come as can be served in it.
"""

from __future__ import annotations

import threading
from heapq import heappop, heappush
from typing import Final

OVERBOOKED: Final = 2.0  #: times what can be served: some never come back, and nobody may wait for them


class Returns:
    """Start-time fair queueing of refused callers: a round lets one of each owner come back."""

    def __init__(self, owners_max: int) -> None:
        self._owners_max = owners_max  # that are told apart; the others are as one
        self._rounds: dict[str, float] = {}  # by owner, at which the last one of it comes back
        self._heap: list[tuple[float, str]] = []  # of the same; also of what is not so any more
        self._round = 0.0  # that is under way
        self._at = float("-inf")
        self._quiet = False
        self._telling = threading.RLock()  # held by callers that are being refused; a signal's handler may be one

    def quiet(self) -> None:
        """Nobody waits: who is refused from now on need not come after those who were refused before."""
        self._quiet = True

    def delay(self, owner: str, now: float, turn: float | None, most: float) -> float:
        """Seconds from `now` until one more of `owner` may come back, at most `most`, if one is served every `turn`.

        None: that is not known, and nobody is told apart. `now`: from when on somebody is served. If that is yet to
        come no time goes by for the calendar until then, also where it is expected earlier later on.
        """
        if turn is None or turn <= 0.0:
            return 0.0
        each = turn / OVERBOOKED
        with self._telling:
            if self._quiet:
                self._quiet = False
                self._rounds.clear()
                self._heap.clear()
            self._pass(now, each)
            if owner not in self._rounds and len(self._rounds) >= self._owners_max:
                owner = ""
            round_ = max(self._round, self._rounds.get(owner, 0.0)) + 1.0
            rounds = (round_ - self._round) * (len(self._rounds) + (owner not in self._rounds))
            after = self._at - now + rounds * each
            if after > most:
                return most
            self._rounds[owner] = round_
            heappush(self._heap, (round_, owner))
            return after

    def _pass(self, now: float, each: float) -> None:
        """What time has gone by since the last look: rounds, the longer the more owners they have."""
        if not self._rounds:
            self._at = now
        left = max(0.0, now - self._at)
        self._at = max(now, self._at)
        while self._heap:
            until, owner = self._heap[0]
            takes = (until - self._round) * len(self._rounds) * each
            if takes > left:
                self._round += left / (len(self._rounds) * each)
                return
            left -= takes
            self._round = until
            heappop(self._heap)
            if self._rounds.get(owner) == until:
                del self._rounds[owner]
