"""Granting and finding leases."""

from __future__ import annotations

import secrets
from collections import deque
from datetime import timedelta

from boundedgen._bounds import Limits, seconds
from boundedgen._core._leases import Lease as Row
from boundedgen._door import Place
from boundedgen._driver import Driver
from boundedgen._errors import LeaseExpired, Saturated
from boundedgen._lease import Lease, LeaseCell
from boundedgen._making import check_ttl
from boundedgen.abc import Clock

BEYOND_THE_QUEUE = 65_536  #: places of a lease on top of waiting_max; more can never be inside, and each costs memory
ID_BYTES = 16  #: 128 random bits: an id cannot be guessed


class Leasing:
    """All leases of a pipeline; at most `Limits.leases_max` at once."""

    def __init__(self, driver: Driver, limits: Limits, clock: Clock) -> None:
        self._driver = driver
        self._limits = limits
        self._clock = clock
        self._left = deque(range(limits.leases_max))

    def grant(self, owner: str, ttl: float | timedelta, renew_on_read: bool, max_sequences: int | None) -> Lease:
        """A live lease. Raises TypeError or ValueError for the arguments, Saturated if there are too many."""
        ttl_s = seconds("ttl", ttl)
        if ttl_s is None:
            raise TypeError("ttl must be seconds or a timedelta, not None")
        check_ttl("ttl", ttl_s, self._limits)
        if not isinstance(owner, str) or len(owner.encode(errors="replace")) > self._limits.label_bytes:
            raise ValueError(f"owner must be a str of at most {self._limits.label_bytes} bytes (Limits.label_bytes)")
        if max_sequences is not None and (
            isinstance(max_sequences, bool) or not isinstance(max_sequences, int) or max_sequences < 1
        ):
            raise ValueError(f"max_sequences is {max_sequences!r}; give a whole number from 1, or None")
        place = Place(self._left)
        try:
            if not place.take():
                raise Saturated(f"there are {self._limits.leases_max} leases already", retry_after_s=1.0)
            return self._grant(owner, ttl_s, renew_on_read, max_sequences, place)
        except BaseException:
            place.back()
            raise

    def _grant(self, owner: str, ttl: float, renew_on_read: bool, max_sequences: int | None, place: Place) -> Lease:
        row = Row(secrets.token_hex(ID_BYTES), owner, ttl)
        row.expires = self._driver.governor.clock.at(self._clock.now()) + ttl
        cell = LeaseCell(row, renew_on_read, place)
        most = self._limits.waiting_max + BEYOND_THE_QUEUE
        places = None if max_sequences is None else deque(range(min(max_sequences, most)))
        cell.lease = Lease(cell, self._driver, self._clock, places)
        self._driver.grant(cell)
        return cell.lease

    def find(self, lease_id: str) -> Lease | None:
        """The live lease of that id; None: over, or never there."""
        cell = self._driver.cells.get(lease_id)
        lease = None if cell is None else cell.lease
        return lease if lease is not None and lease.live else None

    def must_find(self, lease_id: str, owner: str | None = None) -> Lease:
        """The same, or LeaseExpired: over, unknown and of another owner look alike, since the id is a bearer token."""
        lease = self.find(lease_id)
        if lease is None or (owner is not None and owner != lease.owner):
            raise LeaseExpired("this lease is over or never existed; ask for a new one")
        return lease
