"""Granting and finding leases."""

from __future__ import annotations

import secrets
from collections import deque
from datetime import timedelta

from boundedgen._arguments import kind_of, plain_str, reading, short, whole_number
from boundedgen._bounds import Limits, seconds
from boundedgen._core._leases import Lease as Row
from boundedgen._door import Place
from boundedgen._driver import Driver
from boundedgen._errors import LeaseExpired, Saturated
from boundedgen._lease import Lease, LeaseCell
from boundedgen._prospects import UNKNOWN_S, spread
from boundedgen._runtime import Runtime
from boundedgen._settings import check_ttl

BEYOND_THE_QUEUE = 65_536  #: places of a lease on top of waiting_max; more can never be inside, and each costs memory
ID_BYTES = 16  #: 128 random bits: an id cannot be guessed


class Leasing:
    """All leases of a pipeline; at most `Limits.leases_max` at once."""

    def __init__(self, driver: Driver, limits: Limits, runtime: Runtime) -> None:
        self._driver = driver
        self._limits = limits
        self._runtime = runtime
        self._left = deque(range(limits.leases_max))

    def grant(self, owner: str, ttl: float | timedelta, renew_on_read: bool, max_sequences: int | None) -> Lease:
        """A live lease. Raises TypeError or ValueError for the arguments, Saturated if there are too many."""
        ttl_s = seconds("ttl", ttl)
        if ttl_s is None:
            raise TypeError("ttl must be seconds or a timedelta, not None")
        check_ttl("ttl", ttl_s, self._limits)
        owner, most = _owner(owner, self._limits.label_bytes), _at_most(max_sequences)
        if not isinstance(renew_on_read, bool):
            raise TypeError(f"renew_on_read must be True or False, not {short(renew_on_read)}")
        place = Place(self._left)
        lease = self._lease(owner, ttl_s, renew_on_read, most, place)
        try:
            if not place.take():
                after = spread(UNKNOWN_S, self._runtime.chance)
                text = f"there are {self._limits.leases_max} leases already (Limits.leases_max)"
                raise Saturated(f"{text}; try again in {after:.1f} s", retry_after_s=after)
            self._driver.grant(lease._cell)
            return lease
        except BaseException:
            lease.revoke()  # the driver may know of it already, and nobody else ever will
            raise

    def _lease(self, owner: str, ttl: float, renew_on_read: bool, max_sequences: int | None, place: Place) -> Lease:
        """One that nobody knows of yet."""
        row = Row(secrets.token_hex(ID_BYTES), owner, ttl)
        row.expires = self._driver.governor.clock.at(self._runtime.now()) + ttl
        cell = LeaseCell(row, renew_on_read, place)
        most = self._limits.waiting_max + BEYOND_THE_QUEUE
        places = None if max_sequences is None else deque(range(min(max_sequences, most)))
        cell.lease = Lease(cell, self._driver, self._runtime, places)
        return cell.lease

    def find(self, lease_id: str) -> Lease | None:
        """The live lease of that id; None: over, or never there. TypeError if it is no str."""
        if not isinstance(lease_id, str):
            raise TypeError(f"lease_id must be a str, the id of a lease, not {kind_of(lease_id)}")
        return live_lease(self._driver, lease_id)

    def renew(self, lease_id: str, owner: str | None) -> Lease:
        """Or LeaseExpired: over, unknown and of another owner look alike, since the id is a bearer token."""
        if owner is not None and not isinstance(owner, str):
            raise TypeError(f"owner must be a str or None, not {kind_of(owner)}")
        lease = self.find(lease_id)
        if lease is None or (owner is not None and plain_str(owner) != lease.owner):
            self._driver.refused.add()
            raise LeaseExpired("this lease is over or never existed; ask for a new one")
        lease.renew()
        return lease


def live_lease(driver: Driver, lease_id: str) -> Lease | None:
    """The pipeline's own live lease of that id."""
    plain = plain_str(lease_id)
    cell = driver.cells.get(plain) if len(plain) == 2 * ID_BYTES else None
    lease = None if cell is None else cell.lease
    return lease if lease is not None and lease.live else None


def _owner(value: object, most: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"owner must be a str, not {kind_of(value)}")
    plain = plain_str(value)
    with reading("owner", ValueError):
        size = len(plain) if len(plain) > most else len(plain.encode())
    if size > most:
        raise ValueError(f"owner has {len(plain)} characters; at most {most} bytes (Limits.label_bytes)")
    return plain


def _at_most(max_sequences: object) -> int | None:
    if max_sequences is None:
        return None
    with reading("max_sequences", TypeError):
        plain = whole_number(max_sequences)
    if plain is None:
        raise TypeError(f"max_sequences must be a whole number or None, not {short(max_sequences)}")
    if plain < 1:
        raise ValueError(f"max_sequences is {short(plain)}; give a whole number from 1, or None")
    return plain
