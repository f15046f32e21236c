"""The step stamps: one anonymous memory page that the engine writes and the parent reads, also while a step hangs.

Two slots, used in turn, and the number of the newest. A reader takes the newest slot and looks at the number again:
unchanged, what it read is whole. A writer that is stopped or killed in the middle leaves the newest slot untouched.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import final

from boundedgen._core._events import Pulse
from boundedgen._descriptors import above_stdio

_PAGE = 4096
_SLOT = struct.Struct("@QQdddQQQQddQ")
_SLOT_AT = (128, 256)
_TRIES = 64
_MOST = (1 << 64) - 1


def create() -> int:
    """A descriptor of a fresh page of zeros. It has no name and is gone with its last descriptor and mapping."""
    fd = above_stdio(os.memfd_create("boundedgen-stamps", os.MFD_CLOEXEC))
    os.ftruncate(fd, _PAGE)
    return fd


@final
class StampWriter:
    """The engine's side."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, _PAGE)
        self._number = memoryview(self._page).cast("Q")
        self._begun = self._ended = 0
        self._begun_at = self._ended_at = self._inside = 0.0
        self._encodes = [0, 0, 0.0, 0.0, 0]

    def begin(self, now: float, scheduled: int, attention: int) -> None:
        """A step begins, with at most `scheduled` tokens; `attention`: sum of scheduled tokens times context."""
        self._begun += 1
        self._begun_at = now
        self._publish(scheduled, attention)

    def end(self, now: float) -> None:
        """The step has returned, or raised."""
        self._ended += 1
        self._ended_at = now
        self._inside += now - self._begun_at
        self._publish(0, 0)

    def encode(self, now: float, pixels: int) -> None:
        """A request with images of so many pixels is handed to the engine, which encodes them before it returns."""
        self._encodes[0] += 1
        self._encodes[2], self._encodes[4] = now, min(pixels, _MOST)
        self._publish(0, 0)

    def encoded(self, now: float) -> None:
        """It has returned, or raised."""
        self._encodes[1] += 1
        self._encodes[3] = now
        self._inside += now - self._encodes[2]
        self._publish(0, 0)

    def _publish(self, scheduled: int, attention: int) -> None:
        number = self._number[0] + 1
        _SLOT.pack_into(
            self._page,
            _SLOT_AT[number & 1],
            *(self._begun, self._ended, self._begun_at, self._ended_at, self._inside),
            *(min(scheduled, _MOST), min(attention, _MOST)),
            *self._encodes,
        )
        self._number[0] = number


@final
class StampReader:
    """The parent's side. `read` may be called from any thread, also after `close`."""

    def __init__(self, fd: int) -> None:
        self._last = (0, Pulse())  # its number, and what was read
        self._view: memoryview | None = memoryview(mmap.mmap(fd, _PAGE, prot=mmap.PROT_READ)).cast("Q")

    def read(self) -> Pulse:
        """The newest whole stamps; after `close`, those of that moment."""
        view, (known, last) = self._view, self._last
        if view is None or view[0] == known:
            return last
        for _ in range(_TRIES):
            number = view[0]
            fields = _SLOT.unpack_from(view, _SLOT_AT[number & 1])
            if view[0] == number:
                last = Pulse(*fields)
                self._last = number, last
                break
        return last

    def close(self) -> None:
        """Give the page back, as soon as no thread reads it any more."""
        self.read()
        self._view = None
