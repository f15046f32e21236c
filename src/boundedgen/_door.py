"""Places to wait in, and shares of owners and leases: taken by callers, given back by the driver, without a lock.

A place is an item of a deque: taking one out either succeeds or finds none, whatever other threads do.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable

from boundedgen._bounds import Limits


class Door:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._places = deque(range(limits.waiting_max))
        self._owners: dict[str, deque[int]] = {}

    def place(self) -> Callable[[], None] | None:
        """A place in the queue, as what gives it back; None: it is full."""
        return take(self._places)

    def share(self, owner: str) -> Callable[[], None] | None:
        """One of the owner's shares, likewise."""
        most = self._limits.owner_max
        if most is None:
            return _nothing
        self._forget_idle_owners(most)
        return take(self._owners.setdefault(owner, deque(range(most))))

    def _forget_idle_owners(self, most: int) -> None:
        if len(self._owners) > self._limits.owners_tracked:
            for owner, shares in list(self._owners.items()):
                if len(shares) == most:
                    self._owners.pop(owner, None)


def take(places: "deque[int]") -> Callable[[], None] | None:
    try:
        places.pop()
    except IndexError:
        return None
    return lambda: places.append(0)


def _nothing() -> None:
    return


class Rejections:
    """Counted by error. Its lock is held for one addition, and only by callers that are being refused."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._adding = threading.Lock()

    def add(self, error: BaseException) -> None:
        with self._adding:
            self._counts[type(error).__name__] += 1

    def by_error(self) -> dict[str, int]:
        return dict(self._counts)
