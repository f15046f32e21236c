"""Instants and whom they concern, and the clock that stands still while the engine is not ready."""

import heapq
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SLACK = 64  #: entries that an agenda may keep of keys that are gone


def earliest(instants: Iterable[float | None]) -> float | None:
    """Of those that there are."""
    found = [at for at in instants if at is not None]
    return min(found) if found else None


class Agenda(Generic[K]):
    """One instant a key, earliest first. Moving an instant later costs O(1): a surfacing entry is looked at again."""

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._entered: dict[K, float] = {}  # the earliest heap entry of a key that still counts
        self._order = 0

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: K, at: float | None) -> None:
        """`key` is due at `at`; None: never."""
        if at is None:
            if self._at.pop(key, None) is not None and not self._at:
                self._clear()
            return
        self._at[key] = at
        if at < self._entered.get(key, math.inf):
            self._push(key, at)

    def _clear(self) -> None:
        """Nothing is due, which gives back the memory of however many there were."""
        for each in (self._at, self._entered, self._heap):
            each.clear()

    def _push(self, key: K, at: float) -> None:
        if len(self._heap) > SLACK + 4 * len(self._at):
            self._forget_what_no_longer_counts()
        self._entered[key] = at
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, key))

    def _forget_what_no_longer_counts(self) -> None:
        """Long deadlines of keys that are gone would stay until they surface."""
        self._heap = [(at, order, key) for order, (key, at) in enumerate(self._at.items())]
        self._order = len(self._heap)
        self._entered = dict(self._at)
        heapq.heapify(self._heap)

    def _settle_top(self) -> None:
        """Drop or re-enter entries at the top that no longer say what is true."""
        while self._heap:
            at, _, key = self._heap[0]
            due = self._at.get(key)
            if due == at:
                return
            if self._entered.get(key) != at:
                heapq.heappop(self._heap)
            elif due is None:
                heapq.heappop(self._heap)
                del self._entered[key]
            else:
                self._entered[key] = due
                self._order += 1
                heapq.heapreplace(self._heap, (due, self._order, key))

    def earliest(self) -> float | None:
        if self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            self._settle_top()
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Sequence[K]:
        """Take out, in order, every key whose instant has come."""
        top = self._heap[0][0] if self._heap else math.inf  # none is earlier, whether this one still counts or not
        return () if top > now else self._taken_out(now)

    def _taken_out(self, now: float) -> list[K]:
        found: list[K] = []
        while (at := self.earliest()) is not None and at <= now:
            key = heapq.heappop(self._heap)[2]
            if self._entered.get(key) == at:
                del self._entered[key]
            del self._at[key]
            found.append(key)
        if not self._at:
            self._clear()
        return found


class ReadyClock:
    """Time that passes only while the engine is ready. Leases, `first_token` and `next_token` are measured on it."""

    def __init__(self) -> None:
        self._stood: float = 0.0  # all standstills that ended
        self._since: float | None = None  # of the current standstill
        self._last = (-math.inf, -math.inf, 0.0)  # the last that ended: from, to, all those before it

    def stand(self, now: float) -> None:
        if self._since is None:
            self._since = now

    def run(self, now: float) -> None:
        if self._since is not None:
            self._last = (self._since, now, self._stood)
            self._stood += now - self._since
            self._since = None

    @property
    def running(self) -> bool:
        return self._since is None

    def at(self, instant: float) -> float:
        """The reading at `instant`: now, or before, as far back as the beginning of the last standstill but one."""
        stands_since = self._since  # looked at once: owners of leases read this clock from their own threads
        if stands_since is not None:
            return min(instant, stands_since) - self._stood
        since, until, before = self._last
        return instant - self._stood if instant >= until else min(instant, since) - before

    def stood(self, now: float) -> float:
        """Seconds for which it has stood still so far."""
        return now - self.at(now)

    def instant(self, reading: float) -> float | None:
        """The first instant at which this clock shows `reading` or more; None while it stands still."""
        if self._since is not None:
            return None
        instant = reading + self._stood
        while self.at(instant) < reading:  # rounding: a wake-up at an instant too early by a bit would spin
            instant = math.nextafter(instant, math.inf)
        return instant
