"""What the driver sleeps on: the bell that any thread may ring, and the descriptors of the engine."""

import contextlib
import select

from boundedgen._bell import Bell
from boundedgen.abc import EngineLink

PATIENCE = 3600.0  #: seconds; the kernel takes no infinite wait


class Waiting:
    """For one thread; only `ring` is for all. One poller serves every incarnation of the engine."""

    def __init__(self) -> None:
        self._bell = Bell()
        self._poller = select.epoll()
        self._poller.register(self._bell.fd, select.EPOLLIN)
        self._polled: frozenset[int] = frozenset()
        self.ring = self._bell.ring

    def sleep(self, link: EngineLink | None, seconds: float | None) -> bool:
        """Until rung, until `link` has something to read or can be written to, or for `seconds`.

        True: it is known that the engine said nothing. Asking it could then wait for busy threads, for nothing.
        """
        self._poll_for(frozenset(() if link is None else link.filenos()))
        writes = None if link is None else link.fileno_to_write()
        if writes is not None:
            self._poller.register(writes, select.EPOLLOUT)
        try:
            events = self._poller.poll(None if seconds is None else min(PATIENCE, max(0.0, seconds)))
        finally:
            if writes is not None:
                self._poller.unregister(writes)
        rung = spoken = False
        for fd, _ in events:
            rung = rung or fd == self._bell.fd
            spoken = spoken or fd in self._polled
        if rung:
            self._bell.heed()
        return bool(self._polled) and not spoken

    def forget(self) -> None:
        """The engine's descriptors: before they are closed, and their numbers used again."""
        self._poll_for(frozenset())

    def close(self) -> None:
        self._poller.close()
        self._bell.close()

    def _poll_for(self, wanted: frozenset[int]) -> None:
        if wanted == self._polled:
            return
        for fd in self._polled - wanted:
            with contextlib.suppress(OSError):  # closed meanwhile: the kernel has forgotten it already
                self._poller.unregister(fd)
        for fd in wanted - self._polled:
            self._poller.register(fd, select.EPOLLIN)
        self._polled = wanted
