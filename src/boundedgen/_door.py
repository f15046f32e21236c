"""Places to wait in, and shares of owners and leases: taken by callers, given back by the driver, without a lock.

A place is an item of a deque: moving one out either succeeds or finds none, whatever other threads do.
"""

import contextlib
import itertools
import sys
import threading
from collections import Counter, deque
from itertools import islice
from operator import length_hint
from typing import final

from boundedgen._bounds import Limits


@final
class Place:
    """Room for one place of `home`. It goes back with `back()`, or with its last reference: whatever exception comes
    at whatever instant (a signal's, say), none is lost. Both moves are single calls that no signal can come between.
    """

    __slots__ = ("_count", "_home", "_taken")

    def __init__(self, home: "deque[int]", count: int = 1) -> None:
        self._home = home
        self._count = count  # of places that it stands for
        self._taken: deque[int] = deque()

    def take(self) -> bool:
        """False: there is none left."""
        try:
            self._taken.extend(islice(iter(self._home.pop, None), self._count))
        except IndexError:
            self.back()  # some, of several
            return False
        return True

    def take_from(self, other: "Place") -> bool:
        """What the other one has of the same home. False: nothing (any more)."""
        if other._home is not self._home:
            return False
        try:
            self._taken.extend(islice(iter(other._taken.pop, None), 1))
        except IndexError:
            return False
        return True

    def take_place_of(self, other: "Place") -> bool:
        """What the other one has, whatever home that is of. False: nothing (any more)."""
        home, self._home = self._home, other._home  # before it is taken: what is taken goes back where it came from
        if self.take_from(other):
            return True
        self._home = home
        return False

    @property
    def taken(self) -> bool:
        return bool(self._taken)

    def back(self) -> None:
        """Give it back; again: nothing happens."""
        with contextlib.suppress(IndexError, AttributeError):  # not taken, or not even made
            self._home.extend(islice(iter(self._taken.pop, None), len(self._taken)))

    __del__ = back


PICTURE = 1 << 16  #: bytes of images that one place is for
SPARE = 64  #: places beyond waiting_max, for those that supersede what is inside


class Door:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._places = deque(range(limits.waiting_max))
        self._spare = deque(range(SPARE))
        self._owners: dict[str, deque[int]] = {}
        self._pictures = deque(range(-(-limits.image_bytes // PICTURE)))

    def pictures(self, size: int) -> Place:
        """Room for images of `size` bytes, to be taken."""
        return Place(self._pictures, -(-size // PICTURE))

    def queue(self) -> Place:
        """A place in the queue, to be taken."""
        return Place(self._places)

    def spare(self, place: Place) -> bool:
        """For one that supersedes what is inside, which makes way for somebody who waits. False: there is none left."""
        spare = Place(self._spare)
        return spare.take() and place.take_place_of(spare)

    def share(self, owner: str) -> Place | None:
        """One of the owner's shares, to be taken; None: they are not limited. Nobody in particular is no owner."""
        most = self._limits.owner_max
        if most is None or not owner:
            return None
        self._forget_idle_owners(most)
        return Place(self._owners.setdefault(owner, deque(range(most))))

    def _forget_idle_owners(self, most: int) -> None:
        if len(self._owners) > self._limits.owners_tracked:
            for owner, shares in list(self._owners.items()):
                if len(shares) == most:
                    self._owners.pop(owner, None)


@final
class Count:
    """A number to which any thread adds one, without a lock; none is lost, whatever comes between: it is one call."""

    def __init__(self) -> None:
        self._left = itertools.repeat(None, sys.maxsize)

    def add(self) -> None:
        next(self._left)

    @property
    def total(self) -> int:
        return sys.maxsize - length_hint(self._left)


class Rejections:
    """Counted by error. Its lock is held for one addition, and only by callers that are being refused."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._adding = threading.RLock()

    def add(self, error: BaseException) -> None:
        with self._adding:
            self._counts[type(error).__name__] += 1

    def by_error(self) -> dict[str, int]:
        return dict(self._counts)
