"""Messages between the clients and a lane: JSON arrays, one a line, on a Unix socket."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from typing import Any


class Lines:
    """The lane's end, for a loop that steps: it looks without waiting, and sends what it has at once."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(address)
        self._partial = b""
        self._out: list[bytes] = []
        self.open = True

    def say(self, *message: Any) -> None:
        self._out.append(json.dumps(message).encode() + b"\n")

    def flush(self) -> None:
        if self._out:
            self._socket.sendall(b"".join(self._out))
            self._out.clear()

    def heard(self, wait_s: float) -> Iterator[Any]:
        """What has come, after at most `wait_s` seconds."""
        while select.select([self._socket], [], [], wait_s)[0]:
            data = self._socket.recv(1 << 20)
            if not data:
                self.open = False
                return
            *whole, self._partial = (self._partial + data).split(b"\n")
            yield from map(json.loads, whole)
            wait_s = 0.0
