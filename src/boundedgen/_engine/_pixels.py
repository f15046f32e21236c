"""Images on their way to the engine: pieces of their bytes, in frames of their own before the one of their request.

So no frame is large, and steps, stops and other requests go on between the pieces. The engine's end puts them together.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import final

from attrs import evolve, frozen

from boundedgen._engine._frames import WireError
from boundedgen.abc import Image, Request

PIXELS = 4  #: their kind of frame
PIECE = 1 << 18  #: bytes of one
_STAY = struct.Struct("<Q")
CHANNELS = 3


@frozen
class Pixels:
    """The next bytes of the images of a request that is to come."""

    stay: int
    data: bytes | memoryview

    def body(self) -> bytes:
        return b"".join((_STAY.pack(self.stay), self.data))

    @classmethod
    def of(cls, body: bytes) -> Pixels:
        (stay,) = _STAY.unpack_from(body)
        return cls(stay, body[_STAY.size :])


def size_of(image: Image) -> int:
    """Bytes that it takes."""
    return CHANNELS * image.height * image.width


@final
class Intake:
    """The engine's end."""

    def __init__(self) -> None:
        self._pieces: dict[int, bytearray] = {}

    def take(self, word: Pixels) -> None:
        self._pieces.setdefault(word.stay, bytearray()).extend(word.data)

    def whole(self, request: Request) -> Request:
        """With its images. One that says of none any more was called off. Raises WireError where bytes are missing."""
        pieces = self._pieces.pop(request.stay, b"")
        if not request.images:
            return request
        if len(pieces) != sum(map(size_of, request.images)):
            raise WireError(f"{len(pieces)} bytes of images before the request of stay {request.stay}")
        view, at, images = memoryview(pieces), 0, []
        for image in request.images:
            images.append(evolve(image, data=view[at : at + size_of(image)]))
            at += size_of(image)
        return evolve(request, images=tuple(images))


@final
class Bulk:
    """The parent's end: requests with images, one after the other. The next one begins when the engine has answered
    the one before, so that it holds the pixels of one request at most."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._pieces: Iterator[Pixels] | None = None  # of the first of them, once it has begun
        self._awaited: int | None = None

    def __contains__(self, stay: int) -> bool:
        return any(request.stay == stay for request in self._requests)

    def put(self, request: Request) -> None:
        self._requests.append(request)

    def next(self) -> Pixels | Request | None:
        """What may be sent now."""
        if not self._requests or self._awaited is not None:
            return None
        if self._pieces is None:
            self._pieces = pieces_of(self._requests[0])
        if (piece := next(self._pieces, None)) is not None:
            return piece
        self._pieces = None
        request = self._requests.popleft()
        self._awaited = request.stay
        return request

    def heard(self, stay: int) -> None:
        """The engine has answered it."""
        if stay == self._awaited:
            self._awaited = None

    def call_off(self, stay: int) -> Request:
        """What is sent in its place: it is over before it comes, and its pixels are forgotten."""
        request = next(request for request in self._requests if request.stay == stay)
        if request is self._requests[0]:
            self._pieces = None
        self._requests.remove(request)
        return evolve(request, images=(), deadline=0.0)

    def waiting(self) -> list[int]:
        """Stays of those of which nothing is sent yet: nothing can be held against the engine for them."""
        return [request.stay for request in self._requests][self._pieces is not None :]

    def begun(self) -> list[int]:
        """The stay of the one that is being sent."""
        return [] if self._pieces is None else [self._requests[0].stay]


def pieces_of(request: Request) -> Iterator[Pixels]:
    for image in request.images:
        view = memoryview(image.data)
        for at in range(0, len(view), PIECE):
            yield Pixels(request.stay, view[at : at + PIECE])
