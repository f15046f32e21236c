"""An owner's lease as users hold it, and how a renewal and the expiry agree on who was first without a lock."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING, Any, final

from boundedgen._door import Place
from boundedgen._errors import LeaseExpired

if TYPE_CHECKING:
    from boundedgen._core._deadlines import ReadyClock
    from boundedgen._core._leases import Lease as Row
    from boundedgen._driver import Driver
    from boundedgen.abc import Clock


def hashed(lease: str | None) -> str | None:
    """What may be shown of a lease's id: eight digits, from which the id cannot be found."""
    return None if lease is None else hashlib.sha256(lease.encode()).hexdigest()[:8]


class LeaseCell:
    """What the driver and any number of renewers share of one lease.

    A renewal is posted first and claimed second; the driver closes the claim before it ends the lease. If a renewal
    was first, the driver opens a new claim and looks into its queue again, where that renewal is.
    """

    def __init__(self, row: Row, renew_on_read: bool, place: Place) -> None:
        self.row = row
        self.renew_on_read = renew_on_read
        self.lease: Lease | None = None
        self.renewed_until = 0.0  #: reading of the ready clock; told to its owner, be the driver yet to hear of it
        self._place = place
        self._claim: dict[str, str] = {}

    def claim(self) -> bool:
        """A renewer's word. False: the lease is over."""
        return self._claim.setdefault("end", "renewed") == "renewed"

    def close(self) -> bool:
        """The driver's word: True: it may end the lease, and no renewal will be told otherwise."""
        if self._claim.setdefault("end", "over") == "over":
            return True
        self._claim = {}
        return False

    def end(self) -> None:
        """It is over, for whatever reason; its place among the leases is free, once."""
        self.row.ended = True
        self._claim["end"] = "over"
        self._place.back()


@final
class Lease:
    """An owner's promise to be there: whoever submits under it is ended once it is not renewed for `ttl_s` seconds.

    `id` is 128 random bits: whoever knows it may renew, revoke and submit under it. Only `renew` renews it (reading
    too, with `renew_on_read`). It stands still while the engine is started or replaced. Once over, it never comes
    back. Leaving a `with` block revokes it. Every method returns at once, from any thread.
    """

    def __init__(self, cell: LeaseCell, driver: Driver, clock: Clock, places: deque[int] | None) -> None:
        self._cell = cell
        self._driver = driver
        self._clock = clock
        self._places = places

    @property
    def id(self) -> str:
        """A bearer token of 128 random bits, in hex."""
        return self._cell.row.id

    @property
    def owner(self) -> str:
        """Whom it was granted to; the owner of all that is submitted under it."""
        return self._cell.row.owner

    @property
    def ttl_s(self) -> float:
        """Seconds for which a renewal holds."""
        return self._cell.row.ttl

    @property
    def remaining_s(self) -> float:
        """Seconds until it expires unless renewed; 0 when it is over."""
        return self._left(self._clock.now())

    def _left(self, now: float) -> float:
        row = self._cell.row
        ready_clock: ReadyClock = self._driver.governor.clock
        return 0.0 if row.ended else max(0.0, max(row.expires, self._cell.renewed_until) - ready_clock.at(now))

    @property
    def live(self) -> bool:
        """It can be renewed and submitted under. Once False, it stays so."""
        return self.remaining_s > 0

    def renew(self) -> None:
        """Valid for `ttl_s` from now. Raises LeaseExpired if it is over."""
        self._driver.check_process()
        now = self._clock.now()
        if self._left(now) > 0:  # at the very instant that the renewal counts from
            self._driver.post("renew", self.id, now)
            if self._cell.claim():
                self._cell.renewed_until = self._driver.governor.clock.at(now) + self.ttl_s
                return
        self._driver.refused.add()
        raise LeaseExpired("this lease is over or never existed; ask for a new one and submit again")

    def revoke(self) -> None:
        """End it now, and everything submitted under it. Again: nothing happens."""
        if not self._cell.row.ended:
            self._driver.post("revoke", self.id)  # first: what comes between must not leave it half over
            self._cell.end()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.revoke()

    def __repr__(self) -> str:
        return f"<Lease of {self.owner!r}, {self.remaining_s:.1f} s left of {self.ttl_s:g}>"
