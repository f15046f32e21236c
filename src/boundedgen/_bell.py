"""A descriptor that any thread may ring and that one thread waits on."""

import contextlib
import itertools
import os
import time

from boundedgen._descriptors import above_stdio

PATIENCE = 1.0  #: seconds that closing waits for a thread that is about to ring

_keys = itertools.count()


class Bell:
    """Ringing never waits. It may be rung while it is being closed: the descriptor's number is given back only when
    nobody is about to write to it, since it could be another file's by then.
    """

    def __init__(self) -> None:
        self.fd = above_stdio(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._closed = False
        self._ringing: dict[int, None] = {}

    def ring(self) -> bool:
        """Wake whoever waits, now or next. False: it is closed."""
        key = next(_keys)
        self._ringing[key] = None
        try:
            if not self._closed:
                os.eventfd_write(self.fd, 1)
            return not self._closed
        finally:
            del self._ringing[key]

    def heed(self) -> None:
        """Take all rings so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """By the thread that waits on it, once. A ringer that stands still keeps the descriptor open for ever."""
        self._closed = True
        until = time.monotonic() + PATIENCE
        while self._ringing and time.monotonic() < until:
            time.sleep(0.001)
        if not self._ringing:
            os.close(self.fd)
