"""Frames on a pipe: a fixed header and a body that is not looked at here."""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import final

from attrs import frozen

VERSION = 1
LONGEST = (1 << 32) - 1  #: bytes of a body that the header can tell
_MAGIC = b"bG"
_AT_ONCE = 256  #: frames in one write; the kernel takes 1024 pieces
_HEADER = struct.Struct("<2sBBII")  # magic, version, kind, incarnation, length of the body


class WireError(Exception):
    """Bytes that no side of this version sends."""


class OtherVersionError(WireError):
    """It is a frame, and not of this version."""


@frozen
class Frame:
    """A whole frame whose header is right; the body has not been looked at."""

    incarnation: int
    kind: int
    body: bytes


def pack(kind: int, incarnation: int, body: bytes) -> bytes:
    """One frame."""
    return _HEADER.pack(_MAGIC, VERSION, kind, incarnation, len(body)) + body


@final
class Decoder:
    """Cuts a stream of bytes into frames. Holds at most one frame of `limit` bytes and what the last feed brought."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now. Raises WireError at the first header that cannot be right, after those."""
        self._bytes += data
        at = 0
        try:
            while (frame := self._next(at)) is not None:
                at += _HEADER.size + len(frame.body)
                yield frame
        finally:
            del self._bytes[:at]

    def _next(self, at: int) -> Frame | None:
        if len(self._bytes) - at < _HEADER.size:
            return None
        magic, version, kind, incarnation, length = _HEADER.unpack_from(self._bytes, at)
        if magic != _MAGIC:
            raise WireError(f"not a frame: {bytes(self._bytes[at : at + 4])!r}")
        if version != VERSION:
            raise OtherVersionError(
                f"boundedgen was upgraded from version {VERSION} of the wire to version {version} under this server; "
                f"restart the server"
            )
        if length > self._limit:
            raise WireError(f"a frame of {length} bytes; the limit is {self._limit}")
        start = at + _HEADER.size
        if len(self._bytes) < start + length:
            return None
        return Frame(incarnation, kind, bytes(self._bytes[start : start + length]))


@final
class Outbox:
    """Frames waiting for a non-blocking pipe. There is room for more until they are `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self.written = 0  #: bytes that the pipe has taken so far
        self._waiting: deque[memoryview] = deque()

    def __len__(self) -> int:
        """Frames of which something is left."""
        return len(self._waiting)

    @property
    def room(self) -> bool:
        return self._size < self._limit

    def put(self, data: bytes) -> None:
        """Queue a frame."""
        self._waiting.append(memoryview(data))
        self._size += len(data)

    def flush(self, fd: int) -> bool:
        """Write what the pipe takes now; True: all. Raises BrokenPipeError when nobody will ever read it.

        Many frames at once: the first one wakes the reader, which is to find the others there.
        """
        while self._waiting:
            try:
                written = os.writev(fd, list(islice(self._waiting, _AT_ONCE)))
            except BlockingIOError:
                return False
            self._size -= written
            self.written += written
            self._drop(written)
        return True

    def _drop(self, written: int) -> None:
        while written:
            first = self._waiting[0]
            if written < len(first):
                self._waiting[0] = first[written:]
                return
            self._waiting.popleft()
            written -= len(first)
