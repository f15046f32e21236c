"""What the driver sleeps on: the bell that any thread may ring, and the descriptors of the engine."""

import contextlib
import select
import time

from boundedgen._bell import Bell
from boundedgen.abc import EngineLink

PATIENCE = 3600.0  #: seconds; the kernel takes no infinite wait
_MS = 0.001  #: seconds; in whole ones of these, rounded up, `epoll` waits


class Waiting:
    """For one thread; only `ring` is for all. One poller serves every incarnation of the engine."""

    def __init__(self) -> None:
        self._bell = Bell()
        self._poller = select.epoll()
        self._poller.register(self._bell.fd, select.EPOLLIN)
        self._polled: tuple[int, ...] = ()
        self.ring = self._bell.ring

    def sleep(self, link: EngineLink | None, seconds: float | None) -> bool:
        """Until rung, until `link` has something to read or can be written to, or for `seconds`.

        True: it is known that the engine said nothing. Asking it could then wait for busy threads, for nothing.
        """
        self._poll_for(() if link is None else tuple(link.filenos()))
        writes = None if link is None else link.fileno_to_write()
        if writes is not None:
            self._poller.register(writes, select.EPOLLOUT)
        try:
            events = self._wait(seconds)
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

    def _wait(self, seconds: float | None) -> list[tuple[int, int]]:
        """Whole milliseconds first, then what is left of one, so that deadlines are not answered a millisecond late."""
        if seconds is None:
            return self._poller.poll()
        until = time.monotonic() + seconds
        whole = min(PATIENCE, seconds) // _MS * _MS
        if events := self._poller.poll(max(0.0, whole - _MS / 2)):
            return events
        left = until - time.monotonic()
        if not 0 < left < _MS:
            return []
        try:
            select.select((self._poller,), (), (), left)
        except ValueError:  # its number is too high for `select`
            return self._poller.poll(left)
        return self._poller.poll(0)

    def forget(self) -> None:
        """The engine's descriptors: before they are closed, and their numbers used again."""
        self._poll_for(())

    def close(self) -> None:
        self._poller.close()
        self._bell.close()

    def _poll_for(self, wanted: tuple[int, ...]) -> None:
        if wanted == self._polled:
            return
        for fd in set(self._polled) - set(wanted):
            with contextlib.suppress(OSError):  # closed meanwhile: the kernel has forgotten it already
                self._poller.unregister(fd)
        for fd in set(wanted) - set(self._polled):
            self._poller.register(fd, select.EPOLLIN)
        self._polled = wanted
