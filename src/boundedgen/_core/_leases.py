"""Leases: granted, renewed, and once over, over. On the ready clock, so that an outage costs no owner his lease."""

from attrs import define, field

from boundedgen._core._deadlines import Agenda


@define(eq=False)
class Lease:
    id: str
    owner: str
    ttl: float
    expires: float = 0.0  #: reading of the ready clock
    sequences: set[int] = field(factory=set)
    graced: bool = False  #: had its grace, and was not renewed since
    ended: bool = False  #: for whoever holds it outside of the core


class Leases:
    """All leases that are live. One that is not in here never comes back."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._live: dict[str, Lease] = {}
        self._agenda: Agenda[str] = Agenda()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, lease: str) -> bool:
        return lease in self._live

    def get(self, lease: str) -> Lease | None:
        return self._live.get(lease)

    def grant(self, row: Lease, reading: float) -> None:
        assert row.id not in self._live, "lease ids are never reused"
        row.expires = row.expires or reading + row.ttl  # counts from the grant, not from a driver that hears of it late
        self._live[row.id] = row
        self._agenda.set(row.id, row.expires)

    def renew(self, lease: str, reading: float) -> bool:
        """Valid until `reading` + ttl. False: it is over, and nothing changes."""
        return self.seen(lease, reading, reading)

    def seen(self, lease: str, since: float, until: float) -> bool:
        """Its owner was there from `since` to `until`: whoever is there when it would expire keeps it."""
        row = self._live.get(lease)
        if row is None or row.expires <= since:
            return False
        row.graced = False
        row.expires = max(row.expires, until + row.ttl)
        self._agenda.set(lease, row.expires)
        return True

    def end(self, lease: str) -> Lease | None:
        row = self._live.pop(lease, None)
        if row is not None:
            self._agenda.set(lease, None)
            self._clear_if_empty()
        return row

    def _clear_if_empty(self) -> None:
        if not self._live:
            self._live.clear()  # which gives its memory back

    def end_all(self) -> list[Lease]:
        rows = list(self._live.values())
        for row in rows:
            self.end(row.id)
        return rows

    def earliest(self) -> float | None:
        return self._agenda.earliest()

    def overdue(self, reading: float) -> list[str]:
        """Those whose time has come, earliest first, without ending them."""
        found = [*self._agenda.due(reading)]
        for lease in found:
            self._agenda.set(lease, self._live[lease].expires)
        return found

    def expired(self, reading: float) -> list[Lease]:
        """End those whose time has come, earliest first."""
        due = self._agenda.due(reading)
        if not due:
            return []
        found = [self._live.pop(lease) for lease in due]
        self._clear_if_empty()
        return found

    def grace(self, reading: float) -> None:
        """The engine is back: what was left plus a grace, at most the ttl; once, until it is renewed."""
        for row in self._live.values():
            if not row.graced:
                row.graced = True
                row.expires = max(row.expires, min(row.expires + self._grace, reading + row.ttl))
                self._agenda.set(row.id, row.expires)
