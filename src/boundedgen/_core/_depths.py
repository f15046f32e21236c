"""How many come in before one that waits, by rounds of fair shares and by deadlines: estimates, for callers' threads.

They are read while they are written, without a lock: every reading is one look at one list or dictionary.
"""

import math
from bisect import bisect_left, bisect_right

GROWTH = 1.25  #: from one bucket of rounds to the next
KEEP = 0.95  #: of what was known is kept at each admission: about the last 20 count
FAR = 1e12  #: seconds


def _edges(most: int) -> tuple[int, ...]:
    edges = [0, 1]
    while edges[-1] < most:
        edges.append(max(edges[-1] + 1, int(edges[-1] * GROWTH)))
    return tuple(edges)


EDGES = _edges(1 << 30)  #: rounds; upper edges of the buckets
ROUNDS = EDGES[:-1]  #: the last bucket has all that is later


class Depths:
    """How many wait at which round, in buckets: an owner's first is at round 0, each next one 1 / weight later."""

    def __init__(self) -> None:
        self._counts = [0] * len(EDGES)

    def add(self, place: int, weight: float) -> None:
        """One more of an owner, behind `place` of its own."""
        self._counts[bisect_left(ROUNDS, place / weight)] += 1

    def drop(self, place: int, weight: float) -> None:
        """One less of an owner, of which `place` are left."""
        self._counts[bisect_left(ROUNDS, place / weight)] -= 1

    def of_others(self, round_: float, mine: int, weight: float) -> int:
        """Those at rounds up to this one, as far as buckets are full, without the first `mine` of one owner."""
        full = bisect_right(EDGES, round_)
        own = min(mine, int(EDGES[full - 1] * weight) + 1)
        return max(0, sum(self._counts[:full]) - own)


class Dues:
    """How many of an owner are due when, by the second."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._latest = float("-inf")
        self._all = 0

    def move(self, before: float | None, after: float | None) -> None:
        """One is due at another instant; None: it does not wait."""
        counts = self._counts
        if before is not None:
            self._all -= 1
            second = _second(before)
            counts[second] -= 1
            if not counts[second]:
                del counts[second]
        if after is not None:
            self._latest = max(self._latest, after) if self._all else after
            self._all += 1
            second = _second(after)
            counts[second] = counts.get(second, 0) + 1

    def until(self, due: float) -> int:
        """Of those due up to an instant: all of them, or without those of the second that is under way."""
        if due >= self._latest:
            return self._all
        until = _second(due)  # keys alone: pairs are made anew, which may run the collector, and with it other threads
        return sum(self._counts.get(second, 0) for second in list(self._counts) if second < until)


class Cost:
    """Tokens of an admission of one owner's, of the latest ones."""

    def __init__(self) -> None:
        self._tokens = self._turns = 0.0

    def admitted(self) -> None:
        self._tokens, self._turns = KEEP * self._tokens, KEEP * self._turns + 1.0

    def charge(self, tokens: int) -> float | None:
        """What each costs with these, as `each`."""
        self._tokens += tokens
        return self._tokens / self._turns if self._turns > 1.0 else None

    def each(self) -> float | None:
        """None: too little is known."""
        turns = self._turns
        return self._tokens / turns if turns > 1.0 else None


class Costs:
    """The same of all owners, each by its share of the tokens: that is what is fair between them, not the turns."""

    def __init__(self) -> None:
        self._tokens = self._weighted = 0.0

    def charge(self, tokens: int, each: float | None) -> None:
        """So many for an owner whose admissions cost so many each."""
        if each is not None:
            self._tokens, self._weighted = KEEP * self._tokens + tokens, KEEP * self._weighted + tokens * each

    def pace(self, each: float | None) -> float:
        """An owner's cost as a share of that of others; 1: not known."""
        tokens, weighted = self._tokens, self._weighted
        return each * tokens / weighted if each is not None and weighted > 0.0 else 1.0


def _second(at: float) -> int:
    return int(at if -FAR < at < FAR else math.copysign(FAR, at))
