"""How much memory this process has, told now and then."""

from __future__ import annotations

import os
from typing import final

_PAGE = os.sysconf("SC_PAGESIZE")
EVERY = 1.0  #: seconds between two looks: one costs microseconds, but there can be hundreds of steps a second


@final
class Size:
    """Resident memory by the kernel's own count. One that cannot be read is not told."""

    def __init__(self) -> None:
        self._next = float("-inf")
        try:
            self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._next = float("inf")

    def due(self, now: float) -> int | None:
        """Bytes; None: they were told within the last EVERY seconds, or are not known."""
        if now < self._next:
            return None
        self._next = now + EVERY
        try:
            return int(os.pread(self._file, 128, 0).split()[1]) * _PAGE
        except (OSError, ValueError, IndexError):
            return None
