"""Threads of the server that wait for the simulation while an event loop lets its time pass."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, final

from boundedgen.testing._stalled import SimulationStalled

if TYPE_CHECKING:
    from boundedgen.testing._loop import VirtualLoop

__all__ = ["Parking", "Spot"]


@final
class Parking:
    """While `loop` runs only it moves the world; threads that wait are parked until something wakes them."""

    def __init__(self) -> None:
        self.loop: VirtualLoop | None = None
        self.taken: dict[Spot, None] = {}  #: by threads that cannot go on before something happens
        self.failure: SimulationStalled | None = None
        self.keys = itertools.count(-1, -1)  #: that no other waiter has

    def applies(self) -> bool:
        """This thread is not the one that moves the world."""
        return self.loop is not None and self.loop.thread != threading.get_ident()

    def leave(self) -> None:
        """The loop has ended: whoever waits looks for another way."""
        self.loop = None
        for spot in list(self.taken):
            spot.wake()

    def fail(self, failure: SimulationStalled) -> None:
        """Nothing will ever wake them: all raise `failure`."""
        self.failure = failure
        for spot in list(self.taken):
            spot.wake()


@final
class Spot:
    """One thread's."""

    def __init__(self, parking: Parking) -> None:
        self._parking = parking
        self._woken = threading.Event()

    def take(self) -> None:
        """It is about to wait, and the loop need not wait for it."""
        self._parking.taken[self] = None
        if self._parking.loop is not None:
            self._parking.loop.look_again()

    def wake(self) -> None:
        """By whoever moves the world, who from now on waits for it."""
        self._parking.taken.pop(self, None)
        self._woken.set()

    def wait(self) -> None:
        self._woken.wait()
        if self._parking.failure is not None:
            raise self._parking.failure
