"""The handles of what is inside a lane, by the names that its statistics have for it: what the lane page ends."""

from __future__ import annotations

import hashlib
from typing import final
from weakref import WeakValueDictionary

import boundedgen as b


@final
class Inside:
    """A pipeline lists no handles: whoever submits keeps them here. It keeps nothing alive, so that a generation that
    its client has left ends as it does elsewhere. Of one event loop.
    """

    def __init__(self) -> None:
        self._generations: WeakValueDictionary[int, b.Generation] = WeakValueDictionary()
        self._leases: WeakValueDictionary[str, b.Lease] = WeakValueDictionary()

    def hold(self, *handles: b.Generation | b.Lease) -> None:
        for handle in handles:
            if isinstance(handle, b.Lease):
                self._leases[shown(handle.id)] = handle
            else:
                self._generations[handle.id] = handle

    def generation(self, number: int) -> b.Generation | None:
        """None: it has left, or was submitted elsewhere."""
        return self._generations.get(number)

    def lease(self, digits: str) -> b.Lease | None:
        """By what `SequenceRow.lease` shows of its id; None: it is over, or was granted elsewhere."""
        lease = self._leases.get(digits)
        return lease if lease is not None and lease.live else None


def shown(lease_id: str) -> str:
    """As docs/api.md has it: the id itself is a bearer token."""
    return hashlib.sha256(lease_id.encode()).hexdigest()[:8]
